"""The CUDA device on a real GPU: discovery, memory, arenas. Skipped, with the reason, elsewhere."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.cuda import backend
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.memory import STAGING_BYTES
from rlx.driver.memory.pool import MAX_BUFFERS
from rlx.dtypes import bf16
from rlx.errors import ArenaError, DeviceUnavailable, OutOfDeviceMemory
from tests.cuda.programs import arena

pytestmark = pytest.mark.cuda


def test_the_device_is_described_and_opened_once(device: CudaDevice) -> None:
    info = backend.probe()[0]
    assert info == device.info and info.id == "cuda:0" and info.memory_bytes > 1 << 28
    assert {"f16", "i8", "i64", "f64", "subgroup", "tensorcore"} <= info.features
    assert device.limits.subgroup == 32 and device.limits.max_groups[0] == 2**31 - 1
    assert backend.open(0) is device
    with pytest.raises(DeviceUnavailable, match=r"cuda:99.*cuda:0"):
        backend.open(99)


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


def test_half_weights(device: CudaDevice) -> None:
    memory = arena(device, 1024)
    data = np.random.default_rng(0).normal(size=200).astype(np.float32)
    memory.register_half_param(0, bf16, data)
    np.testing.assert_array_equal(memory.read_half(0), data.astype(ml_dtypes.bfloat16).astype(np.float32))
    memory.close()
