"""The leaf ops: input, param, state and constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.dtypes import as_dtype
from rlx.ir.op import NOT_DIFFERENTIABLE, Attrs, Leaf, Op, register
from rlx.ir.types import TensorType


def _declared(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(attrs["shape"], attrs["dtype"])


def _constant(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    value, packed = attrs["value"], attrs.get("packed")
    if packed is None:
        return TensorType(value.shape, as_dtype(value.dtype))
    blocks = value.shape[-1] // packed.storage.nbytes
    return TensorType((*value.shape[:-1], blocks * packed.storage.elements), packed)


def _no_reference(*arrays: Any, **attrs: Any) -> Any:
    raise AssertionError("a leaf is given, not computed")


def _constant_reference(*, value: Any, packed: Any = None) -> Any:
    return value


for _leaf in (Leaf.INPUT, Leaf.PARAM, Leaf.STATE):
    register(Op(_leaf.value, "leaf", _declared, _no_reference, "none: a leaf", NOT_DIFFERENTIABLE, leaf=_leaf))
register(
    Op("constant", "leaf", _constant, _constant_reference, "none: a leaf", NOT_DIFFERENTIABLE, leaf=Leaf.CONSTANT)
)
