"""Judges of convolution, pooling, resizing and sampling: torch in float64, and onnx.reference where torch has less."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from tests.ops.judges import Array, _activation, _torch, _with_torch


def _padded(torch: Any, x: Any, pads: Any, value: float = 0.0) -> Any:
    """Any (begin, end) for each axis, which torch's own functions do not take."""
    width = [v for pair in reversed(pads) for v in pair]
    return torch.nn.functional.pad(x, width, value=value) if any(width) else x


def _function(torch: Any, name: str, x: Any) -> Any:
    return getattr(torch.nn.functional, f"{name}{x.dim() - 2}d")


def _conv(
    torch: Any,
    x: Any,
    w: Any,
    *bias: Any,
    strides: Any,
    dilations: Any,
    pads: Any,
    groups: int,
    activation: Any,
) -> Any:
    if x.shape[0] == 0 or 0 in w.shape:
        raise AssertionError("no case asks this judge for nothing")
    y = _function(torch, "conv", x)(
        _padded(torch, x, pads), w, bias[0] if bias else None, strides, 0, dilations, groups
    )
    return _activation(torch, activation, y)


def _conv_transpose(
    torch: Any,
    x: Any,
    w: Any,
    *bias: Any,
    strides: Any,
    dilations: Any,
    pads: Any,
    groups: int,
    output_padding: Any,
) -> Any:
    """The whole result by torch, then cut (or, for output padding beyond it, widened) as the pads say."""
    full = _function(torch, "conv_transpose", x)(x, w, None, strides, 0, 0, groups, dilations)
    for axis, ((before, after), extra) in enumerate(zip(pads, output_padding, strict=True), start=2):
        size = full.shape[axis] - before - after + extra
        short = before + size - full.shape[axis]
        if short > 0:
            shape = list(full.shape)
            shape[axis] = short
            full = torch.cat([full, full.new_zeros(shape)], axis)
        full = full.narrow(axis, before, size)
    return full + bias[0].reshape(-1, *[1] * (x.dim() - 2)) if bias else full


def _by_autograd(shape: Any, run: Any, gradient: Any, torch: Any) -> Any:
    """The gradient of `run` at zero with respect to an input of that shape."""
    with torch.enable_grad():
        leaf = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(run(leaf), leaf, gradient)
    return found


def _grad_input(torch: Any, d: Any, w: Any, *, sizes: Any, groups: int, **attrs: Any) -> Any:
    def run(x: Any) -> Any:
        return _conv(torch, x, w, groups=groups, activation=None, **attrs)

    return _by_autograd((d.shape[0], w.shape[1] * groups, *sizes), run, d, torch)


def _grad_weight(torch: Any, x: Any, d: Any, *, kernel: Any, groups: int, **attrs: Any) -> Any:
    def run(w: Any) -> Any:
        return _conv(torch, x, w, groups=groups, activation=None, **attrs)

    return _by_autograd((d.shape[1], x.shape[1] // groups, *kernel), run, d, torch)


def _im2col(x: Array, *, kernel: Any, strides: Any, dilations: Any, pads: Any) -> Array:
    """torch.nn.functional.unfold in two dimensions; in one and three by a loop over the window's places."""
    torch = _torch()
    if x.ndim == 4 and x.dtype.kind == "f":
        wide = _padded(torch, torch.from_numpy(x.astype(np.float64)), pads)
        return np.asarray(torch.nn.functional.unfold(wide, kernel, dilations, 0, strides).numpy())
    p = np.pad(x, ((0, 0), (0, 0), *pads))
    counts = [
        len(range(0, n - d * (k - 1), s))
        for n, k, s, d in zip(p.shape[2:], kernel, strides, dilations, strict=True)
    ]
    rows = []
    for c in range(x.shape[1]):
        for tap in np.ndindex(*kernel):
            steps = zip(tap, dilations, counts, strides, strict=True)
            places = [range(t * d, t * d + n * s, s) for t, d, n, s in steps]
            rows.append(p[:, c][np.ix_(range(len(x)), *places)].reshape(len(x), -1))
    return np.stack(rows, axis=1) if rows else np.zeros((len(x), 0, math.prod(counts)), x.dtype)


def _pool_input(torch: Any, x: Any, attrs: Any, value: float) -> tuple[Any, Any]:
    """Padded where torch takes no such padding; then the padding that torch is to be told of."""
    if all(a == b and 2 * a <= k for (a, b), k in zip(attrs["pads"], attrs["kernel"], strict=True)):
        return x, [a for a, _ in attrs["pads"]]
    return _padded(torch, x, attrs["pads"], value), 0


def _max_pool(torch: Any, x: Any, **attrs: Any) -> Any:
    if attrs["ceil_mode"] and any(a != b for a, b in attrs["pads"]):
        raise AssertionError("padding by hand changes which windows ceil mode has")
    wide, padding = _pool_input(torch, x, attrs, -math.inf)
    return _function(torch, "max_pool", x)(
        wide, attrs["kernel"], attrs["strides"], padding, attrs["dilations"], attrs["ceil_mode"]
    )


def _max_pool_grad(torch: Any, x: Any, d: Any, **attrs: Any) -> Any:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(_max_pool(torch, leaf, **attrs), leaf, d)
    return found


def _avg_pool(torch: Any, x: Any, **attrs: Any) -> Any:
    """torch's own; uneven padding by torch too: sums of the padded input over sums of what counts."""
    function = _function(torch, "avg_pool", x)
    include = attrs["count_include_pad"]
    if all(a == b and 2 * a <= k for (a, b), k in zip(attrs["pads"], attrs["kernel"], strict=True)):
        padding = [a for a, _ in attrs["pads"]]
        return function(x, attrs["kernel"], attrs["strides"], padding, attrs["ceil_mode"], include)
    assert not attrs["ceil_mode"]
    ones = torch.ones_like(x)
    window = attrs["kernel"], attrs["strides"]
    counted = _padded(torch, ones, attrs["pads"], 1.0 if include else 0.0)
    return function(_padded(torch, x, attrs["pads"]), *window) / function(counted, *window)


def _resize(x: Array, **attrs: Any) -> Array:
    """What onnx.reference runs for Resize, with its coefficients in float64 (its evaluator hands them over in float32);
    "tf_half_pixel_for_nn", which later versions of the standard dropped, by its definition."""
    module = importlib.import_module("onnx.reference.ops.op_resize")
    sizes, scales, mode = attrs["sizes"], attrs["scales"], attrs["mode"]
    if attrs["coordinates"] == "tf_half_pixel_for_nn":
        assert mode == "nearest" and attrs["rounding"] == "floor"
        for axis, (n, size, scale) in enumerate(zip(x.shape, sizes, scales, strict=True)):
            if n != size or scale != 1:
                x = np.take(x, [min(max(math.floor((i + 0.5) / scale), 0), n - 1) for i in range(size)], axis)
        return x
    if mode == "nearest":
        # Positions instead of values: the reference computes with what it moves.
        x, values = np.arange(x.size, dtype=np.float64).reshape(x.shape), x
    weights = {
        "nearest": lambda part, scale: module._nearest_coeffs(part, mode=attrs["rounding"]),
        "linear": module._linear_coeffs,
        "cubic": lambda part, scale: module._cubic_coeffs(part, scale, A=attrs["cubic_a"]),
    }[mode]
    if 0 in x.shape or 0 in sizes:
        return np.zeros(sizes, values.dtype if mode == "nearest" else x.dtype)
    by_size = all(s == (m / n if n and m else 1.0) for s, m, n in zip(scales, sizes, x.shape, strict=True))
    y = module._interpolate_nd(
        x,
        weights,
        output_size=list(sizes) if by_size else None,
        scale_factors=None if by_size else list(scales),
        exclude_outside=attrs["exclude_outside"],
        coordinate_transformation_mode=attrs["coordinates"],
    )
    return np.take(values, y.astype(np.int64)) if mode == "nearest" else np.asarray(y)


def _grid_sample(torch: Any, x: Any, grid: Any, *, mode: str, padding: str, align_corners: bool) -> Any:
    name = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}[mode]
    return torch.nn.functional.grid_sample(x, grid, name, padding, align_corners)


JUDGES = {
    "torch.nn.functional.conv2d": _with_torch(_conv),
    "torch.nn.functional.conv_transpose2d": _with_torch(_conv_transpose),
    "torch.nn.grad.conv2d_input": _with_torch(_grad_input),
    "torch.nn.grad.conv2d_weight": _with_torch(_grad_weight),
    "torch.nn.functional.unfold": _im2col,
    "torch.nn.functional.max_pool2d": _with_torch(_max_pool),
    "torch.autograd of max_pool2d": _with_torch(_max_pool_grad),
    "torch.nn.functional.avg_pool2d": _with_torch(_avg_pool),
    "onnx.reference Resize": _resize,
    "torch.nn.functional.grid_sample": _with_torch(_grid_sample),
}
