"""Dense GEMMs: one BLAS call for each tile with its epilogue right behind it; f16 and bf16 are widened by tiles too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.elementwise.evaluate import bind_trees
from rlx.backends.cpu.host.half import widen
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.matmul import integers
from rlx.backends.cpu.host.matmul.blas import MIN_IN_LIST, Product, load_team
from rlx.backends.cpu.host.rows import F32, working
from rlx.dtypes import f32
from rlx.ir import Expr, Node, get_op
from rlx.ir import expr as ex
from rlx.ops.matmul import ACTIVATIONS

_NS_A_FLOP = 1 / 200
_NS_A_BYTE = 1 / 20
# Tiles are tall: OpenBLAS packs the second operand again for every tile of rows (measured with AVX-512 kernels:
# 1,024 × 192 runs at 228 GFLOP/s, 256 × 768 at 198).
_ROWS = 1024
_COLUMNS = 384
# Packing the operands takes most of the time of a skinny GEMM. Up to this many multiplications OpenBLAS's AVX-512
# kernels do not pack: measured 180 against 66 GFLOP/s for 16 rows. (Limits for an untransposed and a transposed second
# operand.)
_UNPACKED = (950_000, 400_000)
_FEW_ROWS = 96
_MIN_COLUMNS = 96  # least columns of a skinny GEMM in a batched call
_HALF_TILE_ELEMENTS = 1 << 19  # elements of a 16-bit operand that are widened at once


@cpu_kernel("matmul")
def bind_matmul(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    a = np.swapaxes(ins[0], -1, -2) if node.attrs["transpose_a"] else ins[0]
    b = np.swapaxes(ins[1], -1, -2) if node.attrs["transpose_b"] else ins[1]
    out = outs[0]
    bias = ins[2] if len(ins) == 3 else None
    if a.shape[-1] == 0:
        zero = partial(np.copyto, out, 0, "unsafe")
        return [zero, *_finish(epilogue_of(node), out, out, bias, 0, ctx, None)]
    if working(out.dtype) == F32 and ctx.blas is not None:
        # The GEMM adds to a result filled with the bias, which saves the pass that would add it.
        return _by_tiles(a, b, bias, None, out, epilogue_of(node, bias=False), ctx)
    if working(out.dtype) == F32 and _has_half(a, b, out):
        return _by_tiles(a, b, None, bias, out, epilogue_of(node), ctx)
    return _by_numpy(a, b, bias, out, epilogue_of(node), ctx)


def _has_half(*arrays: Array) -> bool:
    return any(x.dtype != F32 for x in arrays)


def epilogue_of(node: Node, bias: bool = True) -> Expr | None:
    """The epilogue as an expression, None where there is none: argument 0 is the product (f32 for f16 and bf16),
    argument 1 the bias unless the product contains it."""
    kept = node.output.dtype
    held = f32 if kept.is_half else kept
    tree = ex.arg(0, held)
    if bias and len(node.inputs) == 3:
        tree = ex.call("add", tree, ex.cast(ex.arg(1, node.inputs[2].dtype), held))
    activation = node.attrs.get("activation")  # transposed convolutions have none
    if activation is not None:
        name, attrs = ACTIVATIONS[activation]
        rule = get_op(name).expr
        assert rule is not None
        tree = rule([tree], attrs)
    return None if tree.prim == "arg" and held == kept else ex.cast(tree, kept)


def _finish(
    epilogue: Expr | None, product: Array, out: Array, bias: Array | None, column: int, ctx: BindContext,
    thread: int | None,
) -> list[Step]:  # fmt: skip
    """The epilogue of the columns from `column` on, from `product` to `out`."""
    if epilogue is None:
        return []
    ins = [product] if bias is None else [product, bias[column : column + out.shape[-1]]]
    return bind_trees([epilogue], ins, [out], ctx, thread)


def _by_numpy(
    a: Array, b: Array, bias: Array | None, out: Array, epilogue: Expr | None, ctx: BindContext
) -> list[Step]:
    """One numpy.matmul for the whole product: f64, integers, and f32 where there is no BLAS of our own."""
    if integers.by_floats(a, b, out):
        return [integers.multiply(a, b, out, ctx), *_finish(epilogue, out, out, bias, 0, ctx, None)]
    steps: list[Step] = []
    operands = []
    for x in (a, b):
        if x.dtype != out.dtype:
            wide = ctx.scratch(x.shape, out.dtype)
            steps.append(partial(np.copyto, wide, x, "unsafe"))
            x = wide
        operands.append(x)
    steps.append(partial(np.matmul, operands[0], operands[1], out))
    return steps + _finish(epilogue, out, out, bias, 0, ctx, None)


def _by_tiles(
    a: Array,
    b: Array,
    start: Array | None,
    bias: Array | None,
    out: Array,
    epilogue: Expr | None,
    ctx: BindContext,
) -> list[Step]:
    """A GEMM tile by tile. `start` initializes each row of the product; `bias` is added by the epilogue."""
    if b.ndim == 2 or all(n == 1 for n in b.shape[:-2]):
        b = b.reshape(b.shape[-2:])
        if a.ndim > 2 and _rows_merge(a):
            rows = int(np.prod(a.shape[:-1], dtype=np.int64))
            a, out = a.reshape(rows, a.shape[-1]), out.reshape(rows, out.shape[-1])
    batch = out.shape[:-2]
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    (m, n), k = out.shape[-2:], a.shape[-1]
    unpacked = ctx.blas is not None and ctx.blas.unpacked
    tiles = [(i, r, c) for i in np.ndindex(batch) for r, c in _tiles(m, n, k, b, unpacked)]
    late = m <= _FEW_ROWS and out.dtype == F32  # one epilogue after all tiles, since skinny ones are small
    work = 2.0 * out.size * k * _NS_A_FLOP + 0.5 * out.size + b.nbytes * _NS_A_BYTE

    def bind(piece: int, thread: int) -> list[Step]:
        i, rows, columns = tiles[piece]
        left, right, result = a[i][rows], b[i][:, columns], out[i][rows, columns]
        product = result
        if out.dtype != F32:
            product = ctx.scratch(result.shape, F32, thread)
        steps: list[Step] = []
        if start is not None and not late:
            steps.append(partial(np.copyto, product, start[columns]))
        steps += multiply(left, right, product, ctx, thread, onto=start is not None)
        return steps if late else steps + _finish(epilogue, product, result, bias, columns.start, ctx, thread)

    before: list[Step] = [] if start is None or not late else [partial(np.copyto, out, start)]
    if late and len(tiles) > 1:
        parts = [(a[i][r], b[i][:, c], out[i][r, c]) for i, r, c in tiles]
        step = in_one_call(parts, ctx, start is not None)
        if step is not None:
            return [*before, step, *_finish(epilogue, out, out, bias, 0, ctx, None)]
    marks = ctx.mark()

    def bind_over(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)  # tiles of one thread run one after another, so they share scratch
        return bind(piece, thread)

    steps = ctx.split(len(tiles), work, bind_over)
    return [*before, *steps, *_finish(epilogue, out, out, bias, 0, ctx, None)] if late else steps


def _rows_merge(a: Array) -> bool:
    """Whether the strides let all axes but the last be merged into one axis of rows."""
    stride = a.strides[-2] * a.shape[-2]
    for n, s in zip(reversed(a.shape[:-2]), reversed(a.strides[:-2]), strict=True):
        if n != 1 and s != stride:
            return False
        stride *= n
    return True


def _tiles(m: int, n: int, k: int, b: Array, unpacked: bool) -> list[tuple[slice, slice]]:
    """The tiles of the result as (rows, columns). They depend on shapes and layouts alone, not on threads."""
    if m == 1:
        return [(slice(0, 1), s) for s in _cut(n, 4096)]
    rows = [slice(0, m)] if m < 2 * _FEW_ROWS else _cut(m, _ROWS)
    if b.dtype != F32:
        width = max(64, _HALF_TILE_ELEMENTS // max(k, 1) // 64 * 64)
        return [(r, c) for c in _cut(n, min(width, _COLUMNS)) for r in rows]
    if m <= _FEW_ROWS and m * n * k >= 2 * MIN_IN_LIST and load_team() is not None:
        # A power of two of tiles divides evenly among the usual numbers of threads.
        parts = min(m * n * k // MIN_IN_LIST, n // _MIN_COLUMNS)
        if parts > 1:
            return [(rows[0], c) for c in _cut(n, n // (1 << parts.bit_length() - 1))]
    if unpacked and m <= _FEW_ROWS:
        width = _UNPACKED[b.strides[-1] != b.itemsize] // (m * k)
        width = width // 64 * 64 or width // 16 * 16
        if width:
            return [(rows[0], c) for c in _cut(n, width, even=False)]
    columns = _cut(n, _COLUMNS if n > 2 * _COLUMNS else _COLUMNS // 2)
    return [(r, c) for r in rows for c in columns]


def _cut(n: int, most: int, even: bool = True) -> list[slice]:
    """Slices of at most `most`; with `even`, of about equal length and multiples of 16."""
    parts = -(-n // most)
    if even:
        most = (n + parts - 1) // parts
        most += -most % 16
    return [slice(i, min(n, i + most)) for i in range(0, n, most)]


def multiply(
    a: Array,
    b: Array,
    out: Array,
    ctx: BindContext,
    thread: int,
    alpha: float = 1.0,
    onto: bool = False,
) -> list[Step]:
    """out = alpha · a @ b, or out += that with `onto`. `out` is f32; operands have any strides, and f16 and bf16 are
    widened into scratch first. Requires: a BLAS of our own for `onto`."""
    steps: list[Step] = []
    a = _prepared(a, steps, ctx, thread)
    b = _prepared(b, steps, ctx, thread)
    blas = ctx.blas
    if blas is None:
        assert not onto
        steps.append(partial(np.matmul, a, b, out))
        if alpha != 1.0:
            steps.append(partial(np.multiply, out, np.asarray(alpha, F32), out))
        return steps
    p = _product(a, b, out, alpha, onto)
    if p.m > 1 and (p.n > 1 or ctx.batch_invariant):  # sgemv does not sum all rows in the same order
        return [*steps, blas.sgemm(p)]
    if not onto:
        # Some versions of sgemv multiply the old y by beta 0 instead of overwriting it, and 0 · NaN is NaN.
        steps.append(partial(np.copyto, out, 0))
    if p.m == 1:  # the row is the vector: outᵀ = bᵀ · aᵀ
        step_a = max(a.strides[1] // 4, 1)
        stored_rows, stored_columns = (p.n, p.k) if p.transpose_b else (p.k, p.n)
        matrix = (p.b, p.ldb, not p.transpose_b)
        return [*steps, blas.sgemv(*matrix, p.a, step_a, p.c, 1, stored_rows, stored_columns, alpha, 1.0)]
    stored_rows, stored_columns = (p.k, p.m) if p.transpose_a else (p.m, p.k)
    step_b = max(b.strides[0] // 4, 1)
    matrix = (p.a, p.lda, p.transpose_a)
    return [*steps, blas.sgemv(*matrix, p.b, step_b, p.c, p.ldc, stored_rows, stored_columns, alpha, 1.0)]


def _product(a: Array, b: Array, out: Array, alpha: float = 1.0, onto: bool = False) -> Product:
    (pa, lda, ta), (pb, ldb, tb) = _layout(a), _layout(b)
    (m, k), n = a.shape, b.shape[1]
    return Product(pa, lda, ta, pb, ldb, tb, _address(out), _leading(out, 0), m, n, k, alpha, float(onto))


def in_one_call(
    products: Sequence[tuple[Array, Array, Array]], ctx: BindContext, onto: bool = False
) -> Step | None:
    """One batched call for all out = a @ b (or out += that), on the library's own threads. None where this executable
    may not use them, or where a product needs a converted operand or is too small for batched calls."""
    if ctx.team is None or not all(_listable(*p) for p in products):
        return None
    return ctx.team.sgemms([_product(a, b, out, 1.0, onto) for a, b, out in products])


def _listable(a: Array, b: Array, out: Array) -> bool:
    plain = all(x.dtype == F32 and _readable(x) for x in (a, b)) and min(out.shape) > 1
    return plain and out.size * a.shape[1] >= MIN_IN_LIST


def _prepared(x: Array, steps: list[Step], ctx: BindContext, thread: int) -> Array:
    """x as BLAS can read it, f32 with one axis contiguous: x itself, or else a copy in scratch."""
    if x.dtype == F32 and _readable(x):
        return x
    transposed = abs(x.strides[0]) < abs(x.strides[1])
    wide = ctx.scratch(x.shape[::-1] if transposed else x.shape, F32, thread)
    steps += widen(x.T if transposed else x, wide, ctx, thread)
    return wide.T if transposed else wide


def _readable(x: Array) -> bool:
    rows, columns = x.shape
    down, along = x.strides
    return _fits(columns, along, rows, down) or _fits(rows, down, columns, along)


def _fits(n: int, stride: int, others: int, across: int) -> bool:
    """Whether lines of n elements are contiguous, without overlap, and a whole number of elements apart."""
    return (n == 1 or stride == 4) and (others == 1 or (across >= 4 * n and across % 4 == 0))


def _layout(x: Array) -> tuple[int, int, bool]:
    """(address, leading dimension, transposed) of a readable array."""
    rows, columns = x.shape
    if _fits(columns, x.strides[1], rows, x.strides[0]):
        return _address(x), _leading(x, 0), False
    return _address(x), _leading(x, 1), True


def _leading(x: Array, axis: int) -> int:
    least = max(int(x.shape[1 - axis]), 1)
    return max(int(x.strides[axis]) // 4, least) if x.shape[axis] > 1 else least


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])
