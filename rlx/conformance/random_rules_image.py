"""Rules of random graphs: convolutions, pooling, resizing and sampling of small pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.random_rules import Made, rule
from rlx.dtypes import f16, f32
from rlx.ir import Tensor, apply

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _picture(b: Builder, channels: int | None = None) -> Tensor:
    shape = (1 + b.below(2), channels or 1 + b.below(4), 4 + b.below(4), 4 + b.below(4))
    return b.leaf(shape, b.choose((f32, f16)) if f16 in b.dtypes else f32)


@rule("conv")
def _conv(b: Builder) -> Made:
    groups = b.choose((1, 2))
    x = _picture(b, 2 * groups)
    w = b.leaf((groups * (1 + b.below(2)), 2, 1 + b.below(3), 1 + b.below(3)), x.dtype)
    how = {"strides": b.choose((1, 2)), "pads": b.choose((0, 1)), "groups": groups}
    y = ops.conv(x, w, b.leaf(w.shape[:1], x.dtype) if b.chance(0.5) else None, **how)
    return y, ops.im2col(x, w.shape[2:], strides=how["strides"], pads=how["pads"])


@rule("conv_transpose")
def _conv_transpose(b: Builder) -> Made:
    x = _picture(b)
    w = b.leaf((x.shape[1], 1 + b.below(3), 1 + b.below(3), 1 + b.below(3)), x.dtype)
    return (ops.conv_transpose(x, w, strides=b.choose((1, 2))),)


@rule("conv_grad_input")
def _conv_grads(b: Builder) -> Made:
    x = _picture(b)
    w = b.leaf((1 + b.below(3), x.shape[1], 3, 2), x.dtype)
    y = ops.conv(x, w, strides=2, pads=1)
    attrs = {k: v for k, v in y.node.attrs.items() if k != "activation"}
    dx = apply("conv_grad_input", y, w, sizes=x.shape[2:], **attrs)
    return dx, apply("conv_grad_weight", x, y, kernel=w.shape[2:], **attrs)


@rule("max_pool", rough=True)
def _pool(b: Builder) -> Made:
    x = _picture(b)
    how = {"strides": b.choose((1, 2)), "pads": b.choose((0, 1)), "ceil_mode": b.chance(0.5)}
    y = ops.max_pool(x, (2, 3), **how)
    mean = ops.avg_pool(x, (2, 3), **how, count_include_pad=b.chance(0.5))
    return y, mean, ops.max_pool_grad(x, y, (2, 3), **how)


@rule("resize")
def _resize(b: Builder) -> Made:
    x = _picture(b)
    sizes = (1 + b.below(9), 1 + b.below(9))
    return ops.resize(x, sizes, mode=b.choose(("nearest", "linear", "cubic"))), ops.upsample2x(x)


@rule("grid_sample", rough=True)
def _grid_sample(b: Builder) -> Made:
    x = _picture(b)
    grid = b.leaf((x.shape[0], 1 + b.below(4), 1 + b.below(4), 2), x.dtype)
    padding = b.choose(("zeros", "border", "reflection"))
    return (ops.grid_sample(x, grid, mode=b.choose(("linear", "nearest")), padding=padding),)
