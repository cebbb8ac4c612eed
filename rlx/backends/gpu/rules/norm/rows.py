"""Lowering of layer_norm and rms_norm."""

from __future__ import annotations

from rlx.backends.gpu.program.casts import cast_ref, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.rules.rows import eights, row_groups, row_shape
from rlx.dtypes import f32
from rlx.ir import Node

ROW_NORM = declare(
    KernelDecl(
        "row_norm",
        about=(
            "Layer norm or RMS norm (RMS) over the last axis of x (rows, n), with beta when HAS_BETA = 1."
        ),
        grid="a group of 256 for each 256 / LANES rows",
        # x, gamma (n), beta (n), y (may be x), rows, n, eps.
        args=(*reads(x="T", gamma="W", beta="W"), *writes(y="T"), *uints("rows", "n"), *floats("eps")),
        headers=("rounding", "prims"),
        variants={"T": FLOATS, "W": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0, "RMS": False, "HAS_BETA": False},
        trials=((32, 3, 1, False, True), (128, 8, 2, False, True), (256, 0, 0, True, False)),
        subgroups=True,
    )
)


@lowers("layer_norm", "rms_norm", when=native)
def lower_norm(ctx: Lowering, node: Node) -> None:
    """One kernel declaration for each op: rows over the last axis. Weights of different dtypes are cast to f32, never
    narrowed."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    n = x.shape[-1]
    rows = x.size // n
    stored = ctx.storage(y)
    source, target = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size), ctx.ref(y)
    kinds = {ctx.storage(t) for t in node.inputs[1:]}
    kept = kinds.pop() if len(kinds) == 1 else f32
    gamma, *rest = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), kept, t.size) for t in node.inputs[1:])
    beta = rest[0] if rest else gamma
    aligned = int(n % 4 == 0) and quads(source, target, itemsize=stored.itemsize)
    aligned = aligned and quads(gamma, beta, itemsize=kept.itemsize)
    places = ((source, stored), (target, stored), (gamma, kept), (beta, kept))
    shape = eights(row_shape(n, rows, aligned), n, rows, places)
    kernel = ROW_NORM(T=stored.name, W=kept.name, **shape, RMS=not node.op.centres, HAS_BETA=bool(rest))
    ctx.launch(
        kernel, row_groups(ctx, rows, shape), [source, gamma, beta, target, rows, n, float(node.attrs["eps"])]
    )
