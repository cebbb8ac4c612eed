"""What the transformations share: leaves of arguments as tensors of the graph being traced, and trees matched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Graph, Tensor, apply
from rlx.ir.graph import TRACING, as_tensors, traced_into
from rlx.ops.control.functions import _text
from rlx.ops.pytree import flatten, is_number


def home(what: str, leaves: Sequence[Any]) -> Graph:
    """The graph to add nodes to: the first tensor's, else the one being traced. Raises: GraphError for neither."""
    graph = next((x.graph for x in leaves if isinstance(x, Tensor)), TRACING.body or TRACING.graph)
    if graph is None:
        raise GraphError(f"{what}: no argument holds an array; give at least one")
    return traced_into(graph)


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def check_function(what: str, function: Any) -> None:
    if not callable(function):
        raise GraphError(
            f"{what}: expected a function, got {function!r}; write {what}(f, ...) with a function f"
        )


def taken(value: Any) -> tuple[Any, list[Any]]:
    """A pytree's structure and its leaves: arrays, tensors and numbers."""
    leaves: list[Any] = []
    return flatten(value, leaves, leaf=is_number), leaves


def as_leaves(graph: Graph, leaves: Sequence[Any]) -> list[Tensor]:
    """Each leaf as a tensor of the graph: arrays, NumPy scalars and bools keep their dtypes; floats become f32."""
    arrays = [np.asarray(x) if isinstance(x, np.generic | bool) else x for x in leaves]
    return [graph.reach(as_tensors(graph, (x,))[0], "a transformation") for x in arrays]


def check_floats(what: str, name: str, argument: Any, t: Tensor) -> None:
    """Checks that a tensor of an argument has a derivative. Raises: DTypeError for integers and bools."""
    if not t.dtype.is_float:
        kind = "bool" if t.dtype.kind == "b" else "integer"
        raise DTypeError(
            f"{what}: argument {argument} of {name} is {kind} ({t.type}), which has no derivative; give floats, or "
            f"close over it: {what}(lambda x: {name}(x, n), ...)"
        )


def sources(what: str, name: str, argument: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """New tensors with the values of an argument's leaves: a derivative with respect to one of these does not see other
    uses of the same values. Raises: DTypeError for integers."""
    for t in tensors:
        check_floats(what, name, argument, t)
    return [apply("cast", t, dtype=t.dtype) for t in tensors]


def statics(skeleton: Any) -> Iterator[Any]:
    """The values of a structure that are neither containers nor leaves."""
    if skeleton[0] == "static":
        yield skeleton[1].value
    elif skeleton[0] != "leaf":
        for part in skeleton[1]:
            yield from statics(part[1] if skeleton[0] == "dict" else part)


def same_tree(what: str, one: str, a: Any, other: str, b: Any) -> None:
    """Checks that two structures are equal. Raises: GraphError that shows both."""
    if a != b:
        raise GraphError(
            f"{what}: {other} is {_text(b)} and {one} {_text(a)}, where * is an array; expected one structure"
        )


def same_types(what: str, one: str, xs: Sequence[Tensor], other: str, ds: Sequence[Tensor]) -> None:
    """Checks that tangents or cotangents have the types of what they belong to. Raises: ShapeError, DTypeError."""
    for x, d in zip(xs, ds, strict=True):
        if x.shape != d.shape:
            raise ShapeError(f"{what}: {other} is {d.type} for {one} of {x.type}; expected the same shape")
        if x.dtype != d.dtype:
            raise DTypeError(
                f"{what}: {other} is {d.type} for {one} of {x.type}; cast it with rlx.cast or .astype"
            )


def prefixed(what: str, skeleton: Any, value: Any, leaf: Callable[[Any], bool], expected: str) -> list[Any]:
    """The value for each leaf of a structure, from a tree of values that may be a prefix of the structure.

    `value` is a leaf (by `leaf`), which stands for the whole structure, or a container like the structure's.
    Raises: GraphError where it does not fit; `expected` says what would."""
    leaves: list[Any] = []
    tree = flatten(value, leaves, leaf=leaf)

    def walk(prefix: Any, whole: Any) -> Iterator[Any]:
        if prefix[0] == "leaf":
            for _ in range(_count(whole)):
                yield leaves[prefix[1]]
            return
        if prefix[0] != whole[0] or prefix[0] == "static" or len(prefix[1]) != len(whole[1]):
            if prefix[0] == whole[0] == "static" and prefix[1] == whole[1]:
                return
            raise GraphError(
                f"{what} is {_text(tree)} for {_text(skeleton)}, where * is an array; {expected}"
            )
        if prefix[0] == "dict":
            if [k for k, _ in prefix[1]] != [k for k, _ in whole[1]]:
                raise GraphError(
                    f"{what} is {_text(tree)} for {_text(skeleton)}, where * is an array; {expected}"
                )
            for (_, a), (_, b) in zip(prefix[1], whole[1], strict=True):
                yield from walk(a, b)
            return
        for a, b in zip(prefix[1], whole[1], strict=True):
            yield from walk(a, b)

    return list(walk(tree, skeleton))


def _count(skeleton: Any) -> int:
    if skeleton[0] == "leaf":
        return 1
    if skeleton[0] == "static":
        return 0
    return sum(_count(part[1] if skeleton[0] == "dict" else part) for part in skeleton[1])


def outputs_of(what: str, function: Any, graph: Graph, returned: Any) -> tuple[Any, list[Tensor]]:
    """The structure and the tensors of what a function returned. Raises: GraphError for none."""
    skeleton, leaves = taken(returned)
    odd = [v for v in statics(skeleton) if v is not None]
    if odd or not leaves:
        raise GraphError(
            f"{what}: {name_of(function)} gave {odd[0] if odd else returned!r}; return arrays, in tuples, lists or "
            "dicts"
        )
    return skeleton, as_leaves(graph, leaves)


def signature_args(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments by position, those given by keyword and by default too."""
    if not kwargs:
        return args
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise GraphError(
            f"{name_of(function)}: keyword-only arguments have no derivative here; give them by position"
        )
    return bound.args
