"""selective_scan_grad: an item is a batch and some vectors of channels, one after the other.

A forward sweep stores the state before every STEPS steps. A backward sweep recomputes the states of these steps, and
computes the gradient of each. The gradients of B and C, which all channels share, are added up over an item's channels,
then over items; so are gradients that a head shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, Variable, pointers, sizes
from rlx.backends.cpu.reduce import bind_reduce
from rlx.backends.cpu.rowwise import load_wide, name_of
from rlx.backends.cpu.scans.rows import Row, Sums, each, exp, fits, spread
from rlx.backends.cpu.scans.selective import STEPS
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node, TensorType, get_op, node_of
from rlx.ops.scans import selective
from rlx.records import Record

_LEAST_ITEMS = 16  # a step has fewer only if there are fewer vectors of channels


class SelectiveScanGrad(Record):
    """`inner` channels follow each other, of a head where A is scalar, else of a group; a batch has `outer` such, `per`
    of them share B and C, and each is cut into `parts` of `span` vectors. `kept` is memory for states; dΔ, dA, dB and
    dC may be the sums of items, which are added up after.

    Items write (batch, length, outer, parts, states) for B and C, (batch, channels, states) for A, or where A is scalar
    (batch, heads, parts) for A and (batch, length, heads, parts) for Δ."""

    states: int
    scalar: bool
    state: bool
    lanes: int
    args = pointers(
        "dy", "dlast", "x", "delta", "a", "b", "c", "state", "dx", "ddelta", "da", "db", "dc", "dstate", "kept"
    ) + sizes("length", "inner", "outer", "per", "parts", "span")

    def ir(self) -> str:
        k, lanes, scalar = Kernel("kernel", self.args), self.lanes, self.scalar
        row = Row(k, self.states, lanes)
        at = k.all_args()
        length, inner, outer, per, parts, span = k.args("length", "inner", "outer", "per", "parts", "span")
        of_steps, of_inputs, of_u, of_d = (k.reserve(4 * STEPS * lanes) for _ in range(4))
        gains, readings, decays, sum_b, sum_c = (k.reserve(4 * STEPS * row.padded) for _ in range(5))
        history = k.reserve(4 * (STEPS + 1) * row.padded)
        sums_b, sums_a = (Sums(k, F32, lanes, STEPS) for _ in range(2))
        groups, channels = k.binary("udiv", outer, per), outer * inner
        zero = k.const(F32.of(lanes), 0.0)
        zeros = [zero] * row.count
        tiles = k.binary("udiv", length + (STEPS - 1), k.const(I64, STEPS))

        def add(base: Value, place: Value, v: Value, mask: Value | None) -> None:
            there = k.at(base, place, F32)
            k.store(k.load(F32.of(lanes), there, mask) + v, there, mask)

        with k.loop(k.first, k.last) as item:
            rest = k.binary("udiv", item, parts)
            part = item - rest * parts
            batch = k.binary("udiv", rest, outer)
            own = rest - batch * outer
            group = k.binary("udiv", own, per)
            kept_of_item = item * tiles * (lanes * row.padded)
            decay_sum = k.variable(zero)

            def shared(t: Value, batch: Value = batch, own: Value = own, part: Value = part) -> Value:
                """The index of this item's sums for step t."""
                return ((batch * length + t) * outer + own) * parts + part

            with k.loop(0, length) as t:
                for base in (at["db"], at["dc"]):
                    row.store(zeros, base, shared(t) * self.states)
                if scalar:
                    k.store(k.const(F32, 0.0), k.at(at["ddelta"], shared(t), F32))

            def vector(
                begin: Value, batch: Value = batch, own: Value = own, group: Value = group,
                kept_of_item: Value = kept_of_item,
            ) -> None:  # fmt: skip
                channel = own * inner + begin
                count = k.min(inner - begin, lanes)
                mask = k.tail(count, lanes)
                heads, head = (outer, own) if scalar else (channels, channel)
                states = (batch * channels + channel) * self.states

                def prepare(first: Value, steps: Value, backward: bool) -> None:
                    """Computes what all channels share in these steps."""
                    with k.loop(0, steps) as t:
                        place = batch * length + first + t
                        u = load_wide(k, at["x"], "f32", place * channels + channel, lanes, mask)
                        if scalar:
                            dt = spread(k, at["delta"], place * heads + head, F32, lanes)
                        else:
                            dt = load_wide(k, at["delta"], "f32", place * heads + head, lanes, mask)
                        k.store(dt, k.at(of_steps, t * lanes, F32))
                        k.store(dt * u, k.at(of_inputs, t * lanes, F32))
                        if scalar:
                            e = exp(k, dt * spread(k, at["a"], head, F32, lanes))
                            k.store(e, k.at(decays, t * row.padded, F32))
                        if backward:
                            k.store(u, k.at(of_u, t * lanes, F32))
                            d = load_wide(k, at["dy"], "f32", place * channels + channel, lanes, mask)
                            k.store(d, k.at(of_d, t * lanes, F32))
                        rows_at = (place * groups + group) * self.states
                        row.padded_store(row.load(at["b"], "f32", rows_at), gains, t * row.padded)
                        if backward:
                            row.padded_store(row.load(at["c"], "f32", rows_at), readings, t * row.padded)
                            row.padded_store(zeros, sum_b, t * row.padded)
                            row.padded_store(zeros, sum_c, t * row.padded)

                def walk(c: Value, start: list[Value], steps: Value, keep: bool) -> list[Value]:
                    """The state after these steps; with `keep`, stores all states and their decays."""
                    h = [k.variable(v) for v in start]
                    a = [] if scalar else row.load(at["a"], "f32", (channel + c) * self.states)
                    with k.loop(0, steps) as t:
                        if keep:
                            row.padded_store([v.value for v in h], history, t * row.padded)
                        added = spread(k, of_inputs, t * lanes + c, F32, lanes)
                        if scalar:
                            e = [spread(k, decays, t * row.padded, F32, lanes)] * row.count
                        else:
                            dt = spread(k, of_steps, t * lanes + c, F32, lanes)
                            e = [exp(k, dt * v) for v in a]
                            if keep:
                                row.padded_store(e, decays, t * row.padded)
                        gain = row.padded_load(gains, F32, t * row.padded)
                        updated = row.inside([k.fma(e[i], v.value, added * gain[i]) for i, v in enumerate(h)])
                        for v, new in zip(h, updated, strict=True):
                            v.value = new
                    if keep:
                        row.padded_store([v.value for v in h], history, steps * row.padded)
                    return [v.value for v in h]

                def kept(first: Value, c: Value) -> Value:
                    tile = k.binary("udiv", first, k.const(I64, STEPS))
                    return kept_of_item + (tile * lanes + c) * row.padded

                with k.loop(0, count) as c:
                    place = states + c * self.states
                    start = row.load(at["state"], "f32", place) if self.state else zeros
                    row.padded_store(start, at["kept"], kept(k.const(I64, 0), c))
                    row.store(row.load(at["dlast"], "f32", place), at["dstate"], place)
                    if not scalar:
                        row.store(zeros, at["da"], place)

                def forward(first: Value, steps: Value) -> None:
                    with k.when(k.cmp("slt", first + steps, length)):  # the state after the last steps is not stored
                        prepare(first, steps, False)
                        with k.loop(0, count) as c:
                            start = row.padded_load(at["kept"], F32, kept(first, c))
                            row.padded_store(walk(c, start, steps, False), at["kept"], kept(first + steps, c))

                each(k, length, STEPS, forward)
                with k.loop(0, tiles) as number:
                    first = (tiles - 1 - number) * STEPS
                    steps = k.min(length - first, STEPS)
                    prepare(first, steps, True)
                    with k.loop(0, count) as c:
                        walk(c, row.padded_load(at["kept"], F32, kept(first, c)), steps, True)
                        self.back(k, row, at, (c, states + c * self.states, (channel + c) * self.states), steps, {
                            "steps": of_steps, "inputs": of_inputs, "d": of_d, "gains": gains, "readings": readings,
                            "decays": decays, "history": history, "sum_b": sum_b, "sum_c": sum_c,
                        }, sums_b, sums_a, decay_sum)  # fmt: skip
                    with k.loop(0, steps) as t:
                        place = batch * length + first + t
                        u, dt = (k.load(F32.of(lanes), k.at(m, t * lanes, F32)) for m in (of_u, of_steps))
                        into, of_a = sums_b.total(t), sums_a.total(t)
                        k.store(dt * into, k.at(at["dx"], place * channels + channel, F32), mask)
                        if scalar:
                            of_a = of_a * spread(k, at["a"], head, F32, lanes)
                            product = k.select(mask, k.fma(u, into, of_a), 0.0)
                            there = k.at(at["ddelta"], shared(first + t), F32)
                            k.store(k.load(F32, there) + k.fold(product, lambda x, y: x + y), there)
                        else:
                            product = k.fma(u, into, of_a)
                            k.store(product, k.at(at["ddelta"], place * heads + head, F32), mask)
                        for base, held in ((at["db"], sum_b), (at["dc"], sum_c)):
                            for i, v in enumerate(row.padded_load(held, F32, t * row.padded)):
                                add(base, shared(first + t) * self.states + i * lanes, v, row.mask(i))

            begin = part * span * lanes
            with k.loop(begin, k.min(inner, begin + span * lanes), lanes) as start:
                vector(start)
            if scalar:
                k.store(k.fold(decay_sum.value, lambda x, y: x + y), k.at(at["da"], item, F32))
        return k.text()

    def back(
        self, k: Kernel, row: Row, at: dict[str, Value], places: tuple[Value, Value, Value], steps: Value,
        held: dict[str, Value], sums_b: Sums, sums_a: Sums, decay_sum: Variable,
    ) -> None:  # fmt: skip
        """Goes through the steps backward for one channel, given c, the address of its state and that of its row of
        A."""
        c, state, own = places
        lanes = self.lanes
        g = [k.variable(v) for v in row.load(at["dstate"], "f32", state)]
        a = [] if self.scalar else row.load(at["a"], "f32", own)
        total = [k.variable(k.const(F32.of(lanes), 0.0)) for _ in g]
        with k.loop(0, steps) as down:
            t = steps - 1 - down
            dt, added, d = (spread(k, held[n], t * lanes + c, F32, lanes) for n in ("steps", "inputs", "d"))
            gain, reading, before, after, of_b, of_c = (
                row.padded_load(held[n], F32, (t + shift) * row.padded)
                for n, shift in (
                    ("gains", 0), ("readings", 0), ("history", 0), ("history", 1), ("sum_b", 0), ("sum_c", 0),
                )
            )  # fmt: skip
            slope = row.inside([k.fma(d, x, v.value) for x, v in zip(reading, g, strict=True)])
            of_b = [k.fma(v, added, x) for v, x in zip(slope, of_b, strict=True)]
            of_c = [k.fma(v, d, x) for v, x in zip(after, of_c, strict=True)]
            row.padded_store(of_b, held["sum_b"], t * row.padded)
            row.padded_store(of_c, held["sum_c"], t * row.padded)
            sums_b.put(row.products(slope, gain), c, t)
            if self.scalar:
                e = [spread(k, held["decays"], t * row.padded, F32, lanes)] * row.count
            else:
                e = row.padded_load(held["decays"], F32, t * row.padded)
            slope = row.inside([x * v for x, v in zip(e, slope, strict=True)])
            into = [v * x for v, x in zip(slope, before, strict=True)]
            if self.scalar:
                folded = into[0]
                for v in into[1:]:
                    folded = folded + v
                sums_a.put(folded, c, t)
            else:
                sums_a.put(row.products(into, a), c, t)
            for held_g, new, whole, x in zip(g, slope, total, into, strict=True):
                held_g.value = new
                whole.value = k.fma(x, dt, whole.value)
        row.store([v.value for v in g], at["dstate"], state)
        if self.scalar:
            for part in row.inside([whole.value for whole in total]):
                decay_sum.value = decay_sum.value + part
        else:
            old = row.load(at["da"], "f32", state)
            row.store([v.value + x for v, x in zip(total, old, strict=True)], at["da"], state)


def summed(x: Array, axes: tuple[int, ...], y: Array, ctx: EngineContext) -> list[EngineStep] | None:
    """The steps that add up x over these axes."""
    node = node_of(get_op("sum"), [TensorType(x.shape, as_dtype(x.dtype))], {"axes": axes, "keepdims": False})
    return bind_reduce(node, [x], [y], ctx)


@engine("selective_scan_grad")
def bind_selective_scan_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, a, b = ins[2], ins[4], ins[5]
    s = selective.sizes_of(x, a, b)
    if name_of(x) != "f32" or not fits([*ins, *outs], s.states, "f32", ctx.machine) or not s.batch * s.channels:
        return None
    lanes = ctx.machine.lanes()
    inner, outer, per = (s.width, s.heads, s.heads // s.groups) if s.scalar else (s.heads // s.groups, s.groups, 1)
    vectors = -(-inner // lanes)
    span = max(1, min(vectors, s.batch * outer * vectors // _LEAST_ITEMS))
    parts = -(-vectors // span)
    items, row = s.batch * outer * parts, -(-s.states // lanes) * lanes

    def memory(*shape: int) -> Array:
        array = ctx.borrow(4 * int(np.prod(shape))).view(np.float32)
        return array[: int(np.prod(shape))].reshape(shape)

    # (where the kernel writes, the axes that are added up, the result)
    partials: list[tuple[Array, tuple[int, ...], Array]] = []
    for which in (3, 4):
        partials.append((memory(s.batch, s.length, s.groups, per * parts, s.states), (3,), outs[which]))
    if s.scalar:
        partials.append((memory(s.batch, s.heads, parts), (0, 2), outs[2]))
        partials.append((memory(s.batch, s.length, s.heads, parts), (3,), outs[1]))
    else:
        partials.append((memory(s.batch, s.channels, s.states), (0,), outs[2]))
    db, dc, da, ddelta = (partials[i][0] if i < len(partials) else outs[1] for i in range(4))
    kept = memory(items, max(1, -(-s.length // STEPS)), lanes, row)
    spec = SelectiveScanGrad(s.states, s.scalar, len(ins) > 7, lanes)
    inputs = dict(zip(("dy", "dlast", "x", "delta", "a", "b", "c"), ins, strict=False))
    args = spec.args(
        **inputs, state=ins[7] if len(ins) > 7 else None, dx=outs[0], ddelta=ddelta, da=da, db=db, dc=dc,
        dstate=outs[5], kept=kept, length=s.length, inner=inner, outer=outer, per=per, parts=parts, span=span,
    )  # fmt: skip
    cost = span * lanes * (20.0 + s.length * (row // lanes) * (8.0 if s.scalar else 20.0))
    keep = (*ins, *outs, db, dc, da, ddelta, kept)
    steps = [EngineStep(spec, args, items, keep=keep, cost_ns=cost)]
    for partial, axes, out in partials:
        sum_steps = summed(partial, axes, out, ctx) if out.size else []
        if sum_steps is None:
            return None
        steps += sum_steps
    return steps
