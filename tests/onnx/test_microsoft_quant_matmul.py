"""Products of com.microsoft with quantized weights, packed blocks, DynamicQuantizeLSTM: beside float64, beside ONNX
Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import expit

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from tests.onnx.quantized import in_runtime, judged_by_runtime, quantized, stepped, steps_off, whole

pytestmark = pytest.mark.judged

KINDS = pytest.mark.parametrize(
    ("ta", "tb"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)], ids=str
)
COLUMNS = pytest.mark.parametrize("columns", [False, True])
GEMM = "a as az b bs bz c ys yz"


def f32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def close(
    proto: Any, x: np.ndarray, device: str, want: np.ndarray, tolerance: float = 1e-5, beside: bool = True
) -> None:
    """Of the largest number; on the CPU also as ONNX Runtime has it."""
    made = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    assert made.shape == want.shape
    assert np.abs(made - want).max() <= tolerance * np.abs(want).max()
    if judged_by_runtime(device) and beside:
        there = in_runtime(proto, {"x": x})[0]
        assert made.dtype == there.dtype
        assert np.abs(wide(made) - wide(there)).max() <= tolerance * np.abs(wide(there)).max()


def right(tb: Any, columns: bool) -> dict[str, np.ndarray]:
    """A right operand with one scale and zero point, or one for each column."""
    rng = np.random.default_rng(5)
    b = whole(tb, 33, 20, seed=1)
    if columns:
        return {"b": b, "bs": rng.uniform(0.01, 0.1, 20).astype(np.float32), "bz": whole(tb, 20, seed=2)}
    return {"b": b, "bs": f32(0.02), "bz": np.array(3, tb)}


@KINDS
@COLUMNS
def test_integers_to_floats(ta: Any, tb: Any, columns: bool, device: str) -> None:
    x, r = whole(ta, 2, 7, 33), right(tb, columns)
    bias = np.random.default_rng(6).normal(size=20).astype(np.float32)
    real = (wide(x) - 9) @ ((wide(r["b"]) - wide(r["bz"])) * wide(r["bs"])) * wide(f32(0.03))
    given = r | {"as": f32(0.03), "az": np.array(9, ta), "bias": bias}
    proto = quantized("MatMulIntegerToFloat", {"x": x}, given, "x b as bs az bz bias", to=np.float32)
    close(proto, x, device, real + bias, 1e-6)
    plain = {n: given[n] for n in ("b", "as", "bs")}
    proto = quantized("MatMulIntegerToFloat", {"x": x}, plain, to=np.float32)
    close(proto, x, device, wide(x) @ (wide(r["b"]) * wide(r["bs"])) * wide(f32(0.03)), 1e-6)


def in_steps(x: np.ndarray) -> tuple[np.ndarray, float]:
    """x in 255 steps, as ONNX Runtime quantizes what it multiplies."""
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    step = np.float32(1) if low == high else np.float32(high - low) / np.float32(255)
    zero = np.round(np.clip(-low / step, 0, 255))
    return wide(np.clip(np.round(x / step), -zero, 255 - zero)), float(step)


@pytest.mark.parametrize("tb", [np.uint8, np.int8])
@COLUMNS
@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
@pytest.mark.sample(3, vulkan=1)
def test_what_is_quantized_before_a_product(tb: Any, columns: bool, shift: float, device: str) -> None:
    """Within a step of one element, which a device's division may round otherwise; the same as in ONNX Runtime."""
    x = np.random.default_rng(0).normal(shift, 1, (2, 7, 33)).astype(np.float32)
    r = right(tb, columns)
    bias = np.random.default_rng(6).normal(size=20).astype(np.float32)
    steps, step = in_steps(x)
    b = (wide(r["b"]) - wide(r["bz"])) * wide(r["bs"])
    proto = quantized("DynamicQuantizeMatMul", {"x": x}, r | {"bias": bias}, "x b bs bz bias", to=np.float32)
    close(proto, x, device, steps @ b * step + bias, 1e-6 if device == "cpu" else 2e-2)
    plain = {n: r[n] for n in ("b", "bs")}
    proto = quantized("DynamicQuantizeMatMul", {"x": x}, plain, to=np.float32)
    made = rlx.onnx.load(proto).run({"x": x * 0}, device=device)["y"]
    assert not made.any()  # a scale of 1 where all is 0


@KINDS
@COLUMNS
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.sample(vulkan=3)
def test_gemm(ta: Any, tb: Any, columns: bool, turned: int, device: str) -> None:
    a, r = whole(ta, 33, 7) if turned else whole(ta, 7, 33), right(tb, columns)
    c = np.random.default_rng(6).integers(-5000, 5000, 20).astype(np.int32)
    real = (
        ((wide(a.T if turned else a) - 9) @ (wide(r["b"]) - wide(r["bz"])) + c) * wide(r["bs"]) * 0.03 * 0.7
    )
    r["b"] = r["b"].T.copy() if turned else r["b"]
    given = r | {"as": f32(0.03), "az": np.array(9, ta), "c": c, "ys": f32(1.3), "yz": np.array(5, ta)}
    more = {"alpha": 0.7, "transA": turned, "transB": turned}
    proto = quantized("QGemm", {"a": a}, given, GEMM, **more)
    want = stepped(real, 1.3, 5, ta)
    assert steps_off(proto, {"a": a}, device, want) <= 1
    if judged_by_runtime(device):
        assert steps_off(proto, {"a": a}, device, in_runtime(proto, {"a": a})[0]) == 0
    given = {n: given[n] for n in ("as", "az", "b", "bs", "bz", "c")}
    proto = quantized("QGemm", {"x": a}, given, "x as az b bs bz c", to=np.float32, **more)
    close(proto, a, device, real, 1e-6)


@KINDS
@COLUMNS
def test_convolutions_of_channels_last(ta: Any, tb: Any, columns: bool, device: str) -> None:
    a, w = whole(ta, 2, 9, 10, 4), whole(tb, 6, 4, 1, 1, seed=1)
    scale = np.random.default_rng(5).uniform(0.01, 0.1, 6).astype(np.float32) if columns else f32(0.02)
    bias = np.random.default_rng(6).integers(-5000, 5000, 6).astype(np.int32)
    given = {
        "as": f32(0.05), "az": np.array(7, ta), "w": w, "ws": scale, "wz": np.zeros(scale.shape, tb),
        "ys": f32(1.13), "yz": np.array(4, ta), "bias": bias,
    }  # fmt: skip
    real = ((wide(a) - 7) @ wide(w[:, :, 0, 0]).T + bias) * wide(scale) * 0.05
    proto = quantized("QLinearConv", {"a": a}, given, channels_last=1)
    assert steps_off(proto, {"a": a}, device, stepped(real, 1.13, 4, ta)) <= 3
    if judged_by_runtime(device):
        assert steps_off(proto, {"a": a}, device, in_runtime(proto, {"a": a})[0]) == 0


def test_products_of_16_bit_integers(device: str) -> None:
    a, b = whole(np.int16, 4, 9), whole(np.int16, 9, 5, seed=1)
    proto = quantized("MatMulInteger16", {"a": a}, {"b": b}, to=np.int32)
    made = rlx.onnx.load(proto).run({"a": a}, device=device)["y"]
    assert np.array_equal(made, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32))
    proto = quantized("MatMulInteger16", {"a": a.astype(np.uint16)}, {"b": b}, to=np.int32)
    with pytest.raises(UnsupportedOp, match="uint16 and int16 is not supported"):
        rlx.onnx.load(proto).run({"a": a.astype(np.uint16)}, device="cpu")


# -- blocks


def bits_of(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers along the last axis of bytes, one by one."""
    return np.stack([packed >> s & (1 << bits) - 1 for s in range(0, 8, bits)], -1).reshape(
        *packed.shape[:-1], -1
    )


def blocks(bits: int, size: int, n: int, k: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """B, scales and packed zero points; the numbers (N, K) and the zero points (N, blocks)."""
    rng, count = np.random.default_rng(bits + size), -(-k // size)
    b = rng.integers(0, 256, (n, count, size * bits // 8)).astype(np.uint8)
    z = rng.integers(0, 256, (n, -(-count * bits // 8))).astype(np.uint8)
    s = rng.uniform(0.01, 0.1, n * count).astype(np.float32)
    codes = bits_of(b.reshape(n, -1), bits)[:, :k]
    return {"b": b, "s": s, "z": z.reshape(-1)}, wide(codes), wide(bits_of(z, bits)[:, :count])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("size", "n", "k"), [(32, 12, 96), (16, 7, 50), (128, 5, 200)])
@pytest.mark.sample(2, vulkan=1)
def test_products_with_packed_blocks(bits: int, size: int, n: int, k: int, device: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, k)).astype(np.float32)
    given, codes, zeros = blocks(bits, size, n, k)
    group, scales = np.arange(k) // size, wide(given["s"]).reshape(n, -1)
    more = {"K": k, "N": n, "bits": bits, "block_size": size}
    close(
        quantized("MatMulNBits", {"x": x}, given, **more),
        x, device, x @ ((codes - zeros[:, group]) * scales[:, group]).T,
    )  # fmt: skip
    bias = rng.normal(size=n).astype(np.float32)
    proto = quantized("MatMulNBits", {"x": x}, given | {"bias": bias}, "x b s _ _ bias", **more)
    close(proto, x, device, x @ ((codes - 2 ** (bits - 1)) * scales[:, group]).T + bias)
    floats = rng.uniform(0, 2**bits, zeros.shape).astype(np.float32)
    proto = quantized("MatMulNBits", {"x": x}, given | {"z": floats.reshape(-1)}, **more)
    want = x @ ((codes - wide(floats)[:, group]) * scales[:, group]).T
    close(proto, x, device, want, beside=bits != 8)  # ONNX Runtime has no float zero points of 8 bits
    g = rng.integers(0, zeros.shape[1], k).astype(np.int32)
    proto = quantized("MatMulNBits", {"x": x}, given | {"g": g}, **more)
    # ONNX Runtime 1.31 takes no zero points from bytes where there is a g_idx, as if they were left out.
    close(proto, x, device, x @ ((codes - zeros[:, g]) * scales[:, g]).T, beside=False)
    proto = quantized("MatMulNBits", {"x": x}, given | {"g": g}, "x b s _ g", **more)
    close(proto, x, device, x @ ((codes - 2 ** (bits - 1)) * scales[:, g]).T, beside=bits == 4)


@pytest.mark.parametrize(
    ("size", "ops", "nbytes"),
    [(32, ["packed_matmul"], 256 * 512 * 21 // 32), (16, ["matmul"], 4 * 256 * 512)],
    ids=["packed", "dequantized"],
)
def test_a_matrix_of_blocks_is_one_weight_of_all_shapes(size: int, ops: list[str], nbytes: int) -> None:
    """It stays packed, or is dequantized while the model is built: no program does it, and all share the result."""
    given, _, _ = blocks(4, size, 256, 512)
    x = np.ones((2, 512), np.float32)
    proto = quantized("MatMulNBits", {"x": x}, given, K=512, N=256, bits=4, block_size=size)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model = rlx.onnx.load(proto)
    programs = [model.compile(dims={"batch": n}, device="cpu") for n in (2, 5)]
    for report in [p.report() for p in programs]:
        assert [n.op for n in report.nodes] == ops and report.weight_bytes == nbytes


def test_a_matrix_that_is_an_input_is_part_of_the_program() -> None:
    given, codes, zeros = blocks(4, 32, 6, 64)
    x = np.ones((2, 64), np.float32)
    fed = {"x": x, **given}
    proto = quantized("MatMulNBits", fed, K=64, N=6, block_size=32)
    group, scales = np.arange(64) // 32, wide(given["s"]).reshape(6, -1)
    for _ in range(2):
        made = rlx.onnx.load(proto).run(fed, device="cpu")["y"]
        assert np.allclose(made, x @ ((codes - zeros[:, group]) * scales[:, group]).T, rtol=1e-5)


def test_halves_with_packed_blocks(device: str) -> None:
    given, codes, zeros = blocks(4, 32, 12, 96)
    x = np.random.default_rng(1).normal(size=(3, 96)).astype(np.float16)
    given["s"] = given["s"].astype(np.float16)
    group, scales = np.arange(96) // 32, wide(given["s"]).reshape(12, -1)
    proto = quantized("MatMulNBits", {"x": x}, given, K=96, N=12, block_size=32)
    close(proto, x, device, wide(x) @ ((codes - zeros[:, group]) * scales[:, group]).T, 2e-3)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.sample(vulkan=2)
def test_rows_of_packed_blocks(bits: int, index: Any, device: str) -> None:
    rng = np.random.default_rng(bits)
    length, size = 96, 32
    d = rng.integers(0, 256, (10, length * bits // 8)).astype(np.uint8)
    s = rng.uniform(0.01, 0.1, (10, 3)).astype(np.float32)
    z = rng.integers(0, 256, (10, -(-3 * bits // 8))).astype(np.uint8)
    x = rng.integers(-10, 10, (2, 3)).astype(index)
    x[0, 0] = 99  # out of range: zeros
    group = np.arange(length) // size
    for zeros, names in ((wide(bits_of(z, bits)), "d x s z"), (np.full((10, 3), 2.0 ** (bits - 1)), "d x s")):
        table = (wide(bits_of(d, bits)) - zeros[:, group]) * wide(s)[:, group]
        want = table[np.clip(x, -10, 9)]
        want[0, 0] = 0
        given = {"d": d, "s": s, "z": z} if "z" in names else {"d": d, "s": s}
        proto = quantized(
            "GatherBlockQuantized", {"x": x}, given, names, to=np.float32, bits=bits, block_size=size
        )
        close(proto, x, device, want, 1e-6)


@pytest.mark.parametrize("name", ["int4", "uint4"])
@pytest.mark.parametrize(("gather", "along"), [(0, 1), (1, 2), (2, 0), (0, -1)])
def test_slices_of_4_bit_blocks(name: str, gather: int, along: int, device: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    rng = np.random.default_rng(3)
    shape, scaled = [8, 8, 8], [8, 8, 8]
    shape[along], scaled[along] = 40, 3
    d, z = (rng.integers(0, 8, s).astype(np.int8) for s in (shape, scaled))
    s = rng.uniform(0.01, 0.1, scaled).astype(np.float32)
    x = rng.integers(-8, 8, (2, 3))
    group = np.arange(40) // 16
    table = (d - wide(z).take(group, along)) * wide(s).take(group, along)
    given = {"d": d.astype(dtype), "s": s, "z": z.astype(dtype)}
    proto = quantized(
        "GatherBlockQuantized", {"x": x}, given, "d x s z", to=np.float32, block_size=16, gather_axis=gather,
        quantize_axis=along,
    )  # fmt: skip
    close(proto, x, device, table.take(x, gather), 1e-6)


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
@pytest.mark.parametrize(("size", "n", "k"), [(32, 12, 96), (16, 7, 51), (64, 5, 40)])
@pytest.mark.sample(1, vulkan=1)
def test_products_with_floats_of_four_bits(kind: int, size: int, n: int, k: int, device: str) -> None:
    """The codes' numbers are those that ONNX Runtime gives for an identity matrix and a largest number of 1."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, k)).astype(np.float32)
    codes = rng.integers(0, 16, n * k + n * k % 2).astype(np.uint8)
    b, s = codes[0::2] << 4 | codes[1::2], rng.uniform(0.1, 2, -(-n * k // size)).astype(np.float32)
    half = [0, 0.005208333, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
    normal = [-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0]
    normal += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1]
    table = np.array(normal if kind else [*half, *(-h for h in half)])
    flat = table[codes[: n * k]] * np.repeat(s, size)[: n * k]
    more = {"K": k, "N": n, "block_size": size, "quant_type": kind}
    proto = quantized("MatMulBnb4", {"x": x}, {"b": b, "s": s}, **more)
    close(proto, x, device, x @ flat.reshape(n, k).T)
    report = rlx.onnx.load(proto).compile(device="cpu").report()
    assert [node.op for node in report.nodes] == ["matmul" if k % 32 else "packed_matmul"]


@pytest.mark.parametrize(("size", "scaled"), [(16, (1, 3)), (16, (10, 3)), (0, (10, 1))])
def test_rows_of_small_floats(size: int, scaled: tuple[int, int], device: str) -> None:
    rng = np.random.default_rng(3)
    d = rng.normal(size=(10, 40)).astype(ml_dtypes.float8_e4m3fn)
    s = rng.uniform(0.01, 0.1, scaled).astype(np.float32)
    x = rng.integers(-10, 10, (2, 3))
    table = wide(d) * np.broadcast_to(wide(s), (10, scaled[1]))[:, np.arange(40) // (size or 40)]
    proto = quantized(
        "GatherBlockQuantized", {"x": x}, {"d": d, "s": s}, "d x s", to=np.float32, block_size=size
    )
    close(proto, x, device, table[x], 1e-6)


def test_what_is_refused() -> None:
    given, _, _ = blocks(4, 32, 6, 64)
    x = np.ones((2, 64), np.float32)
    good: Mapping[str, Any] = {"K": 64, "N": 6, "block_size": 32}
    for error, says, more in [
        (UnsupportedOp, "of 3 bits is not supported", {"bits": 3}),
        (UnsupportedOp, "packed for one kind of processor", {"weight_prepacked": 1}),
        (ModelFormatError, "expected 7 rows of 2 blocks of 16 bytes", {"N": 7}),
        (ModelFormatError, "expected positive ones", {"block_size": 0}),
    ]:
        with pytest.raises(error, match=f"MatMulNBits.*{says}"):
            rlx.onnx.load(quantized("MatMulNBits", {"x": x}, given, **{**good, **more})).run({"x": x})
    floats: Mapping[str, Any] = {"b": np.zeros(192, np.uint8), "s": np.ones(12, np.float32)}
    for says, more in [("quant_type is 2", {"quant_type": 2}), ("two numbers in a byte", {"N": 7}),
                       ("two numbers in a byte", {"block_size": 1 << 62})]:  # fmt: skip
        proto = quantized("MatMulBnb4", {"x": x}, floats, **{**good, "quant_type": 1, **more})
        with pytest.raises(ModelFormatError, match=f"MatMulBnb4.*{says}"):
            rlx.onnx.load(proto).run({"x": x})
    proto = quantized("MatMulBnb4", {"x": x}, floats, **good, quant_type=1, transB=0)
    with pytest.raises(UnsupportedOp, match=r"MatMulBnb4.*transB = 0"):
        rlx.onnx.load(proto).run({"x": x})
    far = given | {"g": np.full(64, 2, np.int32)}
    with pytest.raises(ModelFormatError, match=r"g_idx.*64 numbers of 2 blocks"):
        rlx.onnx.load(quantized("MatMulNBits", {"x": x}, far, **good)).run({"x": x})


# -- DynamicQuantizeLSTM


def lstm(x: np.ndarray, w: Mapping[str, np.ndarray], k: int, lengths: np.ndarray, back: bool) -> np.ndarray:
    """One direction of an LSTM with an 8-bit product of the whole input and one of each step's state: (T, B, H)."""
    steps, batch, _ = x.shape
    hidden = w["R"].shape[1]
    turned = np.zeros_like(x)
    for b, n in enumerate(lengths):
        turned[:n, b] = x[:n, b][::-1] if back else x[:n, b]

    def product(t: np.ndarray, name: str, over: np.ndarray) -> np.ndarray:
        low, high = np.float32(min(over.min(), 0)), np.float32(max(over.max(), 0))
        step = np.float32(1) if low == high else np.float32(high - low) / np.float32(255)
        zero = np.round(np.clip(-low / step, 0, 255))
        q = wide(np.clip(np.round(t.astype(np.float32) / step), -zero, 255 - zero))
        return q @ (wide(w[name][k]) - wide(w[name + "z"][k])) * (float(step) * wide(w[name + "s"][k]))

    gates = product(turned, "W", x[: lengths.max()]) + wide(w["B"][k]).reshape(2, -1).sum(0)
    h, c, y = np.zeros((batch, hidden)), np.zeros((batch, hidden)), np.zeros((steps, batch, hidden))
    for t in range(lengths.max()):
        i, o, f, g = np.split(gates[t] + product(h, "R", h), 4, 1)
        p = np.split(wide(w["P"][k]), 3)
        c = expit(f + p[2] * c) * c + expit(i + p[0] * c) * np.tanh(g)
        h = expit(o + p[1] * c) * np.tanh(c) * (lengths > t)[:, None]
        y[t] = h
    made = np.zeros_like(y)
    for b, n in enumerate(lengths):
        made[:n, b] = y[:n, b][::-1] if back else y[:n, b]
    return made


@pytest.mark.parametrize(("dtype", "columns"), [(np.uint8, False), (np.int8, True)])
@pytest.mark.parametrize(
    ("steps", "direction"), [(5, "forward"), (6, "reverse"), (5, "bidirectional"), (20, "bidirectional")]
)
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.sample(2, vulkan=1)
def test_lstm(dtype: Any, columns: bool, steps: int, direction: str, ends: bool, device: str) -> None:
    rng = np.random.default_rng(steps)
    count, width, hidden, batch = 2 if direction == "bidirectional" else 1, 10, 16, 3
    each = (count, 4 * hidden) if columns else (count,)
    zero = np.array(130 if dtype == np.uint8 else 0, dtype)
    w = {"W": whole(dtype, count, width, 4 * hidden), "R": whole(dtype, count, hidden, 4 * hidden, seed=1)}
    w |= {
        "B": f32(rng.normal(0, 0.1, (count, 8 * hidden))),
        "P": f32(rng.normal(0, 0.1, (count, 3 * hidden))),
    }
    w |= {n + "s": f32(rng.uniform(0.001, 0.003, each)) for n in "WR"}
    w |= {n + "z": np.full(each, zero) for n in "WR"}
    x = f32(rng.normal(size=(steps, batch, width)))
    lengths = rng.integers(1, steps, batch) if ends else np.full(batch, steps)
    if ends:
        w["L"] = lengths.astype(np.int32)
    want = np.stack([lstm(x, w, k, lengths, direction == "reverse" or k == 1) for k in range(count)], 1)
    names = f"x W R B {'L' if ends else '_'} _ _ P Ws Wz Rs Rz"
    proto = quantized(
        "DynamicQuantizeLSTM",
        {"x": x},
        w,
        names,
        "y h c",
        np.float32,
        hidden_size=hidden,
        direction=direction,
    )
    # A number within f32's last bit of a middle may be the next step, which later ones feel.
    close(proto, x, device, want, 1e-2, beside=False)
    if judged_by_runtime(device):
        made = rlx.onnx.load(proto).run({"x": x}, device="cpu")
        for got, there in zip(made.values(), in_runtime(proto, {"x": x}), strict=True):
            off = np.abs(got - there)
            assert np.median(off) <= 1e-7 and off.max() <= 2e-3
