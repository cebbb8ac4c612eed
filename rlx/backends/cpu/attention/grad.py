"""Attention's backward pass as matrix products for each key head, and one kernel over the rows of scores.

The queries of the heads that share keys are the rows of one matrix. Scores are recomputed into scratch shared with the
program's other nodes: long sequences, whose scores would be large, are left to NumPy, which works in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import (
    Product,
    choose_tile,
    in_place,
    product_steps,
)
from rlx.backends.cpu.gemm.transpose import transpose_step
from rlx.backends.cpu.ir import F32, I8, I64, Arguments, Kernel, Value, floats, pointers, sizes
from rlx.backends.cpu.rowwise import (
    accumulators,
    added,
    blocks,
    contiguous,
    exp_of_difference,
    folded,
    grain_of,
    greater,
    kept,
    name_of,
)
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.ir import Node
from rlx.ops.attention.parts import rest
from rlx.records import Record

_MAX_SCORE_BYTES = 1 << 25
_MASK_STRIDES = ("mask_batch", "mask_head", "mask_query")


class ScoresGradient(Record):
    """Overwrites rows over n keys: scores p by probabilities P, and gradients ds, which hold dP, by scale · P (dP - Σ P
    dP). `before` is the number of keys that the first query sees (causal). Strides of the mask are in bytes. `mask`: an
    "f32" mask is added to scores, a "bool" one hides keys where it is false."""

    causal: bool
    windowed: bool
    mask: str
    lanes: int

    @property
    def args(self) -> Arguments:
        args = pointers("p", "ds") + sizes("n") + floats("scale") + sizes("queries", "before", "window")
        return args + pointers("mask") + sizes(*_MASK_STRIDES, "heads") if self.mask else args

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        n, scale, queries, before = k.arg("n"), k.splat(k.arg("scale"), lanes), k.arg("queries"), k.arg("before")
        with k.loop(k.first, k.last) as row:
            p, ds = (k.at(k.arg(name), row * n, F32) for name in ("p", "ds"))
            seen = n
            line = k.binary("udiv", row, queries)
            query = row - line * queries
            if self.causal:
                seen = k.max(k.min(query + before, n), 0)
            if self.windowed:
                seen = k.max(k.min(query + before + k.arg("window"), seen), 0)

            def load(base: Value, i: Value, mask: Value | None) -> Value:
                return k.load(F32.of(lanes), k.at(base, i, F32), mask)

            def store(v: Value, base: Value, i: Value, mask: Value | None) -> None:
                k.store(v, k.at(base, i, F32), mask)

            tops = accumulators(k, lanes, -math.inf)

            def score(i: Value, mask: Value | None, p: Value = p, line: Value = line, query: Value = query) -> Value:
                v = load(p, i, mask) * scale
                if self.mask:
                    batch = k.binary("udiv", line, k.arg("heads"))
                    head = line - batch * k.arg("heads")
                    start = k.arg("mask")
                    at = batch * k.arg("mask_batch") + head * k.arg("mask_head") + query * k.arg("mask_query")
                    at = k.at(start, at)
                    kind = F32 if self.mask == "f32" else I8
                    mask_value = k.load(kind.of(lanes), k.at(at, i, kind), mask)
                    v = v + mask_value if self.mask == "f32" else k.select(k.cmp("ne", mask_value, 0), v, -math.inf)
                if self.windowed:  # keys before the window
                    first = query + before - 1 - k.arg("window")
                    numbers = k.splat(i, lanes) + k.lanes(I64, range(lanes))
                    v = k.select(k.cmp("sge", numbers, k.splat(first, lanes)), v, -math.inf)
                return v

            def raise_top(i: Value, u: int, mask: Value | None, score: Callable[..., Value] = score) -> None:
                v = kept(k, score(i, mask), mask, -math.inf)
                tops[u].value = k.select(k.cmp("uno", v, v), v, greater(k, v, tops[u].value))

            blocks(k, seen, lanes, raise_top)
            top = folded(k, tops, lambda a, b: k.max(a, b))
            # Where all scores are -inf, all probabilities are 0.
            top = k.splat(k.max(top, -3.4028234663852886e38), lanes)
            sums = accumulators(k, lanes)

            def exponential(
                i: Value, u: int, mask: Value | None, p: Value = p, top: Value = top,
                score: Callable[..., Value] = score,
            ) -> None:  # fmt: skip
                e = kept(k, exp_of_difference(k, score(i, mask) - top), mask)
                store(e, p, i, mask)
                sums[u].value = sums[u].value + e

            total = added(k, seen, lanes, sums, exponential)
            inverse = k.splat(1.0 / k.max(total, 1.1754943508222875e-38), lanes)
            means = accumulators(k, lanes)

            def share(
                i: Value, u: int, mask: Value | None, p: Value = p, ds: Value = ds, inverse: Value = inverse
            ) -> None:
                v = load(p, i, mask) * inverse
                store(v, p, i, mask)
                means[u].value = k.fma(v, load(ds, i, mask), means[u].value)

            mean = k.splat(added(k, seen, lanes, means, share), lanes)

            def write(
                i: Value, u: int, mask: Value | None, p: Value = p, ds: Value = ds, mean: Value = mean
            ) -> None:
                store(load(p, i, mask) * (load(ds, i, mask) - mean) * scale, ds, i, mask)

            blocks(k, seen, lanes, write)
            if self.causal or self.windowed:
                zero = k.const(F32.of(lanes), 0.0)
                with k.loop(seen, n, lanes) as i:
                    mask = k.tail(k.min(n - i, lanes), lanes)
                    store(zero, p, i, mask)
                    store(zero, ds, i, mask)
        return k.text()


@engine("attention_grad")
def bind_attention_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    attrs = node.attrs
    if rest("attention", node.inputs[4:])[1] is not None:
        raise Declined("lengths")
    if attrs.get("softcap") is not None or attrs.get("tokens"):
        raise Declined("a softcap or tokens first")
    if any(a.dtype != np.float32 or a.size == 0 for a in (*ins[:4], *outs)) or not contiguous(*ins[:4], *outs):
        return None
    batch, heads, n_q, size = ins[1].shape
    key_heads, n_k = ins[2].shape[1:3]
    masks = [np.broadcast_to(a, (batch, heads, n_q, n_k)) for a in ins[4:]]
    if any(a.dtype not in (np.float32, np.bool_) or (n_k > 1 and a.strides[3] != a.itemsize) for a in masks):
        raise Declined("a mask of this dtype, or that is the same for all keys")
    matrices, rows = batch * key_heads, heads // key_heads * n_q
    scores = matrices * rows * n_k
    if 4 * scores > _MAX_SCORE_BYTES or ins[3].shape[3] != size:
        raise Declined(f"{4 * scores} bytes of scores")
    d, q = (a.reshape(matrices, rows, size) for a in ins[:2])
    key, value = (a.reshape(matrices, n_k, size) for a in ins[2:4])
    dq, dk, dv = (o.reshape(matrices, -1, size) for o in outs)
    steps: list[EngineStep] = []

    def memory(*shape: int) -> Array:
        return ctx.borrow(4 * math.prod(shape)).view(np.float32).reshape(shape)

    def transposed(x: Array, out: Array) -> Array:
        count, m, n = x.shape
        steps.append(
            transpose_step(x, out, ctx, m, n, x.strides[1], out.strides[1], count, (1, 0, x.strides[0]),
                           (0, out.strides[0]))
        )  # fmt: skip
        return out

    def multiply(a: Array, b: Array, out: Array) -> None:
        m, terms = a.shape[1:]
        table = (address(a) + np.arange(m) * a.strides[1])[:, None].astype(np.int64)
        tile = choose_tile(ctx.machine, m, b.shape[2])
        product = Product(table, terms, 4, out, a.strides[0], keep=(a,))
        panels = in_place(b, tile.vectors * ctx.machine.lanes())
        steps.extend(product_steps(product, panels, tile, ctx, "product"))

    p, ds, turned = memory(matrices, rows, n_k), memory(matrices, rows, n_k), memory(matrices, n_k, rows)
    across = memory(matrices, size, n_k)
    multiply(q, transposed(key, across), p)
    multiply(d, transposed(value, across), ds)
    window = attrs.get("window")
    spec = ScoresGradient(
        attrs["causal"], window is not None, name_of(masks[0]) if masks else "", ctx.machine.lanes()
    )
    beside: dict[str, Any] = {}
    for mask in masks:
        beside = {"mask": mask, "heads": heads, **dict(zip(_MASK_STRIDES, mask.strides, strict=False))}
    args = spec.args(
        p=p, ds=ds, n=n_k, scale=attrs["scale"], queries=n_q, before=n_k - n_q + 1, window=window or 0, **beside
    )
    steps.append(EngineStep(spec, args, matrices * rows, grain_of(n_k), (p, ds, *masks), cost_ns=n_k * 1.2))
    multiply(transposed(p, turned), d, dv)
    multiply(ds, key, dq)
    multiply(transposed(ds, turned), q, dk)
    return steps
