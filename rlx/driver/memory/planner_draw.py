"""A memory plan as text: time runs across, offsets run down, one row a slot."""

from __future__ import annotations

from rlx.driver.memory.plan import MemoryPlan, Slot


def draw(plan: MemoryPlan, width: int = 64) -> str:
    """The arena slots of a plan, by segment and offset: `#` while the tensor lives, `=` while a view or an in-place
    heir of another slot does. Ends with the totals."""
    end = max((life.last for life in plan.lifetimes.values()), default=0) + 1
    lines = []

    def place(item: tuple[int, Slot]) -> tuple[str, int, int, int]:
        tensor, slot = item
        return slot.segment, slot.offset, plan.lifetimes[tensor].first, tensor

    for tensor, slot in sorted(plan.slots.items(), key=place):
        if not slot.segment.startswith("arena") or slot.nbytes == 0:
            continue
        life = plan.lifetimes[tensor]
        left, right = life.first * width // end, max((life.last + 1) * width // end, life.first * width // end + 1)
        mark = "=" if tensor in plan.alias_of else "#"
        bar = "." * left + mark * (right - left) + "." * (width - right)
        lines.append(f"{slot.segment:>7} {slot.offset:>12} {slot.nbytes:>12} {bar} %{tensor} {slot.dtype}")
    lines.append(
        f"{plan.planner}: arena {plan.arena_bytes} bytes, {plan.overhead:.4f} of the max-live bound "
        f"{plan.max_live_bytes}; without reuse {plan.no_reuse_bytes}"
    )
    return "\n".join(lines)
