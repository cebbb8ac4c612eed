"""Outputs that are views of their node's input: the `view` of the op records, named after the ops.

Each rule gives the offset in bytes of the output within the node's first input; None where the output's bytes are no
contiguous part of the input's, so that the output must be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.ir import Node, Tensor

_FEW = 16  # elements of a tensor whose value is worth looking for


def whole(node: Node) -> int | None:
    """The whole input: the output has the same bytes."""
    return 0


def cast(node: Node) -> int | None:
    """The whole input, where the conversion changes no bit."""
    return 0 if same_bits(node.inputs[0].dtype, node.outputs[0].dtype) else None


def same_bits(source: DType, target: DType) -> bool:
    """Whether a cast keeps every bit: the same dtype, u8 and i8 (both wrap), and bool (0 or 1) read as either."""
    if source == target:
        return True
    return source.itemsize == target.itemsize == 1 and target.is_int


def expand(node: Node) -> int | None:
    """The whole input, where no element is repeated."""
    return 0 if node.inputs[0].size == node.outputs[0].size else None


def concat(node: Node) -> int | None:
    """The whole input, where there is only one."""
    return 0 if len(node.inputs) == 1 else None


def transpose(node: Node) -> int | None:
    """The whole input, where only axes of length 1 change places."""
    shape = node.inputs[0].shape
    moved = [axis for axis in node.attrs["perm"] if shape[axis] != 1]
    return 0 if moved == sorted(moved) else None


def slice(node: Node) -> int | None:
    """A contiguous part of the input: leading axes of length 1, then one axis cut with step 1, then whole axes."""
    return _part(node, node.attrs["starts"], node.attrs["steps"])


def window(node: Node) -> int | None:
    """As `slice`, where the window's start follows from constants and the rank's own place in a mesh."""
    shape, out = node.inputs[0].shape, node.outputs[0].shape
    known = value_of(node.inputs[1])
    if known is None or node.inputs[0].dtype.is_packed:
        return None
    starts = [min(max(int(s), 0), n - size) for s, n, size in zip(known, shape, out, strict=True)]
    return _part(node, starts, [1] * len(shape))


def value_of(t: Tensor) -> npt.NDArray[Any] | None:
    """The value of a small tensor that follows from constants and the rank's own place, else None."""
    node, op = t.node, t.node.op
    if op.is_constant:
        return np.asarray(node.attrs["value"])
    moves = op.family in ("elementwise", "movement") or (op.meets is not None and not op.fallible)
    if t.size > _FEW or len(node.outputs) > 1 or not moves:
        return None
    values = [value_of(x) for x in node.inputs]
    if any(v is None for v in values):
        return None
    call = op.reference if op.meets is None else op.meets(node)
    return np.asarray(call(*values, **node.attrs))


def _part(node: Node, starts: Sequence[int], steps: Sequence[int]) -> int | None:
    shape, out = node.inputs[0].shape, node.outputs[0].shape
    if 0 in out:
        return 0
    elements, stride, cut = 0, 1, False
    for axis in reversed(range(len(shape))):
        if out[axis] != 1 and (cut or steps[axis] != 1):
            return None  # not contiguous: an inner axis is cut already, or a step skips or reverses elements
        elements += starts[axis] * stride
        cut = cut or out[axis] != shape[axis]
        stride *= shape[axis]
    storage = node.inputs[0].dtype.storage
    return elements // storage.elements * storage.nbytes
