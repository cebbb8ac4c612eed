"""The steps of a GEMM: those of the chosen candidate, one launch for up to three batch axes, partial sums added up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import (
    FMA_TILES,
    LONG_SUM,
    MMA_TILES,
    Direct,
    FewRows,
    FmaTiles,
    Library,
    MmaTiles,
    Panels,
    SkinnyTiles,
    Vector,
    choose,
)
from rlx.backends.gpu.gemm.halves import HALF_TILES, HalfTiles
from rlx.backends.gpu.gemm.kernels import (
    MATMUL,
    MATMUL_DIRECT,
    MATMUL_HALVES,
    MATMUL_HALVES_WIDE,
    MATMUL_INT,
    MATMUL_LINE,
    MATMUL_MMA,
    MATMUL_PANELS,
    MATMUL_ROWS,
    MATMUL_SKINNY,
    MATMUL_VECTOR,
)
from rlx.backends.gpu.gemm.library import library_steps
from rlx.backends.gpu.gemm.line import Line
from rlx.backends.gpu.gemm.operands import Operand, ProductCall, biases, from_
from rlx.backends.gpu.gemm.product import MAX_AXES, outer, tiles_across
from rlx.backends.gpu.program.casts import quads
from rlx.backends.gpu.program.kernel import KernelDecl
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import FileKernel, Ref
from rlx.dtypes import DType, f32, promote
from rlx.ir import expr, get_op
from rlx.ops.matmul import ACTIVATIONS

CODE = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}


def product(ctx: Lowering, call: ProductCall) -> None:
    """Appends the steps of one product, by the candidate that is chosen for it."""
    library = ctx.target.library
    chosen = choose(ctx.target, call.problem(ctx.precision, library.activations if library else frozenset()))
    a, b = (o.stored(ctx, dtype) for o, dtype in zip((call.a, call.b), chosen.stored, strict=True))
    call = replace(call, a=a, b=b)
    if isinstance(chosen, Library):
        by_library(ctx, call, chosen.fused_bias)
    elif isinstance(chosen, FewRows):
        _few_rows(ctx, call, chosen)
    elif isinstance(chosen, Vector | Line):
        row_product(ctx, call, chosen)
    elif isinstance(chosen, Direct):
        _direct(ctx, call, chosen)
    elif isinstance(chosen, SkinnyTiles):
        _skinny(ctx, call, chosen)
    elif isinstance(chosen, MmaTiles):
        _mma_tiles(ctx, call, chosen)
    elif isinstance(chosen, Panels):
        _panels(ctx, call, chosen)
    elif isinstance(chosen, HalfTiles):
        _half_tiles(ctx, call, chosen)
    else:
        _fma_tiles(ctx, call, chosen)


def by_library(ctx: Lowering, call: ProductCall, fused_bias: bool = True) -> None:
    """The library's steps, then the part of the epilogue that it cannot apply."""
    left = library_steps(ctx, call, fused_bias)
    if left is not None:
        finish(ctx, replace(left, c=call.c), left.c, 1)


def in_doubles(ctx: Lowering, call: ProductCall) -> None:
    """A product of f64 by a kernel of rlx, then bias and activation by another."""
    p, c = call.product, call.c
    wide = c if call.end.plain else Operand(ctx.scratch(p.count * p.m * p.n * c.dtype.itemsize), c.dtype)
    of_type(ctx, replace(call, c=wide), None)
    if not call.end.plain:
        finish(ctx, call, wide, 1)


def of_type(ctx: Lowering, call: ProductCall, bias: Ref | None) -> None:
    """A product in the arithmetic of its own type, integers or f64, with a bias of that type; no activation."""
    p = call.product
    kernel = MATMUL_INT(
        T=call.c.dtype.name,
        A_TRANSPOSED=p.transpose_a,
        B_TRANSPOSED=p.transpose_b,
        HAS_BIAS=bias is not None,
    )
    _launch(ctx, kernel, call, bias, -(-p.m // 16) * -(-p.n // 16))


def _fma_tiles(ctx: Lowering, call: ProductCall, chosen: FmaTiles) -> None:
    """Tiles of fused multiply-adds."""
    p, a, b = call.product, call.a, call.b
    pitch_a, pitch_b = p.pitches
    _tiles(
        ctx, call, MATMUL,
        {
            "AB": f"{a.dtype}_{b.dtype}", "TILE": chosen.tile, "A_QUADS": a.vectors(pitch_a, 4),
            "B_QUADS": b.vectors(pitch_b, 4), "IN_PARTS": p.k > LONG_SUM, "A_TRANSPOSED": p.transpose_a,
        },
        tiles_across(p, FMA_TILES[chosen.tile]), chosen.split_k,
    )  # fmt: skip


def _mma_tiles(ctx: Lowering, call: ProductCall, chosen: MmaTiles) -> None:
    """Tiles of matrix instructions. For operands of several terms, sums are added up in f32 after every slice of k."""
    p, a, b = call.product, call.a, call.b
    pitch_a, pitch_b = p.pitches
    _tiles(
        ctx, call, MATMUL_MMA,
        {
            "ABM": f"{a.dtype}_{b.dtype}_{chosen.split.type}", "TILE": chosen.tile,
            "A_OCTETS": a.vectors(pitch_a, 8), "B_OCTETS": b.vectors(pitch_b, 8),
            "IN_PARTS": chosen.split.exact, "A_TRANSPOSED": p.transpose_a, **slice_constants(chosen),
        },
        tiles_across(p, MMA_TILES[chosen.tile]), chosen.split_k,
    )  # fmt: skip


def _half_tiles(ctx: Lowering, call: ProductCall, chosen: HalfTiles) -> None:
    """Tiles of matrix instructions for 16-bit operands whose rows are whole units of 16 bytes."""
    kernel = MATMUL_HALVES_WIDE if chosen.tile == "l" else MATMUL_HALVES
    defines: dict[str, str | int] = {
        "T": call.a.dtype.name, "TILE": chosen.tile, "A_TRANSPOSED": call.product.transpose_a,
    }  # fmt: skip
    _tiles(ctx, call, kernel, defines, tiles_across(call.product, HALF_TILES[chosen.tile]), chosen.split_k)


def _panels(ctx: Lowering, call: ProductCall, chosen: Panels) -> None:
    """Instructions of warpgroups, with the whole epilogue."""
    p, a, b, c, end = call.product, call.a, call.b, call.c, call.end
    bias, kind, _ = biases(ctx, end, 1, a.dtype)
    kernel = MATMUL_PANELS(
        T=a.dtype.name, A_TRANSPOSED=p.transpose_a, B_TRANSPOSED=p.transpose_b, ACTIVATION=CODE[end.activation],
        BIAS=kind, C_UNITS=c.vectors(p.n, 8 if c.dtype.is_half else 4), WIDE=c.dtype == f32, SLICES=chosen.stages,
        WARPGROUPS=1,
    )  # fmt: skip
    stored_a = (p.k, p.m, 64) if p.transpose_a else (p.m, p.k, 128)
    stored_b = (p.n, p.k, 128) if p.transpose_b else (p.k, p.n, 64)
    pairs = min(tiles_across(p, (256, 256)), max(ctx.target.units // 2, 1))
    ctx.launch(kernel, (2 * pairs, 1, 1), [a.ref, b.ref, bias or a.ref, c.ref, p.m, p.n, p.k, *stored_a, *stored_b])


def _skinny(ctx: Lowering, call: ProductCall, chosen: SkinnyTiles) -> None:
    """Matrix instructions for few rows."""
    p, a, b = call.product, call.a, call.b
    _, pitch_b = p.pitches
    _tiles(
        ctx, call, MATMUL_SKINNY,
        {
            "T": a.dtype.name, "A_OCTETS": a.vectors(p.k, 8), "B_OCTETS": b.vectors(pitch_b, 8),
            "ROWS": next(r for r in (4, 8, 16) if p.m <= r or r == 16), "COLUMNS": chosen.columns,
            "BESIDE": chosen.beside, "AHEAD": chosen.ahead,
        },
        math.ceil(p.n / chosen.width) * math.ceil(p.m / 16), chosen.split_k,
    )  # fmt: skip


def _direct(ctx: Lowering, call: ProductCall, chosen: Direct) -> None:
    """Matrix instructions for few rows, with matrices built in registers."""
    p, a, b, end = call.product, call.a, call.b, call.end
    bias, kind, apart = biases(ctx, end, p.count, a.dtype)
    kernel = MATMUL_DIRECT(
        AB=f"{a.dtype}_{b.dtype}",
        LAYOUT="t" if p.transpose_b else "n",
        ACTIVATION=CODE[end.activation],
        BIAS=kind,
        WIDE=call.c.dtype == f32 and a.dtype != f32,
    )
    groups = math.ceil(p.n / chosen.columns) * math.ceil(p.m / 16)
    _launch(ctx, kernel, call, bias, groups, more=(apart,))


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm applied to a row: its weights (f32), epsilon, and whether no step of the program writes the weights."""

    gamma: Ref
    kept: bool
    eps: float


def row_product(
    ctx: Lowering, call: ProductCall, chosen: Vector | Line, norm: Norm | None = None, gated: bool = False
) -> None:
    """Launches a kernel for one row, which it may normalize first; `gated`: one half of the result gates the other."""
    p, a, b, end = call.product, call.a, call.b, call.end
    bias, kind, _ = biases(ctx, end, 1, a.dtype)
    defines: dict[str, str | int] = {
        "AB": f"{a.dtype}_{b.dtype}", "LANES": chosen.lanes, "NORMED": norm is not None, "GATED": gated,
        "ACTIVATION": CODE[end.activation], "BIAS": kind, "WIDE": call.c.dtype == f32 and a.dtype != f32,
    }  # fmt: skip
    gamma, eps = (a.ref, 0.0) if norm is None else (norm.gamma, norm.eps)
    pointers = [a.ref, gamma, b.ref, bias or a.ref, call.c.ref]
    if isinstance(chosen, Line):
        each, outputs = chosen.each(ctx.target, p.n, 2 if gated else 1), p.n // 2 if gated else p.n
        early = b.kept and (norm is None or norm.kept)
        kernel = MATMUL_LINE(**defines, MANY=chosen.many, DEPTH=chosen.depth, EARLY=early)
        ctx.launch(kernel, ctx.groups(math.ceil(outputs / each)), [*pointers, p.n, p.k, each, eps])
        return
    units = a.vectors(p.k, 4) and b.vectors(p.k, 16 // b.dtype.itemsize) and (norm is None or quads(gamma, itemsize=4))
    kernel = MATMUL_VECTOR(**defines, HIGH=chosen.high, UNITS=int(units))
    groups = ctx.groups(math.ceil(p.n / (256 // chosen.lanes * chosen.high)))
    ctx.launch(kernel, groups, [*pointers, p.n, p.k, eps])


def slice_constants(chosen: MmaTiles) -> dict[str, int]:
    """The constants that say how mma tiles slice k and split operands."""
    split = chosen.split
    return {
        "BK": chosen.depth, "SIDES": chosen.stages, "TERMS_A": split.terms_a, "TERMS_B": split.terms_b,
    }  # fmt: skip


def _tiles(
    ctx: Lowering, call: ProductCall, decl: KernelDecl, defines: dict[str, str | int], groups: int, parts: int
) -> None:
    """Tiles over the whole sum, with the epilogue; with `parts`, tiles over parts of the sum, which one more launch
    adds up."""
    p, a, end = call.product, call.a, call.end
    alone = parts == 1
    partial = call.c if alone else Operand(ctx.scratch(parts * p.count * p.m * p.n * f32.itemsize), f32)
    bias, kind, apart = biases(ctx, end, p.count, a.dtype) if alone else (None, 0, 0)
    kernel = decl(
        **defines,
        B_TRANSPOSED=p.transpose_b,
        ACTIVATION=CODE[end.activation] if alone else 0,
        BIAS=kind,
        C_QUADS=partial.vectors(p.n, 4),
        WIDE=partial.dtype == f32 and a.dtype != f32,
    )
    _launch(ctx, kernel, replace(call, c=partial), bias, groups, parts, (apart,))
    if not alone:
        finish(ctx, call, partial, parts)


def _few_rows(ctx: Lowering, call: ProductCall, chosen: FewRows) -> None:
    """The kernel for few rows, which reads B once for each `chosen.rows` of them. C has A's dtype."""
    p, a, b, end = call.product, call.a, call.b, call.end
    pitch_a, pitch_b = p.pitches
    bias, kind, apart = biases(ctx, end, p.count, a.dtype)
    kernel = MATMUL_ROWS(
        AB=f"{a.dtype}_{b.dtype}",
        ROWS=str(chosen.rows),
        B_TRANSPOSED=p.transpose_b,
        ACTIVATION=CODE[end.activation],
        BIAS=kind,
        A_QUADS=a.vectors(pitch_a, 4),
        B_UNITS=b.vectors(pitch_b, 16 // b.dtype.itemsize),
        ACROSS=chosen.across,
        SITES=chosen.sites,
        AHEAD=chosen.ahead,
    )
    groups = math.ceil(p.n / (chosen.sites * chosen.each)) * math.ceil(p.m / chosen.rows)
    _launch(ctx, kernel, call, bias, groups, more=(apart,))


def _launch(
    ctx: Lowering,
    kernel: FileKernel,
    call: ProductCall,
    bias: Ref | None,
    groups: int,
    parts: int | None = None,
    more: tuple[int, ...] = (),
) -> None:
    """Launches `groups` workgroups for each matrix (and part). One launch covers three batch axes; there is one for
    each index of further axes. `parts`: None where the kernel has no such argument. `more`: arguments after the
    strides."""
    p, a, b, c = call.product, call.a, call.b, call.c
    members, inner = outer(p, MAX_AXES)
    if parts is not None and parts > 1 and len(members) > 1:
        raise ValueError("a product in parts has at most three batch axes")
    dims = [(1, 0, 0)] * (MAX_AXES - len(inner)) + list(inner)
    count = math.prod(d for d, _, _ in dims)
    size = count * p.m * p.n * c.dtype.itemsize * (parts or 1)
    for number, at_a, at_b in members:
        pa = from_(a.ref, at_a * a.dtype.itemsize)
        pb = from_(b.ref, at_b * b.dtype.itemsize)
        pc = Ref(c.ref.segment, c.ref.offset + number * size, size)
        ctx.launch(
            kernel,
            ctx.groups(groups * count * (parts or 1)),
            [pa, pb, bias or pa, pc, p.m, p.n, p.k, count, *([] if parts is None else [parts]), dims[1][0],
             dims[2][0], *(sa for _, sa, _ in dims), *(sb for _, _, sb in dims), *more],
        )  # fmt: skip


def epilogue_tree(
    dtype: DType, bias: DType | None, activation: str | None, out: DType, scales: Sequence[float] = (1.0,)
) -> expr.Expr:
    """activation(sum of scales[i] · input i + the bias), the inputs added in order, each op by its own expression."""
    wide = promote(dtype, f32)
    x: expr.Expr | None = None
    for i, scale in enumerate(scales):
        term = expr.cast(expr.arg(i, dtype), wide)
        term = term if scale == 1.0 else term * expr.lit(scale, wide)
        x = term if x is None else x + term
    assert x is not None
    if bias is not None:
        x = x + expr.cast(expr.arg(len(scales), bias), x.dtype)
    if activation is not None:
        name, attrs = ACTIVATIONS[activation]
        rule = get_op(name).expr
        assert rule is not None
        x = rule([x], attrs)
    return expr.cast(x, out)


def finish(ctx: Lowering, call: ProductCall, partial: Operand, parts: int) -> None:
    """Adds up the parts of a product, which lie one after the other; then bias and activation, into C."""
    p, dtype = call.product, partial.dtype
    size = p.count * p.m * p.n * dtype.itemsize
    add_up(ctx, call, [Operand(from_(partial.ref, i * size), dtype) for i in range(parts)], (1.0,) * parts)


def add_up(ctx: Lowering, call: ProductCall, planes: Sequence[Operand], scales: Sequence[float]) -> None:
    """C = activation(sum of scales[i] · planes[i] + bias), where the planes have C's shape."""
    p, c, end = call.product, call.c, call.end
    shape = (p.count, p.m, p.n)
    kind = ctx.storage(end.bias) if end.bias is not None else None
    inputs = [View(plane.ref, plane.dtype, contiguous(shape)) for plane in planes]
    if end.bias is not None and kind is not None:
        inputs.append(View(ctx.ref(end.bias), kind, (end.step, 0, 1)))
    tree = epilogue_tree(planes[0].dtype, kind, end.activation, c.dtype, scales)
    outputs = [View(c.ref, c.dtype, contiguous(shape))]
    launch_tree(ctx, [tree], shape, inputs, outputs, short=c.dtype.is_half)
