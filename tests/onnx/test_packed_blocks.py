"""DequantizeLinear of blocks beside products: the weight stays packed, and the results are those of its definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import rlx
from tests.onnx.models import model, node
from tests.onnx.quantized import in_runtime, judged_by_runtime

pytestmark = pytest.mark.judged
INT4, UINT4, INT2 = ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2


def weight(dtype: Any, shape: tuple[int, int], axis: int, size: int, zeros: bool) -> dict[str, np.ndarray]:
    """w, scales s and zero points z."""
    rng, kind = np.random.default_rng(size), np.dtype(dtype)
    info = ml_dtypes.iinfo(kind)
    low, high = int(info.min), int(info.max) + 1
    held = tuple(-(-n // size) if i == axis else n for i, n in enumerate(shape))
    made = {
        "w": rng.integers(low, high, shape).astype(kind),
        "s": rng.uniform(0.01, 0.1, held).astype(np.float32),
    }
    return made | ({"z": rng.integers(low, high, held).astype(kind)} if zeros else {})


def meant(given: dict[str, np.ndarray], axis: int, size: int) -> np.ndarray:
    """The numbers of w in float64."""
    w = given["w"].astype(np.float64)

    def along(t: np.ndarray) -> np.ndarray:
        return np.repeat(t.astype(np.float64), size, axis).take(range(w.shape[axis]), axis)

    return (w - (along(given["z"]) if "z" in given else 0)) * along(given["s"])


def product(
    given: dict[str, np.ndarray],
    a: tuple[int, ...],
    y: list[int],
    size: int,
    axis: int,
    kind: str = "MatMul",
    **more: Any,
) -> onnx.ModelProto:
    """x times the dequantized weight."""
    names = "w s z" if "z" in given else "w s"
    bias = " c" if "c" in given else ""
    nodes = [
        node("DequantizeLinear", names, "d", axis=axis, block_size=size),
        node(kind, f"x d{bias}", "y", **more),
    ]
    opset = 25 if given["w"].dtype == INT2 else 21
    return model(nodes, {"x": list(a)}, {"y": y}, given, opset)


def check(proto: onnx.ModelProto, x: np.ndarray, want: np.ndarray, device: str, ops: set[str]) -> None:
    program = rlx.onnx.load(proto).compile(device=device)
    made = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    assert made.shape == want.shape and np.abs(made - want).max() <= 1e-5 * np.abs(want).max()
    assert {n.op for n in program.report().nodes} & {"matmul", "packed_matmul", "dequantize"} == ops
    if (
        judged_by_runtime(device) and proto.opset_import[0].version < 25
    ):  # which ONNX Runtime 1.31 does not know
        there = in_runtime(proto, {"x": x})[0]
        assert np.abs(made - there).max() <= 1e-5 * np.abs(there).max()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(INT4, 32), (UINT4, 128), (np.int8, 64), (np.uint8, 32), (INT2, 32), (np.int8, 256)],
    ids=str,
)
@pytest.mark.sample(5, vulkan=3)
@pytest.mark.late("vulkan")
def test_products_read_packed_weights(dtype: Any, size: int, axis: int, zeros: bool, device: str) -> None:
    shape = (256, 96) if axis == 0 else (40, 256)
    given = weight(dtype, shape, axis, size, zeros)
    x = np.random.default_rng(1).standard_normal((3, shape[0])).astype(np.float32)
    proto = product(given, x.shape, [3, shape[1]], size, axis)
    check(proto, x, x @ meant(given, axis, size), device, {"packed_matmul"})


@pytest.mark.parametrize(("turned", "axis"), [(1, 1), (1, 0), (0, 0), (0, 1)])
@pytest.mark.sample(vulkan=1)
def test_gemm(turned: int, axis: int, device: str) -> None:
    given = weight(UINT4, (64, 64), axis, 32, True) | {"c": np.arange(64, dtype=np.float32)}
    x = np.random.default_rng(2).standard_normal((64, 5)).astype(np.float32)
    w = meant(given, axis, 32)
    proto = product(given, (64, 5), [5, 64], 32, axis, "Gemm", transA=1, transB=turned, alpha=0.5, beta=2.0)
    check(proto, x, 0.5 * x.T @ (w.T if turned else w) + 2.0 * given["c"], device, {"packed_matmul"})


def test_the_weight_takes_its_packed_bytes_for_all_shapes() -> None:
    given = weight(INT4, (512, 256), 0, 32, False)
    proto = product(given, (2, 512), [2, 256], 32, 0)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    loaded = rlx.onnx.load(proto)
    programs = [loaded.compile(dims={"batch": n}, device="cpu") for n in (2, 5)]
    for report in [p.report() for p in programs]:
        assert [n.op for n in report.nodes] == [
            "packed_matmul"
        ] and report.weight_bytes == 512 * 256 * 20 // 32


@pytest.mark.parametrize("size", [16, 24])
def test_blocks_of_other_sizes_are_dequantized(size: int) -> None:
    given = weight(np.int8, (96, 20), 0, size, True)
    x = np.ones((2, 96), np.float32)
    check(product(given, (2, 96), [2, 20], size, 0), x, x @ meant(given, 0, size), "cpu", {"matmul"})


def test_a_weight_that_others_read_is_dequantized_for_them() -> None:
    given = weight(np.int8, (64, 8), 0, 32, False)
    nodes = [
        node("DequantizeLinear", "w s", "d", axis=0, block_size=32),
        node("MatMul", "x d", "y"),
        node("Identity", "d", "e"),
    ]
    proto = model(nodes, {"x": [2, 64]}, {"y": [2, 8], "e": [64, 8]}, given)
    x = np.random.default_rng(4).standard_normal((2, 64)).astype(np.float32)
    made = rlx.onnx.load(proto).run({"x": x}, device="cpu")
    np.testing.assert_array_equal(made["e"], meant(given, 0, 32).astype(np.float32))
    assert np.allclose(made["y"], x @ meant(given, 0, 32), rtol=1e-5, atol=1e-5)


def test_halves(device: str) -> None:
    given = weight(INT4, (64, 24), 0, 32, False)
    given["s"] = given["s"].astype(np.float16)
    nodes = [node("DequantizeLinear", "w s", "d", axis=0, block_size=32), node("MatMul", "x d", "y")]
    half = onnx.TensorProto.FLOAT16
    proto = model(nodes, {"x": ([3, 64], half)}, {"y": ([3, 24], half)}, given)
    x = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float16)
    made, want = (
        rlx.onnx.load(proto).run({"x": x}, device=device)["y"],
        x.astype(np.float64) @ meant(given, 0, 32),
    )
    assert made.dtype == np.float16 and np.abs(made - want).max() <= 2e-3 * np.abs(want).max()


def test_integer_products_where_the_session_asks_for_them(device: str) -> None:
    given = weight(INT4, (64, 24), 0, 32, False)
    x = np.random.default_rng(6).standard_normal((3, 64)).astype(np.float32)
    loaded = rlx.onnx.load(product(given, x.shape, [3, 24], 32, 0))
    made, want = loaded.run({"x": x}, device=device, precision="int8")["y"], x @ meant(given, 0, 32)
    assert 1e-5 < np.abs(made - want).max() / np.abs(want).max() < 2e-2
