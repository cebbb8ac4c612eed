"""PackedArray: the layout of planes, the way to a file's blocks and back, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import PackedArray
from rlx.dtypes import GGUF, PACKED, as_dtype, f32
from rlx.errors import DTypeError, ShapeError
from rlx.formats import safetensors
from tests.packed.tables import FP4, NF4

Array = np.ndarray[Any, Any]


def blocks(name: str, rows: int, count: int, seed: int = 0) -> Array:
    """Random blocks in the order of a file."""
    nbytes = count * PACKED[name].storage.nbytes
    return np.random.default_rng(seed).integers(0, 256, (rows, nbytes), np.uint8)


@pytest.mark.parametrize("name", PACKED)
def test_blocks_become_planes_and_again_blocks(name: str) -> None:
    raw, size = blocks(name, 3, 5), PACKED[name].storage.elements
    made = PackedArray.from_gguf(raw.tobytes(), name, (3, 5 * size))
    assert made.nbytes == raw.nbytes and made.data.shape == raw.shape
    np.testing.assert_array_equal(made.to_gguf(), raw)
    at = 0
    for plane in PACKED[name].storage.planes:
        field = raw.reshape(3, 5, -1)[:, :, plane.at : plane.at + plane.nbytes]
        np.testing.assert_array_equal(made.data[:, at : at + 5 * plane.nbytes], field.reshape(3, -1))
        at += 5 * plane.nbytes


def test_the_fields_of_a_block_cover_it() -> None:
    for dtype in PACKED.values():
        at = 0
        for plane in sorted(dtype.storage.planes, key=lambda p: p.at):
            assert plane.at == at, dtype
            at += plane.nbytes
        assert at == dtype.storage.nbytes, dtype


def half(raw: Array, at: int) -> float:
    return float(raw[at : at + 2].view(np.float16)[0])


def q4_0(b: Array) -> list[float]:
    return [half(b, 0) * ((int(b[2 + i % 16]) >> 4 * (i // 16) & 15) - 8) for i in range(32)]


def q5_1(b: Array) -> list[float]:
    high = int.from_bytes(b[4:8].tobytes(), "little")
    quants = [int(b[8 + i % 16]) >> 4 * (i // 16) & 15 | (high >> i & 1) << 4 for i in range(32)]
    return [half(b, 0) * q + half(b, 2) for q in quants]


def q4_k(b: Array) -> list[float]:
    s = [int(v) for v in b[4:16]]
    made = []
    for i in range(256):
        j = i // 32
        if j < 4:
            scale, low = s[j] & 63, s[j + 4] & 63
        else:
            scale, low = s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4
        quant = int(b[16 + 32 * (i // 64) + i % 32]) >> 4 * (i // 32 % 2) & 15
        made.append(half(b, 0) * scale * quant - half(b, 2) * low)
    return made


def q6_k(b: Array) -> list[float]:
    made = []
    for i in range(256):
        n, j = i // 128, i % 128
        low = int(b[64 * n + j % 64]) >> 4 * (j // 64) & 15
        high = int(b[128 + 32 * n + j % 32]) >> 2 * (j // 32) & 3
        made.append(half(b, 208) * int(b[192 + i // 16].view(np.int8)) * ((low | high << 4) - 32))
    return made


def mxfp4(b: Array) -> list[float]:
    scale = 2.0 ** (int(b[0]) - 127)
    codes = np.concatenate([b[1:] & 15, b[1:] >> 4])
    return [scale * float(np.uint8(c).view(ml_dtypes.float4_e2m1fn)) for c in codes]


def q1_0(b: Array) -> list[float]:
    return [half(b, 0) * (1 if int(b[2 + i // 8]) >> i % 8 & 1 else -1) for i in range(128)]


def int4_zp(b: Array) -> list[float]:
    scale = float(b[16:20].copy().view(np.float32)[0])
    return [scale * ((int(b[i // 2]) >> 4 * (i % 2) & 15) - int(b[20])) for i in range(32)]


def nf4_64(b: Array) -> list[float]:
    scale = float(b[32:36].copy().view(np.float32)[0])
    return [scale * float(NF4[int(b[i // 32 * 16 + i % 16]) >> i % 32 // 16 * 4 & 15]) for i in range(64)]


def fp4(b: Array) -> list[float]:
    scale = float(b[16:20].copy().view(np.float32)[0])
    return [scale * float(FP4[int(b[i % 16]) >> i // 16 * 4 & 15]) for i in range(32)]


_DECODERS = [q1_0, q4_0, q5_1, q4_k, q6_k, mxfp4, int4_zp, nf4_64, fp4]


@pytest.mark.parametrize("decoder", _DECODERS, ids=lambda f: f.__name__)
def test_elements_are_those_of_the_format(decoder: Callable[[Array], list[float]]) -> None:
    name = decoder.__name__
    size = PACKED[name].storage.nbytes
    raw = blocks(name, 4, 3, seed=3)
    singles = {"int4_zp": (16,), "nf4_64": (32,), "fp4": (16,)}
    for at in singles.get(name, (0, 2)):  # numbers that every f32 result holds
        if name not in ("mxfp4", "q6_k"):
            kind = np.float32 if name in singles else np.float16
            width = np.dtype(kind).itemsize
            for block in raw.reshape(-1, size):
                if at == 0 or name in ("q5_1", "q4_k", *singles):
                    block[at : at + width] = np.array([0.0123], kind).view(np.uint8)
    if name == "q6_k":
        raw.reshape(-1, size)[:, 208:] = np.array([0.0123], np.float16).view(np.uint8)
    if name == "mxfp4":
        raw.reshape(-1, size)[:, 0] %= 128
    want = np.array([decoder(block) for block in raw.reshape(-1, size)]).astype(np.float32).reshape(4, -1)
    got = PackedArray.from_gguf(raw, name, want.shape).dequantize()
    np.testing.assert_array_equal(got, want)


def test_infinite_and_nan_scales_give_infinities_and_nan() -> None:
    raw = np.zeros((2, 34), np.uint8)
    raw[:, 2:5] = np.array([[0, 1, 255]], np.uint8)
    raw[:, :2] = np.array([np.inf, np.nan], np.float16).view(np.uint8).reshape(2, 2)
    got = PackedArray.from_gguf(raw, "q8_0", (2, 32)).dequantize()
    np.testing.assert_array_equal(got[0, :3], [np.nan, np.inf, -np.inf])
    assert np.isnan(got[1]).all()


def test_rows_and_no_rows_may_be_many_axes() -> None:
    made = PackedArray.from_gguf(blocks("q4_1", 6, 2), "Q4_1", (2, 3, 64))
    assert made.shape == (2, 3, 64) and made.dequantize().shape == (2, 3, 64) and made.ndim == 3
    for shape in ((0, 64), (3, 0), (0,)):
        assert PackedArray.from_gguf(b"", "q4_k", (*shape[:-1], 0)).dequantize().size == 0
    np.testing.assert_array_equal(made.dequantize("bf16"), made.dequantize().astype(ml_dtypes.bfloat16))


def test_names_of_packed_dtypes() -> None:
    assert as_dtype("Q4_K") is PACKED["q4_k"] is as_dtype("q4_k")
    assert len(GGUF) == 24
    with pytest.raises(DTypeError, match=r"'q4_9'.*rlx.dtypes.PACKED"):
        as_dtype("q4_9")
    for code, name in (("i4", "i32"), ("u2", "u16"), ("f8", "f64")):  # beside "i8", which has 8 bits here
        with pytest.raises(DTypeError, match=f"'{code}' counts bytes.*write '{name}'"):
            as_dtype(code)
    with pytest.raises(DTypeError, match="no bytes per element: a block of 256 has 144"):
        _ = PACKED["q4_k"].itemsize


@pytest.mark.parametrize(
    "shape, nbytes, error, text",
    [
        ((2, 33), 68, ShapeError, "blocks of 32 elements .* has 33: expected a multiple of 32"),
        ((), 34, ShapeError, "a scalar has no axis"),
        ((2, 32), 67, ShapeError, r"67 bytes; q8_0\[2, 32\] takes 68, in blocks of 34 bytes for 32 elements"),
        ((2, 32), 69, ShapeError, "69 bytes"),
    ],
)
def test_wrong_sizes_are_refused(
    shape: tuple[int, ...], nbytes: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        PackedArray.from_gguf(bytes(nbytes), "q8_0", shape)


def test_other_mistakes_are_refused() -> None:
    with pytest.raises(DTypeError, match="f32 is no packed dtype"):
        PackedArray.from_gguf(bytes(128), f32, (32,))
    with pytest.raises(DTypeError, match="data is float32; expected an array of u8"):
        PackedArray("q8_0", (1, 32), np.zeros((1, 34), np.float32))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"takes \(1, 34\) bytes"):
        PackedArray("q8_0", (1, 32), np.zeros((34,), np.uint8))
    with pytest.raises(DTypeError, match="data is bytes; expected an array of u8"):
        PackedArray("q8_0", (1, 32), bytes(34))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="data is a list; expected bytes or an array"):
        PackedArray.from_gguf([0] * 34, "q8_0", (1, 32))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"shape is \(-2, -32\); lengths are 0 or more"):
        PackedArray.from_gguf(bytes(68), "q8_0", (-2, -32))
    for shape in (32, (1, 32.0)):
        with pytest.raises(ShapeError, match="expected a tuple of ints"):
            PackedArray.from_gguf(bytes(34), "q8_0", shape)  # type: ignore[arg-type]
    packed = PackedArray.from_gguf(bytes(34), "q8_0", (32,))
    with pytest.raises(DTypeError, match="expected f32, f16, bf16 or f64"):
        packed.dequantize("i32")
    with pytest.raises(DTypeError, match=r"no array of numbers; \.dequantize\(\) gives floats"):
        np.asarray(packed)
    with pytest.raises(DTypeError, match=r"'q4k' is not an rlx dtype \(did you mean 'q4_k'\?\)"):
        as_dtype("q4k")
    with pytest.raises(ShapeError, match="plain integers of 8 bits are i8"):
        rlx.Graph("plain").input("x", (4,), "int8")
    with pytest.raises(DTypeError, match="safetensors has no packed dtypes"):
        safetensors.save("nowhere.safetensors", {"w": packed})


def test_packed_weights_beside_trained_ones() -> None:
    """A packed weight has no gradient: beside trained weights it is an argument of its own."""
    q = rlx.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "q8_0")
    x, b = np.ones((3, 32), np.float32), np.zeros(2, np.float32)

    def loss(trained: Any, fixed: Any, x: Any) -> Any:
        return rlx.sum(rlx.linear(x, fixed["w"], trained["b"]))

    found = rlx.grad(loss, device="cpu")({"b": b}, {"w": q}, x)
    np.testing.assert_array_equal(found["b"], [3, 3])
    with pytest.raises(DTypeError, match="which has no gradient"):
        rlx.grad(lambda p, x: loss(p, p, x), device="cpu")({"b": b, "w": q}, x)
    experts = rlx.quantize(np.ones((2, 2, 32)), "q8_0")
    with pytest.raises(ShapeError, match="expected rank 2; grouped_packed_matmul takes a weight for each expert"):
        rlx.jit(rlx.linear, device="cpu")(x, experts)
