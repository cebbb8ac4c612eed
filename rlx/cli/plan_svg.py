"""A memory plan as a picture: time across, bytes up, one box a tensor, the bound as a line."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from html import escape

from rlx.driver.memory import MemoryPlan

_WIDTH, _HEIGHT, _MARGIN = 960, 540, 40
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f")


def plan_svg(plan: MemoryPlan, title: str, names: Mapping[int, str] | None = None) -> str:
    """The arena of a plan as SVG; segments stand on each other. Views of another tensor's slot are not drawn, nor steps
    in which no tensor begins or ends. `names` are those of the tensors, shown where the pointer rests."""
    bases, top = {}, 0
    for name, nbytes in sorted(plan.segments.items()):
        if name.startswith("arena"):
            bases[name], top = top, top + nbytes
    scale = _HEIGHT / max(top, plan.max_live_bytes, 1)
    drawn = {
        tensor: slot
        for tensor, slot in sorted(plan.slots.items())
        if slot.segment in bases and slot.nbytes and tensor not in plan.alias_of
    }
    steps = sorted({step for t in drawn for step in (plan.lifetimes[t].first, plan.lifetimes[t].last)})
    step_width = _WIDTH / max(len(steps), 1)
    boxes = []
    for tensor, slot in drawn.items():
        life = plan.lifetimes[tensor]
        first, last = bisect_left(steps, life.first), bisect_left(steps, life.last)
        x, width = first * step_width, (last + 1 - first) * step_width
        height = slot.nbytes * scale
        y = _HEIGHT - (bases[slot.segment] + slot.offset) * scale - height
        says = f"%{tensor} {slot.dtype}, {slot.nbytes:,} bytes at {slot.offset:,}, steps {life.first} to {life.last}"
        if names and tensor in names:
            says = f"{names[tensor]}: {says}"
        boxes.append(
            f'<rect x="{_MARGIN + x:.2f}" y="{_MARGIN + y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="{_COLOURS[tensor % len(_COLOURS)]}" stroke="#fff" stroke-width=".5">'
            f"<title>{escape(says)}</title></rect>"
        )
    line = _MARGIN + _HEIGHT - plan.max_live_bytes * scale
    caption = f"{title}: arena {plan.arena_bytes:,} bytes, bound {plan.max_live_bytes:,}, {len(steps)} steps"
    size = f"{_WIDTH + 2 * _MARGIN} {_HEIGHT + 2 * _MARGIN}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="14">',
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{_MARGIN}" y="24">{escape(caption)}</text>',
            *boxes,
            f'<line x1="{_MARGIN}" x2="{_MARGIN + _WIDTH}" y1="{line:.2f}" y2="{line:.2f}" stroke="#c00" '
            'stroke-dasharray="6 4"/>',
            f'<text x="{_MARGIN}" y="{_HEIGHT + _MARGIN + 22}">'
            "bytes up from 0, steps to the right; dashed: the bound</text>",
            "</svg>",
            "",
        ]
    )
