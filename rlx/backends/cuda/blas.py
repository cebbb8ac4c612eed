"""Gemm steps through cuBLAS: its own handle and workspace, which (unlike CuPy's) can be captured in a graph.

Called by ctypes: eight functions of a stable C interface, the same for CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlx.backends.cuda.libraries import load_library
from rlx.backends.gpu.program.steps import Gemm
from rlx.driver.closing import Resources
from rlx.errors import OutOfDeviceMemory, RlxError, ShapeError, UnsupportedOp

# NVIDIA's recommendation for Hopper. The workspace is fixed and used by one stream only, so that results do not depend
# on what ran before.
WORKSPACE_BYTES = 32 << 20

# cudaDataType_t and cublasComputeType_t (cuBLAS reference, library_types.h and cublas_api.h).
_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
_COMPUTE_32F, _COMPUTE_64F = 68, 70
# The compute type of f32 operands by precision; plain COMPUTE_32F with the default math mode never uses TF32.
_F32_COMPUTE = {"f32": _COMPUTE_32F, "tf32": 77, "f16": 74, "bf16": 75}
_OP_N, _OP_T = 0, 1
_DEFAULT_ALGO = -1
_NO_REDUCED_PRECISION_REDUCTION = 16  # sums of f16 and bf16 products stay in f32 until the last rounding
_STATUS = {
    1: "not initialized", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch", 11: "mapping error",
    13: "execution failed", 14: "internal error", 15: "not supported",
}  # fmt: skip
ALLOCATION_FAILED = 3
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GemmCall:
    """A Gemm step as a column-major cuBLAS call: cuBLAS computes C^T = op(B)^T op(A)^T, so B comes first.

    `trans`, `types` and `lds` are for (B, A), leading dimensions and strides in elements; `m`, `n` are those of C^T.
    """

    trans: tuple[int, int]
    m: int
    n: int
    k: int
    types: tuple[int, int, int]
    lds: tuple[int, int, int]
    strides: tuple[int, int, int]
    batch: int
    compute: int

    @property
    def double(self) -> bool:
        return self.compute == _COMPUTE_64F


def gemm_call(step: Gemm) -> GemmCall:
    """The cuBLAS call of a step.

    Raises: UnsupportedOp for a combination of dtypes and precision that cuBLAS does not have; ShapeError for a size
    above 2^31 - 1, or where members of a batch overlap in C.
    """
    a, b, c = step.a_dtype.name, step.b_dtype.name, step.c_dtype.name
    if a == b == c == "f32":
        compute = _F32_COMPUTE.get(step.precision, -1)
    elif a == b == c == "f64":
        compute = _COMPUTE_64F
    elif a == b and a in ("f16", "bf16") and c in (a, "f32"):
        compute = _COMPUTE_32F
    else:
        compute = -1
    if compute < 0:
        raise UnsupportedOp(
            f"gemm {step.label}: cuBLAS does not give {c} from {a} and {b} at precision {step.precision!r}; "
            "lower the product to a kernel or cast its operands"
        )
    lds = (step.k if step.transpose_b else step.n, step.m if step.transpose_a else step.k, step.n)
    if max(step.m, step.n, step.k, step.batch) > _INT32:
        raise ShapeError(
            f"gemm {step.label}: m {step.m}, n {step.n}, k {step.k}, batch {step.batch}: each must be at most {_INT32}"
        )
    if step.batch > 1 and step.stride_c < step.m * step.n:
        raise ShapeError(
            f"gemm {step.label}: batch members of {step.m}x{step.n} overlap at stride {step.stride_c}"
        )
    return GemmCall(
        (_OP_T if step.transpose_b else _OP_N, _OP_T if step.transpose_a else _OP_N),
        step.n,
        step.m,
        step.k,
        (_TYPES[b], _TYPES[a], _TYPES[c]),
        (max(lds[0], 1), max(lds[1], 1), max(lds[2], 1)),
        (step.stride_b, step.stride_a, step.stride_c),
        step.batch,
        compute,
    )


class Blas:
    """A cuBLAS handle. Not for two threads at once: callers hold the device's lock around `use_stream` and `gemm`.

    Requires: the device is current in the calling thread; `workspace` is the address of WORKSPACE_BYTES bytes that
    outlive the handle.
    """

    def __init__(self, major: int, workspace: int) -> None:
        self._lib = load_library("cublas", major)
        self.major = major
        self._workspace = workspace
        self._handle = ctypes.c_void_p()
        self._stream: int | None = None
        self._one = (ctypes.c_float(1), ctypes.c_double(1))
        self._zero = (ctypes.c_float(0), ctypes.c_double(0))
        self._check(self._lib.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        mode = ctypes.c_int(_NO_REDUCED_PRECISION_REDUCTION)
        resources = Resources()
        resources.callback(self.close)
        with resources.unwound():
            self._check(self._lib.cublasSetMathMode(self._handle, mode), "cublasSetMathMode")

    @property
    def version(self) -> int:
        """cuBLAS's own version number, such as 130100 for 13.1."""
        number = ctypes.c_int()
        self._check(self._lib.cublasGetVersion_v2(self._handle, ctypes.byref(number)), "cublasGetVersion")
        return number.value

    def use_stream(self, stream: int) -> None:
        """Sends all further calls to a stream. Setting a stream resets the workspace, so both are set."""
        if stream == self._stream:
            return
        self._stream = None  # unknown if one of the calls below fails
        self._check(self._lib.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)), "cublasSetStream")
        self._check(
            self._lib.cublasSetWorkspace_v2(
                self._handle, ctypes.c_void_p(self._workspace), ctypes.c_size_t(WORKSPACE_BYTES)
            ),
            "cublasSetWorkspace",
        )
        self._stream = stream

    def gemm(self, call: GemmCall, a: int, b: int, c: int, label: str) -> None:
        """Enqueues (or captures) one call on the addresses of A, B and C."""
        self.prepared(call, label)(a, b, c)

    def prepared(self, call: GemmCall, label: str) -> Callable[[int, int, int], None]:
        """A call of which only the addresses of A, B and C are missing."""
        if call.m == 0 or call.n == 0 or call.batch == 0:
            return lambda a, b, c: None
        one, zero = (ctypes.byref(x[call.double]) for x in (self._one, self._zero))
        kinds = zip(call.types, call.lds, strict=True)
        first, second, result = parts = [list[Any]([ctypes.c_int(t), ctypes.c_int(n)]) for t, n in kinds]
        size = [ctypes.c_int(n) for n in (*call.trans, call.m, call.n, call.k)]
        tail: list[Any] = [ctypes.c_int(call.compute), ctypes.c_int(_DEFAULT_ALGO)]
        work = self._lib.cublasGemmEx
        if call.batch > 1:
            work = self._lib.cublasGemmStridedBatchedEx
            for part, stride in zip(parts, call.strides, strict=True):
                part.append(ctypes.c_longlong(stride))
            tail.insert(0, ctypes.c_int(call.batch))
        address = ctypes.c_void_p

        def enqueue(a: int, b: int, c: int) -> None:
            status = work(self._handle, *size, one, address(b), *first, address(a), *second, zero, address(c), *result,
                          *tail)  # fmt: skip
            if status:
                self._check(status, f"gemm {label}")

        return enqueue

    @property
    def handle(self) -> ctypes.c_void_p:
        """The handle; cuBLASLt accepts it as one of its own."""
        return self._handle

    @property
    def workspace(self) -> int:
        """The address of the workspace."""
        return self._workspace

    def close(self) -> None:
        """Destroys the handle. Idempotent."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._lib.cublasDestroy_v2(handle)

    def _check(self, status: int, doing: str) -> None:
        if status == 0:
            return
        said = f"cuBLAS: {doing}: {_STATUS.get(status, 'error')} ({status})"
        if status == ALLOCATION_FAILED:
            raise OutOfDeviceMemory(f"{said}; close executables that are not used, or use smaller shapes")
        raise RlxError(said)
