"""selective_scan: an item is a batch and a vector of channels; vector lanes are the states of one channel.

For some steps at a time, step sizes and inputs of all channels are computed at once, and rows of B and C are widened.
Then each channel walks these steps with its states in registers. For y it leaves one vector for each step; the vectors
of all channels are added up together."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.rowwise import computed, load_wide, name_of, store_wide
from rlx.backends.cpu.scans.rows import (
    Row,
    Sums,
    each,
    exp,
    fits,
    held,
    lanes_of,
    silu,
    softplus,
    spread,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.ops.scans import selective
from rlx.ops.scans.operands import optional
from rlx.records import Record

STEPS = 16  # steps of the sequence at a time
_REQUIRED = 5


class SelectiveScan(Record):
    """`inner` consecutive channels form a head where A is scalar, else a group. A sequence has `outer` of these, and
    each `per` of them share B and C."""

    kind: str
    states: int
    scalar: bool
    operands: tuple[str, ...]
    softplus: bool
    lanes: int
    args = pointers("x", "delta", "a", "b", "c", *selective.NAMES, "y", "last") + sizes(
        "length", "inner", "outer", "per"
    )

    def ir(self) -> str:
        k, lanes, kind, inner_kind = Kernel("kernel", self.args), self.lanes, self.kind, held(self.kind)
        number = computed(kind)
        row = Row(k, self.states, lanes)
        at = k.all_args()
        length, inner, outer, per = k.args("length", "inner", "outer", "per")
        steps_memory, inputs_memory = (k.reserve(number.size * STEPS * lanes) for _ in range(2))
        gains, readings = (k.reserve(number.size * STEPS * row.padded) for _ in range(2))
        sums = Sums(k, number, lanes, STEPS)
        blocks = k.binary("udiv", inner + (lanes - 1), k.const(I64, lanes))
        groups = k.binary("udiv", outer, per)
        channels = outer * inner
        with k.loop(k.first, k.last) as item:
            rest = k.binary("udiv", item, blocks)
            begin = (item - rest * blocks) * lanes
            batch = k.binary("udiv", rest, outer)
            own = rest - batch * outer
            group = k.binary("udiv", own, per)
            channel = own * inner + begin
            count = k.min(inner - begin, lanes)
            mask = k.tail(count, lanes)
            heads, head = (outer, own) if self.scalar else (channels, channel)
            states = (batch * channels + channel) * self.states
            with k.loop(0, count) as c:
                place = states + c * self.states
                zeros = [k.const(number.of(lanes), 0.0)] * row.count
                start = row.load(at["state"], inner_kind, place) if "state" in self.operands else zeros
                row.store(start, at["last"], place)

            def some(first: Value, steps: Value) -> None:
                with k.loop(0, steps) as t:
                    place = batch * length + first + t
                    u = load_wide(k, at["x"], kind, place * channels + channel, lanes, mask)
                    if self.scalar:
                        dt = k.splat(load_wide(k, at["delta"], kind, place * heads + head, 1), lanes)
                    else:
                        dt = load_wide(k, at["delta"], kind, place * heads + head, lanes, mask)
                    if "bias" in self.operands:
                        if self.scalar:
                            dt = dt + spread(k, at["bias"], head, number, lanes)
                        else:
                            dt = dt + load_wide(k, at["bias"], inner_kind, head, lanes, mask)
                    if self.softplus:
                        dt = softplus(k, dt)
                    k.store(dt * u, k.at(inputs_memory, t * lanes, number))
                    decay = exp(k, dt * spread(k, at["a"], head, number, lanes)) if self.scalar else dt
                    k.store(decay, k.at(steps_memory, t * lanes, number))
                    place = (place * groups + group) * self.states
                    row.padded_store(row.load(at["b"], kind, place), gains, t * row.padded)
                    row.padded_store(row.load(at["c"], kind, place), readings, t * row.padded)
                with k.loop(0, count) as c:
                    place = states + c * self.states
                    h = [k.variable(v) for v in row.load(at["last"], inner_kind, place)]
                    if not self.scalar:
                        a = row.load(at["a"], inner_kind, (channel + c) * self.states)
                    with k.loop(0, steps) as t:
                        step = spread(k, steps_memory, t * lanes + c, number, lanes)
                        added = spread(k, inputs_memory, t * lanes + c, number, lanes)
                        gain = row.padded_load(gains, number, t * row.padded)
                        updated = [
                            k.fma(step if self.scalar else exp(k, step * a[i]), v.value, added * gain[i])
                            for i, v in enumerate(h)
                        ]
                        for v, new in zip(h, updated, strict=True):
                            v.value = new
                        reading = row.padded_load(readings, number, t * row.padded)
                        sums.put(row.products(row.inside(updated), reading), c, t)
                    row.store([v.value for v in h], at["last"], place)
                with k.loop(0, steps) as t:
                    place = (batch * length + first + t) * channels + channel
                    y = sums.total(t)
                    if "D" in self.operands:
                        skip = load_wide(k, at["D"], inner_kind, channel, lanes, mask)
                        y = k.fma(skip, load_wide(k, at["x"], kind, place, lanes, mask), y)
                    if "z" in self.operands:
                        y = y * silu(k, load_wide(k, at["z"], kind, place, lanes, mask))
                    store_wide(k, y, at["y"], kind, place, mask)

            each(k, length, STEPS, some)
        return k.text()


@engine("selective_scan")
def bind_selective_scan(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, _, a, b = ins[:4]
    s, kind = selective.sizes_of(x, a, b), name_of(x)
    if not fits([*ins, *outs], s.states, kind, ctx.machine):
        return None
    operands = node.attrs["operands"]
    present = optional("selective_scan", ins, _REQUIRED, selective.NAMES, operands)
    lanes = lanes_of(kind, ctx.machine)
    inner, outer, per = (s.width, s.heads, s.heads // s.groups) if s.scalar else (s.heads // s.groups, s.groups, 1)
    spec = SelectiveScan(kind, s.states, s.scalar, operands, node.attrs["softplus"], lanes)
    inputs = dict(zip(("x", "delta", "a", "b", "c"), ins, strict=False))
    args = spec.args(
        **inputs, **{name: present.get(name) for name in selective.NAMES}, y=outs[0], last=outs[1], length=s.length,
        inner=inner, outer=outer, per=per,
    )  # fmt: skip
    items = s.batch * outer * -(-inner // lanes)
    cost = lanes * (20.0 + s.length * -(-s.states // lanes) * (2.0 if s.scalar else 6.0))
    return [EngineStep(spec, args, items, keep=(*ins, *outs), cost_ns=cost)]
