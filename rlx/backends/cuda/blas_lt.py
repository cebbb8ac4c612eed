"""GEMMs with a bias in the epilogue, before rounding, through cuBLASLt: bound once, then one call at each run."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rlx.backends.cuda.blas import ALLOCATION_FAILED, WORKSPACE_BYTES, GemmCall, gemm_call
from rlx.backends.gpu.program.steps import Gemm, Ref
from rlx.driver.closing import Resources
from rlx.errors import OutOfDeviceMemory, RlxError, UnsupportedOp

# Constants of cublasLt.h: attributes of descriptors, layouts and preferences; epilogues; reduction schemes.
_TRANS = (3, 4)
_EPILOGUE, _BIAS, _BIAS_STRIDE = 7, 8, 10
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE, _REDUCTIONS = 1, 3
_ALIGNMENTS = (5, 6, 7, 8)
_ADD_BIAS, _ADD_BIAS_RELU = 4, 6
_SUMS_IN_F32 = 2  # partial sums of a split K are stored in the compute type, not in the result's dtype
_F32 = 0  # the type of alpha and beta
_MAX_ALIGNMENT_BYTES = 256  # every segment begins at a multiple of it
_NOT_SUPPORTED = 15


def adds_bias(lib: ctypes.CDLL, handle: ctypes.c_void_p, step: Gemm, known: Known | None = None) -> bool:
    """Whether cuBLASLt has an algorithm for a GEMM with its bias, given how the operands' offsets are aligned; `known`
    are its answers to this handle.

    Requires: `handle`, a cuBLAS handle of the current device. Raises: RlxError when the library fails.
    """
    try:
        lt_gemm(lib, handle, 0, step, lambda ref: _MAX_ALIGNMENT_BYTES + ref.offset, known)
    except UnsupportedOp:
        return False
    return True


def lt_gemm(
    lib: ctypes.CDLL, handle: ctypes.c_void_p, workspace: int, step: Gemm, address: Callable[[Ref], int],
    known: Known | None = None,
) -> LtGemm:  # fmt: skip
    """A Gemm step with a bias, bound to the addresses of its refs. Raises: as LtGemm does."""
    assert step.bias is not None
    end = Epilogue(address(step.bias), step.stride_bias, step.relu)
    places = (address(step.a), address(step.b), address(step.c))
    return LtGemm(lib, handle, workspace, gemm_call(step), places, end, step.label, known)


# Products whose bias cuBLASLt adds according to a saved program. The library is asked again when they are recorded, but
# the program can already be lowered while the library starts, which takes a tenth of a second.
_promised: ContextVar[frozenset[tuple[object, ...]]] = ContextVar("promised", default=frozenset())


def product_key(step: Gemm) -> tuple[int | str, ...]:
    """What the answer of `adds_bias` depends on."""
    assert step.bias is not None
    places = (_MAX_ALIGNMENT_BYTES + ref.offset for ref in (step.a, step.b, step.c, step.bias))
    aligned = (min(place & -place, _MAX_ALIGNMENT_BYTES) for place in places)
    kinds = (step.a_dtype.name, step.b_dtype.name, step.c_dtype.name, step.precision)
    strides = (step.stride_a, step.stride_b, step.stride_c, step.stride_bias)
    flags = (int(step.transpose_a), int(step.transpose_b), int(step.relu))
    return (*kinds, step.m, step.n, step.k, step.batch, *strides, *flags, *aligned)


def is_promised(step: Gemm) -> bool:
    """Whether this thread's block of `promising` says that cuBLASLt adds the bias."""
    return product_key(step) in _promised.get()


@contextmanager
def promising(products: Iterable[Sequence[object]]) -> Iterator[None]:
    """Within this context, in this thread, these keys of products stand for cuBLASLt's answers."""
    token = _promised.set(frozenset(map(tuple, products)))
    try:
        yield
    finally:
        _promised.reset(token)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A bias of the result's dtype, and whether relu follows.

    `bias` is its address, `stride` the elements from one batch member's bias to the next's.
    """

    bias: int
    stride: int
    relu: bool


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


# cuBLASLt's cached answers for one handle: the algorithm by product, alignments and epilogue.
Known = dict[tuple[object, ...], _Found]
MAX_KNOWN = 4096


class LtGemm:
    """One GEMM on fixed addresses; calling it with a stream enqueues it, or captures it.

    Requires: `handle`, a cuBLAS handle of the current device, and `workspace` outlive this.
    Raises: UnsupportedOp where cuBLASLt has no algorithm for it, which `adds_bias` tells in advance.
    """

    def __init__(
        self,
        lib: ctypes.CDLL,
        handle: ctypes.c_void_p,
        workspace: int,
        call: GemmCall,
        places: tuple[int, int, int],
        end: Epilogue,
        label: str,
        known: Known | None = None,
    ) -> None:
        self._lib, self._handle, self._workspace, self._label = lib, handle, workspace, label
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._held = Resources()
        a, b, c = places
        self._places = (b, a, c)  # cuBLAS sees the transposed product
        with self._held.unwound():
            self._product = self._description(call, end)
            sides = [(call.m, call.k), (call.k, call.n), (call.m, call.n)]
            stored = [(s[1], s[0]) if t else s for s, t in zip(sides, (*call.trans, 0), strict=True)]
            self._layouts = [
                self._layout(kind, rows, columns, ld, call.batch, stride)
                for kind, (rows, columns), ld, stride in zip(
                    call.types, stored, call.lds, call.strides, strict=True
                )
            ]
            self._found = self._way(call, end, {} if known is None else known)

    def __call__(self, stream: int) -> None:
        first, second, result = (ctypes.c_void_p(p) for p in self._places)
        left, right, output = self._layouts
        self._check(
            self._lib.cublasLtMatmul(
                self._handle, self._product, ctypes.byref(self._one), first, left, second, right,
                ctypes.byref(self._zero), result, output, result, output, ctypes.byref(self._found.algo),
                ctypes.c_void_p(self._workspace), ctypes.c_size_t(self._found.workspace), ctypes.c_void_p(stream),
            ),
            "cublasLtMatmul",
        )  # fmt: skip

    def _description(self, call: GemmCall, end: Epilogue) -> ctypes.c_void_p:
        result = self._new("MatmulDesc", ctypes.c_int(call.compute), ctypes.c_int(_F32))
        for attribute, trans in zip(_TRANS, call.trans, strict=True):
            self._set("MatmulDesc", result, attribute, ctypes.c_int32(trans))
        kind = _ADD_BIAS_RELU if end.relu else _ADD_BIAS
        self._set("MatmulDesc", result, _EPILOGUE, ctypes.c_uint32(kind))
        self._set("MatmulDesc", result, _BIAS, ctypes.c_void_p(end.bias))
        if call.batch > 1:
            self._set("MatmulDesc", result, _BIAS_STRIDE, ctypes.c_int64(end.stride))
        return result

    def _layout(
        self, kind: int, rows: int, columns: int, ld: int, batch: int, stride: int
    ) -> ctypes.c_void_p:
        size = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(ld)
        result = self._new("MatrixLayout", ctypes.c_int(kind), *size)
        if batch > 1:
            self._set("MatrixLayout", result, _BATCH_COUNT, ctypes.c_int32(batch))
            self._set("MatrixLayout", result, _BATCH_STRIDE, ctypes.c_int64(stride))
        return result

    def _way(self, call: GemmCall, end: Epilogue, known: Known) -> _Found:
        """The algorithm that cuBLASLt expects to be fastest among those that sum in f32, for the alignment of these
        addresses. Answers are cached: a network has few different products, and the library takes milliseconds to
        answer."""
        aligned = tuple(min(place & -place, _MAX_ALIGNMENT_BYTES) for place in (*self._places, end.bias))
        key = (call, aligned, end.stride, end.relu)
        result = known.get(key)
        if result is None:
            if len(known) >= MAX_KNOWN:
                known.clear()
            result = known[key] = self._ask(aligned[:3])
        return result

    def _ask(self, aligned: Sequence[int]) -> _Found:
        wish = self._new("MatmulPreference")
        self._set("MatmulPreference", wish, _MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        self._set("MatmulPreference", wish, _REDUCTIONS, ctypes.c_uint32(_SUMS_IN_F32))
        for attribute, to in zip(_ALIGNMENTS, (*aligned, aligned[2]), strict=True):
            self._set("MatmulPreference", wish, attribute, ctypes.c_uint32(to))
        best, count = _Found(), ctypes.c_int()
        left, right, output = self._layouts
        status = self._lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._product, left, right, output, output, wish, ctypes.c_int(1), ctypes.byref(best),
            ctypes.byref(count),
        )  # fmt: skip
        if status == _NOT_SUPPORTED or (not status and (not count.value or best.state)):
            raise UnsupportedOp(
                f"gemm {self._label}: cuBLASLt has no way to add the bias to this product ({status}, {best.state}), "
                "although it had one when the step was made; install another version of cuBLAS"
            )
        self._check(status, "looking for a way")
        return best

    def _new(self, kind: str, *args: Any) -> ctypes.c_void_p:
        result = ctypes.c_void_p()
        self._check(
            getattr(self._lib, f"cublasLt{kind}Create")(ctypes.byref(result), *args), f"making a {kind}"
        )
        self._held.callback(getattr(self._lib, f"cublasLt{kind}Destroy"), result)
        return result

    def _set(self, kind: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        set_attribute = getattr(self._lib, f"cublasLt{kind}SetAttribute")
        status = set_attribute(target, ctypes.c_int(attribute), ctypes.byref(value), size)
        self._check(status, f"attribute {attribute} of a {kind}")

    def _check(self, status: int, doing: str) -> None:
        if status:
            kind = OutOfDeviceMemory if status == ALLOCATION_FAILED else RlxError
            raise kind(f"cuBLASLt: gemm {self._label}: {doing}: status {status}")

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter exits, modules may already be gone; the driver then frees it.
        if hasattr(self, "_held") and not ending():
            self._held.close()
