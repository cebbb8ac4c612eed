"""group_norm_grad: an item is a group of an image. For each of its channels it writes two sums, from which the sums
over the group and the gradients of gamma and beta follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.ir import F64, Arguments, Kernel, Value, floats, pointers, sizes
from rlx.backends.cpu.reduce import bind_reduce
from rlx.backends.cpu.rowwise import (
    accumulators,
    added,
    alike,
    blocks,
    computed,
    contiguous,
    kept,
    load_wide,
    name_of,
    store_wide,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node, TensorType, get_op, node_of
from rlx.ir import expr as ex
from rlx.records import Record


class GroupNormGrad(Record):
    """An item is a group, of n elements and `per` channels of `inner`. `products` and `wholes` become the sums of d · y
    and of d (images, channels); the first `few` elements shift the mean. `kinds`: the dtypes of d, x, gamma and dx."""

    kinds: tuple[str, ...]
    lanes: int

    @property
    def args(self) -> Arguments:
        kind = computed(*self.kinds)
        return (
            pointers("d", "x", "gamma", "dx", "products", "wholes") + sizes("n", "per", "inner", "groups")
            + floats("eps", "of_n", type=kind) + sizes("few") + floats("of_few", type=kind)
        )  # fmt: skip

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        n, per, inner, groups = k.args("n", "per", "inner", "groups")
        kind = computed(*self.kinds)
        eps, of_n, few, of_few = k.args("eps", "of_n", "few", "of_few")

        def given(name: str, at: Value, mask: Value | None) -> Value:
            return load_wide(k, k.arg(name), self.kinds["dx".index(name)], at, lanes, mask)

        def total(count: Value, term: Callable[[Value, Value | None, Value], Value]) -> Value:
            """The sum of a term; `term` gets the running sum as its last argument and adds to it."""
            sums = accumulators(k, lanes, type=kind)

            def add(i: Value, u: int, mask: Value | None) -> None:
                sums[u].value = term(i, mask, sums[u].value)

            return added(k, count, lanes, sums, add)

        with k.loop(k.first, k.last) as item:
            image = k.binary("udiv", item, groups)
            channel = (item - image * groups) * per
            base, numbers = item * n, item * per
            # The mean is kept as the sum of two numbers, as in `rlx.ops.numeric.centred`.
            shifts = [k.extract(given("x", base, k.tail(1, lanes)), 0)]

            def centred(i: Value, mask: Value | None, base: Value = base, shifts: list[Value] = shifts) -> Value:
                v = given("x", base + i, mask)
                for shift in shifts:
                    v = v - k.splat(shift, lanes)
                return kept(k, v, mask)

            shifts[:] = [shifts[0] + total(few, lambda i, mask, held: held + centred(i, mask)) * of_few]
            shifts.append(total(n, lambda i, mask, held: held + centred(i, mask)) * of_n)
            squares = total(n, lambda i, mask, held: k.fma(centred(i, mask), centred(i, mask), held))
            inverse = 1.0 / k.unary("sqrt", squares * of_n + eps)
            of_product, of_d = k.variable(0.0, kind), k.variable(0.0, kind)

            def gamma(c: Value, channel: Value = channel) -> Value:
                return load_wide(k, k.arg("gamma"), self.kinds[2], channel + c, 1)

            with k.loop(0, per) as c:
                start = c * inner

                def d(i: Value, mask: Value | None, start: Value = start, base: Value = base) -> Value:
                    return kept(k, given("d", base + start + i, mask), mask)

                def product(i: Value, mask: Value | None, held: Value, start: Value = start) -> Value:
                    return k.fma(d(i, mask), centred(start + i, mask), held)

                products = total(inner, product) * inverse
                whole = total(inner, lambda i, mask, held: held + d(i, mask))
                for name, v, sums in (("products", products, of_product), ("wholes", whole, of_d)):
                    k.store(v, k.at(k.arg(name), numbers + c, kind))
                    sums.value = k.fma(gamma(c), v, sums.value)
            factor, mean = (k.splat(v.value * of_n, lanes) for v in (of_product, of_d))
            scale = k.splat(inverse, lanes)
            with k.loop(0, per) as c:
                weight, first = k.splat(gamma(c), lanes), c * inner

                def write(i: Value, u: int, mask: Value | None, weight: Value = weight, first: Value = first) -> None:
                    y = centred(first + i, mask) * scale
                    made = (given("d", base + first + i, mask) * weight - y * factor - mean) * scale
                    store_wide(k, made, k.arg("dx"), self.kinds[3], base + first + i, mask)

                blocks(k, inner, lanes, write, unroll=2)
        return k.text()


def plain(x: Array, ctx: EngineContext, dtype: np.dtype[Any] | None = None) -> Array:
    """A contiguous array of x's shape in borrowed memory."""
    kind = dtype or x.dtype
    return ctx.borrow(x.size * kind.itemsize)[: x.size * kind.itemsize].view(kind).reshape(x.shape)


@engine("group_norm_grad")
def bind_group_norm_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    d, x, gamma = ins
    kinds = tuple(name_of(a) for a in (*ins, *outs))
    if not alike(kinds) or x.size == 0 or not contiguous(gamma, *outs[1:]):
        return None
    if any(np.may_share_memory(a, o) for a in ins for o in outs[1:]):
        return None
    steps: list[EngineStep | None] = []
    dx = outs[0]
    if not contiguous(d, x, dx):  # channels-last images
        for a in (d, x):
            steps.append(tree_step([ex.arg(0, as_dtype(a.dtype))], [a], [made := plain(a, ctx)], ctx))
            d, x = (made, x) if a is d else (d, made)
        dx = plain(dx, ctx)
    groups, (batch, channels) = node.attrs["groups"], x.shape[:2]
    per, inner = channels // groups, math.prod(x.shape[2:])
    n = per * inner
    few = -(-n // 16)
    kind = computed(*kinds)
    held: np.dtype[Any] = np.dtype(np.float64 if kind == F64 else np.float32)
    sums = [plain(np.broadcast_to(gamma, (batch, channels)), ctx, held) for _ in range(2)]
    spec = GroupNormGrad(kinds[:4], ctx.machine.lanes(kind.bits))
    words = spec.args(
        d=d, x=x, gamma=gamma, dx=dx, products=sums[0], wholes=sums[1], n=n, per=per, inner=inner, groups=groups,
        eps=node.attrs["eps"], of_n=1 / n, few=few, of_few=1 / few,
    )  # fmt: skip
    steps.append(EngineStep(spec, words, batch * groups, keep=(d, x, gamma, dx, *sums), cost_ns=n * 0.8))
    if dx is not outs[0]:
        steps.append(tree_step([ex.arg(0, as_dtype(dx.dtype))], [dx], [outs[0]], ctx))
    node = node_of(get_op("sum"), [TensorType(sums[0].shape, as_dtype(held))], {"axes": (0,), "keepdims": False})
    for found, out in zip(sums, outs[1:], strict=False):  # beta may be absent
        whole = out if out.dtype == held else plain(out, ctx, held)
        steps += bind_reduce(node, [found], [whole], ctx) or [None]
        if whole is not out:
            tree = ex.cast(ex.arg(0, as_dtype(whole.dtype)), as_dtype(out.dtype))
            steps.append(tree_step([tree], [whole], [out], ctx))
    known = [step for step in steps if step is not None]
    return known if len(known) == len(steps) else None
