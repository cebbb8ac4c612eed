"""Pytrees, nested containers of tensors: flattened into a list of leaves and a skeleton, and rebuilt from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError
from rlx.ir import Tensor
from rlx.packed import PackedArray

MAX_DEPTH = 100  # nesting of containers; well below Python's recursion limit, whatever the caller's own depth


class Static:
    """A value in a skeleton that is neither a leaf nor a container; skeletons compare it by its key."""

    __slots__ = ("key", "value")

    def __init__(self, key: Hashable, value: Any) -> None:
        self.key = key
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | Tensor | PackedArray)


def is_number(value: Any) -> bool:
    """Whether the value is an array or a Python bool, int or float."""
    return is_array(value) or isinstance(value, bool | int | float)


def by_value(value: Any) -> Hashable:
    sign = repr(value) if isinstance(value, float | complex) else ""  # 0.0 equals -0.0
    return (type(value).__name__, value, sign)


def flatten(
    value: Any,
    leaves: list[Any],
    leaf: Callable[[Any], bool] = is_array,
    key: Callable[[Any], Hashable] = by_value,
    depth: int = 0,
) -> Any:
    """Appends the leaves of nested tuples, lists and dicts to `leaves`, and returns a skeleton of the rest.

    The skeleton is hashable where the keys are. `leaf` tells which values are leaves; `key` gives the key by which
    skeletons compare any other value. Named tuples keep their class. `depth` counts the enclosing containers.
    Raises: GraphError for containers nested too deep.
    """
    if depth > MAX_DEPTH:
        kind = type(value).__name__
        raise GraphError(f"containers are nested more than {MAX_DEPTH} deep; does a {kind} hold itself?")
    if leaf(value):
        leaves.append(value)
        return ("leaf", len(leaves) - 1)
    if isinstance(value, tuple | list):
        named = isinstance(value, tuple) and hasattr(value, "_fields")
        made = type(value) if named else "tuple" if isinstance(value, tuple) else "list"
        return (made, tuple(flatten(v, leaves, leaf, key, depth + 1) for v in value))
    if isinstance(value, dict):
        return ("dict", tuple((k, flatten(v, leaves, leaf, key, depth + 1)) for k, v in _sorted(value)))
    return ("static", Static(key(value), value))


def _sorted(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items sorted by key, so that dicts with equal keys give equal skeletons whatever their insertion order."""
    try:
        return sorted(value.items(), key=lambda item: item[0])
    except TypeError:  # the keys cannot be compared with each other
        return sorted(value.items(), key=lambda item: (type(item[0]).__name__, repr(item[0])))


def unflatten(skeleton: Any, leaves: Sequence[Any]) -> Any:
    """The inverse of `flatten`: the value that the skeleton describes, with these leaves."""
    kind = skeleton[0]
    if kind == "leaf":
        return leaves[skeleton[1]]
    if kind == "static":
        return skeleton[1].value
    if kind == "dict":
        return {k: unflatten(v, leaves) for k, v in skeleton[1]}
    items = [unflatten(v, leaves) for v in skeleton[1]]
    if kind == "list":
        return items
    return tuple(items) if kind == "tuple" else kind(*items)  # a named tuple's class
