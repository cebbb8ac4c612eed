"""Fourier transforms: DFT, which divides the inverse by the length."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir import Node
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.table import writes
from rlx.ops.fft.transform import half


def _dft(d: Draft, z: Value, node: Node, axis: int, inverse: bool, onesided: bool = False) -> Value:
    """DFT along an axis, times the node's scale."""
    n, scale = node.attrs["n"], node.attrs["scale"]
    flags: dict[str, Any] = {"inverse": int(inverse), "onesided": int(onesided)}
    length = d.const(np.int64(n))
    if d.opset >= 20:
        spectrum = d.op("DFT", z, length, d.const(np.int64(axis)), **flags)
    else:
        spectrum = d.op("DFT", z, length, axis=axis, **flags)
    factor = scale * n if inverse else scale
    return spectrum if factor == 1.0 else d.op("Mul", spectrum, d.like(factor, spectrum))


@writes("fft")
def fft(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """DFT needs a leading batch axis: a 1-D signal gets one."""
    x = node.inputs[0]
    z = d.reshape(inputs[0], (1, *x.shape)) if x.ndim == 2 else inputs[0]
    spectrum = _dft(d, z, node, max(x.ndim, 3) - 2, node.attrs["inverse"])
    return d.reshape(spectrum, node.output.shape) if x.ndim == 2 else spectrum


@writes("rfft")
def rfft(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """For the inverse direction the result is conjugated."""
    x = node.inputs[0]
    lines = (*x.shape, 1) if x.ndim > 1 else (1, *x.shape, 1)
    spectrum = _dft(d, d.reshape(inputs[0], lines), node, len(lines) - 2, False, onesided=True)
    if node.attrs["inverse"]:
        spectrum = d.op("Mul", spectrum, d.const(np.array([1.0, -1.0]), spectrum.dtype))
    return d.reshape(spectrum, node.output.shape) if x.ndim == 1 else spectrum


@writes("irfft")
def irfft(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """The real part of the transform of the half spectrum, in which elements that have a mirror image count twice,
    since ONNX Runtime cannot invert a half spectrum."""
    x, n = node.inputs[0], node.attrs["n"]
    count = min(x.shape[-2], half(n))
    z = d.reshape(inputs[0], (1, *x.shape)) if x.ndim == 2 else inputs[0]
    axis = max(x.ndim, 3) - 2
    if count < x.shape[-2]:
        z = d.op("Slice", z, d.ints([0]), d.ints([count]), d.ints([axis]))
    weight = np.where(2 * np.arange(count) % n == 0, 1.0, 2.0)
    z = d.op("Mul", z, d.const(weight[:, None], z.dtype))
    signal = _dft(d, z, node, axis, node.attrs["inverse"])
    signal = d.op("Slice", signal, d.ints([0]), d.ints([1]), d.ints([axis + 1]))
    return d.reshape(signal, node.output.shape)
