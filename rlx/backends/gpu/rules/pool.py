"""Lowering of max and average pooling and of max pooling's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu.program.casts import cast_ref, groups_for, native
from rlx.backends.gpu.program.images import IMAGES, Follower
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.conv.reading import three, window_meta
from rlx.dtypes import f32
from rlx.ir import Node, Tensor

POOL = declare(
    KernelDecl(
        "pool",
        about="y = the largest element or the mean of each window of x, or index = the place of the largest.",
        grid="a thread for each window, in groups of 256",
        # x, meta (bodies/pool.h), y, index, total.
        args=(*reads(x="T", meta="u32"), *writes(y="T", index="u32"), *uints("total")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
        constants={"KIND": 0, "PADDING_COUNTS": False},
        trials=((0, False), (1, True), (2, False)),
    )
)
POOL_UNITS = declare(
    KernelDecl(
        "pool_units",
        about="y = the largest element or the mean of each window of x, with channels last.",
        grid="a thread for eight channels of each window, in groups of 256",
        args=(*reads(x="T", meta="u32"), *writes(y="T"), *uints("total", "deep")),
        headers=("rounding", "prims"),
        variants={"T": ("f32", "f16", "bf16")},
        constants={"KIND": 0, "PADDING_COUNTS": False},
        trials=((0, False), (1, True)),
    )
)
POOL_BACK = declare(
    KernelDecl(
        "pool_back",
        about=(
            "y = the gradient of max pooling: d, added up where index says that a window's largest element "
            "lies."
        ),
        grid="a thread for each element of y, in groups of 256",
        # d, index, meta (bodies/pool.h), y, total.
        args=(*reads(d="T", index="u32", meta="u32"), *writes(y="T"), *uints("total")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
    )
)

_LARGEST, _MEAN, _PLACE = 0, 1, 2


def _native(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


def _meta(ctx: Lowering, node: Node, x: Tensor, counts: Sequence[int]) -> Ref:
    after = three([b for _, b in node.attrs["pads"]], 0)
    return ctx.block([*window_meta(x, counts, node.attrs["kernel"], node), *after])


def _in_units(node: Node) -> bool:
    """Whether x and y may both have channels last: the channels must fill whole units of eight."""
    x, y = node.inputs[0], node.output
    return x.dtype == y.dtype and (y.dtype.is_half or y.dtype == f32) and y.shape[1] % 8 == 0


IMAGES.update(dict.fromkeys(("max_pool", "avg_pool"), Follower(_in_units)))


@lowers("max_pool", "avg_pool", when=_native)
def lower_pool(ctx: Lowering, node: Node) -> None:
    """A thread for each window, or for eight channels of it."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    stored, target = ctx.storage(y), ctx.ref(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    kind = _LARGEST if node.op.joins == "max" else _MEAN
    words = {"T": stored.name, "KIND": kind, "PADDING_COUNTS": node.attrs.get("count_include_pad", False)}
    meta = _meta(ctx, node, x, y.shape[2:])
    if ctx.lies_last(y):
        total = y.size // 8
        ctx.launch(POOL_UNITS(**words), groups_for(ctx, total), [source, meta, target, total, y.shape[1] // 8])
        return
    ctx.launch(POOL(**words), groups_for(ctx, y.size), [source, meta, target, target, y.size])


@lowers("max_pool_grad", when=_native)
def lower_max_pool_grad(ctx: Lowering, node: Node) -> None:
    """Finds the position of each window's largest element; then each element gathers from the windows that chose it."""
    (x, d), y = node.inputs, node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source, gradient = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (x, d))
    meta = _meta(ctx, node, x, d.shape[2:])
    index = ctx.scratch(4 * d.size)
    find = POOL(T=stored.name, KIND=_PLACE, PADDING_COUNTS=False)
    ctx.launch(find, groups_for(ctx, d.size), [source, meta, index, index, d.size])
    gather = POOL_BACK(T=stored.name)
    ctx.launch(gather, groups_for(ctx, y.size), [gradient, index, meta, ctx.ref(y), y.size])
