"""Runs the CUDA sources on the CPU, so that they are tested without a GPU.

The host's C++ compiler compiles the text that NVRTC is given, with CUDA's keywords defined in `cuda_host.h`. Each
launch runs twice, its threads in opposite orders, and must give the same bits; where a barrier is missing it does not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cuda.packing import map_tile
from rlx.backends.cuda.sources import HEADER_FOLDERS, kernel_source
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.steps import FileKernel, Gemm, Launch, Ref
from tests.gpu.host_library import HERE, compiler, library

Array = npt.NDArray[Any]


class _Map(ctypes.Structure):
    """What bodies/map.h reads on the host instead of a tensor map."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_uint32) for name in ("rows", "columns", "high")))


_C = {"map": _Map, "u32": ctypes.c_uint32, "i32": ctypes.c_int32, "f32": ctypes.c_float}


__all__ = ["compiler", "gemm", "launch", "without_barrier"]
# No optimizations: they would double the time to compile, and runs of a few workgroups, which mostly switch between
# threads, gain nothing. No C++ libraries: no kernel needs them, and linking them takes as long as a small kernel.
_OPTIONS = ("-O0", "-march=native", "-fno-exceptions", "-nostartfiles", "-nodefaultlibs")
# Most kernels read these, which takes as long as to compile one.
_COMMON = ("cuda_host.h", "prims.h")


@cache
def _threads() -> ctypes.CDLL:
    """What runs the threads of every kernel: the kernels' libraries find its functions when they are loaded."""
    text = "".join((HERE / name).read_text(encoding="utf-8") for name in ("cuda_host.cpp", "mma_host.cpp"))
    # glibc's debug checks, which Ubuntu turns on, take a switch from one stack to another for an error.
    return library(text, ("-O2", "-U_FORTIFY_SOURCE"), mode=ctypes.RTLD_GLOBAL)


@cache
def _library(kernel: FileKernel, headers: Path | None) -> ctypes.CDLL:
    _threads()
    decl, source = KERNELS[kernel.stem], kernel_source(kernel)
    signature = re.search(rf"\b{kernel.stem}\(((?:[^()]|\([^()]*\))*)\)\s*\{{", source.text)
    assert signature is not None
    typed = [part.strip().rsplit(" ", 1) for part in signature[1].replace("\n", " ").split(",")]
    names = [name for _, name in typed]
    # The variant's definitions stand in the text: as options they would keep the compiler from headers read before.
    defines = [o.removeprefix("--define-macro=") for o in source.options if o.startswith("--define-macro=")]
    text = ['#include "cuda_host.h"', *(f"#define {d.replace('=', ' ', 1)}" for d in defines), source.text]
    text += [f"static {kind} arg_{name};" for kind, name in typed]
    text += [f"static void body() {{ {kernel.stem}({', '.join('arg_' + n for n in names)}); }}"]
    text += [f'extern "C" int run(int backwards, uint groups_x, uint groups_y, uint groups_z, {signature[1]}) {{']
    text += [f"    arg_{n} = {n};" for n in names]
    text += [f"    return rlx_grid(body, backwards != 0, {decl.block[0]}, groups_x, groups_y, groups_z);", "}"]
    folders, common = (HEADER_FOLDERS, _COMMON) if headers is None else ((headers, *HEADER_FOLDERS), ())
    made = library("\n".join(text), _OPTIONS, folders, common=common)
    kinds = [ctypes.c_void_p if a.kind == "ptr" else _C[a.kind] for a in decl.args]
    made.run.argtypes = [ctypes.c_int, *[ctypes.c_uint32] * 3, *kinds]
    return made


@contextmanager
def without_barrier(file: str, line: int) -> Iterator[None]:
    """Within this context, threads do not wait at the barrier in this line of a header; nothing is compiled for it."""
    _threads().rlx_leave_out(file.encode(), line)
    try:
        yield
    finally:
        _threads().rlx_leave_out(b"", 0)


# A folder whose headers replace those of the same name: by it a test plants a fault.
planted: Path | None = None


def launch(step: Launch, segments: dict[str, Array]) -> None:
    """One launch of a file kernel over the segments, with its threads in both orders."""
    assert isinstance(step.kernel, FileKernel)
    library = _library(step.kernel, planted)
    before = {name: segments[name].copy() for name in {w.segment for w in step.writes}}

    def once(backwards: int) -> None:
        args: list[Any] = [
            segments[a.segment].ctypes.data + a.offset if isinstance(a, Ref) else a for a in step.args
        ]
        for i, decl in enumerate(KERNELS[step.kernel.stem].args):
            if decl.kind == "map":
                args[i] = _Map(args[i], *map_tile(step, i))
        assert library.run(backwards, *step.groups, *args) == 0, "threads of a group waited at different barriers"

    once(1)
    reverse = {name: segments[name].copy() for name in before}
    for name, data in before.items():
        segments[name][:] = data
    once(0)
    for name, data in reverse.items():
        assert (segments[name] == data).all(), f"{step.label}: the order of the threads shows: a barrier is missing"


def gemm(step: Gemm, segments: dict[str, Array]) -> None:
    """The result of cuBLAS for a step, computed in float64."""
    a_shape = (step.k, step.m) if step.transpose_a else (step.m, step.k)
    b_shape = (step.n, step.k) if step.transpose_b else (step.k, step.n)

    def matrix(ref: Ref, dtype: Any, start: int, shape: tuple[int, int]) -> Array:
        data = segments[ref.segment][ref.offset : ref.end].view(dtype.np)
        return data[start : start + shape[0] * shape[1]].reshape(shape)

    for i in range(step.batch):
        a = matrix(step.a, step.a_dtype, i * step.stride_a, a_shape).astype(np.float64)
        b = matrix(step.b, step.b_dtype, i * step.stride_b, b_shape).astype(np.float64)
        product = (a.T if step.transpose_a else a) @ (b.T if step.transpose_b else b)
        if step.bias is not None:
            product = product + matrix(step.bias, step.c_dtype, i * step.stride_bias, (1, step.n)).astype(np.float64)
        product = np.maximum(product, 0) if step.relu else product
        matrix(step.c, step.c_dtype, i * step.stride_c, (step.m, step.n))[:] = product.astype(step.c_dtype.np)
