"""Arrays between Vulkan and CUDA on one GPU: the CUDA driver is stood in for by one that maps exported memory.

The software Vulkan driver's memory is a file, whose descriptor it exports, as a GPU's driver does."""

from __future__ import annotations

import ctypes
import itertools
import logging
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda import imported, memory
from rlx.backends.cuda.api import Api
from rlx.backends.cuda.device import CudaDevice, _describe
from rlx.backends.vulkan import transfer
from rlx.driver import registry
from rlx.errors import DeviceUnavailable, OutOfDeviceMemory
from rlx.runtime import device_copies, exchange
from tests.cuda.unreal import Raised, Runtime

LAVAPIPE_HEADER = 4096  # bytes before the memory in the file that Mesa's driver exports


class Driver:
    """The calls of libcuda that rlx makes, over memory that is mapped into this process."""

    def __init__(self, uuid: bytes) -> None:
        self.uuid = uuid
        self.mapped: dict[int, Any] = {}
        self.refuses = 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        return 0

    def cuDeviceGetUuid_v2(self, out: Any, device: Any) -> int:
        out[:] = self.uuid
        return 0

    def cuCtxGetCurrent(self, out: Any) -> int:
        out._obj.value = 1
        return 0

    cuCtxPushCurrent_v2 = cuCtxPopCurrent_v2 = cuMemFree_v2 = lambda self, context: 0

    def cuImportExternalMemory(self, out: Any, wanted: Any) -> int:
        if self.refuses:
            return self.refuses
        raw = bytes(wanted._obj)  # as the C structure is laid out: kind, file, size
        kind, fd, nbytes = struct.unpack_from("=ixxxxi12xQ", raw)
        assert kind == 1 and len(raw) == 104
        file = mmap.mmap(fd, os.fstat(fd).st_size)
        os.close(fd)
        made = (ctypes.c_uint8 * nbytes).from_buffer(file, LAVAPIPE_HEADER)
        out._obj.value = ctypes.addressof(made)
        self.mapped[ctypes.addressof(made)] = made
        return 0

    def cuExternalMemoryGetMappedBuffer(self, out: Any, source: Any, whole: Any) -> int:
        assert len(bytes(whole._obj)) == 88
        out._obj.value = source.value
        return 0

    def cuDestroyExternalMemory(self, source: Any) -> int:
        del self.mapped[source.value]
        return 0


class Backend:
    """CUDA without CuPy."""

    name = "cuda"

    def __init__(self) -> None:
        self.api = Api(Runtime(), Runtime(), (Raised,), 13, os.getpid())
        self.info = _describe(self.api, 0)
        self.device = CudaDevice(self.api, self.info)

    def probe(self) -> list[Any]:
        return [self.info]

    def open(self, index: int) -> CudaDevice:
        return self.device

    opened = open


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A CUDA device that is the same GPU as "vulkan"; copies through the host fail."""
    try:
        vulkan: Any = registry.open_device("vulkan")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    if "llvmpipe" not in vulkan.info.name or not vulkan.exports:
        pytest.skip(f"{vulkan.info.name} exports no memory that a process can map")
    made = Driver(vulkan.info.uuid)
    monkeypatch.setattr(imported, "driver_library", lambda: made)
    backend, real = Backend(), registry.load_backend
    for module in (registry, device_copies, exchange):
        monkeypatch.setattr(module, "load_backend", lambda name: backend if name == "cuda" else real(name))
    device_copies.cuda_twin.cache_clear()
    yield made
    device_copies.cuda_twin.cache_clear()
    device_copies._refused.clear()
    backend.device.close()
    vulkan.bury()
    vulkan.exported_pool.trim()
    assert not made.mapped


@pytest.fixture
def no_host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Copies to and from the host fail."""

    def refuse(*args: Any) -> None:
        raise AssertionError("a copy through the host")

    for owner, name in ((transfer.Transfer, "upload"), (transfer.Transfer, "download")):
        monkeypatch.setattr(owner, name, refuse)
    for name in ("read", "write"):
        monkeypatch.setattr(memory.Staging, name, refuse)
    return monkeypatch


@pytest.mark.parametrize("dtype", [rlx.f32, rlx.bf16, rlx.i64, rlx.dtypes.bool_], ids=str)
def test_arrays_cross_on_the_gpu_with_the_same_bits(driver: Driver, no_host: Any, dtype: rlx.DType) -> None:
    raw = np.random.default_rng(2).integers(0, 2, (5, 7, dtype.itemsize), np.uint8)
    here = rlx.array(raw.view(dtype.np).reshape(5, 7), device="vulkan")
    there = here.to("cuda")
    assert there.device.info.id == "cuda:0" and there.type == here.type
    back = there.to("vulkan")
    assert len(driver.mapped) == 2  # each of the two lies in exported memory
    no_host.undo()
    assert there.numpy().tobytes() == back.numpy().tobytes() == raw.tobytes()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_what_crossed_outlives_all_others_in_any_order(driver: Driver, order: tuple[int, ...]) -> None:
    first = rlx.array(np.arange(1000.0, dtype=np.float32), device="vulkan")
    there = first.to("cuda")
    back = there.to("vulkan")
    held = {0: first, 1: there, 2: back}
    del first, there, back
    for key in order:
        np.testing.assert_array_equal(held[key].numpy(), np.arange(1000))
        del held[key]
        more = [rlx.array(np.full(1000, -1.0, np.float32), device="vulkan").to("cuda") for _ in range(2)]
        assert all((one.numpy() == -1).all() for one in more)
    del more


def test_memory_that_both_have_let_go_of_is_used_again(driver: Driver) -> None:
    for n in range(20):
        there = rlx.array(np.full(1000, n, np.float32), device="vulkan").to("cuda")
        assert (there.numpy() == n).all()
        del there
    assert len(driver.mapped) <= 3


def test_libraries_that_know_cuda_get_a_copy_there(driver: Driver, no_host: Any) -> None:
    array = rlx.array(np.arange(6, dtype=np.float32), device="vulkan")
    assert array.__dlpack_device__() == (2, 0)
    with pytest.raises(BufferError, match="copy=False"):
        array.__dlpack__(copy=False)
    face = array.__cuda_array_interface__
    assert face["shape"] == (6,) and face == array.__cuda_array_interface__ and len(driver.mapped) == 1
    seen = np.ctypeslib.as_array((ctypes.c_float * 6).from_address(face["data"][0]))
    np.testing.assert_array_equal(seen, np.arange(6))


def test_threads_that_ask_at_once_get_one_copy(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them replaces the memory whose address another has been given."""
    array, both, real = rlx.array(np.arange(6), device="vulkan"), threading.Barrier(2), rlx.Array.to

    def slow(self: rlx.Array, device: Any) -> rlx.Array:
        made = real(self, device)
        both.wait(20)
        return made

    monkeypatch.setattr(rlx.Array, "to", slow)
    with ThreadPoolExecutor(2) as threads:
        faces = list(threads.map(lambda _: array.__cuda_array_interface__["data"], range(2)))
    assert faces[0] == faces[1] == array.__cuda_array_interface__["data"]


def test_a_copy_on_vulkan_returns_to_its_pool_without_a_call_of_cuda(driver: Driver) -> None:
    there = rlx.array(np.arange(1000), device="vulkan").to("cuda")
    vulkan: Any = there.to("vulkan").device
    vulkan.bury()
    assert vulkan.exported_pool.nbytes >= 8000


def test_a_device_that_cannot_import_closes_the_handle(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda: Any = registry.open_device("cuda")
    handle, other = os.pipe()
    with monkeypatch.context() as patched:
        patched.setattr(cuda, "closed", True)
        with pytest.raises(DeviceUnavailable):
            cuda.import_memory(handle, 4096)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)
    os.close(other)


def test_where_no_memory_is_left_to_share_arrays_go_through_the_host(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OutOfDeviceMemory("full")

    array = rlx.array(np.arange(6), device="vulkan")
    with monkeypatch.context() as patched:
        patched.setattr(array.device, "acquire_exported", full)
        np.testing.assert_array_equal(array.to("cuda").to("vulkan").numpy(), np.arange(6))


def test_a_refusal_is_logged_once_and_arrays_go_through_the_host(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.refuses = 801
    with caplog.at_level(logging.WARNING, "rlx"):
        for _ in range(2):
            there = rlx.array(np.arange(6), device="vulkan").to("cuda")
            np.testing.assert_array_equal(there.to("vulkan").numpy(), np.arange(6))
    assert caplog.text.count("cuImportExternalMemory refused") == 1 and "CUresult 801" in caplog.text
