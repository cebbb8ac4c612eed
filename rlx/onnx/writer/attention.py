"""Attention in the form that exporters write, which other runtimes recognize and fuse."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.ir import Attrs, Tensor, apply, get_op
from rlx.onnx.writer.table import composes
from rlx.ops.attention.parts import rest, visible, wide


@composes("attention")
def attention(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """softmax(q · kᵀ · scale) · v in the working dtype, masked scores at -inf; zeros for a fully masked row, where
    softmax gives NaN. Lengths that only a run knows, and other orders of axes, use the op's decomposition."""
    q, k, v = inputs[:3]
    mask, lengths = rest("attention", inputs[3:])
    if attrs.get("tokens") or lengths is not None or not q.size or not k.size:
        return _by_parts(inputs, attrs)
    n_q, n_k, softcap = q.shape[2], k.shape[2], attrs.get("softcap")
    keys, values = (_repeated(wide(t), q.shape[1]) for t in (k, v))
    flags = {"transpose_a": False, "activation": None}
    scores = apply("matmul", wide(q), keys, transpose_b=True, **flags) * attrs["scale"]
    if softcap is not None:
        scores = apply("tanh", scores / softcap) * softcap
    keep = None
    if attrs["causal"] or attrs.get("window") is not None:
        keep = q.graph.constant(visible(n_q, n_k, np.asarray(n_k), attrs["causal"], attrs.get("window")))
    if mask is not None and mask.dtype.kind == "b":
        keep = mask if keep is None else apply("logical_and", mask, keep)
    elif mask is not None:
        scores = scores + apply("cast", mask, dtype=scores.dtype)
    if keep is not None:
        scores = apply("where", keep, scores, -math.inf)
    rows = apply("softmax", scores, axis=3)
    if keep is not None or mask is not None:
        best = apply("max", scores, axes=(3,), keepdims=True)
        rows = apply("where", apply("equal", best, -math.inf), 0, rows)
    result = apply("matmul", rows, values, transpose_b=False, **flags)
    return result if result.dtype == q.dtype else apply("cast", result, dtype=q.dtype)


def _by_parts(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    rule = get_op("attention").decompose
    assert rule is not None
    result = rule(inputs, attrs)
    assert isinstance(result, Tensor)
    return result


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Each key head repeated for the query heads that share it."""
    b, kv, s, d = x.shape
    if kv == heads:
        return x
    apart = apply("reshape", x, shape=(b, kv, 1, s, d))
    return apply("reshape", apply("expand", apart, shape=(b, kv, heads // kv, s, d)), shape=(b, heads, s, d))
