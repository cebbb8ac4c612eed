"""Judges (onnx.reference in float64) and gradient cases of resizing."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge


def _resize(x: Array, **attrs: Any) -> Array:
    """The function that onnx.reference runs for Resize, with coefficients in float64 (its evaluator passes float32);
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
        # Positions are resized instead of values, since the reference computes with the values that it moves.
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


JUDGES: dict[str, Judge] = {
    "onnx.reference Resize": _resize,
}
GRADIENTS: Gradients = {
    "resize": [
        (lambda x: ops.resize(x, scales=(2.0, 2.0)), [(1, 2, 3, 2)], None),
        (lambda x: ops.resize(x, (4, 5), mode="linear"), [(1, 2, 3, 3)], None),
        (lambda x: ops.resize(x, (7, 2), mode="cubic", coordinates="align_corners"), [(2, 3, 4)], None),
        (lambda x: ops.resize(x, 5, mode="linear"), [(3,)], None),
    ],
}  # fmt: skip
