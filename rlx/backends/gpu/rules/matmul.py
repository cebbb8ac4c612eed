"""Lowering of matmul: cuBLAS on CUDA, matrix instructions, tiles of multiply-adds, few rows; see product_choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.gpu.gemm.choice import Split, Way, forced, split_for, with_terms
from rlx.backends.gpu.gemm.launch import (
    PLACES,
    Epilogue,
    Operand,
    bias_ref,
    biases,
    epilogue_tree,
    few_rows,
    finish,
    fma_tiles,
    from_,
    launch,
    mma_tiles,
)
from rlx.backends.gpu.gemm.product import Product, outer, product_of
from rlx.backends.gpu.gemm.shared_input import batch_of, make_batch
from rlx.backends.gpu.program.casts import cast_ref, fits, stores
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Gemm, Ref
from rlx.dtypes import DType, bf16, f32
from rlx.ir import Node

MATMUL_INT = declare(
    KernelDecl(
        "matmul_int",
        about=(
            "C (batch, m, n) = op(A) op(B) + bias in integers or f64, batch = d0 * d1 * d2 matrices of "
            "strides a0 a1 a2, b0 b1 b2."
        ),
        grid="a group of 256 for each tile of 16 x 16 of each matrix",
        # a, b, bias (n), c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2 (strides in elements).
        args=(*reads(a="T", b="T", bias="T"), *writes(c="T"), *uints("m", "n", "k", "batch", *PLACES)),
        headers=("body64",),
        variants={"T": ("i32", "i64", "f64")},
        constants={"A_TRANSPOSED": False, "B_TRANSPOSED": False, "HAS_BIAS": False},
        trials=((False, True, True),),
    )
)

__all__ = ["epilogue_tree", "has_matrices", "kernel_pair", "lower_matmul", "product"]

_ROWS = 16  # the few-rows kernel takes up to so many,
_FEW_ROWS = 8  # and is the fastest up to so many, or where B is small
_SMALL = 1 << 20
_LARGE = 1 << 30  # multiply-adds from which rounding the operands first pays


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features, doubles=True) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("matmul", when=_native)
def lower_matmul(ctx: Lowering, node: Node) -> None:
    """A product of floats as `product` makes it; of integers, and of f64 where no library is, by its own kernel."""
    y = node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    if not stored.is_float:
        _integers(ctx, node, stored)
        return
    a, b = (Operand(ctx.ref(t), ctx.storage(t)) for t in node.inputs[:2])
    sizes = (node.inputs[0].size, node.inputs[1].size)
    c = Operand(ctx.ref(y), stored)
    if stored.name == "f64":
        _doubles(ctx, node, a, b, c)
        return
    group = batch_of(ctx, node)
    if group:
        joint = replace(product_of(node), batch=((len(group), 0, 0),))
        if chosen(ctx, joint, a.dtype, b.dtype, stored)[0][1] == b.dtype:  # else each B is cast by itself
            make_batch(ctx, node, group, product)
            return
    product(ctx, product_of(node), a, b, sizes, Epilogue.of(node), c, node.label or node.op.name)


def kernel_pair(a: DType, b: DType, out: DType) -> tuple[DType, DType]:
    """The storage the kernels take A and B in: as they are where a variant exists, else cast to the result's."""
    if a == out and (b == out or (out == f32 and b.is_half)):
        return a, b
    return (out, b) if out == f32 and b.is_half else (out, out)


def product(
    ctx: Lowering,
    p: Product,
    a: Operand,
    b: Operand,
    sizes: tuple[int, int],
    end: Epilogue,
    c: Operand,
    label: str,
) -> None:
    """Steps that make one product; `sizes` are the elements of A and B. C holds no fewer bits than A and B."""
    pair, split, way = chosen(ctx, p, a.dtype, b.dtype, c.dtype)
    a, b = (Operand(cast_ref(ctx, t.ref, t.dtype, d, n), d)
            for t, d, n in zip((a, b), pair, sizes, strict=True))  # fmt: skip
    if way == "library":
        _library(ctx, p, a, b, end, c, label)
    elif way == "rows":
        few_rows(ctx, p, a, b, end, c)
    elif way == "mma" and split is not None:
        mma_tiles(ctx, p, a, b, split, end, c)
    else:
        fma_tiles(ctx, p, a, b, end, c)


def chosen(
    ctx: Lowering, p: Product, a: DType, b: DType, c: DType
) -> tuple[tuple[DType, DType], Split | None, Way]:
    """What a product of operands stored so is made of: the storage its kernel takes them in, how matrix instructions
    multiply them, which kernel."""
    pair = kernel_pair(a, b, c)
    if a == b and a.is_half and c == f32:
        pair = (a, b)
    split = with_terms(split_for(*pair, ctx.precision), *pair)
    way = _way(ctx, p, pair, split)
    if split is not None and pair != (split.type, split.type) and _rounds_first(ctx, p, way, split, pair):
        pair = (split.type, split.type)
    if way == "rows" and c != pair[0]:  # that kernel stores C as A is; tiles may store it as f32
        pair = (f32, f32)
    return pair, split, way


def _rounds_first(ctx: Lowering, p: Product, way: Way, split: Split, pair: tuple[DType, DType]) -> bool:
    """Whether operands become halves in a step of their own. The library takes no mixed pair, and is given no f32 where
    bf16 is meant (see `_way`); the tiles would round on every read, at less than half the rate of halves (79 and 197
    TFLOP/s on an H200 through Vulkan)."""
    if way == "library":
        return pair[0] != pair[1] or _to_bf16(ctx, split, pair)
    return way == "mma" and not split.exact and p.count * p.m * p.n * p.k >= _LARGE


def _to_bf16(ctx: Lowering, split: Split | None, pair: tuple[DType, DType]) -> bool:
    """Whether two f32 operands are multiplied as bf16, by a device that can."""
    return split == Split(bf16, 1, 1) and pair == (f32, f32) and has_matrices(ctx, split)


def _way(ctx: Lowering, p: Product, pair: tuple[DType, DType], split: Split | None) -> Way:
    """How a product is made here, of the ways that can make it."""
    ways: list[Way] = ["fma"]
    # Several terms an element are worth it where mma.sync overlaps its loads (82 TFLOP/s beside 34 of plain f32 on an
    # H200); cooperative matrices do not (37 beside 40).
    matrices = split is not None and p.k > 0 and has_matrices(ctx, split)
    if matrices:
        assert split is not None
        ways.insert(0 if ctx.backend == "cuda" or not split.exact else 1, "mma")
    few = p.m <= (forced().most or _ROWS) and (p.m == 1 or not p.transpose_a)
    small = p.m <= _FEW_ROWS or ways[0] != "mma" or p.n * p.k <= _SMALL
    if few:
        ways.insert(0 if small else len(ways), "rows")
    if ctx.backend == "cuda" and p.k > 0:
        if _to_bf16(ctx, split, pair):
            # What cuBLAS makes of f32 operands when bf16 is asked for is its own choice: on an H200 it is tf32. Every
            # device is to round alike, so the library is given operands that are rounded already.
            ways.insert(0 if p.m > _FEW_ROWS else len(ways), "library")
        elif pair[0] == pair[1]:
            ways.insert(0, "library")
        elif split == Split(bf16, 1, 1):
            ways.insert(0 if p.m > _FEW_ROWS else len(ways), "library")
    wanted = forced().way
    return wanted if wanted is not None and wanted in ways else ways[0]


def has_matrices(ctx: Lowering, split: Split) -> bool:
    """Whether the device multiplies 16 x 16 matrices of that type into f32, in groups of 32 threads."""
    words = {"coopmat", "bf16_coopmat"} if split.type == bf16 else {"coopmat"}
    return words <= ctx.features and ctx.limits.subgroup == 32 and ctx.limits.shared_bytes >= 48 << 10


def _doubles(ctx: Lowering, node: Node, a: Operand, b: Operand, c: Operand) -> None:
    p, end = product_of(node), Epilogue.of(node)
    a, b = (
        Operand(cast_ref(ctx, o.ref, o.dtype, c.dtype, t.size), c.dtype)
        for o, t in zip((a, b), node.inputs, strict=False)
    )
    if ctx.backend == "cuda" and p.k > 0:
        _library(ctx, p, a, b, end, c, node.label or node.op.name)
        return
    made = c if end.plain else Operand(ctx.scratch(node.output.size * c.dtype.itemsize), c.dtype)
    kernel = MATMUL_INT(
        T=c.dtype.name, A_TRANSPOSED=p.transpose_a, B_TRANSPOSED=p.transpose_b, HAS_BIAS=False
    )
    launch(ctx, kernel, p, a, b, None, made, -(-p.m // 16) * -(-p.n // 16))
    if not end.plain:
        finish(ctx, made.ref, 1, p, end, c, c.dtype)


def _integers(ctx: Lowering, node: Node, stored: DType) -> None:
    a, b = (
        Operand(cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size), stored) for t in node.inputs[:2]
    )
    p = product_of(node)
    bias = bias_ref(ctx, node.inputs[2] if len(node.inputs) == 3 else None, stored)
    kernel = MATMUL_INT(
        T=stored.name, A_TRANSPOSED=p.transpose_a, B_TRANSPOSED=p.transpose_b, HAS_BIAS=bias is not None
    )
    groups = -(-p.m // 16) * -(-p.n // 16)
    launch(ctx, kernel, p, a, b, bias, Operand(ctx.ref(node.output), stored), groups)


def _library(
    ctx: Lowering, p: Product, a: Operand, b: Operand, end: Epilogue, c: Operand, label: str
) -> None:
    """Gemm steps with bias and relu inside, where the library has a way; what it has not follows them, in place.

    Halves with something behind them go through f32 workspace, so that the result is rounded once.
    """
    made, steps = c, _gemms(ctx, p, a, b, c, label)
    whole = end.activation in (None, "relu")
    inside = _with_bias(ctx, p, a, b, end, c, steps) if whole else None
    if inside is not None:
        steps, end = inside, Epilogue()
    elif not end.plain:
        wide = f32 if a.dtype.is_half else c.dtype
        if wide != c.dtype:
            made = Operand(ctx.scratch(p.count * p.m * p.n * wide.itemsize), wide)
            steps = _gemms(ctx, p, a, b, made, label)
        if not whole:
            inside = _with_bias(ctx, p, a, b, replace(end, activation=None), made, steps)
        if inside is not None:
            steps, end = inside, Epilogue(activation=end.activation)
    for step in steps:
        ctx.emit(step)
    if not end.plain:
        finish(ctx, made.ref, 1, p, end, c, made.dtype)


def _gemms(ctx: Lowering, p: Product, a: Operand, b: Operand, made: Operand, label: str) -> list[Gemm]:
    """A step for each place of the batch axes beyond the first that cuBLAS strides over."""
    dtype, kind = a.dtype, made.dtype
    precision = ctx.precision if dtype == f32 else dtype.name
    members, inner = outer(p, 1)
    count, stride_a, stride_b = inner[0] if inner else (1, 0, 0)
    one = p.m * p.n
    size = count * one * kind.itemsize
    return [
        Gemm(
            from_(a.ref, at_a * dtype.itemsize), from_(b.ref, at_b * dtype.itemsize),
            Ref(made.ref.segment, made.ref.offset + number * size, size), p.m, p.n, p.k, dtype, dtype, kind,
            p.transpose_a, p.transpose_b, count, stride_a, stride_b, one, precision, label,
        )
        for number, at_a, at_b in members
    ]  # fmt: skip


def _with_bias(
    ctx: Lowering, p: Product, a: Operand, b: Operand, end: Epilogue, c: Operand, steps: Sequence[Gemm]
) -> list[Gemm] | None:
    """The steps with bias (and relu), where the library adds them itself: the bias stored as C, in rows and at places
    of whole sixteen bytes."""
    if end.bias is None or forced().inside is False:
        return None
    rows = (*p.pitches, p.n, end.step)
    even = all(n * o.dtype.itemsize % 16 == 0 for n, o in zip(rows, (a, b, c, c), strict=True))
    if ctx.storage(end.bias) != c.dtype or c.dtype.name == "f64" or not even:
        return None
    bias, _, _ = biases(ctx, end, p.count, c.dtype)
    assert bias is not None
    if any(ref.offset % 16 for ref in (a.ref, b.ref, c.ref, bias)):
        return None
    relu = end.activation == "relu"
    inside = [replace(step, bias=bias, stride_bias=end.step, relu=relu) for step in steps]
    return inside if all(map(ctx.adds_bias, inside)) else None
