"""Lowering of the backward passes of norms. Sums run in fixed trees, in two stages."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import THREADS, cast_ref, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.backends.gpu.rules.reduce import REDUCE, part_of
from rlx.backends.gpu.rules.rows import power, row_groups, row_shape
from rlx.dtypes import DType, f32
from rlx.ir import Node, Tensor

NORM_GRAD = declare(
    KernelDecl(
        "norm_grad",
        about=(
            "dx of a norm over rows of x (rows, n), and each row's mean and 1 / deviation; RMS norm when RMS "
            "= 1."
        ),
        grid="a group of 256 for each 256 / LANES rows",
        # d, x, gamma, dx, stats (rows, 2), rows, n, groups, per, inner, eps.
        args=(
            *reads(d="T", x="T", gamma="W"),
            *writes(dx="T", stats="f32"),
            *uints("rows", "n", "groups", "per", "inner"),
            *floats("eps"),
        ),
        headers=("prims",),
        variants={"T": FLOATS, "W": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0, "RMS": False, "WEIGHTS": 0},
        trials=((32, 3, 1, False, 2), (256, 0, 0, True, 0), (64, 2, 1, False, 1)),
        subgroups=True,
    )
)
NORM_COLUMNS = declare(
    KernelDecl(
        "norm_columns",
        about=(
            "Parts of a norm's dgamma and, with WITH_BETA dbeta: sums over chunks of n of d, x (outer, "
            "n, inner)."
        ),
        grid="a group of 256 for each ACROSS places of inner, for each 256 / (ACROSS ALONG) of outer * splits",
        args=(
            *reads(d="T", x="T", stats="f32"),
            *writes(dgamma="f32", dbeta="f32", whole_gamma="W", whole_beta="W"),
            *updates(counters="u32"),
            *uints("outer", "n", "inner", "chunk", "splits", "channels", "length"),
        ),
        variants={"T": FLOATS, "W": FLOATS},
        constants={"ACROSS": 32, "ALONG": 8, "WITH_BETA": True, "JOINED": False},
        trials=((32, 8, True, True), (1, 256, False, False)),
    )
)

@lowers("layer_norm_grad", "rms_norm_grad", "group_norm_grad", when=native)
def lower_norm_grad(ctx: Lowering, node: Node) -> None:
    """Computes dx row by row and stores each row's mean and deviation. From these, dgamma and dbeta, if they are read,
    are computed as sums over the rows of each chunk, then over the chunks, by the last workgroup of a block of columns
    or by further launches."""
    d, x, gamma = node.inputs
    weights = node.outputs[1:]
    if x.size == 0:
        for out in weights:
            _sum_rows(ctx, ctx.scratch(0), 0, out)
        return
    channels = gamma.size
    groups = node.attrs.get("groups")
    if groups is None:
        groups, per, inner = 1, channels, 1
        dims = (1, x.size // channels, channels)  # sums over rows, columns side by side
    else:
        per, inner = channels // groups, math.prod(x.shape[2:])
        dims = (x.shape[0] * channels, inner, 1)
    n = per * inner
    rows, stored = x.size // n, ctx.storage(node.outputs[0])
    refs = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (d, x)]
    target, stats = ctx.ref(node.outputs[0]), ctx.scratch(12 * rows)
    scale, kept = ctx.ref(gamma), ctx.storage(gamma)
    aligned = int(n % 4 == 0) and quads(*refs, target, itemsize=stored.itemsize)
    plain = "groups" not in node.attrs
    if plain:
        aligned = aligned and quads(scale, itemsize=kept.itemsize)
    shape = row_shape(n, rows, aligned)
    mode = 2 if plain else int(inner % 4 == 0)
    kernel = NORM_GRAD(T=stored.name, W=kept.name, **shape, RMS=not node.op.centres, WEIGHTS=mode)
    args: list[Arg] = [*refs, scale, target, stats, rows, n, groups, per, inner, float(node.attrs["eps"])]
    ctx.launch(kernel, row_groups(ctx, rows, shape), args)
    if any(t.id in ctx.readers for t in weights):  # not where gamma and beta are frozen
        _weights(ctx, refs, stored, stats, dims, 1 if plain else channels, n, weights)


def _weights(
    ctx: Lowering,
    refs: list[Ref],
    stored: DType,
    stats: Ref,
    dims: tuple[int, int, int],
    channels: int,
    length: int,
    outs: tuple[Tensor, ...],
) -> None:
    """dgamma and dbeta from the gradient, the input, and the rows' statistics."""
    outer, n, inner = dims
    across = min(power(inner), 32)
    along = min(power(-(-n // 4)), THREADS // across) if n > 4 else 1
    alone = math.ceil(outer / (THREADS // (across * along))) * math.ceil(inner / across)
    splits = max(1, -(-n // part_of(n, along, alone)))
    chunk = -(-n // splits)
    parts = [ctx.scratch(4 * outer * splits * inner) for _ in outs]
    count = math.ceil(outer * splits / (THREADS // (across * along))) * math.ceil(inner / across)
    kinds = {ctx.storage(out) for out in outs}
    joined = outer == channels == 1 and len(kinds) == 1 and outs[0].size == inner
    # Without joining, these arguments are neither read nor written: other addresses stand in for them.
    whole = [ctx.ref(out) for out in outs] if joined else parts
    counters = ctx.counters(math.ceil(inner / across)) if joined else parts[0]
    kernel = NORM_COLUMNS(
        T=stored.name, W=kinds.pop().name if joined else f32.name, ACROSS=across, ALONG=along,
        WITH_BETA=len(outs) == 2, JOINED=joined,
    )  # fmt: skip
    args: list[Arg] = [*refs, stats, parts[0], parts[-1], whole[0], whole[-1], counters]
    ctx.launch(kernel, ctx.groups(count), [*args, outer, n, inner, chunk, splits, channels, length])
    if joined:
        return
    for part, out in zip(parts, outs, strict=True):
        _sum_rows(ctx, part, outer * splits * inner // out.size, out)


def _sum_rows(ctx: Lowering, parts: Ref, rows: int, out: Tensor) -> None:
    """out = the sum of the rows of `parts`, which is f32 (rows, out.size); zeros where there are no rows."""
    if out.size == 0:
        return
    across = min(power(out.size), 32)
    along = min(power(-(-rows // 4)), THREADS // across) if rows > 4 else 1
    kernel = REDUCE(IO=f"{f32}_{ctx.storage(out)}", ACROSS=across, ALONG=along, KIND=0, READS=0, PARTS=0)
    groups = ctx.groups(math.ceil(1 / (THREADS // (across * along))) * math.ceil(out.size / across))
    ctx.launch(kernel, groups, [parts, ctx.ref(out), 1, rows, out.size, rows, 1, 1.0])
