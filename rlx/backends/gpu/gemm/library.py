"""Products by the vendor's library: Gemm steps with bias and relu inside, where the library has an algorithm for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall, biases, from_
from rlx.backends.gpu.gemm.product import outer
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Gemm, Ref
from rlx.dtypes import f32


def library_steps(ctx: Lowering, call: ProductCall, fused_bias: bool) -> ProductCall | None:
    """Emits the library's steps; they add the bias if `fused_bias` is set and the library can. Returns a call with the
    library's result as C and the rest of the epilogue, which is still to be applied; None if nothing is left.

    16-bit operands with a separate epilogue go through f32 workspace, so that the result is rounded once.
    """
    p, c, end = call.product, call.c, call.end
    library = ctx.target.library
    assert library is not None
    steps = _gemms(ctx, call)
    whole = end.activation is None or end.activation in library.activations
    inside = _with_bias(ctx, call, steps) if whole and fused_bias else None
    if inside is not None:
        steps, end = inside, Epilogue()
    elif not end.plain:
        wide = f32 if call.a.dtype.is_half else c.dtype
        if wide != c.dtype:
            c = Operand(ctx.scratch(p.count * p.m * p.n * wide.itemsize), wide)
            steps = _gemms(ctx, replace(call, c=c))
        if not whole and fused_bias:
            inside = _with_bias(ctx, replace(call, c=c, end=replace(end, activation=None)), steps)
        if inside is not None:
            steps, end = inside, Epilogue(activation=end.activation)
    for step in steps:
        ctx.emit(step)
    return None if end.plain else replace(call, c=c, end=end)


def _gemms(ctx: Lowering, call: ProductCall) -> list[Gemm]:
    """A step for each index of the batch axes but the innermost, which the library handles by strides."""
    p, a, b, c = call.product, call.a, call.b, call.c
    dtype, kind = a.dtype, c.dtype
    precision = ctx.precision if dtype == f32 else dtype.name
    members, inner = outer(p, 1)
    count, stride_a, stride_b = inner[0] if inner else (1, 0, 0)
    one = p.m * p.n
    size = count * one * kind.itemsize
    return [
        Gemm(
            from_(a.ref, at_a * dtype.itemsize), from_(b.ref, at_b * dtype.itemsize),
            Ref(c.ref.segment, c.ref.offset + number * size, size), p.m, p.n, p.k, dtype, dtype, kind,
            p.transpose_a, p.transpose_b, count, stride_a, stride_b, one, precision, call.label,
        )
        for number, at_a, at_b in members
    ]  # fmt: skip


def _with_bias(ctx: Lowering, call: ProductCall, steps: Sequence[Gemm]) -> list[Gemm] | None:
    """The steps with bias (and relu), None where the library cannot add them: the bias must have C's dtype, and all
    rows and addresses must be multiples of sixteen bytes."""
    p, a, b, c, end = call.product, call.a, call.b, call.c, call.end
    library = ctx.target.library
    if end.bias is None or library is None:
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
    return inside if all(map(library.adds_bias, inside)) else None
