"""The leaves of a pytree by name, as the tensors of a store have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, GraphError
from rlx.ir import TensorType
from rlx.ir.values import as_array, is_foreign
from rlx.ops.pytree import flatten, unflatten
from rlx.packed import PackedArray
from rlx.runtime.arguments import is_any_array, leaf_names
from rlx.runtime.array import Array

_OWN = Array | PackedArray  # kept as they are; other arrays are converted to NumPy arrays


class Leaves(NamedTuple):
    """A pytree taken apart: its structure, the names of its leaves ("parameters.w.0") and their types."""

    skeleton: Any
    names: tuple[str, ...]
    types: tuple[TensorType, ...]

    def tree(self, leaves: Sequence[Any]) -> Any:
        """The pytree with these leaves."""
        return unflatten(self.skeleton, leaves)

    @property
    def by_name(self) -> dict[str, TensorType]:
        return dict(zip(self.names, self.types, strict=True))


def taken_apart(tree: Any, name: str) -> tuple[Leaves, list[Any]]:
    """A pytree's structure with names and types, and its leaves: arrays of any library, rlx.Arrays, PackedArrays.

    Raises: GraphError for a Python number in the place of an array, DTypeError for a dtype that rlx does not have."""
    leaves: list[Any] = []
    skeleton = flatten(tree, leaves, is_any_array)
    leaves = [as_array(x, name) if is_foreign(x) and not isinstance(x, _OWN) else x for x in leaves]
    names: dict[str, None] = {}
    for leaf in leaf_names(skeleton, name):
        while leaf in names:  # keys may contain dots too
            leaf += "_"
        names[leaf] = None
    for place, value in _numbers(skeleton, name):
        raise GraphError(
            f"training: {place} is the Python {type(value).__name__} {value!r}; give an array, such as "
            f"np.{'float32' if isinstance(value, float) else 'int32'}({value!r})"
        )
    types = tuple(_type(leaf, n) for leaf, n in zip(leaves, names, strict=True))
    return Leaves(skeleton, tuple(names), types), leaves


def _type(leaf: Any, name: str) -> TensorType:
    dtype = getattr(leaf, "dtype", None)
    try:
        known = as_dtype(np.asarray(leaf).dtype if dtype is None else dtype)
    except DTypeError as error:
        raise DTypeError(f"training: {name}: {error}; convert it with .astype") from None
    return TensorType(tuple(leaf.shape), known)


def _numbers(skeleton: Any, name: str) -> list[tuple[str, Any]]:
    """(path, value) of each Python number in a structure; a program would have to build these in."""
    kind, rest = skeleton[0], skeleton[1]
    if kind == "static":
        value = rest.value
        return [(name, value)] if isinstance(value, int | float) and not isinstance(value, bool) else []
    if kind == "leaf":
        return []
    parts = rest if kind == "dict" else [(i, part) for i, part in enumerate(rest)]
    return [number for key, part in parts for number in _numbers(part, f"{name}.{key}")]
