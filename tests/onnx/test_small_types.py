"""The floats of 4 and 8 bits and integers of 2 and 4: bits as ml_dtypes has them, packed weights, quantization."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from rlx.onnx.reader.elements import CODES, SMALL_FLOATS
from tests import exact_casts as exact
from tests.onnx.models import info, model, node

F16, F32, F64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE
INTS = [np.dtype(getattr(ml_dtypes, n)) for n in ("int4", "uint4", "int2", "uint2")]


def cast(code: int, to: np.dtype, **attributes: object) -> onnx.ModelProto:
    proto = model([node("Cast", "x", "y", to=CODES[to], **attributes)], {"x": (["n"], code)}, {}, opset=25)
    proto.graph.output.append(info("y", ["n"], CODES[to]))
    return proto


def hard_numbers(to: np.dtype) -> np.ndarray:
    """Every number of the type, every middle between two, and the nearest numbers of f32 on both sides of each."""
    bits = np.arange(16 if to == SMALL_FLOATS[-1] else 256, dtype=np.uint8)
    every = np.unique(bits.view(to).astype(np.float32)[np.isfinite(bits.view(to).astype(np.float32))])
    points = np.concatenate([every, (every[1:] + every[:-1]) / 2, every * 2, [0.0, 1e38, -1e38, 1e-30]])
    points = points.astype(np.float32)
    around = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([points, *around, np.float32([np.nan, np.inf, -np.inf, -0.0])])


def want(x: np.ndarray, to: np.dtype, saturate: bool) -> np.ndarray:
    greatest = ml_dtypes.finfo(to).max.astype(x.dtype)
    return (np.clip(x, -greatest, greatest) if saturate else x).astype(to)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("to", SMALL_FLOATS, ids=str)
@pytest.mark.sample(4)
def test_a_cast_to_a_small_float_gives_its_bits(to: np.dtype, saturate: bool, device: str) -> None:
    x = hard_numbers(to)
    made = rlx.onnx.load(cast(F32, to, saturate=int(saturate))).run({"x": x}, device=device)["y"]
    expected = want(x, to, saturate)
    nan = np.isnan(expected.astype(np.float32))
    assert made.dtype == to and np.array_equal(np.isnan(made.astype(np.float32)), nan)
    # A flushed subnormal of f32 rounds to zero all the same; the sign of a zero is asked for where x is no subnormal.
    kept = ~nan & ((np.abs(x) == 0) | (np.abs(x) > 1.2e-38))
    assert np.array_equal(made[kept].view(np.uint8), expected[kept].view(np.uint8))


@pytest.mark.parametrize("to", SMALL_FLOATS, ids=str)
def test_every_half_precision_number_and_back(to: np.dtype) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    made = rlx.onnx.load(cast(F16, to)).run({"x": x}, device="cpu")["y"]
    with np.errstate(all="ignore"):
        expected = want(x.astype(np.float32), to, True)
    assert np.array_equal(made.astype(np.float32), expected.astype(np.float32), equal_nan=True)
    proto = model([node("Cast", "x", "y", to=F32)], {"x": (["n"], CODES[to])}, {"y": ["n"]}, opset=25)
    back = rlx.onnx.load(proto).run({"x": made}, device="cpu")["y"]
    assert np.array_equal(back, expected.astype(np.float32), equal_nan=True)


def test_doubles_round_once() -> None:
    to = np.dtype(ml_dtypes.float8_e4m3fn)
    x = np.array([1.0625 + 1e-12, 1.0625, 1.0625 - 1e-12])  # the middle of 1 and 1.125, and just beside it
    made = rlx.onnx.load(cast(F64, to)).run({"x": x}, device="cpu")["y"]
    assert made.astype(np.float64).tolist() == [1.125, 1, 1]


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_scales_of_powers_of_two(mode: str, device: str) -> None:
    to = np.dtype(ml_dtypes.float8_e8m0fnu)
    x = np.float32([1, 1.1, 1.5, 1.7, 3, 0.3, 2.0**-126, 3e38, np.nan, -5])
    made = rlx.onnx.load(cast(F32, to, round_mode=mode)).run({"x": x}, device=device)["y"]
    assert np.array_equal(made.view(np.uint8), numpy_helper.to_float8e8m0(x, True, mode).view(np.uint8))
    proto = model([node("Cast", "x", "y", to=F64)], {"x": (["n"], CODES[to])}, {"y": (["n"], F64)}, opset=25)
    every = np.arange(256, dtype=np.uint8).view(to)
    got = rlx.onnx.load(proto).run({"x": every}, device="cpu")["y"]
    assert np.array_equal(got, np.append(2.0 ** np.arange(-127.0, 128), np.nan), equal_nan=True)


def scale(x: float | int, mode: str, saturate: bool) -> float:
    """A magnitude as a power of two, by the table and the attributes of Cast's text, in exact arithmetic."""
    least, most = Fraction(1, 2**127), Fraction(2**127)
    if x != x:
        return np.nan
    if x == np.inf or Fraction(x) > most or Fraction(x) < least:
        return float(least if x < 1 else most) if saturate else np.nan
    value, power = Fraction(x), least
    while 2 * power <= value:
        power *= 2
    up = {"up": value > power, "down": False, "nearest": value >= power * Fraction(3, 2)}[mode]
    return float(2 * power if up else power)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16", "int64", "uint64", "int32", "bool"])
@pytest.mark.sample(8)
def test_scales_follow_the_operators_table(source: str, mode: str, saturate: bool) -> None:
    """onnx's own reference departs from it: infinity is NaN there, and what is below 2^-127 is that or 2^-126."""
    to, kind = np.dtype(ml_dtypes.float8_e8m0fnu), np.dtype(getattr(ml_dtypes, source, source))
    if kind.kind in "iub":
        near = [v for e in (0, 1, 7, 24, 53, 62, 63) for v in (2**e, 2**e + 1, 3 * 2**e // 2, 3 * 2**e // 2 - 1)]
        x = np.array([v for v in [0, *near] if v <= int(np.iinfo(kind).max if kind.kind in "iu" else 1)], kind)
    else:
        points = [0.0, 1.5, 3.0, *(2.0**e for e in (-1000, -130, -128, -127, -126, 0, 126, 127, 128))]
        shares = (1, 1.5, 1 - 2.0**-20, 1 + 2.0**-20, 1.5 - 2.0**-20, 1 + 2.0**-40, 1.5 - 2.0**-40)
        with np.errstate(all="ignore"):
            x = np.array([*(p * k for p in points for k in shares), np.inf, np.nan]).astype(kind)
    for known in (False, True):
        made = exact.onnx_cast(kind, to, x, "cpu", known=known, round_mode=mode, saturate=int(saturate))
        want = [scale(v, mode, saturate) for v in (x.astype(float) if kind.kind == "V" else x).tolist()]
        np.testing.assert_array_equal(made.astype(np.float64), want)


def test_negative_scales_are_their_magnitudes() -> None:
    """The text leaves these open."""
    x = np.float32([-5, -0.0, -np.inf])
    made = exact.onnx_cast(x.dtype, np.dtype(ml_dtypes.float8_e8m0fnu), x, "cpu")
    assert made.astype(np.float64).tolist() == [8, 2.0**-127, 2.0**127]


@pytest.mark.parametrize("name", exact.FORMATS)
@pytest.mark.sample(9)
def test_wide_integers_doubles_and_decimals_round_once(name: str, device: str) -> None:
    to, kind = exact.FORMATS[name], np.dtype(getattr(ml_dtypes, name, name))
    for source in ("uint64", "uint32", "int64", "float64") if kind.itemsize < 4 else ("uint64",):
        x = exact.hard_numbers(np.dtype(source), to, 40)
        x = x[~np.isnan(x)] if name == exact.SMALL[-1] else x  # which has no NaN
        made = exact.onnx_cast(np.dtype(source), kind, x, device, saturate=0)
        at = exact.wrong(made, x, to)
        assert not len(at), (source, x[at[:3]], made[at[:3]])


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", exact.FORMATS)
@pytest.mark.sample(9)
def test_decimals_round_once(name: str, saturate: bool) -> None:
    to = exact.FORMATS[name]
    tie = 1 + Fraction(1, 2 ** (to.fraction + 1))
    digits = f"{float(tie):.60f}".rstrip("0") if name != "float64" else f"1.{5**53:053d}"
    words = [digits, f"{digits}{'0' * 20}1", "-inf", "1e400", "0e9999999999", "1e-9999", "-1e5"]
    x, kind = np.array(words, object), np.dtype(getattr(ml_dtypes, name, name))
    made = exact.onnx_cast(x.dtype, kind, x, "cpu", saturate=int(saturate))
    last = saturate and name in exact.SMALL
    want = [1.0, 1 + 2.0**-to.fraction, *(exact.nearest(v, to, last) for v in (-np.inf, 10**400, 0, 0, -(10**5)))]
    np.testing.assert_array_equal(made.astype(np.float64), want)


@pytest.mark.parametrize("to", INTS, ids=str)
def test_narrow_integers_keep_their_low_bits_and_saturate_when_quantized(to: np.dtype, device: str) -> None:
    x = np.arange(-20, 20, dtype=np.int32)
    made = rlx.onnx.load(cast(TensorProto.INT32, to)).run({"x": x}, device=device)["y"]
    assert made.dtype == to and np.array_equal(made.astype(np.int32), x.astype(to).astype(np.int32))
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    weights = {"s": np.float32(0.5), "z": np.array(1, np.int8).astype(to)}
    proto = model(nodes, {"x": ["n"]}, {"y": ["n"]}, weights, opset=25)
    x = np.linspace(-9, 9, 50).astype(np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    assert np.allclose(rlx.onnx.load(proto).run({"x": x}, device=device)["y"], expected)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_packed_weights_in_every_way_a_file_holds_them(name: str, tmp_path: Path) -> None:
    """An odd number of elements, of which the last byte holds one."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    w = np.array(
        [1, 0, 1, -1 if name[0] != "u" else 3, 1, -1 if name[0] != "u" else 2, 1], np.float32
    ).astype(dtype)
    proto = model(
        [node("DequantizeLinear", "w s", "y")], {}, {"y": [7]}, {"w": w, "s": np.float32(2)}, opset=25
    )
    expected = 2 * w.astype(np.float32)
    assert np.array_equal(rlx.onnx.load(proto).run(device="cpu")["y"], expected)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    onnx.save(copy, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
    assert np.array_equal(rlx.onnx.load(tmp_path / "m.onnx").run(device="cpu")["y"], expected)
    held = proto.graph.initializer[0]
    raw = held.raw_data
    held.ClearField("raw_data")
    held.int32_data.extend(raw)
    assert np.array_equal(rlx.onnx.load(proto).run(device="cpu")["y"], expected)
    held.int32_data.pop()
    with pytest.raises(ModelFormatError, match=r"takes [24] numbers, the data has [13]"):
        rlx.onnx.load(proto)


def test_blocks_with_their_own_scales(device: str) -> None:
    """What weight-only quantization writes: int4 in blocks along the rows, dequantized beside a product."""
    rng = np.random.default_rng(3)
    w = rng.integers(-8, 8, (64, 16)).astype(ml_dtypes.int4)
    scale = rng.uniform(0.01, 0.1, (4, 16)).astype(np.float32)
    nodes = [node("DequantizeLinear", "w s", "d", axis=0, block_size=16), node("MatMul", "x d", "y")]
    proto = model(nodes, {"x": [3, 64]}, {"y": [3, 16]}, {"w": w, "s": scale})
    x = rng.standard_normal((3, 64)).astype(np.float32)
    expected = x @ (w.astype(np.float64) * np.repeat(scale, 16, 0))
    assert np.allclose(rlx.onnx.load(proto).run({"x": x}, device=device)["y"], expected, rtol=1e-5, atol=1e-5)


def test_what_is_refused() -> None:
    int4 = CODES[np.dtype(ml_dtypes.int4)]
    add = model([node("Add", "x x", "y", name="n")], {"x": ([2], int4)}, {})
    with pytest.raises(ModelFormatError, match=r"'n'.*is tensor\(int4\); version \d+"):
        rlx.onnx.load(add).run({"x": np.array([1, 2]).astype(ml_dtypes.int4)}, device="cpu")
    odd = cast(F32, np.dtype(ml_dtypes.float8_e8m0fnu), round_mode="sideways")
    with pytest.raises(ModelFormatError, match="round_mode is 'sideways'"):
        rlx.onnx.load(odd).run({"x": np.ones(1, np.float32)}, device="cpu")
    bits = model([node("BitCast", "x", "y", name="n", to=int4)], {"x": ([2], CODES[INTS[1]])}, {}, opset=26)
    bits.graph.output.append(helper.make_tensor_value_info("y", int4, [2]))
    with pytest.raises(UnsupportedOp, match=r"'n'.*between uint4 and int4"):
        rlx.onnx.load(bits).run({"x": np.array([1, 2]).astype(ml_dtypes.uint4)}, device="cpu")
