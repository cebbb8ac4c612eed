"""Kernels and captured runs on a real GPU: order, threads, forks, errors. Skipped, with the reason, elsewhere."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from rlx.backends.cuda import backend
from rlx.backends.cuda.compiler import Compiler
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.cuda.sources import Source
from rlx.backends.gpu.program.steps import Copy, FileKernel, HostCall, Launch, Ref, Step
from rlx.errors import ArenaError, DeviceUnavailable, RlxError, UnsupportedOp
from rlx.host.diskcache import DiskCache
from rlx.ir import Graph
from tests.cuda.programs import SCALE, SCALE_SOURCE, arena, run, scaled
from tests.threads import at_once

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("scale")]


def test_kernels_come_from_disk_the_second_time(device: CudaDevice, tmp_path: Path) -> None:
    counts = []
    for _ in range(2):
        device.enter()
        compiler = Compiler(device.api, device.capability, device.info.driver, DiskCache("cuda", tmp_path))
        compiler.provide(SCALE, SCALE_SOURCE)
        counts.append((compiler.compiled, compiler.from_disk))
        compiler.close()
    assert counts == [(1, 0), (0, 1)]


def test_dynamic_shared_memory_is_what_the_kernel_says(device: CudaDevice) -> None:
    text = (
        "struct Tiles { float a[16384]; };\n"
        'extern "C" __device__ unsigned int rlx_dynamic_shared = sizeof(Tiles);\n'
        "extern __shared__ float tile[];\n"
        'extern "C" __global__ void test_scale(const float* x, float* y, unsigned n, float s) {'
        " tile[16383 - threadIdx.x] = x[threadIdx.x]; __syncthreads();"
        " if (threadIdx.x < n) y[threadIdx.x] = tile[16383 - threadIdx.x] * s; }"
    )
    device.enter()
    loaded = device.compiler.provide(
        SCALE, Source("big.cu", text, "test_scale", (256, 1, 1), BASE_OPTIONS, ())
    )
    assert loaded.shared_bytes == 65536
    memory = arena(device, 2048)
    memory.write_bytes(0, np.arange(256, dtype=np.float32))
    run(device, [scaled(Ref("arena0", 0, 1024), Ref("arena0", 1024, 1024), 2.0)], memory)
    got = memory.read_bytes(0).view(np.float32)[256:]
    np.testing.assert_array_equal(got, np.arange(256, dtype=np.float32) * 2)
    memory.close()


def test_a_source_that_does_not_compile_is_a_typed_error(device: CudaDevice) -> None:
    device.enter()
    with pytest.raises(RlxError, match=r"bad\.cu\(1\): error"):
        device.compiler.provide(
            FileKernel("bad"), Source("bad.cu", "int f( {", "bad", (1, 1, 1), BASE_OPTIONS, ())
        )


def test_a_chain_of_steps_runs_in_order_every_time(device: CudaDevice) -> None:
    n = 100_000
    size = n * 4
    memory = arena(device, 3 * size)
    a, b, c = (Ref("arena0", i * size, size) for i in range(3))
    chain: list[Step] = [scaled(a, b, 2.0), Copy(b, c, "copy"), scaled(c, a, 4.0)]
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    memory.write_bytes(0, x)
    recorded = device.record(chain, memory)
    assert recorded.schedule == (tuple(chain), frozenset({1, 2}))  # nothing is before the first
    for _ in range(3):
        recorded.launch()
    recorded.wait()
    np.testing.assert_array_equal(memory.read_bytes(0, size).view(np.float32), x * np.float32(512))
    with pytest.raises(UnsupportedOp, match="timings=True"):
        recorded.timings()
    timed = device.record(chain, memory, timings=True)
    with pytest.raises(ArenaError, match="launch the recording"):
        timed.timings()
    memory.write_bytes(0, x)
    timed.launch()
    timed.wait()
    for _ in range(2):
        times = timed.timings()
        assert len(times) == 3 and min(times) > 0
    np.testing.assert_array_equal(memory.read_bytes(0, size).view(np.float32), x * np.float32(8))
    timed.close()
    recorded.close()
    recorded.close()
    with pytest.raises(RlxError, match="closed"):
        recorded.launch()
    orphan = device.record(chain, memory)
    memory.close()
    with pytest.raises(ArenaError, match="closed"):
        orphan.launch()
    orphan.close()


def test_no_steps_is_a_run_that_does_nothing(device: CudaDevice) -> None:
    memory = arena(device, 256)
    run(device, [], memory)
    memory.close()


def test_a_host_call_is_no_device_step(device: CudaDevice) -> None:
    graph = Graph("g")
    node = graph.input("x", (1,)).node
    memory = arena(device, 256)
    with pytest.raises(RlxError, match=r"host step.*cannot be captured"):
        device.record([HostCall(node, (), (), "host step")], memory)
    memory.close()


def test_a_failed_capture_leaves_the_device_usable(device: CudaDevice) -> None:
    memory = arena(device, 1024)
    a, b = Ref("arena0", 0, 512), Ref("arena0", 512, 512)
    wrong = Launch(SCALE, (1, 1, 1), (a, b, -1, 1.0), (a,), (b,), "scale")
    with pytest.raises(RlxError, match="no u32"):
        device.record([wrong], memory)
    with pytest.raises(RlxError, match="grid"):
        device.record([Launch(SCALE, (1, 70_000, 1), (a, b, 1, 1.0), (a,), (b,), "scale")], memory)
    run(device, [scaled(a, b, 1.0)], memory)
    memory.close()


def test_threads_record_and_run_at_once(device: CudaDevice) -> None:
    def work(seed: int) -> None:
        n = 10_000 + seed
        x = np.random.default_rng(seed).normal(size=n).astype(np.float32)
        memory = arena(device, 8 * n)
        a, b = Ref("arena0", 0, 4 * n), Ref("arena0", 4 * n, 4 * n)
        for factor in (2.0, 3.0, 4.0):
            memory.write_bytes(0, x)
            run(device, [scaled(a, b, factor)], memory, times=5)
            out = np.empty(4 * n, np.uint8)
            memory.buffer("arena0").read(4 * n, out)
            np.testing.assert_array_equal(out.view(np.float32), x * np.float32(factor))
        memory.close()

    at_once(8, work)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on: forking beside threads
def test_a_forked_child_raises_and_does_not_hang(device: CudaDevice) -> None:
    buffer = device.acquire(64)
    memory = arena(device, 1024)
    recorded = device.record([scaled(Ref("arena0", 0, 512), Ref("arena0", 512, 512), 1.0)], memory)

    def child() -> None:
        refused = 0
        for call in (
            lambda: buffer.read(0, np.empty(4, np.uint8)),
            recorded.launch,
            recorded.wait,
            lambda: device.acquire(4),
            lambda: backend.open(0),
            backend.probe,
        ):
            try:
                call()
            except DeviceUnavailable as error:
                refused += "fork" in str(error)
        buffer.close()
        recorded.close()
        os._exit(refused)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    code = process.exitcode
    if code is None:
        process.kill()
    assert code == 6
    recorded.launch()
    recorded.wait()
    recorded.close()
    buffer.close()
    memory.close()
