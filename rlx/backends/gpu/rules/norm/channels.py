"""Lowering of group_norm, layer_norm_channels and the residual norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.gpu.program.casts import cast_ref, native
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.backends.gpu.rules.rows import power, row_kernels
from rlx.dtypes import DType, f32
from rlx.ir import Node, Tensor

row_kernels("group_norm", "x gamma:W beta:W -> y", floats("eps"), columns=False, channels=True)
NORM_AXIS = declare(
    KernelDecl(
        "norm_axis",
        about="Layer norm over the middle axis of x (outer, n, inner).",
        grid="a group of 256 for each ACROSS places of inner, for each of outer",
        # x, gamma (n), beta (n), y (may be x), outer, n, inner, eps.
        args=(
            *reads(x="T", gamma="W", beta="W"),
            *writes(y="T"),
            *uints("outer", "n", "inner"),
            *floats("eps"),
        ),
        headers=("prims",),
        variants={"T": FLOATS, "W": FLOATS},
        constants={"ACROSS": 32},
        trials=((32,),),
    )
)
row_kernels("add_layer_norm add_rms_norm", "x residual gamma:W beta:W? -> s? y", floats("eps"), stem="add_norm",
            columns=False, early=1, keep_sum=True)  # fmt: skip


def weight_refs(ctx: Lowering, weights: Sequence[Tensor]) -> tuple[DType, list[Ref]]:
    """gamma and beta in one storage dtype: theirs, or f32 where they differ."""
    kinds = {ctx.storage(t) for t in weights}
    kept = kinds.pop() if len(kinds) == 1 else f32
    return kept, [cast_ref(ctx, ctx.ref(t), ctx.storage(t), kept, t.size) for t in weights]


@lowers("layer_norm_channels", when=native)
def lower_layer_norm_channels(ctx: Lowering, node: Node) -> None:
    """Normalizes the columns of (batch, channels, places)."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    outer, n, inner, stored = x.shape[0], x.shape[1], math.prod(x.shape[2:]), ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    kept, (gamma, beta) = weight_refs(ctx, node.inputs[1:])
    across = min(32, power(inner))
    kernel = NORM_AXIS(T=stored.name, W=kept.name, ACROSS=across)
    args: list[Arg] = [source, gamma, beta, ctx.ref(y), outer, n, inner, float(node.attrs["eps"])]
    ctx.launch(kernel, ctx.groups(outer * math.ceil(inner / across)), args)
