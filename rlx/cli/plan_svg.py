"""A memory plan as a picture: time across, bytes up, one box a tensor, the bound as a line."""

from __future__ import annotations

from html import escape

from rlx.driver.memory import MemoryPlan

_WIDTH, _HEIGHT, _MARGIN = 960, 540, 40
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f")


def plan_svg(plan: MemoryPlan, title: str) -> str:
    """The arena of a plan as SVG; segments stand on each other. Views of another tensor's slot are not drawn."""
    steps = max((life.last for life in plan.lifetimes.values()), default=0) + 1
    bases, top = {}, 0
    for name, nbytes in sorted(plan.segments.items()):
        if name.startswith("arena"):
            bases[name], top = top, top + nbytes
    scale = _HEIGHT / max(top, plan.max_live_bytes, 1)
    boxes = []
    for tensor, slot in sorted(plan.slots.items()):
        if slot.segment not in bases or not slot.nbytes or tensor in plan.alias_of:
            continue
        life = plan.lifetimes[tensor]
        x, width = life.first * _WIDTH / steps, (life.last + 1 - life.first) * _WIDTH / steps
        height = slot.nbytes * scale
        y = _HEIGHT - (bases[slot.segment] + slot.offset) * scale - height
        says = f"%{tensor} {slot.dtype}, {slot.nbytes:,} bytes at {slot.offset:,}, steps {life.first} to {life.last}"
        boxes.append(
            f'<rect x="{_MARGIN + x:.2f}" y="{_MARGIN + y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="{_COLOURS[tensor % len(_COLOURS)]}" stroke="#fff" stroke-width=".5"><title>{says}</title></rect>'
        )
    line = _MARGIN + _HEIGHT - plan.max_live_bytes * scale
    caption = f"{title}: arena {plan.arena_bytes:,} bytes, bound {plan.max_live_bytes:,}, {steps} steps"
    size = f"{_WIDTH + 2 * _MARGIN} {_HEIGHT + 2 * _MARGIN}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="14">',
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{_MARGIN}" y="24">{escape(caption)}</text>',
            *boxes,
            f'<line x1="{_MARGIN}" x2="{_MARGIN + _WIDTH}" y1="{line:.2f}" y2="{line:.2f}" stroke="#c00" '
            'stroke-dasharray="6 4"/>',
            "</svg>",
            "",
        ]
    )
