"""im2col: the elements under every window, a column for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops.base import TensorLike, check_inputs, tensor, written
from rlx.ops.numeric import Array
from rlx.ops.windows import (
    Ints,
    Pads,
    check_counts,
    check_image,
    check_pads,
    pads_of,
    per_axis,
    spatial_axes,
    window_counts,
    window_terms,
    windows,
)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("im2col", types, 1)
    x = types[0]
    n = check_image("im2col", x)
    check_counts("im2col", attrs, ("kernel", "strides", "dilations"), n)
    check_pads("im2col", attrs, n)
    counts = _counts(x.shape, attrs)
    return TensorType((x.shape[0], x.shape[1] * math.prod(attrs["kernel"]), math.prod(counts)), x.dtype)


def _counts(shape: Sequence[int], attrs: Attrs) -> Ints:
    return window_counts(
        "im2col", shape[2:], attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["pads"]
    )


def _im2col(x: Array, *, kernel: Ints, strides: Ints, dilations: Ints, pads: Pads) -> Array:
    counts = window_counts("im2col", x.shape[2:], kernel, strides, dilations, pads)
    seen = windows(x, kernel, strides, dilations, pads, counts, x.dtype.type(0))
    return seen.reshape(x.shape[0], x.shape[1] * math.prod(kernel), math.prod(counts))


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Adds each column's elements where they were read: a transposed convolution whose kernel picks one tap each."""
    x, d, attrs = node.inputs[0], grads[0], node.attrs
    if d is None or not d.dtype.is_float or x.size == 0:
        return (None,)
    channels, taps = x.shape[1], math.prod(attrs["kernel"])
    counts = _counts(x.shape, attrs)
    one = np.tile(np.eye(taps), (channels, 1)).reshape(channels * taps, 1, *attrs["kernel"])
    gradient = apply(
        "conv_grad_input",
        apply("reshape", d, shape=(x.shape[0], channels * taps, *counts)),
        x.graph.constant(one, d.dtype),
        sizes=x.shape[2:],
        strides=attrs["strides"],
        dilations=attrs["dilations"],
        pads=attrs["pads"],
        groups=channels,
    )
    return (gradient,)


def _cost(node: Node) -> Cost:
    return Cost(written(node), terms=window_terms(node))


register(Op("im2col", "conv", _infer, _im2col, "torch.nn.functional.unfold", _vjp, kernel="im2col", cost=_cost))


def im2col(x: TensorLike, kernel: Any, *, strides: Any = 1, dilations: Any = 1, pads: Any = 0) -> Tensor:
    """The elements under every position of a sliding window, one column for each position.

    Shape: (N, C, *S) gives (N, C·∏kernel, number of positions), one to three spatial axes; the rows are ordered by
    channel, then by position in the window. kernel, strides, dilations: an int or one for each axis; pads: an int, one
    for each axis, or (begin, end) for each; padding reads as 0. Dtype: any. Gradient: summed where windows overlap.
    Numerics: exact. Follows torch.nn.functional.unfold.
    """
    x = tensor("im2col", x)
    n = spatial_axes("im2col", x)
    return apply(
        "im2col",
        x,
        kernel=per_axis("im2col", "kernel", kernel, n),
        strides=per_axis("im2col", "strides", strides, n),
        dilations=per_axis("im2col", "dilations", dilations, n),
        pads=pads_of("im2col", pads, n),
    )


__all__ = ["im2col"]
