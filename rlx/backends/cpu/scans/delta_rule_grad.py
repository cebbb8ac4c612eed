"""gated_delta_rule_grad: an item is a batch, a key head and some vectors of the values that it serves, one after the
other.

A forward sweep stores the state before every STEPS steps. A backward sweep recomputes the states of these steps, and
computes the gradient of each. The gradients of q, k, β and g are added up over an item's values, then over items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, floats, pointers, sizes
from rlx.backends.cpu.rowwise import load_wide, name_of
from rlx.backends.cpu.scans.rows import Row, Sums, each, exp, fits, spread
from rlx.backends.cpu.scans.selective_grad import summed
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.ops.scans import delta
from rlx.ops.scans.operands import optional
from rlx.records import Record

_LEAST_ITEMS = 16  # a step has fewer only if there are fewer vectors of values
STEPS = 8  # steps of the sequence between two states that are kept


class DeltaRuleGrad(Record):
    """Each key head serves `per` heads, whose values are cut into `parts` of `span` vectors. `kept` and `history` are
    memory for states; dq, dk, dβ and dg are the sums of items, which are added up after.

    Items write (batch, length, key heads, parts, keys) for q and k, (batch, length, heads, parts) for β and g."""

    keys: int
    operands: tuple[str, ...]
    lanes: int
    args = (
        pointers("do", "dlast", "q", "k", "v", "beta", *delta.NAMES)
        + pointers("dq", "dk", "dv", "dbeta", "dg", "dstate", "kept", "history")
        + sizes("length", "heads", "values", "per", "parts", "span")
        + floats("scale")
    )

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        row, sums = Row(k, self.keys, lanes), Sums(k, F32, lanes)
        at = k.all_args()
        length, heads, values, per, parts, span = k.args("length", "heads", "values", "per", "parts", "span")
        scale = k.splat(k.arg("scale"), lanes)
        slopes = k.reserve(4 * lanes * row.padded)
        factors, others = (k.reserve(4 * lanes) for _ in range(2))
        rests = k.reserve(4 * lanes * STEPS)
        blocks = k.binary("udiv", values + (lanes - 1), k.const(I64, lanes))
        key_heads, vectors = k.binary("udiv", heads, per), per * blocks
        tiles = k.binary("udiv", length + (STEPS - 1), k.const(I64, STEPS))
        state_size = lanes * row.padded
        zeros = [k.const(F32.of(lanes), 0.0)] * row.count
        gated = "g" in self.operands

        def total(v: Value) -> Value:
            return k.fold(v, lambda x, y: x + y)

        def add(base: Value, place: Value, v: Value) -> None:
            there = k.at(base, place, F32)
            k.store(k.load(F32, there) + v, there)

        with k.loop(k.first, k.last) as item:
            rest = k.binary("udiv", item, parts)
            part = item - rest * parts
            batch = k.binary("udiv", rest, key_heads)
            key_head = rest - batch * key_heads
            kept, history = item * tiles * state_size, item * ((STEPS + 1) * state_size)

            def key_row(t: Value, batch: Value = batch, key_head: Value = key_head) -> Value:
                return (batch * length + t) * key_heads + key_head

            with k.loop(0, length) as t:
                for base in (at["dq"], at["dk"]):
                    row.store(zeros, base, (key_row(t) * parts + part) * self.keys)
                with k.loop(0, per) as h:
                    for base in (at["dbeta"], at["dg"]):
                        place = (key_row(t) * per + h) * parts + part
                        k.store(k.const(F32, 0.0), k.at(base, place, F32))

            def vector(
                number: Value, batch: Value = batch, key_head: Value = key_head, part: Value = part,
                kept: Value = kept, history: Value = history,
            ) -> None:  # fmt: skip
                inside = k.binary("udiv", number, blocks)
                first = (number - inside * blocks) * lanes
                head = key_head * per + inside
                count = k.min(values - first, lanes)
                mask = k.tail(count, lanes)
                states = ((batch * heads + head) * values + first) * self.keys

                def own(t: Value) -> Value:
                    return (batch * length + t) * heads + head

                def alpha_of(t: Value) -> Value:
                    return exp(k, spread(k, at["g"], own(t), F32, lanes))

                def forward(begin: Value, steps: Value, base: Value, at_state: Value, keep: bool) -> None:
                    """Advances the state at `at_state` through these steps, in place, or with `keep` writes each state
                    after the one before it."""
                    with k.loop(0, steps) as i:
                        t = begin + i
                        source = at_state + i * state_size if keep else at_state
                        target = source + state_size if keep else source
                        key = row.load(at["k"], "f32", key_row(t) * self.keys)
                        with k.loop(0, count) as r:
                            sums.put(row.products(row.padded_load(base, F32, source + r * row.padded), key), r)
                        before = sums.total()
                        if gated:
                            alpha = alpha_of(t)
                            before = before * alpha
                        rest = load_wide(k, at["v"], "f32", own(t) * values + first, lanes, mask) - before
                        if keep:
                            k.store(rest, k.at(rests, i * lanes, F32))
                        k.store(rest * spread(k, at["beta"], own(t), F32, lanes), factors)
                        with k.loop(0, count) as r:
                            held = row.padded_load(base, F32, source + r * row.padded)
                            held = [v * alpha for v in held] if gated else held
                            factor = spread(k, factors, r, F32, lanes)
                            updated = row.inside([k.fma(factor, a, v) for a, v in zip(key, held, strict=True)])
                            row.padded_store(updated, base, target + r * row.padded)

                with k.loop(0, count) as r:
                    place = states + r * self.keys
                    start = row.load(at["state"], "f32", place) if "state" in self.operands else zeros
                    row.padded_store(start, at["kept"], kept + r * row.padded)
                    row.padded_store(row.load(at["dlast"], "f32", place), slopes, r * row.padded)

                def sweep(begin: Value, steps: Value) -> None:
                    with k.when(k.cmp("slt", begin + steps, length)):  # the state after the last steps is not stored
                        here = kept + k.binary("udiv", begin, k.const(I64, STEPS)) * state_size
                        following = here + state_size
                        with k.loop(0, count) as r:
                            state = row.padded_load(at["kept"], F32, here + r * row.padded)
                            row.padded_store(state, at["kept"], following + r * row.padded)
                        forward(begin, steps, at["kept"], following, False)

                def back(t: Value, i: Value) -> None:
                    """One step backward; history holds the states before and after it."""
                    key, query = (row.load(at[n], "f32", key_row(t) * self.keys) for n in ("k", "q"))
                    query = [v * scale for v in query]
                    before = history + i * state_size
                    gradient = load_wide(k, at["do"], "f32", own(t) * values + first, lanes, mask)
                    k.store(gradient, factors)
                    of_query = [k.variable(v) for v in zeros]
                    with k.loop(0, count) as r:
                        d = spread(k, factors, r, F32, lanes)
                        slope = row.padded_load(slopes, F32, r * row.padded)
                        slope = row.inside([k.fma(d, q, g) for q, g in zip(query, slope, strict=True)])
                        row.padded_store(slope, slopes, r * row.padded)
                        sums.put(row.products(slope, key), r)
                        after = row.padded_load(at["history"], F32, before + state_size + r * row.padded)
                        for v, x in zip(of_query, after, strict=True):
                            v.value = k.fma(d, x, v.value)
                    put, beta = sums.total(), spread(k, at["beta"], own(t), F32, lanes)
                    rest = k.load(F32.of(lanes), k.at(rests, i * lanes, F32))
                    add(at["dbeta"], own(t) * parts + part, total(k.select(mask, put * rest, 0.0)))
                    put = put * beta
                    k.store(put, k.at(at["dv"], own(t) * values + first, F32), mask)
                    k.store(put, factors)
                    k.store(rest * beta, others)
                    of_key, of_gate = ([k.variable(v) for v in zeros] for _ in range(2))
                    alpha = alpha_of(t) if gated else None
                    with k.loop(0, count) as r:
                        down, up = (spread(k, m, r, F32, lanes) for m in (factors, others))
                        state = row.padded_load(at["history"], F32, before + r * row.padded)
                        state = [v * alpha for v in state] if alpha is not None else state
                        slope = row.padded_load(slopes, F32, r * row.padded)
                        for v, g, x in zip(of_key, slope, state, strict=True):
                            v.value = v.value + (up * g - down * x)
                        slope = row.inside([g - down * a for g, a in zip(slope, key, strict=True)])
                        for v, g, x in zip(of_gate, slope, state, strict=True):
                            v.value = k.fma(g, x, v.value)
                        slope = [g * alpha for g in slope] if alpha is not None else slope
                        row.padded_store(row.inside(slope), slopes, r * row.padded)
                    gate = of_gate[0].value
                    for v in of_gate[1:]:
                        gate = gate + v.value
                    add(at["dg"], own(t) * parts + part, total(gate))
                    place = (key_row(t) * parts + part) * self.keys
                    queries, keys = [v.value * scale for v in of_query], [v.value for v in of_key]
                    for base, added in ((at["dq"], queries), (at["dk"], keys)):
                        held = row.load(base, "f32", place)
                        row.store([x + v for x, v in zip(held, added, strict=True)], base, place)

                each(k, length, STEPS, sweep)
                with k.loop(0, tiles) as turn:
                    tile = tiles - 1 - turn
                    begin = tile * STEPS
                    steps = k.min(length - begin, STEPS)
                    with k.loop(0, count) as r:
                        state = row.padded_load(at["kept"], F32, kept + tile * state_size + r * row.padded)
                        row.padded_store(state, at["history"], history + r * row.padded)
                    forward(begin, steps, at["history"], history, True)
                    with k.loop(0, steps) as down:
                        i = steps - 1 - down
                        back(begin + i, i)
                with k.loop(0, count) as r:
                    row.store(row.padded_load(slopes, F32, r * row.padded), at["dstate"], states + r * self.keys)

            begin = part * span
            with k.loop(begin, k.min(vectors, begin + span)) as number:
                vector(number)
        return k.text()


@engine("gated_delta_rule_grad")
def bind_gated_delta_rule_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    key, v = ins[3], ins[4]
    s = delta.sizes_of(key, v)
    if name_of(v) != "f32" or not fits([*ins, *outs], s.keys, "f32", ctx.machine) or not outs[5].size:
        return None
    operands = node.attrs["operands"]
    present = optional("gated_delta_rule_grad", ins, 6, delta.NAMES, operands)
    lanes, per = ctx.machine.lanes(), s.heads // s.key_heads
    vectors = per * -(-s.values // lanes)
    span = max(1, min(vectors, s.batch * s.key_heads * vectors // _LEAST_ITEMS))
    parts = -(-vectors // span)
    items, row = s.batch * s.key_heads * parts, -(-s.keys // lanes) * lanes

    def memory(*shape: int) -> Array:
        count = int(np.prod(shape))
        return ctx.borrow(4 * count).view(np.float32)[:count].reshape(shape)

    tiles = max(1, -(-s.length // STEPS))
    of_keys = [memory(s.batch, s.length, s.key_heads, parts, s.keys) for _ in range(2)]
    of_heads = [memory(s.batch, s.length, s.heads, parts) for _ in range(2)]
    states = [memory(items, n, lanes, row) for n in (tiles, STEPS + 1)]
    spec = DeltaRuleGrad(s.keys, operands, lanes)
    inputs = dict(zip(("do", "dlast", "q", "k", "v", "beta"), ins, strict=False))
    args = spec.args(
        **inputs, **{name: present.get(name) for name in delta.NAMES}, dq=of_keys[0], dk=of_keys[1], dv=outs[2],
        dbeta=of_heads[0], dg=of_heads[1], dstate=outs[5], kept=states[0], history=states[1], length=s.length,
        heads=s.heads, values=s.values, per=per, parts=parts, span=span, scale=node.attrs["scale"],
    )  # fmt: skip
    cost = span * lanes * (s.length + 1.0) * (row // lanes) * 4.0
    keep = (*ins, *outs, *of_keys, *of_heads, *states)
    steps = [EngineStep(spec, args, items, keep=keep, cost_ns=cost)]
    for partial, out in zip((*of_keys, *of_heads), (outs[0], outs[1], outs[3], outs[4]), strict=True):
        sum_steps = summed(partial, (3,), out, ctx) if out.size else []
        if sum_steps is None:
            return None
        steps += sum_steps
    return steps
