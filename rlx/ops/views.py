"""Where an output's bytes are there already: the `view` of the op records, named after the ops.

Each rule gives the bytes from the start of the node's first input to those that are its output; None where the output
is no single run of the input's bytes and has to be made.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ir import Node


def whole(node: Node) -> int | None:
    """All of the input."""
    return 0


def cast(node: Node) -> int | None:
    """The input, where the conversion changes no bit."""
    return 0 if same_bits(node.inputs[0].dtype, node.outputs[0].dtype) else None


def same_bits(source: DType, target: DType) -> bool:
    """Whether a cast keeps every bit: the same dtype, u8 and i8 (both wrap), and bool (0 or 1) read as either."""
    if source == target:
        return True
    return source.itemsize == target.itemsize == 1 and target.is_int


def expand(node: Node) -> int | None:
    """The input, where no element is repeated."""
    return 0 if node.inputs[0].size == node.outputs[0].size else None


def concat(node: Node) -> int | None:
    """The only input."""
    return 0 if len(node.inputs) == 1 else None


def transpose(node: Node) -> int | None:
    """The input, where only axes of one element change places."""
    shape = node.inputs[0].shape
    moved = [axis for axis in node.attrs["perm"] if shape[axis] != 1]
    return 0 if moved == sorted(moved) else None


def slice(node: Node) -> int | None:
    """One contiguous run, wherever it begins: leading axes of extent 1, then one axis cut with step 1, then whole
    axes."""
    shape, out = node.inputs[0].shape, node.outputs[0].shape
    if 0 in out:
        return 0
    starts: Sequence[int] = node.attrs["starts"]
    steps: Sequence[int] = node.attrs["steps"]
    elements, stride, cut = 0, 1, False
    for axis in reversed(range(len(shape))):
        if out[axis] != 1 and (cut or steps[axis] != 1):
            return None  # a further axis would jump over what was cut away, or elements are skipped or reversed
        elements += starts[axis] * stride
        cut = cut or out[axis] != shape[axis]
        stride *= shape[axis]
    return elements * node.inputs[0].dtype.itemsize
