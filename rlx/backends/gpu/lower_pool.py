"""Lowering of max and average pooling and of max pooling's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu import decls_image
from rlx.backends.gpu.casts import cast_ref, fits, groups_for, stores
from rlx.backends.gpu.lower_conv import three, window_meta
from rlx.backends.gpu.lowering import Lowering, lowers
from rlx.backends.gpu.steps import FileKernel, Ref
from rlx.ir import Node, Tensor

_LARGEST, _MEAN, _PLACE = 0, 1, 2


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features, doubles=True) for t in tensors) and fits(*(t.type for t in tensors))


def _meta(ctx: Lowering, node: Node, x: Tensor, counts: Sequence[int]) -> Ref:
    after = three([b for _, b in node.attrs["pads"]], 0)
    return ctx.block([*window_meta(x, counts, node.attrs["kernel"], node), *after])


@lowers("max_pool", "avg_pool", when=_native)
def lower_pool(ctx: Lowering, node: Node) -> None:
    """A thread for each window."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    stored, target = ctx.storage(y), ctx.ref(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    kind = _LARGEST if node.op.name == "max_pool" else _MEAN
    constants = (kind, int(node.attrs.get("count_include_pad", False)))
    kernel = FileKernel(decls_image.POOL.stem, (("T", stored.name),), constants)
    meta = _meta(ctx, node, x, y.shape[2:])
    ctx.launch(kernel, groups_for(ctx, y.size), [source, meta, target, target, y.size])


@lowers("max_pool_grad", when=_native)
def lower_max_pool_grad(ctx: Lowering, node: Node) -> None:
    """The place of each window's largest element; then each element gathers from the windows that chose it."""
    (x, d), y = node.inputs, node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source, given = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (x, d))
    meta = _meta(ctx, node, x, d.shape[2:])
    index = ctx.scratch(4 * d.size)
    find = FileKernel(decls_image.POOL.stem, (("T", stored.name),), (_PLACE, 0))
    ctx.launch(find, groups_for(ctx, d.size), [source, meta, index, index, d.size])
    gather = FileKernel(decls_image.POOL_BACK.stem, (("T", stored.name),))
    ctx.launch(gather, groups_for(ctx, y.size), [given, index, meta, ctx.ref(y), y.size])
