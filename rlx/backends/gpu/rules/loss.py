"""Lowering of cross_entropy and its gradient."""

from __future__ import annotations

from rlx.backends.gpu.program.casts import native, quads
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, ints, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg
from rlx.backends.gpu.rules.rows import row_groups, row_shape
from rlx.ir import Node

CROSS_ENTROPY = declare(
    KernelDecl(
        "cross_entropy",
        about="Softmax cross-entropy of rows of n logits with a label each.",
        grid="a group of 256 for each 256 / LANES rows",
        # x, label (rows), loss (rows), rows, n, ignored.
        args=(*reads(x="T", label="i32"), *writes(loss="f32"), *uints("rows", "n"), *ints("ignored")),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0},
        trials=((32, 3, 1), (256, 0, 0)),
        subgroups=True,
    )
)
CROSS_ENTROPY_GRAD = declare(
    KernelDecl(
        "cross_entropy_grad",
        about="The gradient dx of softmax cross-entropy of rows of n logits, from that of the losses.",
        grid="a group of 256 for each 256 / LANES rows",
        # d (rows), x, label (rows), dx (may be x), rows, n, ignored.
        args=(*reads(d="f32", x="T", label="i32"), *writes(dx="T"), *uints("rows", "n"), *ints("ignored")),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0},
        trials=((32, 3, 1), (256, 0, 0)),
        subgroups=True,
    )
)


@lowers("cross_entropy", "cross_entropy_grad", when=native)
def lower_cross_entropy(ctx: Lowering, node: Node) -> None:
    """One launch over the rows of logits; the gradient's node has the losses' gradient as its first input."""
    *d, x, labels = node.inputs
    rows = labels.size
    if rows == 0:
        return
    n, stored, target = x.shape[-1], ctx.storage(x), ctx.ref(node.output)
    source = ctx.ref(x)
    places = [source, target] if d else [source]
    shape = row_shape(n, rows, int(n % 4 == 0) and quads(*places, itemsize=stored.itemsize))
    kernel = (CROSS_ENTROPY_GRAD if d else CROSS_ENTROPY)(T=stored.name, **shape)
    args: list[Arg] = [
        *(ctx.ref(t) for t in d),
        source,
        ctx.ref(labels),
        target,
        rows,
        n,
        node.attrs["ignore_index"],
    ]
    ctx.launch(kernel, row_groups(ctx, rows, shape), args)
