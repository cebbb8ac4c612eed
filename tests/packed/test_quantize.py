"""rlx.quantize: its error is at most that of ggml's and bitsandbytes', and it refuses what it cannot pack."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.dtypes import PACKED
from rlx.errors import DTypeError, ShapeError
from rlx.packed.decode import split_planes
from rlx.packed.search import SEARCHES
from tests.outside import outside

Array = np.ndarray[Any, Any]
# The relative squared error of ggml's `ggml_quantize_chunk` (llama.cpp's libraries of November 2026) on `weights`.
GGML = {
    "q4_0": (7.4943e-03, 1.6407e-02), "q4_1": (6.1375e-03, 9.8146e-03), "q5_0": (1.8447e-03, 4.0755e-03),
    "q5_1": (1.4255e-03, 2.3478e-03), "q8_0": (2.8848e-05, 6.4018e-05), "q2_k": (8.7552e-02, 1.2778e-01),
    "q3_k": (2.2967e-02, 3.7527e-02), "q4_k": (5.1320e-03, 8.6255e-03), "q5_k": (1.3102e-03, 2.1804e-03),
    "q6_k": (3.2028e-04, 6.1973e-04), "tq2_0": (6.4001e-01, 6.7431e-01), "mxfp4": (1.3138e-02, 1.8424e-02),
    "nvfp4": (1.0721e-02, 8.7437e-03), "iq4_nl": (5.7933e-03, 1.0308e-02), "iq4_xs": (5.8784e-03, 1.0508e-02),
    "q1_0": (3.7e-01, 6e-01),
}  # fmt: skip
# rlx's own formats: a bound from their number of bits.
OWN = {
    "int8": (3e-5, 7e-5), "int8_zp": (3e-5, 5e-5), "int4": (7.4943e-03, 1.6407e-02), "int4_zp": (6.2e-03, 1.1e-02),
    "fp8_e4m3": (5e-4, 5e-4), "fp8_e5m2": (2e-3, 2e-3),
}  # fmt: skip
# bitsandbytes scales each block by its largest magnitude; the error of that, in blocks of 32 and in those of 64.
BITSANDBYTES = {
    "nf4": (7.6703e-03, 1.0288e-02), "nf4_64": (8.4721e-03, 1.4606e-02),
    "fp4": (1.3237e-02, 2.3448e-02), "fp4_64": (1.5003e-02, 3.5228e-02),
}  # fmt: skip


def weights(heavy: bool) -> Array:
    """Weights of a network: normal, or with the heavy tail of Student's t with three degrees of freedom."""
    rng = np.random.default_rng(7)
    normal, tail = rng.standard_normal((16, 1024)), rng.standard_t(3, (16, 1024))
    return (tail if heavy else normal).astype(np.float32) * np.float32(0.02)


def error(x: Array, name: str) -> float:
    wide = x.astype(np.float64)
    return float(np.sum((rlx.quantize(x, name).dequantize() - wide) ** 2) / np.sum(wide**2))


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
@pytest.mark.parametrize("name", SEARCHES)
def test_the_error_is_at_most_that_of_others(name: str, heavy: bool) -> None:
    limit = (GGML | OWN | BITSANDBYTES)[name][heavy]
    assert error(weights(heavy), name) <= limit
    if f"{name}_128" in PACKED:
        assert error(weights(heavy), f"{name}_128") <= limit * 3.5
    if f"{name}_64" in PACKED:
        assert error(weights(heavy), f"{name}_64") <= BITSANDBYTES[f"{name}_64"][heavy]


@pytest.mark.judged
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq2_0", "mxfp4"])
@pytest.mark.parametrize("kind", ["uniform", "positive", "far from zero", "a few large", "coarse"])
def test_the_error_is_at_most_that_of_the_package_gguf(name: str, kind: str) -> None:
    gguf, rng = outside("gguf"), np.random.default_rng(3)
    shape = (8, 512)
    x = {
        "uniform": lambda: rng.uniform(-1, 1, shape),
        "positive": lambda: np.abs(rng.standard_normal(shape)),
        "far from zero": lambda: rng.standard_normal(shape) + 5,
        "a few large": lambda: rng.standard_normal(shape) * np.where(rng.random(shape) < 0.01, 30, 1),
        "coarse": lambda: rng.integers(-3, 4, shape) / 8,
    }[kind]().astype(np.float32)
    t = gguf.GGMLQuantizationType[name.upper()]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(x, t), t).astype(np.float64)
    assert error(x, name) <= np.sum((theirs - x) ** 2) / np.sum(x.astype(np.float64) ** 2) * (1 + 1e-9)


@pytest.mark.parametrize("name", SEARCHES)
def test_blocks_that_are_easy_are_exact_and_odd_ones_finite(name: str) -> None:
    size = PACKED[name].storage.elements
    x = np.zeros((7, size), np.float32)
    x[1] = 0.5
    x[2, 3] = -3.0
    x[3] = 1e-42
    x[4] = np.where(np.arange(size) % 2, 1e30, -1e30)
    x[5] = np.where(np.arange(size) % 2, 0.25, -0.25)
    x[6, :2] = 1e-7, -1e-7
    made = rlx.quantize(x, name).dequantize()
    assert np.isfinite(made).all()
    np.testing.assert_array_equal(made[0], 0)
    # The codebook of the iq4 types is not symmetric.
    np.testing.assert_allclose(made[[1, 5]], x[[1, 5]], rtol=0.06 if name.startswith("iq4") else 0.02)
    if name != "q1_0":  # whose elements are signs alone
        np.testing.assert_allclose(made[2], x[2], atol=0.02 * 3)
    assert np.max(np.abs(made[[3, 6]])) <= 2e-6


@pytest.mark.parametrize(("name", "scales"), [("q4_0", "d"), ("q8_0", "d"), ("q4_k", "dm"), ("int8", "s")])
def test_scales_of_zeros_have_no_sign(name: str, scales: str) -> None:
    """Which zero is the least of several depends on the processor; the bytes do not."""
    x = np.zeros((4, 256), np.float32)
    x[1], x[2, ::2], x[3, 1::2] = -0.0, -0.0, -0.0
    packed = rlx.quantize(x, name)
    assert not split_planes(packed.dtype, packed.data)[scales].any()


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "int4_zp_128"])
def test_shapes_and_floats_of_all_kinds(name: str) -> None:
    k = 2 * PACKED[name].storage.elements
    x = np.random.default_rng(1).standard_normal((2, 3, k)).astype(np.float32)
    packed = rlx.quantize(x, name.upper())
    assert packed.shape == x.shape and packed.dtype.name == name
    for given in (x.astype(np.float64), np.asfortranarray(x), x[:, ::-1][:, ::-1]):
        assert rlx.quantize(given, name).tobytes() == packed.tobytes()
    for kind in (np.float16, ml_dtypes.bfloat16):
        assert (
            rlx.quantize(x.astype(kind), name).tobytes()
            == rlx.quantize(x.astype(kind).astype(np.float32), name).tobytes()
        )
    for shape in ((0, k), (3, 0), (0,)):
        assert rlx.quantize(np.zeros(shape), name).shape == shape


def test_mistakes_are_refused() -> None:
    with pytest.raises(ShapeError, match="has 40: expected a multiple of 32"):
        rlx.quantize(np.zeros((2, 40)), "q8_0")
    with pytest.raises(DTypeError, match="no quantizer for iq2_xs; it has q4_0"):
        rlx.quantize(np.zeros((2, 256)), "iq2_xs")
    with pytest.raises(DTypeError, match="f16 is no packed dtype"):
        rlx.quantize(np.zeros((2, 256)), "f16")
    with pytest.raises(DTypeError, match="expected floats, got <U1"):
        rlx.quantize(np.full((32,), "a"), "q8_0")
    with pytest.raises(DTypeError, match=r"expected floats, got \|V4"):
        rlx.quantize(np.zeros((32,), "V4"), "q8_0")
    with pytest.raises(ShapeError, match="expected an array of floats"):
        rlx.quantize([[1.0], [1.0, 2.0]], "q8_0")
    for bad in (np.nan, np.inf):
        with pytest.raises(DTypeError, match="NaN or infinities"):
            rlx.quantize(np.full((32,), bad), "q8_0")
