"""The CUDA steps of gpu_smoke.py: compiler, kernels, captured graphs, cuBLAS, errors."""

from __future__ import annotations

import tempfile
import time
from functools import cache
from typing import Any

import numpy as np

from benchmarks.smoke.smoke_steps import arena_of, exercise_buffers, per_call, step, whole_way
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.kernel import KERNELS, KernelDecl, floats, reads, uints, writes
from rlx.backends.gpu.program.steps import Copy, FileKernel, Gemm, Launch, Ref
from rlx.driver.registry import load_backend
from rlx.dtypes import bf16, f32
from rlx.errors import DeviceUnavailable, OutOfDeviceMemory

SCALE = FileKernel("smoke_scale")


@cache
def cuda() -> Any:
    device: Any = load_backend("cuda").open(0)
    return device


@cache
def scale_kernel() -> FileKernel:
    """A kernel y = x * s, declared and loaded under its own name."""
    from rlx.backends.cuda.nvrtc import BASE_OPTIONS
    from rlx.backends.cuda.sources import Source

    args = (*reads(x="f32"), *writes(y="f32"), *uints("n"), *floats("s"))
    KERNELS[SCALE.stem] = KernelDecl(SCALE.stem, args)
    text = (
        f'extern "C" __global__ void {SCALE.stem}(const float* x, float* y, unsigned n, float s)'
        "{ unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * s; }"
    )
    cuda().enter()
    cuda().compiler.provide(SCALE, Source("smoke.cu", text, SCALE.stem, (256, 1, 1), BASE_OPTIONS, ()))
    return SCALE


def scaled(x: Ref, y: Ref, factor: float) -> Launch:
    n = x.nbytes // 4
    return Launch(scale_kernel(), (-(-n // 256), 1, 1), (x, y, n, factor), (x,), (y,), "scale")


@step("cuda")
def cuda_probe() -> str:
    return "; ".join(
        f"{i.id} {i.name}, {i.memory_bytes >> 30} GiB, {i.driver}" for i in load_backend("cuda").probe()
    )


@step("cuda")
def cuda_open() -> str:
    from rlx.backends.cuda.api import load
    from rlx.backends.cuda.nvrtc import nvrtc

    compiler = nvrtc(load().major)
    return (
        f"capability {cuda().capability}, {cuda().limits}; {compiler.identity}, headers {compiler.include}, "
        f"library {compiler._lib._name}"
    )


@step("cuda")
def cuda_buffers() -> str:
    return exercise_buffers(cuda())


@step("cuda")
def cuda_compile_and_load() -> str:
    start = time.perf_counter()
    scale_kernel()
    return f"{(time.perf_counter() - start) * 1e3:.1f} ms"


@step("cuda")
def cuda_disk_cache() -> str:
    from rlx.backends.cuda.compiler import Compiler
    from rlx.host.diskcache import DiskCache

    softmax = FileKernel("softmax", (("T", "f32"),), (32, 1, 0))
    load_rules()  # declares the kernels

    counts = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            cuda().enter()
            compiler = Compiler(cuda().api, cuda().capability, cuda().info.driver, DiskCache("cuda", folder))
            start = time.perf_counter()
            compiler.get(softmax)
            took = (time.perf_counter() - start) * 1e3
            counts.append(f"compiled {compiler.compiled}, from disk {compiler.from_disk}, {took:.1f} ms")
            hit = compiler.from_disk
            compiler.close()
    assert hit == 1, counts
    return " / ".join(counts)


@step("cuda")
def cuda_every_kernel_loads() -> str:
    """Compiles each kernel's first variant, with its first trial constants, to machine code for this device."""
    load_rules()  # declares the kernels
    compiler, loaded, failed = cuda().compiler, [], []
    for stem, decl in KERNELS.items():
        if stem == SCALE.stem:
            continue
        defines = tuple((name, values[0]) for name, values in decl.variants.items())
        try:
            compiler.get(FileKernel(stem, defines, decl.trials[0]))
            loaded.append(stem)
        except Exception as error:  # noqa: BLE001 - the rest is still to be tried
            failed.append(f"{stem}: {error}")
    assert not failed, failed
    return ", ".join(loaded)


@step("cuda")
def cuda_graph_of_kernels_and_copies() -> str:
    n = 1 << 20
    arena = arena_of(cuda(), 12 * n)
    a, b, c = (Ref("arena0", i * 4 * n, 4 * n) for i in range(3))
    x = np.random.default_rng(1).normal(size=n).astype(np.float32)
    arena.write_bytes(0, x)
    recorded = cuda().record([scaled(a, b, 2.0), Copy(b, c), scaled(c, a, 4.0)], arena)
    for _ in range(2):
        recorded.launch()
        recorded.wait()
    np.testing.assert_array_equal(arena.read_bytes(0, 4 * n).view(np.float32), x * np.float32(64))
    recorded.close()
    timed = cuda().record([scaled(a, b, 2.0), Copy(b, c), scaled(c, a, 4.0)], arena, timings=True)
    timed.launch()
    times = ", ".join(f"{t:.1f}" for t in timed.timings())
    timed.close()
    arena.close()
    return f"2 runs exact; steps alone {times} µs"


def product(precision: str, dtype: Any, batch: int, m: int, n: int, k: int, tb: bool) -> float:
    """NMSE against float64 of one captured GEMM, whose shape cuBLAS has not seen before the capture."""
    rng = np.random.default_rng(m + n + k)
    a = rng.normal(size=(batch, m, k)).astype(dtype.np)
    b = rng.normal(size=(batch, n, k) if tb else (batch, k, n)).astype(dtype.np)
    bounds = np.cumsum([0, *(-(-nbytes // 256) * 256 for nbytes in (a.nbytes, b.nbytes, 4 * batch * m * n))])
    refs = [
        Ref("arena0", int(at), nbytes)
        for at, nbytes in zip(bounds, (a.nbytes, b.nbytes, 4 * batch * m * n), strict=False)
    ]
    arena = arena_of(cuda(), int(bounds[-1]))
    buffer = arena.buffer("arena0")
    buffer.write(refs[0].offset, a.reshape(-1).view(np.uint8))
    buffer.write(refs[1].offset, b.reshape(-1).view(np.uint8))
    gemm = Gemm(*refs, m, n, k, dtype, dtype, f32, False, tb, batch, m * k, k * n, m * n, precision, "matmul")
    recorded = cuda().record([gemm, scaled(refs[2], refs[2], 2.0)], arena)
    recorded.launch()
    recorded.wait()
    raw = np.empty(refs[2].nbytes, np.uint8)
    buffer.read(refs[2].offset, raw)
    recorded.close()
    arena.close()
    right = b.astype(np.float64)
    expected = 2 * (a.astype(np.float64) @ (np.swapaxes(right, 1, 2) if tb else right))
    got = raw.view(np.float32).reshape(batch, m, n).astype(np.float64)
    return float(np.square(got - expected).sum() / np.square(expected).sum())


@step("cuda")
def cuda_cublas_in_a_graph() -> str:
    found = []
    for case in (
        ("f32", f32, 1, 512, 512, 512, False),
        ("f32", f32, 12, 128, 128, 32, True),
        ("f32", f32, 1, 1, 1536, 384, True),
        ("tf32", f32, 1, 512, 512, 512, False),
        ("bf16", bf16, 4, 256, 96, 512, False),
    ):
        error = product(*case)
        assert error < (1e-6 if case[0] == "tf32" else 1e-11), (case, error)
        found.append(f"{case[0]} {error:.1e}")
    return f"cuBLAS {cuda().blas.version}; NMSE " + ", ".join(found)


@step("cuda")
def cuda_launch_overhead() -> str:
    arena = arena_of(cuda(), 8192)
    a, b = Ref("arena0", 0, 4096), Ref("arena0", 4096, 4096)
    found = []
    for count in (1, 3, 100):
        recorded = cuda().record([scaled(a, b, 1.0)] * count, arena)

        def run(recorded: Any = recorded) -> None:
            recorded.launch()
            recorded.wait()

        found.append(f"{count} kernels {per_call(run):.1f} µs (launch alone {per_call(recorded.launch):.1f})")
        recorded.wait()
        recorded.close()
    enter = per_call(cuda().enter)
    arena.close()
    return f"launch and wait: {'; '.join(found)}; enter {enter:.2f} µs"


@step("cuda")
def cuda_gemm_rates() -> str:
    n = 4096
    arena = arena_of(cuda(), 12 * n * n)
    refs = [Ref("arena0", i * 4 * n * n, 4 * n * n) for i in range(3)]
    arena.write_bytes(0, np.random.default_rng(0).normal(size=2 * n * n).astype(np.float32))
    found = []
    for precision, dtype in (("f32", f32), ("tf32", f32), ("bf16", bf16)):
        gemm = Gemm(*refs, n, n, n, dtype, dtype, f32, False, False, 1, 0, 0, 0, precision, "matmul")
        recorded = cuda().record([gemm] * 10, arena, timings=True)
        for _ in range(2):
            recorded.launch()
        best = min(recorded.timings())
        found.append(f"{precision} {2 * n**3 / best / 1e6:.0f}")
        recorded.close()
    arena.close()
    return f"TFLOP/s at {n}: " + ", ".join(found)


@step("cuda")
def cuda_out_of_memory() -> str:
    try:
        cuda().acquire(1 << 50)
    except OutOfDeviceMemory as error:
        cuda().acquire(1 << 20).close()
        return str(error)
    raise AssertionError("2^50 bytes were acquired")


@step("cuda")
def cuda_fork() -> str:
    import multiprocessing
    import os
    import warnings

    buffer = cuda().acquire(64)

    def child() -> None:
        try:
            buffer.read(0, np.empty(4, np.uint8))
        except DeviceUnavailable:
            os._exit(7)
        os._exit(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    process.join(30)
    code = process.exitcode
    if code is None:
        process.kill()
    buffer.close()
    assert code == 7, f"exit code {code}"
    return "the child's use raises DeviceUnavailable"


@step("cuda")
def cuda_session() -> str:
    return whole_way("cuda")
