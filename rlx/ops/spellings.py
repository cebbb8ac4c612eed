"""Other names of keywords: what NumPy, JAX and SciPy call the parameters of public functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]

# For a name in those libraries, rlx's names; the one that the function has as a parameter is meant.
_NAMES: dict[str, tuple[str, ...]] = {
    "a": ("x", "z", "values", "cond"), "arr": ("x",), "array": ("x",), "ary": ("x",), "m": ("x",), "val": ("x",),
    "operand": ("x",), "prototype": ("x",), "object": ("values",), "arrays": ("xs",), "condition": ("cond",),
    "x1": ("a", "y", "x"), "x2": ("b", "sign", "value", "n", "x"), "A": ("x", "a"), "M": ("a",),
    "x": ("a", "z"), "y": ("b",), "reps": ("repeats",), "axes": ("perm",), "fill_value": ("value",),
    "indices_or_sections": ("parts",), "pad_width": ("pads",), "constant_values": ("value",), "num": ("count",),
    "ddof": ("correction",), "a_min": ("min",), "a_max": ("max",), "minval": ("low",), "maxval": ("high",),
    "negative_slope": ("alpha",), "true_fun": ("then_fn",), "false_fun": ("else_fn",), "cond_fun": ("cond_fn",),
    "body_fun": ("body_fn",), "init_val": ("init",), "start_indices": ("starts",), "slice_sizes": ("sizes",),
    "int_type": ("dtype",),
}  # fmt: skip
_OF: dict[str, dict[str, str]] = {
    "eye": {"N": "rows", "M": "columns", "k": "offset"},
    "one_hot": {"x": "indices", "num_classes": "depth"},
    "split": {"num": "n", "indices_or_sections": "parts", "ary": "x"},
    "get_window": {"Nx": "n"}, "istft": {"Zxx": "z"},
}  # fmt: skip
# Keywords that change how a result is computed, not the result: they are ignored.
_FREE: dict[str, tuple[str, ...]] = {
    "einsum": ("optimize",), "isin": ("assume_unique", "kind"), "setdiff1d": ("assume_unique",),
    "scan": ("unroll",), "fori_loop": ("unroll",), "map": ("batch_size",),
    **dict.fromkeys(("take", "repeat"), ("unique_indices", "indices_are_sorted")),
    **dict.fromkeys(("sort", "argsort"), ("kind", "stable")), **dict.fromkeys(("partition", "argpartition"), ("kind",)),
    **dict.fromkeys(("median", "nanmedian", "quantile", "nanquantile", "percentile", "nanpercentile"),
                    ("overwrite_input",)),
}  # fmt: skip


@functools.cache
def parameters(function: Function) -> frozenset[str]:
    """The names of a function's parameters."""
    return frozenset(inspect.signature(function).parameters)


def respelled(name: str, function: Function, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keyword arguments under the function's own names; names that it has no parameter for stay as they are.

    Raises: TypeError for a parameter that is given by two names."""
    known = parameters(function)
    if kwargs.keys() <= known:
        return kwargs
    own, free = _OF.get(name, {}), _FREE.get(name, ())
    result: dict[str, Any] = {}
    for theirs, value in kwargs.items():
        if theirs not in known and theirs in free:
            continue
        candidates = (own[theirs],) if theirs in own else _NAMES.get(theirs, ())
        ours = theirs if theirs in known else next((n for n in candidates if n in known), theirs)
        if ours != theirs and (ours in kwargs or ours in result):
            raise TypeError(f"{name}() got {theirs!r} and {ours!r}, which are one argument; give one of them")
        result[ours] = value
    return result
