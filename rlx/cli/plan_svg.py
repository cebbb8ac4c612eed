"""A memory plan as a picture: time across, bytes up, one box for each tensor, the lower bound as a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape

from rlx.driver.control import body_plans
from rlx.driver.memory.plan import LiveRange, MemoryPlan, OuterSegment
from rlx.ir import Graph, bodies
from rlx.passes.bodies import body_name

_WIDTH, _HEIGHT, _MARGIN = 960, 540, 40
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f")
_LETTER, _LINE = (
    6.5,
    14,
)  # about the size of a letter of a name; a box too small for its name shows none


def plan_svg(plan: MemoryPlan, title: str, program: Graph) -> str:
    """The arena of a plan of `program` as SVG, one segment above the other. A tensor on the bytes of another (a view, a
    result made in place) is drawn over it, a body within the step of its control op, branches side by side. Steps in
    which no live range begins or ends are left out. The tooltip of a box describes its tensor."""
    bases, top = {}, 0
    for name, nbytes in sorted(plan.segments.items()):
        if name.startswith("arena"):
            bases[name], top = top, top + nbytes
    scale = _HEIGHT / max(top, plan.max_live_bytes, 1)
    steps, boxes = _boxes(plan, program, bases, _MARGIN, _WIDTH, "")
    line = _MARGIN + _HEIGHT - plan.max_live_bytes * scale
    caption = f"{title}: arena {plan.arena_bytes:,} bytes, bound {plan.max_live_bytes:,}, {steps} steps"
    size = f"{_WIDTH + 2 * _MARGIN} {_HEIGHT + 2 * _MARGIN}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="14">',
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{_MARGIN}" y="24">{escape(caption)}</text>',
            *(box.svg(scale) for box in boxes),
            f'<line x1="{_MARGIN}" x2="{_MARGIN + _WIDTH}" y1="{line:.2f}" y2="{line:.2f}" stroke="#c00" '
            'stroke-dasharray="6 4"/>',
            f'<text x="{_MARGIN}" y="{_HEIGHT + _MARGIN + 22}">'
            "bytes up from 0, steps to the right; dashed: the bound</text>",
            "</svg>",
            "",
        ]
    )


@dataclass(frozen=True, slots=True)
class _Box:
    """A tensor in the picture: across in pixels, up in bytes."""

    x: float
    width: float
    start: int
    nbytes: int
    colour: str
    name: str
    says: str

    def svg(self, scale: float) -> str:
        height = self.nbytes * scale
        y = _MARGIN + _HEIGHT - self.start * scale - height
        drawn = (
            f'<rect x="{self.x:.2f}" y="{y:.2f}" width="{self.width:.2f}" height="{height:.2f}" fill="{self.colour}" '
            f'stroke="#fff" stroke-width=".5"><title>{escape(self.says)}</title></rect>'
        )
        if height < _LINE or self.width < _LETTER * (len(self.name) + 1):
            return drawn
        return (
            f'{drawn}<text x="{self.x + _LETTER / 2:.2f}" y="{y + _LINE - 3:.2f}" font-size="11" fill="#fff" '
            f'pointer-events="none">{escape(self.name)}</text>'
        )


def _boxes(
    plan: MemoryPlan, program: Graph, bases: Mapping[str, int], left: float, width: float, where: str
) -> tuple[int, list[_Box]]:
    """The number of steps between `left` and `left + width`, and the boxes; `bases` are the offsets of the segments."""
    drawn = {
        t.id: t
        for t in program.tensors()
        if t.id in plan.slots
        and plan.slots[t.id].segment in bases
        and plan.slots[t.id].nbytes
        and not (where and t.node.op.leaf)  # a body's leaves are tensors of the graph around it, drawn there
    }
    lives = _lives(plan)
    controls = [(plan.live_ranges[node.outputs[0].id].first, node) for node in program.nodes if bodies(node)]
    steps = {step for t in drawn for step in (lives[t].first, lives[t].last)} | {step for step, _ in controls}
    places = {step: k for k, step in enumerate(sorted(steps))}
    column = width / max(len(steps), 1)
    found = []
    for tensor, t in drawn.items():
        slot, life = plan.slots[tensor], lives[tensor]
        first, last = places[life.first], places[life.last]
        shares = f", on the bytes of %{plan.alias_of[tensor]}" if tensor in plan.alias_of else ""
        says = (
            f"{where}{t.node.name}: %{tensor} {slot.dtype}, {slot.nbytes:,} bytes at {slot.offset:,}, steps "
            f"{plan.live_ranges[tensor].first} to {plan.live_ranges[tensor].last}{shares}"
        )
        found.append(
            _Box(left + first * column, (last + 1 - first) * column, bases[slot.segment] + slot.offset, slot.nbytes,
                 _COLOURS[tensor % len(_COLOURS)], t.node.name, says)
        )  # fmt: skip
    for step, node in controls:
        held = list(body_plans(node, plan))
        room = column / max(len(held), 1)
        around: dict[str, int] = {OuterSegment(name): base for name, base in bases.items()}
        for k, (key, body) in enumerate(held):
            x, label = left + places[step] * column + k * room, f"{where}{body_name(node, key)}/"
            found += _boxes(body.plan, body.program.graph, around, x, room, label)[1]
    return len(steps), found


def _lives(plan: MemoryPlan) -> dict[int, LiveRange]:
    """Each tensor's live range: its bytes are needed as long as any tensor on them is alive."""
    found = dict(plan.live_ranges)
    for tensor, source in sorted(plan.alias_of.items(), reverse=True):
        found[source] = replace(found[source], last=max(found[source].last, found[tensor].last))
    return found
