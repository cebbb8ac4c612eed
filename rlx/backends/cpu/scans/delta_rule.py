"""gated_delta_rule: an item is a batch, a head and a vector of values, each of which has a row of the state.

Rows do not depend on each other, so they are kept on the stack and go through the sequence together: a step's sums over
all rows are computed at once, row i's in lane i."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I64, Arguments, Kernel, floats, pointers, sizes
from rlx.backends.cpu.rowwise import computed, load_wide, name_of, store_wide
from rlx.backends.cpu.scans.rows import Row, Sums, exp, fits, held, lanes_of, spread
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.ops.scans import delta
from rlx.ops.scans.operands import optional
from rlx.records import Record

_REQUIRED = 4


class DeltaRule(Record):
    """Arguments: the addresses of q, k, v, β, g, the state, o and the last state; the length, heads, values of a head,
    the heads that share a key head, and the scale."""

    kind: str
    keys: int
    operands: tuple[str, ...]
    lanes: int

    @property
    def args(self) -> Arguments:
        addresses = pointers("q", "k", "v", "beta", *delta.NAMES, "o", "last")
        return addresses + sizes("length", "heads", "values", "per") + floats("scale", type=computed(self.kind))

    def ir(self) -> str:
        k, lanes, kind, inner_kind = Kernel("kernel", self.args), self.lanes, self.kind, held(self.kind)
        number = computed(kind)
        row, sums = Row(k, self.keys, lanes), Sums(k, number, lanes)
        at = k.all_args()
        length, heads, values, per = k.args("length", "heads", "values", "per")
        scale = k.splat(k.arg("scale"), lanes)
        memory, factors = k.reserve(number.size * lanes * row.padded), k.reserve(number.size * lanes)
        blocks = k.binary("udiv", values + (lanes - 1), k.const(I64, lanes))
        key_heads = k.binary("udiv", heads, per)
        with k.loop(k.first, k.last) as item:
            rest = k.binary("udiv", item, blocks)
            first = (item - rest * blocks) * lanes
            batch = k.binary("udiv", rest, heads)
            head = rest - batch * heads
            key_head = k.binary("udiv", head, per)
            count = k.min(values - first, lanes)
            mask = k.tail(count, lanes)
            states = (rest * values + first) * self.keys
            zeros = [k.const(number.of(lanes), 0.0)] * row.count
            with k.loop(0, lanes) as r:
                row.padded_store(zeros, memory, r * row.padded)
            if "state" in self.operands:
                with k.loop(0, count) as r:
                    state = row.load(at["state"], inner_kind, states + r * self.keys)
                    row.padded_store(state, memory, r * row.padded)
            with k.loop(0, length) as t:
                place = (batch * length + t) * key_heads + key_head
                key, query = (row.load(at[name], kind, place * self.keys) for name in ("k", "q"))
                own = (batch * length + t) * heads + head
                with k.loop(0, lanes) as r:
                    state = row.padded_load(memory, number, r * row.padded)
                    sums.put(row.products(state, key), r)
                before = sums.total()
                if "g" in self.operands:
                    alpha = exp(k, spread(k, at["g"], own, number, lanes))
                    before = before * alpha
                value = load_wide(k, at["v"], kind, own * values + first, lanes, mask)
                k.store((value - before) * spread(k, at["beta"], own, number, lanes), factors)
                with k.loop(0, lanes) as r:
                    state = row.padded_load(memory, number, r * row.padded)
                    if "g" in self.operands:
                        state = [v * alpha for v in state]
                    factor = spread(k, factors, r, number, lanes)
                    updated = row.inside([k.fma(factor, a, v) for a, v in zip(key, state, strict=True)])
                    row.padded_store(updated, memory, r * row.padded)
                    sums.put(row.products(updated, query), r)
                store_wide(k, sums.total() * scale, at["o"], kind, own * values + first, mask)
            with k.loop(0, count) as r:
                state = row.padded_load(memory, number, r * row.padded)
                row.store(state, at["last"], states + r * self.keys)
        return k.text()


@engine("gated_delta_rule")
def bind_gated_delta_rule(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    v, kind = ins[2], name_of(ins[2])
    s = delta.sizes_of(ins[1], v)
    if not fits([*ins, *outs], s.keys, kind, ctx.machine):
        return None
    operands = node.attrs["operands"]
    present = optional("gated_delta_rule", ins, _REQUIRED, delta.NAMES, operands)
    lanes, scale = lanes_of(kind, ctx.machine), node.attrs["scale"]
    items = s.batch * s.heads * -(-s.values // lanes)
    cost = lanes * (s.length + 1.0) * -(-s.keys // lanes) * 1.0
    spec = DeltaRule(kind, s.keys, operands, lanes)
    q, k, v, beta = ins[:_REQUIRED]
    args = spec.args(
        q=q, k=k, v=v, beta=beta, **{name: present.get(name) for name in delta.NAMES}, o=outs[0], last=outs[1],
        length=s.length, heads=s.heads, values=s.values, per=s.heads // s.key_heads, scale=scale,
    )  # fmt: skip
    return [EngineStep(spec, args, items, keep=(*ins, *outs), cost_ns=cost)]
