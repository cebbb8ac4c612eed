"""Lowering of products of 8-bit integers: operands are read in place as words of four bytes."""

from __future__ import annotations

import math

from rlx.backends.gpu.gemm.packed import ROWS
from rlx.backends.gpu.program.casts import THREADS, fits, stores
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import u8
from rlx.ir import Node, Tensor

INTEGER_MATMUL = declare(
    KernelDecl(
        "integer_matmul",
        about="y (m, n) = (a - a_zero) times the transposed (b - b_zero), of rows of k bytes.",
        grid="a group of 256 for each 256 / ACROSS rows of b, for each ROWS rows of a",
        args=(
            *reads(a="u32", b="u32", a_zero="i32", b_zero="i32"),
            *writes(y="i32"),
            *uints("m", "n", "k", "a_signs", "b_signs", "a_step", "b_step"),
        ),
        variants={"ROWS": tuple(map(str, ROWS)), "DOT": ("plain", "packed")},
        constants={"WHOLE": False, "ACROSS": 32},
        trials=((False, 4), (True, 32)),
        unroll=True,
        new_compiler=True,
    )
)


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("integer_matmul", when=_native)
def lower_integer_matmul(ctx: Lowering, node: Node) -> None:
    y, (a, b, a_zero, b_zero) = node.output, node.inputs
    if y.size == 0:
        return
    (m, k), n = a.shape, b.shape[0]
    places = _words(ctx, a), _words(ctx, b)
    rows = next((r for r in ROWS if m <= r), ROWS[-1])
    # A software driver takes seconds to compile what is unrolled further.
    rows = min(rows, 4) if ctx.target.software else rows
    across = next((c for c in (4, 8, 16) if math.ceil(k / 16) <= c), 32)
    kernel = INTEGER_MATMUL(
        ROWS=str(rows), DOT="packed" if "intdot" in ctx.target.features else "plain",
        WHOLE=k % 16 == 0 and all(ref.offset % 16 == 0 for ref in places), ACROSS=across,
    )  # fmt: skip
    groups = math.ceil(n / (THREADS // across)) * math.ceil(m / rows)
    zeros = (ctx.ref(a_zero), ctx.ref(b_zero))
    signs = [0x80808080 if t.dtype == u8 else 0 for t in (a, b)]
    steps = [int(z.size > 1) for z in (a_zero, b_zero)]
    ctx.launch(kernel, ctx.groups(groups), [*places, *zeros, ctx.ref(y), m, n, k, *signs, *steps])


def _words(ctx: Lowering, x: Tensor) -> Ref:
    """The bytes of x, aligned to a word: a view that begins within a word is copied first."""
    ref = ctx.ref(x)
    if ref.offset % 4 == 0:
        return ref
    result = ctx.scratch(ref.nbytes)
    ctx.copy(ref, result)
    return result
