"""Group norms and convolutions of com.microsoft with the channels last, beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import rlx
from rlx.errors import ModelFormatError
from tests.onnx.microsoft import judged, microsoft

RNG = np.random.default_rng(17)


def rand(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def normed(x: np.ndarray, groups: int, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The group norm of (batch, height, width, channels) in float64."""
    batch, height, width, channels = x.shape
    split = x.reshape(batch, height, width, groups, channels // groups)
    mean, spread = (f(split, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    return ((split - mean) / np.sqrt(spread + 1e-5)).reshape(x.shape) * gamma + beta


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("last", [1, 0])
@pytest.mark.sample(2)
def test_group_norms(dtype: type, last: int, device: str) -> None:
    x, bias = rand(2, 3, 5, 12, dtype=dtype), rand(12, dtype=dtype)
    gamma, beta = rand(12), rand(12)  # in f32, whatever the image is

    def turned(a: np.ndarray) -> np.ndarray:
        return a if last or a.ndim != 4 else a.transpose(0, 3, 1, 2).copy()

    given = {"x": turned(x), "g": gamma, "b": beta}
    wide = x.astype(np.float64)
    for act in (0, 1):
        want = normed(wide, 4, gamma, beta)
        want = want * expit(want) if act else want
        rules: dict[str, Any] = {"groups": 4, "activation": act, "channels_last": last}
        judged(device, "GroupNorm", given, turned(want), **rules)
        for skip in [
            rand(2, 3, 5, 12, dtype=dtype),
            rand(2, 1, 1, 12, dtype=dtype),
            rand(2, 12, dtype=dtype),
        ]:
            total = wide + (skip if skip.ndim == 4 else skip[:, None, None]) + bias
            want = normed(total, 4, gamma, beta)
            want = want * expit(want) if act else want
            more = {**given, "s": turned(skip), "bias": bias}
            judged(
                device, "SkipGroupNorm", more, {"y": turned(want), "sum": turned(total)}, "", "y sum", **rules
            )


def test_convolutions(device: str) -> None:
    x, w, b = rand(2, 6, 5, 3), rand(4, 3, 2, 3), rand(4)
    padded = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (0, 1), (0, 0)])
    want = np.zeros((2, 3, 3, 4))
    for i, j in np.ndindex(3, 3):
        patch = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2]
        want[:, i, j] = np.einsum("nhwc,ohwc->no", patch, w.astype(np.float64)) + b
    judged(
        device,
        "NhwcConv",
        {"x": x, "w": w, "b": b},
        want,
        strides=[2, 2],
        pads=[1, 0, 1, 1],
        kernel_shape=[3, 2],
    )


def test_shapes_that_do_not_fit_are_said() -> None:
    given = {"x": rand(1, 2, 2, 4), "g": rand(4), "b": rand(4), "s": rand(1, 2, 4)}
    for kind, names, says, rules in [
        ("GroupNorm", "x g b", "lacks the attribute groups", {"activation": 0}),
        ("GroupNorm", "x g b", "activation is 2", {"activation": 2, "groups": 2}),
        ("GroupNorm", "s g b", "X is", {"activation": 0, "groups": 2}),
        ("SkipGroupNorm", "x g b s", "skip is", {"activation": 0, "groups": 2}),
        ("NhwcConv", "x g", "expected four dimensions", {}),
    ]:
        used = {n: given[n] for n in names.split()}
        with pytest.raises(ModelFormatError, match=f"{kind}.*{says}"):
            rlx.onnx.load(microsoft(kind, used, names, **rules)).run(used)
