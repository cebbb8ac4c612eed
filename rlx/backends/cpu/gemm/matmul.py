"""Binds `matmul`: products of floats and of integers, with their epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.kernel import element_of
from rlx.backends.cpu.gemm.product import (
    Addresses,
    Panels,
    Product,
    Tile,
    choose_tile,
    in_place,
    narrow_float,
    pack_each_run,
    pack_fixed,
    product_steps,
    widened,
    with_epilogue,
)
from rlx.backends.cpu.gemm.transpose import transpose_step
from rlx.backends.cpu.host.matmul.dense import epilogue_of
from rlx.backends.cpu.packed.bind import FEW_ROWS, dot_steps
from rlx.backends.cpu.packed.panels import panel_steps
from rlx.backends.cpu.packed.tiles import tile_steps
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import as_dtype, f32, f64, i32, i64
from rlx.ir import Node
from rlx.ir import expr as ex
from rlx.records import replace

_SUMS = {"fma": f32, "fma64": f64, "whole": i32, "whole64": i64}  # the dtype of the sums
_TURNED = 32  # a transposed matrix with at least so many rows and terms is worth a copy
_PART = 128  # terms of a long sum that are added up at a time
# With so many rows an f32 weight stored row by row is packed into panels in each run, for less than a tenth of the
# product's time: programs with few rows read it in place, so no second copy has to be kept.
_MANY_ROWS = 128


@engine("matmul", takes_epilogue=True)
def bind_matmul(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    out = outs[0]
    how = _how(ins, out)
    element = element_of(how)
    if not out.flags.c_contiguous:
        raise Declined("strides of the result")
    a = np.swapaxes(ins[0], -1, -2) if node.attrs["transpose_a"] else ins[0]
    b = np.swapaxes(ins[1], -1, -2) if node.attrs["transpose_b"] else ins[1]
    if a.shape[-1] == 0 or a.size == 0 or b.size == 0:
        raise Declined("no elements")
    following = ctx.epilogue
    tree = with_epilogue(epilogue_of(node), len(ins) - 2, following, _SUMS[how])
    fixed = ctx.is_fixed(node.inputs[1])
    operands = [(ins[2], 0, 0)] if len(ins) == 3 else []
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = out.shape[:-2]
    steps: list[EngineStep] = []
    if how != "fma":
        fixed = fixed and b.dtype == out.dtype
        a, b = (x if x.dtype == out.dtype else widened(x, ctx, steps, _SUMS[how]) for x in (a, b))
    merged = math.prod(b.shape[:-2]) == 1
    if following is not None:
        if not merged or not following.out.flags.c_contiguous:
            raise Declined("a batch before another node")
        operands += [beside(x, out) for x in following.operands]
        out = following.out
    if element.is_float and merged and math.prod(batch) * m <= FEW_ROWS and _by_rows(a, b, out):
        if following is not None:
            raise Declined("few rows before another node")
        x, flat_out = a.reshape(-1, k), out.reshape(-1, n)
        weight = b.reshape(b.shape[-2:]).T
        bias = ins[2] if len(ins) == 3 else None
        return steps + dot_steps(x, weight, as_dtype(b.dtype), flat_out, bias, tree, ctx, "matvec")
    halves = b.itemsize == 2 and merged and _by_rows(a, b, out)
    if halves and ctx.machine.has_tiles and epilogue_of(node) is None:
        if following is not None:
            raise Declined("tiles before another node")  # other last bits, which must not depend on the plan
        weight = b.reshape(b.shape[-2:]).T
        return tile_steps(a.reshape(-1, k), weight, as_dtype(b.dtype), out.reshape(-1, n), ctx, "matmul")
    if a.itemsize == 2:
        a = widened(a, ctx, steps)
    if len(ins) == 2 and epilogue_of(node) is None and _is_long_sum(a, b, outs[0]):
        if following is not None:
            raise Declined("parts of a sum before another node")  # other last bits, as above
        return _sum_of_parts(a, b, out, ctx)
    if merged and math.prod(batch) == 1 and m >= _TURNED and k >= _TURNED and a.strides[-2] == a.itemsize:
        a = _turned(a.reshape(m, k), ctx, steps).reshape(a.shape)
    if merged:  # one b: all axes before the last are rows
        rows: Addresses = np.zeros((), np.int64)
        for size, stride in zip(a.shape[:-1], a.strides[:-1], strict=True):
            rows = rows[..., None] + np.arange(size) * stride
        rows = np.broadcast_to(rows, (*batch, m)).reshape(-1, 1)
        many = fixed and element.bits == 32 and len(rows) >= _MANY_ROWS and _by_rows(a, b, out)
        if halves or many:  # decoded for many rows at once, so that no other copy of a weight is kept
            weight = b.reshape(b.shape[-2:]).T
            lies = rows + address(a)
            product = Product(lies, k, a.strides[-1], out.reshape(1, -1, n), 0, tree, operands, (a,))
            return steps + panel_steps(product, weight, as_dtype(b.dtype), ctx, "matmul")
        places = [(address(a), 0, b.reshape(1, k, n), out.reshape(1, -1, n))]
    else:
        wide_a, wide_b = (_spread(x, (*batch, *x.shape[-2:])) for x in (a, b))
        rows = (np.arange(m) * a.strides[-2])[:, None]
        outer = batch[:-1]
        if math.prod(outer) > 64:
            raise Declined(f"a batch of {batch}")
        places = [
            (address(wide_a[i]), wide_a.strides[-3], wide_b[i], out[i]) for i in np.ndindex(*outer)
        ]
    streamed = b.nbytes if fixed and merged else 0
    tile = choose_tile(ctx.machine, len(rows), n, streamed, element.bits)
    packed: dict[int, Panels] = {}  # products may share a matrix, which is packed once, before the first product
    for base, apart, right, result in places:
        product = Product(rows, k, a.strides[-1], result, apart, tree, operands, (a,), how, base=base)
        panels = packed.get(address(right))
        if panels is None:
            panels = _panels(right, tile, fixed, ctx)
            packed[address(right)] = replace(panels, steps=(), prepare=None)
        steps += product_steps(product, panels, tile, ctx, "matmul")
    return steps


def _how(ins: Sequence[Array], out: Array) -> str:
    """How the elements are multiplied: see `multiplied`."""
    for how, dtype in _SUMS.items():
        if how != "fma" and dtype.np == out.dtype:
            return how
    if all(narrow_float(x.dtype) for x in (*ins, out)):
        return "fma"
    raise Declined(f"{ins[0].dtype} @ {ins[1].dtype}")


def beside(x: Array, out: Array) -> tuple[Array, int, int]:
    """An operand of the following node as an epilogue's operand: of the result's shape, or a row."""
    if x.shape == out.shape and x.flags.c_contiguous:
        return x, out.shape[-1] * x.itemsize, 0
    if x.ndim > 0 and x.size == x.shape[-1] == out.shape[-1]:
        return x, 0, 0
    raise Declined(f"{x.shape} beside {out.shape}")


def _is_long_sum(a: Array, b: Array, out: Array) -> bool:
    """Whether an f32 product has a transposed a and very many terms, as a weight's gradient has, which sums over all
    rows of a batch."""
    plain = all(x.dtype == np.float32 and math.prod(x.shape[:-2]) == 1 for x in (a, b, out))
    lies = a.strides[-2] == a.itemsize and b.strides[-1] == b.itemsize
    return plain and lies and a.shape[-1] >= 2 * _PART and min(out.shape[-2:]) >= _TURNED


def _sum_of_parts(a: Array, b: Array, out: Array, ctx: EngineContext) -> list[EngineStep]:
    """The product as a sum of products of `_PART` terms each, whose part of b stays in the cache. They read the
    transposed matrix in place, which for few terms costs no more than transposing it."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, b, result = a.reshape(m, k), b.reshape(1, k, n), out.reshape(1, m, n)
    tile = choose_tile(ctx.machine, m, n, 0)
    added = ex.call("add", ex.arg(1, f32), ex.arg(0, f32))
    steps: list[EngineStep] = []
    for first in range(0, k, _PART):
        left, right = a[:, first : first + _PART], b[:, first : first + _PART]
        rows = (np.arange(m) * left.strides[0])[:, None] + address(left)
        tree, operands = (added, [beside(result[0], result[0])]) if first else (None, [])
        product = Product(rows, left.shape[1], left.strides[1], result, 0, tree, operands, (left,))
        panels = _panels(right, tile, False, ctx)
        steps += product_steps(product, panels, tile, ctx, "matmul")
    return steps


def _turned(a: Array, ctx: EngineContext, steps: list[EngineStep]) -> Array:
    """A copy of a transposed matrix with contiguous terms: in place, each read of a tile would be from another cache
    line, and lines a power of two apart evict each other."""
    m, k = a.shape
    result = ctx.borrow(a.nbytes).view(a.dtype).reshape(m, k)
    steps.append(transpose_step(a, result, ctx, k, m, a.strides[1], result.strides[0], 1, (1, 0, 0), (0, 0)))
    return result


def _spread(x: Array, shape: tuple[int, ...]) -> Array:
    """x repeated over the batch. NumPy's own view could not be written, and a packed weight is restored through it."""
    return np.lib.stride_tricks.as_strided(x, shape, np.broadcast_to(x, shape).strides)


def _by_rows(a: Array, b: Array, out: Array) -> bool:
    """Whether a few rows are best multiplied with b's columns in place, where the terms of a column are contiguous."""
    rows = a.flags.c_contiguous and out.flags.c_contiguous
    return rows and b.strides[-2] == b.itemsize and b.strides[-1] == b.itemsize * b.shape[-2]


def _panels(b: Array, tile: Tile, fixed: bool, ctx: EngineContext) -> Panels:
    """b (batch, k, n) as the kernel reads it. A batch that repeats one matrix has a stride of 0."""
    width = tile.vectors * ctx.machine.lanes(max(32, 8 * b.itemsize))
    if fixed:
        packed = pack_fixed((b[:1] if b.strides[0] == 0 else b)[:, None], width, ctx)
        return replace(packed, batch=0) if b.strides[0] == 0 else packed
    if b.strides[2] == b.itemsize or b.shape[2] == 1:
        return in_place(b, width)
    return pack_each_run(b[:, None], width, ctx)
