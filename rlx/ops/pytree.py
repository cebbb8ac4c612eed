"""Pytrees, nested containers of tensors: flattened into a list of leaves and a skeleton, and rebuilt from them.

Containers are tuples, lists, dicts, dataclasses, and classes that `register_node` has made known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from rlx.errors import GraphError
from rlx.ir import Tensor
from rlx.ops.public import Complexes
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
    """How to rebuild an object from its children: its class, a function, and the static data `beside` the children.

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


class _Node(NamedTuple):
    """How a class is taken apart and put together; `keys`: its children come with their names."""

    flatten: Callable[[Any], Any]
    unflatten: Callable[[Any, Any], Any]
    keys: bool


_NODES: WeakKeyDictionary[type, _Node | None] = WeakKeyDictionary()  # None: values, not containers
T = TypeVar("T", bound=type)


def register_node(
    nodetype: type, flatten_func: Callable[[Any], Any], unflatten_func: Callable[[Any, Any], Any]
) -> None:
    """Makes a class a container: `flatten_func(x)` gives (children, the rest), `unflatten_func(rest, children)` an
    object of it. The rest is built into programs, so it must be hashable. Raises: GraphError where the class is one
    already."""
    _register(nodetype, _Node(flatten_func, unflatten_func, False))


def register_with_keys(
    nodetype: type, flatten_with_keys: Callable[[Any], Any], unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], Any] | None = None,
) -> None:  # fmt: skip
    """Registers a node whose children come as (key, child): the keys name inputs of programs, and errors."""
    _register(nodetype, _Node(flatten_with_keys, unflatten_func, True))


def register_node_class(nodetype: T) -> T:
    """A decorator for classes with `tree_flatten(self)` and the class method `tree_unflatten(rest, children)`."""
    missing = [n for n in ("tree_flatten", "tree_unflatten") if not hasattr(nodetype, n)]
    if missing:
        raise GraphError(f"register_pytree_node_class: {nodetype.__name__} has no {missing[0]}; write that method")
    flatten_func: Callable[[Any], Any] = nodetype.tree_flatten  # type: ignore[attr-defined]
    register_node(nodetype, flatten_func, nodetype.tree_unflatten)  # type: ignore[attr-defined]
    return nodetype


def register_dataclass(
    nodetype: T, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> T:  # fmt: skip
    """Says which fields of a class are children (`data_fields`), and which are built in (`meta_fields`).

    A dataclass needs it only where its fields do not say so themselves. Raises: GraphError for fields that it does not
    have, and for any that is in neither list."""
    import dataclasses  # it is imported where a user has a dataclass

    known = [f.name for f in dataclasses.fields(nodetype)] if dataclasses.is_dataclass(nodetype) else None
    if data_fields is None and meta_fields is None and known is not None:
        data_fields = [f.name for f in dataclasses.fields(nodetype) if not f.metadata.get("static", False)]
        meta_fields = [n for n in known if n not in data_fields]
    if data_fields is None or meta_fields is None:
        raise GraphError("register_dataclass: give both data_fields and meta_fields")
    listed = {*data_fields, *meta_fields, *drop_fields}
    if known is not None and listed != set(known):
        odd = sorted(listed ^ set(known))
        raise GraphError(
            f"register_dataclass: {nodetype.__name__} has the fields {known}; {odd} are in the lists or in the class "
            "alone: list each once, in data_fields or meta_fields"
        )
    data, meta = tuple(data_fields), tuple(meta_fields)

    def parts(x: Any) -> Any:
        return tuple((n, getattr(x, n)) for n in data), tuple((n, getattr(x, n)) for n in meta)

    def whole(rest: Any, children: Any) -> Any:
        return rebuilt(nodetype, (data, rest), children)

    _register(nodetype, _Node(parts, whole, True))
    return nodetype


def register_static(nodetype: T) -> T:
    """A decorator for classes whose objects are values, built into programs: they need `__hash__` and `__eq__`."""
    _register(nodetype, None)
    return nodetype


def _register(nodetype: type, node: _Node | None) -> None:
    if not isinstance(nodetype, type) or nodetype in (tuple, list, dict, type(None)) or nodetype in _NODES:
        known = "is a container or a value already" if isinstance(nodetype, type) else "is no class"
        raise GraphError(f"{nodetype!r} {known}; register each class of your own once")
    _NODES[nodetype] = node
    _is_container_type.cache_clear()


@functools.lru_cache(1024)
def _is_container_type(kind: Any) -> bool:
    return kind in _NODES or hasattr(kind, "__dataclass_fields__")


def rebuilt(kind: type, beside: Any, children: Sequence[Any]) -> Any:
    """A dataclass made from its fields' values. `__init__` is not called, since its checks may not work on tensors."""
    result: Any = object.__new__(kind)
    fields, others = beside
    for name, value in (*zip(fields, children, strict=True), *others):
        object.__setattr__(result, name, value)
    return result


# The children of an object, what it has beside them, the children's names or None, and what rebuilds it.
Children = tuple[tuple[Any, ...], Any, "tuple[str, ...] | None", Callable[..., Any]]


def children_of(value: Any, leaf: Callable[[Any], bool]) -> Children | None:
    """The children of an object of a registered class or a dataclass, what it has beside them, the children's names,
    and what rebuilds it; None for any other object. A frozen dataclass without leaves is a value, not a container."""
    kind: Any = type(value)
    if not _is_container_type(kind):
        return None
    if kind in _NODES:
        node = _NODES[kind]
        if node is None:
            return None
        pair = node.flatten(value)
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], Iterable):
            raise GraphError(f"{kind.__name__}: its flatten gave {pair!r}; expected (children, the rest)")
        children: tuple[Any, ...] = tuple(pair[0])
        names: tuple[str, ...] | None = None
        if node.keys:
            names, children = tuple(str(k) for k, _ in children), tuple(c for _, c in children)
        return children, pair[1], names, lambda _, rest, items: node.unflatten(rest, items)
    from dataclasses import fields

    listed = [f for f in fields(value) if hasattr(value, f.name)]
    inner = [f.name for f in listed if not f.metadata.get("static", False)]
    children = tuple(getattr(value, name) for name in inner)
    if kind.__dataclass_params__.frozen and not any(_holds_array(c, leaf) for c in children):
        return None
    others = tuple((f.name, getattr(value, f.name)) for f in listed if f.metadata.get("static", False))
    return children, (tuple(inner), others), tuple(inner), rebuilt


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
    node = children_of(value, leaf)
    return node is not None and any(_holds_array(c, leaf, depth + 1) for c in node[0])


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
    children: Callable[[Any, Callable[[Any], bool]], Children | None] = children_of,
) -> Any:
    """Appends the leaves of nested containers to `leaves`, and returns a skeleton of the rest.

    The skeleton is hashable where the keys are. `leaf` tells which values are leaves; `key` gives the key by which
    skeletons compare any other value; `children` opens objects. Named tuples keep their class. `depth` counts the
    enclosing containers.
    Raises: GraphError for containers nested too deep.
    """
    if depth > MAX_DEPTH:
        kind = type(value).__name__
        raise GraphError(f"containers are nested more than {MAX_DEPTH} deep; does a {kind} hold itself?")
    if leaf(value):
        if not (isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "c"):
            leaves.append(value)
            return ("leaf", len(leaves) - 1)
        Complexes.load()
        assert Complexes.of_numpy is not None
        value = Complexes.of_numpy(value)
    if isinstance(value, tuple | list):
        named = isinstance(value, tuple) and hasattr(value, "_fields")
        container = type(value) if named else "tuple" if isinstance(value, tuple) else "list"
        return (container, tuple(flatten(v, leaves, leaf, key, depth + 1, children) for v in value))
    if isinstance(value, dict):
        return ("dict", tuple((k, flatten(v, leaves, leaf, key, depth + 1, children)) for k, v in sorted_items(value)))
    opened = children(value, leaf)
    if opened is not None:
        parts, beside, names, make = opened
        node = Kind(type(value), Static(key(beside), beside), names, make)
        return (node, tuple(flatten(v, leaves, leaf, key, depth + 1, children) for v in parts))
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
