"""The check that a memory plan stays within its segments, made with each arena, before any memory is acquired."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.driver.memory.plan import ALIGNMENT, MemoryPlan, Slot
from rlx.driver.memory.typed import whole
from rlx.driver.memory.views import VIEW_ALIGNMENT
from rlx.dtypes import DType
from rlx.errors import ArenaError, OutOfDeviceMemory

MAX_BYTES = (1 << 63) - 1  # the limit of a signed 64-bit offset


def check_plan(plan: MemoryPlan) -> dict[str, tuple[int, int]]:
    """The node whose slot ends last in each segment that the plan does not own, and that end.

    Raises: ArenaError for a slot whose offset or size is negative, a fraction, not aligned or no multiple of its
    dtype's size, one that leaves its segment, and an alias that leaves the slot it shares; OutOfDeviceMemory for a
    segment larger than a signed 64-bit offset reaches.
    """
    for name, nbytes in plan.segments.items():
        if whole(nbytes, f"segment {name!r}: bytes") < 0:
            raise ArenaError(f"segment {name!r}: {nbytes} bytes; a size is not negative")
    sizes = {name: int(nbytes) for name, nbytes in plan.segments.items()}
    ends: dict[str, tuple[int, int]] = {}
    for node, slot in plan.slots.items():
        _check_slot(node, slot, sizes, node in plan.alias_of)
        if slot.segment not in sizes and slot.end >= ends.get(slot.segment, (0, 0))[1]:
            ends[slot.segment] = node, slot.end
    for node, target in plan.alias_of.items():
        if node in plan.slots:
            _check_alias(node, plan.slots[node], target, plan.slots)
    for name, nbytes in sizes.items():
        if nbytes > MAX_BYTES:
            raise OutOfDeviceMemory(
                f"segment {name!r} has {nbytes:,} bytes, more than 64 bits count; use smaller shapes or a "
                "half-precision dtype"
            )
    return ends


def check_nbytes(nbytes: object, device: str) -> int:
    """A requested size in bytes, checked.

    Raises: ArenaError for a fraction or a negative number, OutOfDeviceMemory for a size beyond `MAX_BYTES`."""
    wanted = whole(nbytes, f"{device}: bytes of a buffer")
    if wanted < 0:
        raise ArenaError(f"{device}: a buffer of {wanted} bytes; a size is not negative")
    if wanted > MAX_BYTES:
        raise OutOfDeviceMemory(f"{device}: {wanted:,} bytes are asked for, more than 64 bits count")
    return wanted


def same_places(a: MemoryPlan, b: MemoryPlan) -> bool:
    """Whether two plans have equal segments and slots, except that slots in stores may lie elsewhere."""
    if a is b:
        return True
    if a.segments != b.segments or a.slots.keys() != b.slots.keys():
        return False
    return all(
        s == b.slots[node]
        or (s.segment not in a.segments and (s.nbytes, s.dtype) == (b.slots[node].nbytes, b.slots[node].dtype)
            and b.slots[node].segment not in b.segments)
        for node, s in a.slots.items()
    )  # fmt: skip


def _check_slot(node: int, slot: Slot, sizes: Mapping[str, int], alias: bool) -> None:
    where = f"node {node}"
    if not isinstance(slot, Slot) or not isinstance(slot.dtype, DType):
        raise ArenaError(f"{where}: expected a Slot with an rlx dtype, got {slot!r}")
    offset, nbytes = whole(slot.offset, f"{where}: offset"), whole(slot.nbytes, f"{where}: bytes")
    if offset < 0 or nbytes < 0:
        raise ArenaError(f"{where}: {slot}: an offset and a size are not negative")
    if nbytes % slot.dtype.storage.nbytes:
        unit = "blocks" if slot.dtype.is_packed else "elements"
        raise ArenaError(f"{where}: {slot}: {nbytes} bytes are no whole number of {slot.dtype} {unit}")
    own = slot.segment in sizes
    to = ALIGNMENT if own and not alias else VIEW_ALIGNMENT
    if nbytes and offset % to:
        raise ArenaError(f"{where}: {slot}: offset {offset} is no multiple of {to} bytes")
    if own and offset + nbytes > sizes[slot.segment]:
        raise ArenaError(
            f"{where}: {slot} ends at {offset + nbytes}, past segment {slot.segment!r} of {sizes[slot.segment]} bytes"
        )


def _check_alias(node: int, slot: Slot, target: int, slots: Mapping[int, Slot]) -> None:
    shared = slots.get(target)
    inside = (
        shared is not None
        and shared.segment == slot.segment
        and shared.offset <= slot.offset
        and slot.end <= shared.end
    )
    if not inside:
        raise ArenaError(f"node {node} shares the slot of node {target}, but {slot} is not within {shared}")
