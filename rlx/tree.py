"""Pytrees: which classes are containers of arrays, and functions of nested containers, as in jax.tree.

Containers are tuples, lists, dicts, named tuples and dataclasses: a dataclass's fields are its children, except those
with `dataclasses.field(metadata={"static": True})`, which are part of the structure. A frozen dataclass without arrays
is a value, as a string is. Other classes are registered here, by functions with the names of `jax.tree_util`.

>>> rlx.tree.register_pytree_node(Layer, lambda x: ((x.w, x.b), x.name), lambda name, items: Layer(*items, name))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rlx.errors import GraphError
from rlx.lazy import listed_in as _listed_in
from rlx.lazy import unknown_in as _unknown_in
from rlx.ops.control.functions import _text
from rlx.ops.pytree import flatten as _flatten
from rlx.ops.pytree import is_array
from rlx.ops.pytree import register_dataclass as register_dataclass
from rlx.ops.pytree import register_node as register_pytree_node
from rlx.ops.pytree import register_node_class as register_pytree_node_class
from rlx.ops.pytree import register_static as register_static
from rlx.ops.pytree import register_with_keys as register_pytree_with_keys
from rlx.ops.pytree import unflatten as _unflatten

__all__ = [
    "Structure", "all", "flatten", "leaves", "map", "reduce", "register_dataclass", "register_pytree_node",
    "register_pytree_node_class", "register_pytree_with_keys", "register_static", "structure", "transpose", "unflatten",
]  # fmt: skip
IsLeaf = Callable[[Any], bool] | None


class Structure:
    """The structure of a pytree, without its leaves: compared by content."""

    __slots__ = ("_skeleton", "num_leaves")

    def __init__(self, skeleton: Any, num_leaves: int) -> None:
        self._skeleton = skeleton
        self.num_leaves = num_leaves

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The pytree with these leaves. Raises: GraphError for another number of them."""
        listed = list(leaves)
        if len(listed) != self.num_leaves:
            raise GraphError(f"tree.unflatten: {len(listed)} leaves for {self!r}; expected {self.num_leaves}")
        return _unflatten(self._skeleton, listed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._skeleton == other._skeleton

    def __hash__(self) -> int:
        return hash(self._skeleton)

    def __repr__(self) -> str:
        return f"Structure({_text(self._skeleton)})"


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], Structure]:
    """(the leaves, in order, the structure). Dicts are sorted by key. `is_leaf` may make leaves of containers."""
    leaves_list: list[Any] = []
    skeleton = _flatten(tree, leaves_list, leaf=functools.partial(_is_leaf, is_leaf))
    return leaves_list, Structure(skeleton, len(leaves_list))


def _is_leaf(is_leaf: IsLeaf, value: Any) -> bool:
    if is_leaf is not None and is_leaf(value):
        return True
    if is_array(value):
        return True
    if value is None:
        return False
    # A value that flattening would neither open nor leave out is a leaf, whatever it is.
    return bool(_flatten(value, [], leaf=lambda v: v is not value)[0] == "static")


def unflatten(treedef: Structure, leaves: Iterable[Any]) -> Any:
    """The pytree of a structure with these leaves. Raises: GraphError for another number of them."""
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves, in order."""
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> Structure:
    """The structure."""
    return flatten(tree, is_leaf)[1]


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree with f(leaf, …) for each leaf; f also gets the values of the other trees at the same position.

    These have the first one's structure, or containers where it has leaves. Raises: GraphError where they do not fit.
    """
    if not callable(f):
        raise GraphError(f"tree.map: f is {type(f).__name__}; the function comes first: tree.map(f, tree)")
    leaves_list, treedef = flatten(tree, is_leaf)
    columns = [leaves_list]
    for i, other in enumerate(rest):
        columns.append(_like(treedef, other, i + 1))
    return treedef.unflatten([f(*values) for values in zip(*columns, strict=True)])


def _like(treedef: Structure, other: Any, number: int) -> list[Any]:
    """The parts of a tree at the positions of a structure's leaves."""
    parts: list[Any] = []

    def walk(skeleton: Any, value: Any) -> None:
        if skeleton[0] == "leaf":
            parts.append(value)
            return
        # One level: each child is a leaf.
        children: list[Any] = []
        level = _flatten(value, children, leaf=lambda v: v is not value)
        inner = (
            [part[1] if level[0] == "dict" else part for part in level[1]]
            if level[0] not in ("leaf", "static")
            else []
        )
        wanted = (
            [part[1] if skeleton[0] == "dict" else part for part in skeleton[1]]
            if skeleton[0] != "static"
            else []
        )
        keys = [[k for k, _ in s[1]] if s[0] == "dict" else [] for s in (level, skeleton)]
        if (
            level[0] != skeleton[0]
            or len(inner) != len(wanted)
            or keys[0] != keys[1]
            or (level[0] == "static" and level != skeleton)
        ):
            raise GraphError(
                f"tree.map: tree {number} is {structure(other)!r} and tree 0 {treedef!r}; expected one structure"
            )
        for part, child in zip(wanted, children, strict=True):
            walk(part, child)

    walk(treedef._skeleton, other)
    return parts


_NONE = object()


def reduce(
    function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _NONE, is_leaf: IsLeaf = None
) -> Any:
    """function applied to the leaves from left to right, as functools.reduce does."""
    leaves_list = leaves(tree, is_leaf)
    if initializer is _NONE:
        if not leaves_list:
            raise GraphError("tree.reduce: the tree has no leaves; give an initializer")
        return functools.reduce(function, leaves_list)
    return functools.reduce(function, leaves_list, initializer)


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true."""
    return not any(not leaf for leaf in leaves(tree, is_leaf))


def transpose(outer_treedef: Structure, inner_treedef: Structure, pytree_to_transpose: Any) -> Any:
    """A tree of the outer structure whose leaves have the inner one, as an inner tree of outer trees."""
    leaves_list = leaves(pytree_to_transpose)
    n, m = outer_treedef.num_leaves, inner_treedef.num_leaves
    if len(leaves_list) != n * m:
        raise GraphError(
            f"tree.transpose: {len(leaves_list)} leaves; expected {n} of the outer times {m} of the inner structure"
        )
    rows = [leaves_list[i * m : (i + 1) * m] for i in range(n)]
    return inner_treedef.unflatten([outer_treedef.unflatten([row[j] for row in rows]) for j in range(m)])


if not TYPE_CHECKING:  # type checkers would then take any name
    __getattr__, __dir__ = _unknown_in(__name__), _listed_in(__name__)
