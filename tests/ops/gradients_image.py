"""What the gradients of convolution, pooling, resizing and sampling are tried on."""

from __future__ import annotations

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor, apply


def _distinct(x: np.ndarray) -> np.ndarray:
    """No two elements closer than the step of the difference."""
    return np.argsort(np.argsort(x, axis=None)).reshape(x.shape) * 0.1


def _places(x: np.ndarray) -> np.ndarray:
    """Grid places that stay between two elements while the difference is taken."""
    return np.clip(np.round(x * 5) / 5 + 0.07, -0.87, 0.87)


def _grid(x: Tensor, mode: str, padding: str, align: bool) -> Tensor:
    rng = np.random.default_rng(3)
    places = _places(rng.standard_normal((x.shape[0], *(2, 3, 2)[: x.ndim - 2], x.ndim - 2)))
    grid = x.graph.constant(places, x.dtype)
    return ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=align)


def _to_grid(grid: Tensor) -> Tensor:
    x = grid.graph.constant(np.random.default_rng(4).standard_normal((1, 2, 3, 4)), grid.dtype)
    return ops.grid_sample(x, ops.tanh(grid), align_corners=True)


def _grad_input(d: Tensor, w: Tensor) -> Tensor:
    return apply(
        "conv_grad_input",
        d,
        w,
        sizes=(6, 5),
        strides=(2, 1),
        dilations=(1, 2),
        pads=((1, 0), (1, 1)),
        groups=2,
    )


def _grad_weight(x: Tensor, d: Tensor) -> Tensor:
    return apply(
        "conv_grad_weight",
        x,
        d,
        kernel=(2, 2),
        strides=(2, 1),
        dilations=(1, 2),
        pads=((1, 0), (1, 1)),
        groups=2,
    )


CASES = {
    "conv": [
        (lambda x, w: ops.conv(x, w, pads=1), [(2, 2, 4), (3, 2, 3)], None),
        (lambda x, w, b: ops.conv(x, w, b, strides=(2, 1), dilations=(1, 2), pads=((1, 0), (1, 1)), groups=2),
         [(1, 4, 5, 4), (2, 2, 2, 2), (2,)], None),
        (lambda x, w, b: ops.conv(x, w, b, strides=2, activation="gelu"), [(1, 2, 4, 4), (2, 2, 3, 3), (2,)], None),
        (lambda x, w: ops.conv(x, w, pads=1, groups=3), [(1, 3, 3, 3), (3, 1, 3, 3)], None),
        (lambda x, w: ops.conv(x, w, pads=((5, 4),), strides=3, dilations=2), [(1, 1, 4), (2, 1, 2)], None),
        (lambda x, w: ops.conv(x, w, strides=2, pads=1), [(1, 1, 3, 3, 3), (2, 1, 2, 2, 2)], None),
    ],
    "conv_grad_input": [(_grad_input, [(1, 4, 3, 5), (4, 2, 2, 2)], None)],
    "conv_grad_weight": [(_grad_weight, [(2, 4, 6, 5), (2, 4, 3, 5)], None)],
    "conv_transpose": [
        (lambda x, w: ops.conv_transpose(x, w, strides=2, pads=1), [(1, 2, 3), (2, 3, 4)], None),
        (lambda x, w, b: ops.conv_transpose(x, w, b, strides=2, pads=((1, 0), (0, 2)), output_padding=1, groups=2),
         [(1, 4, 2, 3), (4, 1, 3, 2), (2,)], None),
        (lambda x, w: ops.conv_transpose(x, w, strides=2, dilations=3, output_padding=2), [(1, 1, 3), (1, 2, 2)], None),
        (lambda x, w: ops.conv_transpose(x, w, strides=2), [(1, 1, 2, 2, 2), (1, 2, 2, 2, 2)], None),
        # An output_padding of a stride and more, beside pads that take it up, that do not, and that leave nothing.
        (lambda x, w: ops.conv_transpose(x, w, pads=2, dilations=2, output_padding=1), [(1, 1, 4), (1, 1, 3)], None),
        (lambda x, w: ops.conv_transpose(x, w, pads=((0, 1),), dilations=4, output_padding=3, groups=2),
         [(1, 2, 3), (2, 2, 2)], None),
        (lambda x, w: ops.conv_transpose(x, w, strides=(2, 1), dilations=(1, 3), pads=((1, 4), (0, 2)),
                                         output_padding=(1, 2)), [(1, 2, 4, 3), (2, 1, 3, 2)], None),
        (lambda x, w, b: ops.conv_transpose(x, w, b, pads=((3, 0),), dilations=4, output_padding=3),
         [(1, 1, 2), (1, 2, 1), (2,)], None),
    ],
    "im2col": [
        (lambda x: ops.im2col(x, (2, 3), strides=2, pads=1), [(1, 2, 4, 5)], None),
        (lambda x: ops.im2col(x, 2, dilations=2), [(2, 2, 5)], None),
    ],
    "max_pool": [
        (lambda x: ops.max_pool(x, 3, strides=2, pads=1), [(1, 2, 5, 5)], _distinct),
        (lambda x: ops.max_pool(x, 2, dilations=2, strides=1), [(1, 2, 6)], _distinct),
        (lambda x: ops.max_pool(x, 2, ceil_mode=True), [(1, 1, 3, 3, 3)], _distinct),
    ],
    "max_pool_grad": [
        (lambda d: ops.max_pool_grad(_image(d, (1, 2, 5, 5)), d, 3, strides=2, pads=1), [(1, 2, 3, 3)], None),
    ],
    "avg_pool": [
        (lambda x: ops.avg_pool(x, 3, strides=2, pads=1), [(1, 2, 5, 5)], None),
        (lambda x: ops.avg_pool(x, 3, strides=2, pads=1, count_include_pad=True, ceil_mode=True), [(1, 2, 6)], None),
        (lambda x: ops.avg_pool(x, (2, 1, 2)), [(1, 1, 4, 2, 4)], None),
    ],
    "resize": [
        (lambda x: ops.resize(x, scales=(2.0, 2.0)), [(1, 2, 3, 2)], None),
        (lambda x: ops.resize(x, (4, 5), mode="linear"), [(1, 2, 3, 3)], None),
        (lambda x: ops.resize(x, (7, 2), mode="cubic", coordinates="align_corners"), [(2, 3, 4)], None),
        (lambda x: ops.resize(x, 5, mode="linear"), [(3,)], None),
    ],
    "grid_sample": [
        (lambda x: _grid(x, "linear", "zeros", False), [(2, 2, 3, 4)], None),
        (lambda x: _grid(x, "cubic", "border", True), [(1, 2, 4, 4)], None),
        (lambda x: _grid(x, "nearest", "reflection", False), [(1, 2, 3, 4)], None),
        (lambda x: _grid(x, "linear", "reflection", True), [(1, 1, 3, 2, 4)], None),
        (_to_grid, [(1, 2, 3, 2)], _places),
    ],
}  # fmt: skip


def _image(d: Tensor, shape: tuple[int, ...]) -> Tensor:
    return d.graph.constant(np.random.default_rng(7).standard_normal(shape), d.dtype)
