"""Rules of random graphs: norms of images, residual norms, rope, cross-entropy, fake quantization, backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlx import ops
from rlx.conformance.random_rules import Made, rule
from rlx.dtypes import bf16, f16, f32, i32
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _float(t: Tensor) -> bool:
    return t.dtype.is_float


def _weights(b: Builder, x: Tensor, n: int, count: int) -> list[Tensor]:
    return [b.leaf((n,), b.choose((x.dtype, x.dtype, f32))) for _ in range(count)]


def _groups(b: Builder, channels: int) -> int:
    found: int = b.choose([n for n in range(1, channels + 1) if channels % n == 0])
    return found


@rule("group_norm", rough=True)
def _group_norm(b: Builder) -> Made:
    x = b.ranked(2, _float)
    gamma, beta = _weights(b, x, x.shape[1], 2)
    return (ops.group_norm(x, _groups(b, x.shape[1]), gamma, beta, 1e-3),)


@rule("layer_norm_channels", rough=True)
def _layer_norm_channels(b: Builder) -> Made:
    x = b.ranked(2, _float)
    gamma, beta = _weights(b, x, x.shape[1], 2)
    return (ops.layer_norm_channels(x, gamma, beta, 1e-3),)


@rule("batch_norm", rough=True)
def _batch_norm(b: Builder) -> Made:
    x = b.ranked(2, _float)
    gamma, beta, mean, var = _weights(b, x, x.shape[1], 4)
    return (ops.batch_norm(x, gamma, beta, mean, ops.abs(var) + 0.5, 1e-3),)


@rule("add_layer_norm", rough=True)
def _add_layer_norm(b: Builder) -> Made:
    x = b.ranked(1, _float)
    y = b.pick(lambda t: t.type == x.type)
    gamma, beta = _weights(b, x, x.shape[-1], 2)
    return ops.add_layer_norm(x, y if y is not None else b.leaf(x.shape, x.dtype), gamma, beta)


@rule("add_rms_norm")
def _add_rms_norm(b: Builder) -> Made:
    x = b.ranked(1, _float)
    y = b.leaf(x.shape, x.dtype)
    gamma, beta = _weights(b, x, x.shape[-1], 2)
    return ops.add_rms_norm(x, y, gamma, beta if b.chance(0.5) else None, 0.1)


@rule("residual_norm")
def _residual_norm(b: Builder) -> Made:
    """What the fusion pass looks for."""
    x = b.ranked(1, _float)
    total = ops.add(x, b.leaf(x.shape, x.dtype))
    y = ops.rms_norm(total, _weights(b, x, x.shape[-1], 1)[0], eps=0.1)
    return (total, y) if b.chance(0.5) else (y,)


@rule("rope")
def _rope(b: Builder) -> Made:
    x = b.ranked(2, _float)
    axis, size = b.below(x.ndim - 1), x.shape[-1]
    n, half = x.shape[axis], size // 2
    sections = 2 if half % 2 == 0 and half and b.chance(0.3) else 1
    extra = b.below(3)
    cos, sin = (b.leaf((n + extra, half), f32) for _ in range(2))
    positions = None
    if b.chance(0.5):
        shape = b.choose([(), (n,)] + ([(x.shape[0], n)] if axis else []))
        positions = b.leaf(shape, i32)
        if positions.node.op.is_constant:  # may lie outside the tables, which is refused where it is known
            positions = None
    made = ops.rope(x, cos, sin, positions, axis=axis, offset=b.below(extra + 1), interleaved=b.chance(0.5),
                    sections=sections, inverse=b.chance(0.3))  # fmt: skip
    return (made,)


@rule("cross_entropy")
def _cross_entropy(b: Builder) -> Made:
    x = b.ranked(1, _float)
    labels = b.graph.constant(b.rng.integers(0, x.shape[-1], x.shape[:-1]).astype(np.int32))
    d = b.leaf(labels.shape, f32 if x.dtype.is_half else x.dtype)
    loss = ops.cross_entropy(x, labels, ignore_index=b.choose((-100, 0)), reduction="none")
    if b.chance(0.5):
        return (loss,)
    return apply_multi("cross_entropy_grad", d, x, labels, ignore_index=-100)


@rule("fake_quantize", rough=True)
def _fake_quantize(b: Builder) -> Made:
    x = b.floating()
    zero = b.choose((None, 3))
    made = ops.fake_quantize(x, 0.25, zero, bits=b.choose((4, 8)), signed=b.chance(0.5))
    if b.chance(0.4):
        return (made,)
    d = b.leaf(x.shape, x.dtype)
    return apply_multi("fake_quantize_grad", d, x, b.graph.constant(np.float32(0.5)), low=-8, high=7)


@rule("softmax_grad")
def _softmax_grad(b: Builder) -> Made:
    x = b.ranked(1, _float)
    axis = b.below(x.ndim)
    return apply_multi("softmax_grad", b.leaf(x.shape, x.dtype), ops.softmax(x, axis), axis=axis)


def _norm_grad(op: str, b: Builder, grouped: bool = False) -> Made:
    x = b.ranked(2 if grouped else 1, _float)
    n = x.shape[1 if grouped else -1]
    attrs = {"groups": _groups(b, n)} if grouped else {}
    beta = b.choose((f32, x.dtype, f16, bf16, None))
    d = b.leaf(x.shape, x.dtype)
    return apply_multi(op, d, x, *_weights(b, x, n, 1), eps=0.1, beta=beta, **attrs)


rule("layer_norm_grad", rough=True)(lambda b: _norm_grad("layer_norm_grad", b))
rule("rms_norm_grad", rough=True)(lambda b: _norm_grad("rms_norm_grad", b))
rule("group_norm_grad", rough=True)(lambda b: _norm_grad("group_norm_grad", b, grouped=True))
