"""Pytrees, nested containers of tensors: flattened into a list of leaves and a skeleton, and rebuilt from them.

Containers are tuples, lists, dicts, dataclasses, and classes that `register_node` has made known."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

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


class Kind:
    """What rebuilds an object of a class from its children: the class, and the key of what it has beside them.

    `names` are those of the children, for errors and the inputs of programs."""

    __slots__ = ("beside", "make", "names", "type")

    def __init__(self, type: type, beside: Static, names: tuple[str, ...] | None, make: Callable[..., Any]) -> None:
        self.type = type
        self.beside = beside
        self.names = names
        self.make = make

    @property
    def __name__(self) -> str:
        return self.type.__name__

    def __call__(self, *children: Any) -> Any:
        return self.make(self.type, self.beside.value, children)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kind) and self.type is other.type and self.beside == other.beside

    def __hash__(self) -> int:
        return hash((self.type, self.beside))


# Of a class its flatten, which gives the children and what else there is, and its unflatten of the two.
_NODES: WeakKeyDictionary[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any], bool]] = WeakKeyDictionary()


def register_node(
    nodetype: type, flatten_func: Callable[[Any], Any], unflatten_func: Callable[[Any, Any], Any], keys: bool = False
) -> None:
    """Makes a class a container: `flatten_func(x)` gives (children, the rest), `unflatten_func(rest, children)` an
    object of it. With `keys` each child comes as (key, child). Raises: GraphError where the class is one already."""
    if not isinstance(nodetype, type) or nodetype in (tuple, list, dict, type(None)) or nodetype in _NODES:
        known = "is a container already" if isinstance(nodetype, type) else "is no class"
        raise GraphError(f"register_pytree_node: {nodetype!r} {known}; register each class of your own once")
    _NODES[nodetype] = flatten_func, unflatten_func, keys
    _is_container_type.cache_clear()


@functools.lru_cache(1024)
def _is_container_type(kind: Any) -> bool:
    return kind in _NODES or (dataclasses.is_dataclass(kind) and not issubclass(kind, PackedArray))


def _rebuilt(kind: type, beside: Any, children: Sequence[Any]) -> Any:
    """A dataclass of its fields' values, without its `__init__`, whose checks would meet tensors."""
    made = object.__new__(kind)
    fields, others = beside
    for name, value in (*zip(fields, children, strict=True), *others):
        object.__setattr__(made, name, value)
    return made


def children_of(value: Any, leaf: Callable[[Any], bool]) -> tuple[tuple[Any, ...], Any, Any, Any] | None:
    """The children of an object of a registered class or a dataclass, what it has beside them, the children's names,
    and what rebuilds it; None of any other. A frozen dataclass without leaves is a value, not a container."""
    kind = type(value)
    if not _is_container_type(kind):
        return None
    if kind in _NODES:
        flatten_func, unflatten_func, keys = _NODES[kind]
        pair = flatten_func(value)
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], Iterable):
            raise GraphError(f"{kind.__name__}: its flatten gave {pair!r}; expected (children, the rest)")
        children, names = tuple(pair[0]), None
        if keys:
            names, children = tuple(str(k) for k, _ in children), tuple(c for _, c in children)
        return children, pair[1], names, lambda _, rest, items: unflatten_func(rest, items)
    listed = [f for f in dataclasses.fields(value) if hasattr(value, f.name)]
    inner = [f.name for f in listed if not f.metadata.get("static", False)]
    children = tuple(getattr(value, name) for name in inner)
    if kind.__dataclass_params__.frozen and not any(_holds_array(c, leaf) for c in children):
        return None
    others = tuple((f.name, getattr(value, f.name)) for f in listed if f.metadata.get("static", False))
    return children, (tuple(inner), others), tuple(inner), _rebuilt


def _holds_array(value: Any, leaf: Callable[[Any], bool], depth: int = 0) -> bool:
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic | Tensor):
        return False
    if leaf(value):
        return True
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, tuple | list):
        return any(_holds_array(v, leaf, depth + 1) for v in value)
    if isinstance(value, dict):
        return any(_holds_array(v, leaf, depth + 1) for v in value.values())
    found = children_of(value, leaf)
    return found is not None and any(_holds_array(c, leaf, depth + 1) for c in found[0])


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
    """Appends the leaves of nested containers to `leaves`, and returns a skeleton of the rest.

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
        return ("dict", tuple((k, flatten(v, leaves, leaf, key, depth + 1)) for k, v in sorted_items(value)))
    found = children_of(value, leaf)
    if found is not None:
        children, beside, names, make = found
        node = Kind(type(value), Static(key(beside), beside), names, make)
        return (node, tuple(flatten(v, leaves, leaf, key, depth + 1) for v in children))
    return ("static", Static(key(value), value))


def sorted_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
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
