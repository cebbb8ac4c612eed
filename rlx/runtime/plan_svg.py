"""A memory plan as a picture: steps across, bytes up, one box for each tensor, the lower bound as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from rlx.driver.control import body_plans
from rlx.driver.memory.plan import LiveRange, OuterSegment
from rlx.dtypes import DType
from rlx.ir import Graph, TensorType, bodies
from rlx.ir.picture import port_tables, shortened, summary
from rlx.passes.bodies import body_name
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.driver.memory.plan import MemoryPlan

_LEFT, _TOP, _WIDTH, _HEIGHT = 84, 40, 900, 520
_LETTER, _LINE = 7.0, 14  # a name's letter is about this wide and high
_MOST = 1500  # limit on the boxes drawn: those with the largest product of bytes and steps
_FILLS = {
    "f32": "#9ecae9", "f16": "#ffbf79", "bf16": "#88d27a", "f64": "#d6a5c9", "i64": "#e4b9b1", "i32": "#f2cf5b",
    "i8": "#bab0ac", "u8": "#d8b5a5", "bool": "#83c5be",
}  # fmt: skip
_PACKED = "#c9b3e6"


def plan_svg(plan: MemoryPlan, title: str, program: Graph) -> str:
    """The arena of a plan of `program` as SVG, one segment above the other. A tensor on the bytes of another (a view, a
    result made in place) is drawn over it, a body within the step of its control op, branches side by side. Steps in
    which no live range begins or ends are left out. A box has the colour of its tensor's dtype and, where there is
    room, its name; its tooltip describes the tensor. The ground is white in a dark notebook too."""
    bases, top = {}, 0
    for name, nbytes in sorted(plan.segments.items()):
        if name.startswith("arena"):
            bases[name], top = top, top + nbytes
    most = max(top, plan.max_live_bytes, 1)
    scale = _HEIGHT / most
    steps, placed = _boxes(plan, program, bases, _LEFT, _WIDTH, "")
    boxes = sorted(placed, key=lambda b: -b.width * b.nbytes)[:_MOST] if len(placed) > _MOST else placed
    line = _TOP + _HEIGHT - plan.max_live_bytes * scale
    sizes = f"arena {plan.arena_bytes:,} bytes, bound {plan.max_live_bytes:,}, {len(steps)} steps"
    caption = f"{shortened(title, 80)}: {sizes}"
    if len(boxes) < len(placed):
        caption += f"; the {len(boxes):,} largest of {len(placed):,} tensors"
    width, height = _LEFT + _WIDTH + 24, _TOP + _HEIGHT + 74
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#111">',
            '<rect width="100%" height="100%" rx="6" fill="#fff"/>'
            f'<text x="{_LEFT}" y="24" font-size="14">{escape(caption)}</text>',
            *_bytes_axis(most, scale),
            *(box.svg(scale) for box in boxes),
            *_steps_axis(steps),
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{line:.2f}" y2="{line:.2f}" stroke="#c00" '
            'stroke-dasharray="6 4"/>',
            *_legend([box.dtype for box in boxes]),
            "</svg>",
            "",
        ]
    )


def _bytes_axis(most: int, scale: float) -> Iterator[str]:
    """Round numbers of bytes, with a line across at each."""
    unit = 1024 ** min(int(math.log(most, 1024)), 3)
    tick = _round(most / unit / 6) * unit
    name = {1: "bytes", 1024: "KiB", 1024**2: "MiB", 1024**3: "GiB"}[unit]
    for i in range(int(most / tick) + 1):
        y = _TOP + _HEIGHT - i * tick * scale
        yield (
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.2f}" y2="{y:.2f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{i * tick / unit:g}</text>'
        )
    middle = _TOP + _HEIGHT / 2
    yield f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">memory, {name}</text>'


def _round(x: float) -> float:
    """The least of 1, 2, 5, 10, 20, … that is at least x; below 1 the quarters."""
    if x <= 1:
        return next(v for v in (0.25, 0.5, 1.0) if v >= x)
    power = 10.0 ** math.floor(math.log10(x))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= x)


def _steps_axis(steps: Sequence[int]) -> Iterator[str]:
    column, below = _WIDTH / max(len(steps), 1), _TOP + _HEIGHT
    yield f'<path d="M{_LEFT},{_TOP}V{below}H{_LEFT + _WIDTH}" fill="none" stroke="#555"/>'
    for k in range(0, len(steps), max(1, math.ceil(len(steps) / 20))):
        x = _LEFT + (k + 0.5) * column
        yield (
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{below}" y2="{below + 4}" stroke="#555"/>'
            f'<text x="{x:.2f}" y="{below + 17}" text-anchor="middle">{steps[k]}</text>'
        )
    yield f'<text x="{_LEFT + _WIDTH / 2}" y="{below + 35}" text-anchor="middle">step (node of the program)</text>'


def _legend(dtypes: Sequence[DType]) -> Iterator[str]:
    x, y = float(_LEFT), _TOP + _HEIGHT + 52
    for name in dict.fromkeys(str(d) for d in dtypes):
        fill = _FILLS.get(name, _PACKED)
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="12" height="12" rx="2" fill="{fill}" stroke="#555"/>'
            f'<text x="{x + 17:.1f}" y="{y + 11}">{escape(name)}</text>'
        )
        x += 32 + _LETTER * len(name)
    yield (
        f'<line x1="{x:.1f}" x2="{x + 24:.1f}" y1="{y + 6}" y2="{y + 6}" stroke="#c00" stroke-dasharray="6 4"/>'
        f'<text x="{x + 30:.1f}" y="{y + 11}">bound: the most bytes alive at once, which no plan can go below</text>'
    )


class _Box(Record):
    """A tensor in the picture: across in pixels, up in bytes."""

    x: float
    width: float
    start: int
    nbytes: int
    dtype: DType
    name: str
    says: str

    def svg(self, scale: float) -> str:
        height = self.nbytes * scale
        y = _TOP + _HEIGHT - self.start * scale - height
        drawn = (
            f'<rect x="{self.x:.2f}" y="{y:.2f}" width="{self.width:.2f}" height="{height:.2f}" '
            f'fill="{_FILLS.get(str(self.dtype), _PACKED)}" stroke="#fff" stroke-width=".8">'
            f"<title>{escape(shortened(self.says, 400))}</title></rect>"
        )
        room = int(self.width / _LETTER) - 1
        if height < _LINE or room < 4:
            return drawn
        return (
            f'{drawn}<text x="{self.x + _LETTER / 2:.2f}" y="{y + min(_LINE, height / 2 + 5) - 2:.2f}" font-size="11" '
            f'pointer-events="none">{escape(shortened(self.name, room))}</text>'
        )


def _boxes(
    plan: MemoryPlan, program: Graph, bases: Mapping[str, int], left: float, width: float, where: str
) -> tuple[list[int], list[_Box]]:
    """The steps between `left` and `left + width`, and the boxes; `bases` are the offsets of the segments."""
    drawn = {
        t.id: t
        for t in program.tensors()
        if t.id in plan.slots
        and plan.slots[t.id].segment in bases
        and plan.slots[t.id].nbytes
        and not (where and t.node.op.leaf)  # leaves of a body are drawn as tensors of the graph around it
    }
    lives = _lives(plan)
    controls = [(plan.live_ranges[node.outputs[0].id].first, node) for node in program.nodes if bodies(node)]
    steps = {step for t in drawn for step in (lives[t].first, lives[t].last)} | {step for step, _ in controls}
    places = {step: k for k, step in enumerate(sorted(steps))}
    column = width / max(len(steps), 1)
    placed = []
    for tensor, t in drawn.items():
        slot, life = plan.slots[tensor], lives[tensor]
        first, last = places[life.first], places[life.last]
        shares = f", on the bytes of %{plan.alias_of[tensor]}" if tensor in plan.alias_of else ""
        says = (
            f"{where}{t.node.name}: %{tensor} {slot.dtype}, {slot.nbytes:,} bytes at {slot.offset:,}, steps "
            f"{plan.live_ranges[tensor].first} to {plan.live_ranges[tensor].last}{shares}"
        )
        placed.append(
            _Box(left + first * column, (last + 1 - first) * column, bases[slot.segment] + slot.offset, slot.nbytes,
                 slot.dtype, t.node.name, says)
        )  # fmt: skip
    for step, node in controls:
        held = list(body_plans(node, plan))
        room = column / max(len(held), 1)
        around: dict[str, int] = {OuterSegment(name): base for name, base in bases.items()}
        for k, (key, body) in enumerate(held):
            x, label = left + places[step] * column + k * room, f"{where}{body_name(node, key)}/"
            placed += _boxes(body.plan, body.program.graph, around, x, room, label)[1]
    return sorted(steps), placed


def _lives(plan: MemoryPlan) -> dict[int, LiveRange]:
    """Each tensor's live range, extended over those of the tensors that alias it."""
    result = dict(plan.live_ranges)
    for tensor, source in sorted(plan.alias_of.items(), reverse=True):
        result[source] = result[source]._replace(last=max(result[source].last, result[tensor].last))
    return result


def program_html(
    title: str, inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType], program: Graph, plan: MemoryPlan
) -> str:
    """What notebooks show of a compiled graph: the signature, and the memory plan as a picture."""
    tables = port_tables({"inputs": inputs, "outputs": outputs}) + summary(program)
    return f"<div>{tables}<div style='overflow:auto'>{plan_svg(plan, title, program)}</div></div>"
