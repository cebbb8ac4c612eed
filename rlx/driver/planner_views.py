"""Which nodes only give a new name to bytes that are there already: the views a planner may alias."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.driver.memory import MemoryPlan
from rlx.dtypes import DType
from rlx.ir import Node

VIEW_ALIGNMENT = 16  # bytes; a view begins on a multiple of it, so that kernels may load four words at once


def view_offset(node: Node) -> int | None:
    """Bytes from the start of the node's first input to the bytes that are its output already; None when the output
    is not one run of the input's bytes and has to be made.

    True of reshape, copy, casts that change no bit, expand and transpose that move no element, concat of one tensor,
    and slices that cut one contiguous run out, wherever that run begins (`VIEW_ALIGNMENT` is the planner's concern).
    """
    name = node.op.name
    if name in ("reshape", "copy"):
        return 0
    if name == "cast":
        return 0 if same_bits(node.inputs[0].dtype, node.outputs[0].dtype) else None
    if name == "expand":
        return 0 if node.inputs[0].size == node.outputs[0].size else None
    if name == "concat":
        return 0 if len(node.inputs) == 1 else None
    if name == "transpose":
        shape = node.inputs[0].shape
        moved = [axis for axis in node.attrs["perm"] if shape[axis] != 1]
        return 0 if moved == sorted(moved) else None
    if name == "slice":
        return _slice_offset(node)
    return None


def same_bits(source: DType, target: DType) -> bool:
    """Whether a cast keeps every bit: the same dtype, u8 and i8 (both wrap), and bool (0 or 1) read as either."""
    if source == target:
        return True
    return source.itemsize == target.itemsize == 1 and target.is_int


def _slice_offset(node: Node) -> int | None:
    """The run's first byte: leading axes of extent 1, then one axis cut with step 1, then whole axes."""
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


def is_alias(node: Node, plan: MemoryPlan) -> bool:
    """Whether the plan lays the node's output onto the very bytes of its input, so that it needs no step.

    A view that the plan gives a place of its own (the bump planner does; so does a copy of a state) must be run as a
    copy. An in-place result is no alias in this sense: it shares the slot and still has to be computed.
    """
    offset = view_offset(node)
    if offset is None:
        return False
    source, target = plan.slots[node.inputs[0].id], plan.slots[node.outputs[0].id]
    if target.nbytes == 0:
        return True
    return source.segment == target.segment and source.offset + offset == target.offset
