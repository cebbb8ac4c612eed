"""The column-major call that a row-major Gemm step becomes, carried out on plain memory and held against NumPy."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.backends.cuda.blas import GemmCall, gemm_call
from rlx.backends.cuda.blas_lt import Epilogue, LtGemm, adds_bias, is_promised, product_key, promising
from rlx.backends.cuda.libraries import load_library
from rlx.backends.gpu.program.steps import Gemm, Ref
from rlx.dtypes import DType, bf16, f16, f32, f64, i8
from rlx.errors import RlxError, ShapeError, UnsupportedOp
from tests.devices import or_skip
from tests.threads import at_once

R = Ref("arena0", 0, 0)


def step(m: int, n: int, k: int, **changes: Any) -> Gemm:
    given: dict[str, Any] = {
        "a_dtype": f32, "b_dtype": f32, "c_dtype": f32, "transpose_a": False, "transpose_b": False, "batch": 1,
        "stride_a": m * k, "stride_b": k * n, "stride_c": m * n, "precision": "f32", "label": "matmul%7",
    } | changes  # fmt: skip
    return Gemm(R, R, R, m, n, k, **given)


def matrix(
    memory: npt.NDArray[np.float64], start: int, rows: int, columns: int, ld: int
) -> npt.NDArray[np.float64]:
    """The column-major matrix that BLAS finds there: element (i, j) at start + i + j * ld."""
    index = start + np.arange(rows)[:, None] + np.arange(columns)[None, :] * ld
    return memory[index]


def run(
    call: GemmCall, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], c_size: int
) -> npt.NDArray[np.float64]:
    """What cublasGemmStridedBatchedEx is documented to do, in float64."""
    c = np.full(c_size, np.nan)
    for z in range(call.batch):
        at = [z * s for s in call.strides]
        shapes = [(call.m, call.k), (call.k, call.n)]
        operands = []
        for memory, start, (rows, columns), ld, trans in zip(
            (b, a), at[:2], shapes, call.lds[:2], call.trans, strict=True
        ):
            stored = (columns, rows) if trans else (rows, columns)
            assert ld >= max(1, stored[0])
            held = matrix(memory, start, *stored, ld)
            operands.append(held.T if trans else held)
        product = operands[0] @ operands[1]
        index = at[2] + np.arange(call.m)[:, None] + np.arange(call.n)[None, :] * call.lds[2]
        c[index] = product
    return c


sizes = st.integers(1, 7)


@given(sizes, sizes, sizes, st.booleans(), st.booleans(), st.integers(1, 3), st.booleans(), st.booleans())
def test_the_call_is_the_row_major_product(
    m: int, n: int, k: int, ta: bool, tb: bool, batch: int, same_a: bool, same_b: bool
) -> None:
    rng = np.random.default_rng(m * 64 + n * 8 + k)
    a = rng.normal(size=(1 if same_a else batch, *((k, m) if ta else (m, k))))
    b = rng.normal(size=(1 if same_b else batch, *((n, k) if tb else (k, n))))
    call = gemm_call(
        step(
            m, n, k, transpose_a=ta, transpose_b=tb, batch=batch,
            stride_a=0 if same_a else m * k, stride_b=0 if same_b else k * n,
        )
    )  # fmt: skip
    got = run(call, a.reshape(-1), b.reshape(-1), batch * m * n).reshape(batch, m, n)
    expected = (np.swapaxes(a, 1, 2) if ta else a) @ (np.swapaxes(b, 1, 2) if tb else b)
    np.testing.assert_allclose(got, np.broadcast_to(expected, got.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("a", "c", "precision", "compute"),
    [
        (f32, f32, "f32", 68),  # CUBLAS_COMPUTE_32F: no TF32
        (f32, f32, "tf32", 77),  # CUBLAS_COMPUTE_32F_FAST_TF32
        (f32, f32, "f16", 74),
        (f32, f32, "bf16", 75),
        (f16, f16, "f32", 68),  # half operands are summed in f32
        (f16, f32, "f16", 68),
        (bf16, bf16, "bf16", 68),
        (bf16, f32, "f32", 68),
        (f64, f64, "f32", 70),
    ],
)
def test_compute_type(a: DType, c: DType, precision: str, compute: int) -> None:
    call = gemm_call(step(2, 3, 4, a_dtype=a, b_dtype=a, c_dtype=c, precision=precision))
    assert call.compute == compute
    assert call.double == (a is f64)


@pytest.mark.parametrize(
    ("a", "b", "c"), [(f32, bf16, f32), (f16, bf16, f32), (i8, i8, f32), (f16, f16, bf16), (f32, f32, f16)]
)
def test_dtypes_that_do_not_combine_are_refused_by_name(a: DType, b: DType, c: DType) -> None:
    with pytest.raises(UnsupportedOp, match=f"matmul%7.*{c} from {a} and {b}"):
        gemm_call(step(2, 3, 4, a_dtype=a, b_dtype=b, c_dtype=c))


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="'int8'"):
        gemm_call(step(2, 3, 4, precision="int8"))


def test_sizes_past_32_bits_are_refused() -> None:
    with pytest.raises(ShapeError, match="2147483648"):
        gemm_call(step(2**31, 1, 1))


def test_a_bias_is_read_too() -> None:
    bias = Ref("weights0", 256, 12)
    assert step(2, 3, 4, bias=bias).reads == (R, R, bias)
    assert step(2, 3, 4).reads == (R, R)


class LtLibrary:
    """What of cuBLASLt tells the way to make a product: this one gives the answer it is told to."""

    def __init__(self, status: int = 0, count: int = 1, state: int = 0) -> None:
        self.status, self.count, self.state = status, count, state
        self.alive: dict[int, str] = {}
        self.attributes: dict[tuple[str, int], int] = {}
        self._made = 0

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("cublasLt")
        if kind.endswith("Create"):
            return lambda made, *args: self._create(kind.removesuffix("Create"), made._obj)
        if kind.endswith("Destroy"):
            return lambda made: self.alive.pop(made.value) and 0
        if kind.endswith("SetAttribute"):
            return lambda made, attribute, value, size: self._set(made, attribute, value._obj)
        raise AttributeError(name)

    def _create(self, kind: str, made: ctypes.c_void_p) -> int:
        self._made += 1
        made.value = self._made
        self.alive[self._made] = kind
        return 0

    def _set(self, made: ctypes.c_void_p, attribute: ctypes.c_int, value: Any) -> int:
        assert made.value is not None
        self.attributes[self.alive[made.value], attribute.value] = value.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *args: Any) -> int:
        *_, found, count = args
        found._obj.state, count._obj.value = self.state, self.count
        return self.status


def with_bias(**changes: Any) -> Gemm:
    places = {"a": Ref("arena0", 256, 0), "b": Ref("weights0", 48, 0), "c": Ref("arena0", 512, 0)}
    return replace(step(64, 32, 16), bias=Ref("weights0", 1024, 128), **places, **changes)


def test_a_promised_answer_is_one_product_s_and_its_block_s() -> None:
    keys = json.loads(json.dumps([product_key(with_bias())]))  # as a file holds them
    with promising(keys):
        assert is_promised(with_bias())
        assert is_promised(replace(with_bias(label="another"), bias=Ref("weights1", 2048, 128)))
        for other in ({"relu": True}, {"m": 65}, {"bias": Ref("weights0", 1040, 128)}, {"b": Ref("weights0", 0, 0)}):
            assert not is_promised(replace(with_bias(), **other))
        assert at_once(1, lambda k: is_promised(with_bias())) == [False]  # other threads ask for themselves
    assert not is_promised(with_bias())


@pytest.mark.parametrize(
    ("answer", "known"),
    [((0, 1, 0), True), ((0, 0, 0), False), ((0, 1, 15), False), ((15, 0, 0), False)],
)
def test_the_library_is_asked_whether_it_adds_a_bias(answer: tuple[int, int, int], known: bool) -> None:
    library: Any = LtLibrary(*answer)
    assert adds_bias(library, ctypes.c_void_p(), with_bias(relu=True)) == known
    assert not library.alive  # no descriptor is left behind
    assert library.attributes["MatmulDesc", 7] == 6  # CUBLASLT_EPILOGUE_RELU_BIAS
    first, second, result = 5, 6, 7  # alignments of B, A and C
    found = [library.attributes["MatmulPreference", n] for n in (first, second, result)]
    assert found == [16, 256, 256]


def test_a_library_that_fails_is_not_taken_for_one_that_has_no_way() -> None:
    library: Any = LtLibrary(status=14)
    with pytest.raises(RlxError, match=r"matmul%7: looking for a way: status 14"):
        adds_bias(library, ctypes.c_void_p(), with_bias())


def test_a_way_that_is_gone_is_refused_with_advice() -> None:
    library: Any = LtLibrary(count=0)
    with pytest.raises(UnsupportedOp, match=r"matmul%7.*bias.*another version of cuBLAS"):
        LtGemm(
            library,
            ctypes.c_void_p(),
            0,
            gemm_call(step(4, 4, 4)),
            (256, 512, 768),
            Epilogue(1024, 0, False),
            "matmul%7",
        )


def test_a_product_with_bias_is_described_to_the_library_and_refused_without_a_device() -> None:
    """Descriptors need no device, so that each attribute is known to be taken; finding a way does."""
    with or_skip():
        lib = load_library("cublasLt", 13)
    call = gemm_call(step(64, 32, 16, transpose_b=True, batch=3, stride_a=0))
    end = Epilogue(4096, 32, True)
    with pytest.raises(RlxError, match=r"matmul%7: looking for a way: status 1$"):
        LtGemm(lib, ctypes.c_void_p(), 0, call, (256, 512, 1024), end, "matmul%7")


def test_a_batch_that_overwrites_itself_is_refused() -> None:
    with pytest.raises(ShapeError, match="stride 5"):
        gemm_call(step(2, 3, 4, batch=2, stride_c=5))
