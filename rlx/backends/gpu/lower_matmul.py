"""Lowering of matmul: the tiled kernels, and on CUDA cuBLAS with an elementwise kernel for bias and activation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu import decls
from rlx.backends.gpu.casts import cast_ref, fits, quads, stores
from rlx.backends.gpu.lowering import Lowering, lowers
from rlx.backends.gpu.steps import FileKernel, Gemm, Ref
from rlx.backends.gpu.strided import View, contiguous, launch_tree
from rlx.dtypes import DType, f32, promote
from rlx.ir import Node, Tensor, expr, get_op
from rlx.ops.linalg import ACTIVATIONS

_CODE = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}
_LONG_SUM = 8192  # longer sums are made of parts, so that rounding stays below the tolerance
_FEW_ROWS = 8  # up to so many rows each element of B is read once
_FEW_TILES = 256  # with fewer tiles of 128 than this, smaller tiles keep more of the device busy


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of products: sizes, and per batch axis (outermost first) its length and the strides of A and B in
    elements, 0 where an operand is repeated."""

    m: int
    n: int
    k: int
    batch: tuple[tuple[int, int, int], ...]
    transpose_a: bool
    transpose_b: bool

    @property
    def count(self) -> int:
        return math.prod(d for d, _, _ in self.batch)


def product_of(node: Node) -> Product:
    """The node's product with its batch axes merged where they can be, and a batch of rows that share B made one."""
    a, b = (t.shape for t in node.inputs[:2])
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    m, k = (a[-1], a[-2]) if ta else (a[-2], a[-1])
    n = node.output.shape[-1]
    out = node.output.shape[:-2]
    merged: list[tuple[int, int, int]] = []
    for d, sa, sb in zip(out, _strides(a, len(out)), _strides(b, len(out)), strict=True):
        if d == 1:
            continue
        if merged and merged[-1][1] == sa * d and merged[-1][2] == sb * d:
            merged[-1] = (merged[-1][0] * d, sa, sb)
        else:
            merged.append((d, sa, sb))
    if not ta and len(merged) == 1 and merged[0][1] == m * k and merged[0][2] == 0:
        m, merged = m * merged[0][0], []
    return Product(m, n, k, tuple(merged), ta, tb)


def _strides(shape: Sequence[int], rank: int) -> list[int]:
    """Element strides of the batch axes, aligned to `rank` axes; 0 where the operand is repeated."""
    strides, step = [], shape[-1] * shape[-2]
    for d in reversed(shape[:-2]):
        strides.append(step if d > 1 else 0)
        step *= d
    strides += [0] * (rank - len(strides))
    return strides[::-1]


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("matmul", when=_native)
def lower_matmul(ctx: Lowering, node: Node) -> None:
    """cuBLAS where it takes the dtypes, else the tiled kernels; see the module."""
    y = node.output
    if y.size == 0:
        return
    a, b = node.inputs[:2]
    target, stored = ctx.ref(y), ctx.storage(y)
    kinds = ctx.storage(a), ctx.storage(b)
    if not stored.is_float:
        _integers(ctx, node, stored)
        return
    pair = kernel_pair(*kinds, stored)
    refs = [cast_ref(ctx, ctx.ref(t), s, p, t.size) for t, s, p in zip((a, b), kinds, pair, strict=True)]
    product = product_of(node)
    if ctx.backend == "cuda" and pair[0] == pair[1] and product.k > 0:
        _library(ctx, node, product, refs, pair[0], target, stored)
    else:
        _tiled(ctx, node, product, refs, pair, target)


def kernel_pair(a: DType, b: DType, out: DType) -> tuple[DType, DType]:
    """The storage the kernels take A and B in: as they are where a variant exists, else cast to the result's."""
    if a == out and (b == out or (out == f32 and b.is_half)):
        return a, b
    return (out, b) if out == f32 and b.is_half else (out, out)


def _outer(product: Product, most: int) -> tuple[list[tuple[int, int, int]], tuple[tuple[int, int, int], ...]]:
    """The batch axes beyond the innermost `most`, as (number, offset in A, offset in B) of each of their members, and
    the `most` axes left."""
    outer, inner = product.batch[: max(0, len(product.batch) - most)], product.batch[-most:]
    members = []
    for number, at in enumerate(itertools.product(*(range(d) for d, _, _ in outer))):
        offset_a = sum(i * sa for i, (_, sa, _) in zip(at, outer, strict=True))
        offset_b = sum(i * sb for i, (_, _, sb) in zip(at, outer, strict=True))
        members.append((number, offset_a, offset_b))
    return members, inner


def _part(ref: Ref, offset: int, nbytes: int) -> Ref:
    return Ref(ref.segment, ref.offset + offset, nbytes)


def _tiled(
    ctx: Lowering, node: Node, product: Product, refs: list[Ref], pair: tuple[DType, DType], target: Ref
) -> None:
    m, n, k = product.m, product.n, product.k
    (a, b), (da, db) = refs, pair
    bias = _bias(ctx, node, f32)
    if m <= _FEW_ROWS and (m == 1 or not product.transpose_a):
        _few_rows(ctx, node, product, refs, pair, bias, target)
        return
    tile_m, tile_n = tile_of(m, n, product.count)
    rows_a, rows_b = (m if product.transpose_a else k), (k if product.transpose_b else n)
    constants = (
        tile_m,
        tile_n,
        int(product.transpose_a),
        int(product.transpose_b),
        _CODE[node.attrs["activation"]],
        int(bias is not None),
        int(rows_a % 4 == 0) and quads(a, itemsize=da.itemsize),
        int(rows_b % 4 == 0) and quads(b, itemsize=db.itemsize),
        int(n % 4 == 0) and quads(target, itemsize=da.itemsize),
        int(k > _LONG_SUM),
    )
    kernel = FileKernel(decls.MATMUL.stem, (("AB", f"{da}_{db}"),), constants)
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    _launch(ctx, kernel, product, (a, da), (b, db), bias, (target, da), tiles)


def _few_rows(
    ctx: Lowering,
    node: Node,
    product: Product,
    refs: list[Ref],
    pair: tuple[DType, DType],
    bias: Ref | None,
    target: Ref,
) -> None:
    (a, b), (da, db) = refs, pair
    rows_b = product.k if product.transpose_b else product.n
    across = 16 if product.n * product.count >= 64 * _FEW_TILES else 4
    constants = (
        1 << (product.m - 1).bit_length(),
        int(product.transpose_b),
        _CODE[node.attrs["activation"]],
        int(bias is not None),
        int(product.k % 4 == 0) and quads(a, itemsize=da.itemsize),
        int(rows_b % 4 == 0) and quads(b, itemsize=db.itemsize),
        across,
    )
    kernel = FileKernel(decls.MATMUL_ROWS.stem, (("AB", f"{da}_{db}"),), constants)
    tiles = math.ceil(product.n / (8 if product.transpose_b else 4 * across))
    _launch(ctx, kernel, product, (a, da), (b, db), bias, (target, da), tiles)


def _launch(
    ctx: Lowering,
    kernel: FileKernel,
    product: Product,
    a: tuple[Ref, DType],
    b: tuple[Ref, DType],
    bias: Ref | None,
    c: tuple[Ref, DType],
    tiles: int,
) -> None:
    """One launch for three batch axes; more axes, more launches."""
    members, inner = _outer(product, 3)
    dims = [(1, 0, 0)] * (3 - len(inner)) + list(inner)
    count = math.prod(d for d, _, _ in dims)
    size = count * product.m * product.n * c[1].itemsize
    for number, at_a, at_b in members:
        pa = _from(a[0], at_a * a[1].itemsize)
        pb = _from(b[0], at_b * b[1].itemsize)
        pc = _part(c[0], number * size, size)
        ctx.launch(
            kernel,
            ctx.groups(tiles * count),
            [pa, pb, bias or pa, pc, product.m, product.n, product.k, count, dims[1][0], dims[2][0],
             *(sa for _, sa, _ in dims), *(sb for _, _, sb in dims)],
        )  # fmt: skip


def _from(ref: Ref, offset: int) -> Ref:
    return Ref(ref.segment, ref.offset + offset, ref.nbytes - offset)


def tile_of(m: int, n: int, count: int) -> tuple[int, int]:
    """Tiles of 128 where there are enough of them, and of 64 along a side that is short."""
    big = math.ceil(m / 128) * math.ceil(n / 128) * count
    if big >= _FEW_TILES:
        return (128 if m > 64 else 64), (128 if n > 64 else 64)
    return 64, 64


def _integers(ctx: Lowering, node: Node, stored: DType) -> None:
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in node.inputs[:2])
    product = product_of(node)
    bias = _bias(ctx, node, stored)
    constants = (int(product.transpose_a), int(product.transpose_b), int(bias is not None))
    kernel = FileKernel(decls.MATMUL_INT.stem, (("T", stored.name),), constants)
    tiles = math.ceil(product.m / 16) * math.ceil(product.n / 16)
    _launch(ctx, kernel, product, (a, stored), (b, stored), bias, (ctx.ref(node.output), stored), tiles)


def _bias(ctx: Lowering, node: Node, dtype: DType) -> Ref | None:
    if len(node.inputs) < 3:
        return None
    bias = node.inputs[2]
    return cast_ref(ctx, ctx.ref(bias), ctx.storage(bias), dtype, bias.size)


def _library(
    ctx: Lowering, node: Node, product: Product, refs: list[Ref], dtype: DType, target: Ref, stored: DType
) -> None:
    """Gemm steps, one for each place of the batch axes beyond the first that cuBLAS strides over; then the epilogue.

    Halves with an epilogue go through f32 workspace, so that the result is rounded once.
    """
    activation = node.attrs["activation"]
    bias = node.inputs[2] if len(node.inputs) == 3 else None
    plain = activation is None and bias is None
    wide = f32 if dtype.is_half and not plain else stored
    made = target if wide == stored else ctx.scratch(node.output.size * wide.itemsize)
    precision = ctx.precision if dtype == f32 else dtype.name
    members, inner = _outer(product, 1)
    count, stride_a, stride_b = inner[0] if inner else (1, 0, 0)
    one = product.m * product.n
    for number, at_a, at_b in members:
        ctx.emit(
            Gemm(
                _from(refs[0], at_a * dtype.itemsize),
                _from(refs[1], at_b * dtype.itemsize),
                _part(made, number * count * one * wide.itemsize, count * one * wide.itemsize),
                product.m, product.n, product.k, dtype, dtype, wide, product.transpose_a, product.transpose_b,
                count, stride_a, stride_b, one, precision, node.label or node.op.name,
            )
        )  # fmt: skip
    if not plain:
        _epilogue(ctx, made, wide, bias, activation, target, stored, product)


def epilogue_tree(dtype: DType, bias: DType | None, activation: str | None, out: DType) -> expr.Expr:
    """activation(input 0 + input 1), the second only where there is a bias dtype, as the ops themselves write it."""
    x = expr.cast(expr.arg(0, dtype), promote(dtype, f32))
    if bias is not None:
        x = x + expr.cast(expr.arg(1, bias), x.dtype)
    if activation is not None:
        name, attrs = ACTIVATIONS[activation]
        rule = get_op(name).expr
        assert rule is not None
        x = rule([x], attrs)
    return expr.cast(x, out)


def _epilogue(
    ctx: Lowering,
    made: Ref,
    wide: DType,
    bias: Tensor | None,
    activation: str | None,
    target: Ref,
    stored: DType,
    product: Product,
) -> None:
    shape = (product.count * product.m, product.n)
    kind = ctx.storage(bias) if bias is not None else None
    inputs = [View(made, wide, contiguous(shape))]
    if bias is not None and kind is not None:
        inputs.append(View(ctx.ref(bias), kind, (0, 1)))
    tree = epilogue_tree(wide, kind, activation, stored)
    launch_tree(ctx, [tree], shape, inputs, [View(target, stored, contiguous(shape))])
