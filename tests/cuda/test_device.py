"""The CUDA device on a real GPU: memory, kernels, captured graphs, errors. Skipped, with the reason, elsewhere."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from rlx.backends.cuda import backend
from rlx.backends.cuda.compiler import Compiler
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.memory import STAGING_BYTES, CudaArena
from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.cuda.sources import Source
from rlx.backends.gpu import steps
from rlx.backends.gpu.steps import ArgDecl, Copy, FileKernel, Gemm, HostCall, KernelDecl, Launch, Ref, Step
from rlx.driver import MemoryPlan, Slot
from rlx.driver.diskcache import DiskCache
from rlx.driver.pool import MAX_BUFFERS
from rlx.dtypes import DType, bf16, f16, f32, f64
from rlx.errors import ArenaError, DeviceUnavailable, OutOfDeviceMemory, RlxError
from rlx.ir import Graph

pytestmark = pytest.mark.cuda

SCALE = FileKernel("test_scale")
SCALE_SOURCE = Source(
    "test_scale.cu",
    'extern "C" __global__ void test_scale(const float* x, float* y, unsigned n, float s) {'
    " unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * s; }",
    "test_scale",
    (256, 1, 1),
    BASE_OPTIONS,
    (),
)


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    try:
        backend.probe()
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    return backend.open(0)


@pytest.fixture(autouse=True)
def scale(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (ArgDecl("x", "ptr", "r"), ArgDecl("y", "ptr", "w"), ArgDecl("n", "u32"), ArgDecl("s", "f32"))
    monkeypatch.setitem(steps.KERNELS, SCALE.stem, KernelDecl(SCALE.stem, args))
    device.enter()
    device.compiler.provide(SCALE, SCALE_SOURCE)


def arena(device: CudaDevice, nbytes: int) -> CudaArena:
    """One slot a segment byte range is enough here: node 0 is the whole of arena0."""
    return CudaArena(MemoryPlan("bump", {0: Slot("arena0", 0, nbytes, f32)}, {"arena0": nbytes}), device)


def scaled(x: Ref, y: Ref, factor: float) -> Launch:
    n = x.nbytes // 4
    return Launch(SCALE, (-(-n // 256), 1, 1), (x, y, n, factor), (x,), (y,), "scale")


def run(device: CudaDevice, made: list[Step], memory: CudaArena, times: int = 1) -> None:
    recorded = device.record(made, memory)
    for _ in range(times):
        recorded.launch()
        recorded.wait()
    recorded.close()


# -- discovery


def test_the_device_is_described_and_opened_once(device: CudaDevice) -> None:
    info = backend.probe()[0]
    assert info == device.info and info.id == "cuda:0" and info.memory_bytes > 1 << 28
    assert {"f16", "i8", "i64", "f64", "subgroup", "tensorcore"} <= info.features
    assert device.limits.subgroup == 32 and device.limits.max_groups[0] == 2**31 - 1
    assert backend.open(0) is device
    with pytest.raises(DeviceUnavailable, match=r"cuda:99.*cuda:0"):
        backend.open(99)


# -- memory


def test_memory_is_zero_however_it_was_left(device: CudaDevice) -> None:
    first = device.acquire(1 << 20)
    first.fill(0, 1 << 20, 0xAB)
    address = first.address
    first.close()
    taken = [device.acquire(1 << 20)]
    while taken[-1].address != address:  # others of the size may wait before it
        assert len(taken) <= MAX_BUFFERS, "the pool hands the released buffer on"
        taken.append(device.acquire(1 << 20))
    out = np.ones(1 << 20, np.uint8)
    taken[-1].read(0, out)
    assert not out.any()
    for buffer in taken:
        buffer.close()


@pytest.mark.parametrize(
    "nbytes", [1, 511, STAGING_BYTES - 1, STAGING_BYTES, STAGING_BYTES + 1, 5 * STAGING_BYTES + 17]
)
@pytest.mark.parametrize("offset", [0, 3])
def test_write_then_read(device: CudaDevice, nbytes: int, offset: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    buffer = device.acquire(nbytes + 8)
    buffer.write(offset, data)
    data_before = data.copy()
    data[:] = 0  # the call has taken the data
    out = np.empty(nbytes, np.uint8)
    buffer.read(offset, out)
    np.testing.assert_array_equal(out, data_before)
    rest = np.ones(8, np.uint8)
    buffer.read(0, rest[:offset])
    buffer.read(offset + nbytes, rest[offset:])
    assert not rest.any(), "nothing else was touched"
    buffer.close()


@pytest.mark.parametrize(("source", "target"), [(0, 5), (5, 0), (0, 40_000_000), (40_000_000, 0), (7, 7)])
def test_overlapping_copies_are_memmove(device: CudaDevice, source: int, target: int) -> None:
    nbytes, total = 70_000_001, 120_000_000
    data = np.random.default_rng(1).integers(0, 256, total, np.uint8)
    buffer = device.acquire(total)
    buffer.write(0, data)
    buffer.copy_from(buffer, source, target, nbytes)
    data[target : target + nbytes] = data[source : source + nbytes].copy()
    out = np.empty(total, np.uint8)
    buffer.read(0, out)
    np.testing.assert_array_equal(out, data)
    buffer.close()


def test_fill_and_copy_between_buffers(device: CudaDevice) -> None:
    one, two = device.acquire(1000), device.acquire(1000)
    one.fill(10, 100, 7)
    two.copy_from(one, 5, 500, 20)
    out = np.empty(1000, np.uint8)
    two.read(0, out)
    assert out[505:520].tolist() == [7] * 15 and out.sum() == 7 * 15
    one.close()
    two.close()


def test_a_closed_buffer_says_so(device: CudaDevice) -> None:
    buffer = device.acquire(16)
    buffer.close()
    buffer.close()
    with pytest.raises(ArenaError, match="16 bytes on cuda:0 is closed"):
        buffer.fill(0, 1, 0)


def test_other_libraries_see_the_buffer(device: CudaDevice) -> None:
    cupy = pytest.importorskip("cupy", reason="the other library here is CuPy")
    buffer = device.acquire(256)
    buffer.write(0, np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(buffer)), np.arange(256, dtype=np.uint8))
    buffer.close()


def test_too_much_memory_is_refused_and_nothing_is_broken(device: CudaDevice) -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"cuda:0: 1,125,899,906,842,624 bytes are needed, [\d,]+ of"):
        device.acquire(1 << 50)
    device.acquire(1 << 20).close()


def test_collected_owners_give_their_memory_back(device: CudaDevice) -> None:
    device.acquire(1).close()
    before = device.free_bytes()
    size = 1 << 28
    dropped = device.acquire(size)
    assert device.free_bytes() <= before - size
    del dropped
    gc.collect()
    device.acquire(1).close()
    assert device.free_bytes() >= before - (1 << 22)


# -- kernels


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


# -- recorded runs


def test_a_chain_of_steps_runs_in_order_every_time(device: CudaDevice) -> None:
    n = 100_000
    size = n * 4
    memory = arena(device, 3 * size)
    a, b, c = (Ref("arena0", i * size, size) for i in range(3))
    chain: list[Step] = [scaled(a, b, 2.0), Copy(b, c, "copy"), scaled(c, a, 4.0)]
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    memory.write_bytes(0, x)
    recorded = device.record(chain, memory)
    assert recorded.schedule == (tuple(chain), frozenset({0, 1, 2}))
    for _ in range(3):
        recorded.launch()
    recorded.wait()
    np.testing.assert_array_equal(memory.read_bytes(0, size).view(np.float32), x * np.float32(512))
    times = recorded.timings()
    assert len(times) == 3 and min(times) > 0
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


def cases() -> Iterator[tuple[DType, DType, str, float]]:
    yield f32, f32, "f32", 1e-11
    yield f64, f64, "f32", 1e-26
    yield f16, f32, "f32", 1e-11
    yield bf16, f32, "bf16", 1e-11
    yield f16, f16, "f16", 1e-6
    yield bf16, bf16, "bf16", 1e-4
    yield f32, f32, "tf32", 1e-6


@pytest.mark.parametrize("a_dtype, c_dtype, precision, limit", list(cases()))
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize(
    "batch, m, n, k", [(1, 33, 65, 129), (3, 16, 40, 64), (1, 1, 1, 1), (1, 512, 384, 1536)]
)
def test_gemm(
    device: CudaDevice, a_dtype: DType, c_dtype: DType, precision: str, limit: float, ta: bool, tb: bool,
    batch: int, m: int, n: int, k: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(m + n + k)
    a = rng.normal(size=(batch, *((k, m) if ta else (m, k)))).astype(a_dtype.np)
    b = rng.normal(size=(batch, *((n, k) if tb else (k, n)))).astype(a_dtype.np)
    c = np.empty((batch, m, n), c_dtype.np)
    places, end = [], 0
    for array in (a, b, c):
        places.append(Ref("arena0", end, array.nbytes))
        end += -(-array.nbytes // 256) * 256
    memory = arena(device, end)
    buffer = memory.buffer("arena0")
    for array, place in ((a, places[0]), (b, places[1])):
        buffer.write(place.offset, array.reshape(-1).view(np.uint8))
    gemm = Gemm(
        *places, m, n, k, a_dtype, a_dtype, c_dtype, ta, tb, batch, m * k, k * n, m * n, precision, "matmul"
    )
    run(device, [gemm], memory, times=2)
    raw = np.empty(c.nbytes, np.uint8)
    buffer.read(places[2].offset, raw)
    memory.close()
    left, right = a.astype(np.float64), b.astype(np.float64)
    expected = (np.swapaxes(left, 1, 2) if ta else left) @ (np.swapaxes(right, 1, 2) if tb else right)
    got = raw.view(c_dtype.np).reshape(c.shape).astype(np.float64)
    assert nmse(got, expected) <= limit
    if precision == "tf32" and k == 1536:
        assert nmse(got, expected) > 1e-11, "TF32 was asked for and is told apart from f32"


@pytest.mark.parametrize(
    ("kind", "precision", "limit"), [(f32, "f32", 1e-11), (f32, "tf32", 1e-6), (bf16, "bf16", 3e-5)]
)
@pytest.mark.parametrize("relu", [False, True])
def test_products_with_their_bias(
    device: CudaDevice, kind: DType, precision: str, limit: float, relu: bool
) -> None:
    rng = np.random.default_rng(5)
    batch, m, n, k = 3, 200, 96, 64
    shapes = {"a": (m, k), "b": (batch, n, k), "bias": (batch, n + 32), "c": (batch, m, n)}
    values = {name: rng.normal(size=shape).astype(kind.np) for name, shape in shapes.items()}
    places, end = {}, 0
    for name, array in values.items():
        places[name] = Ref("arena0", end, array.nbytes)
        end += -(-array.nbytes // 256) * 256
    memory = arena(device, end)
    buffer = memory.buffer("arena0")
    for name, array in values.items():
        buffer.write(places[name].offset, array.reshape(-1).view(np.uint8))
    gemm = Gemm(
        places["a"], places["b"], places["c"], m, n, k, kind, kind, kind, False, True, batch, 0, k * n, m * n,
        precision, "matmul", places["bias"], n + 32, relu,
    )  # fmt: skip
    run(device, [gemm], memory, times=2)
    raw = np.empty(values["c"].nbytes, np.uint8)
    buffer.read(places["c"].offset, raw)
    memory.close()
    wide = {name: array.astype(np.float64) for name, array in values.items()}
    expected = wide["a"] @ np.swapaxes(wide["b"], 1, 2) + wide["bias"][:, None, :n]
    expected = np.maximum(expected, 0) if relu else expected
    assert nmse(raw.view(kind.np).reshape(expected.shape).astype(np.float64), expected) <= limit


def nmse(got: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> float:
    return float(np.square(got - expected).sum() / np.square(expected).sum())


def test_the_same_product_gives_the_same_bits(device: CudaDevice) -> None:
    m = n = 256
    k = 8192  # long enough for cuBLAS to split the sum
    memory = arena(device, 4 * (m * k + k * n + m * n))
    a, b = Ref("arena0", 0, 4 * m * k), Ref("arena0", 4 * m * k, 4 * k * n)
    c = Ref("arena0", 4 * (m * k + k * n), 4 * m * n)
    memory.write_bytes(0, np.random.default_rng(0).normal(size=m * k + k * n).astype(np.float32))
    gemm = Gemm(a, b, c, m, n, k, f32, f32, f32, False, False, 1, 0, 0, 0, "f32", "matmul")
    recorded = device.record([gemm], memory)
    seen = set()
    for _ in range(20):
        recorded.launch()
        recorded.wait()
        out = np.empty(c.nbytes, np.uint8)
        memory.buffer("arena0").read(c.offset, out)
        seen.add(out.tobytes())
    assert len(seen) == 1
    recorded.close()
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
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
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
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


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


def test_half_weights(device: CudaDevice) -> None:
    memory = arena(device, 1024)
    data = np.random.default_rng(0).normal(size=200).astype(np.float32)
    memory.register_half_param(0, bf16, data)
    np.testing.assert_array_equal(memory.read_half(0), data.astype(ml_dtypes.bfloat16).astype(np.float32))
    memory.close()
