"""Calls outside a trace on CUDA, with a runtime that keeps memory on the host: what they enqueue, on which memory."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda import api, backend, blas, copies, device, libraries, nvrtc, recorder
from rlx.runtime import eager
from tests.cuda.unreal import Library, Raised, Runtime

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 4
Y = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)


class Adding(Runtime):
    """A runtime whose every kernel adds its first two arguments, of twelve f32, but for that of copies, and that notes
    the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.copier = -1  # the function that copies words
        self.calls: list[str] = []
        self.addresses: list[int] = []  # the first argument of each launch

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ("addresses", "calls", "copier", "setDevice") or not callable(found):
            return found

        def call(*args: Any) -> Any:
            self.calls.append(name)
            return found(*args)

        return call

    def launchKernel(self, *args: Any) -> None:
        pointers = (ctypes.c_void_p * 3).from_address(args[9])
        if args[0] == self.copier:
            source, target = (ctypes.c_uint64.from_address(p or 0).value for p in pointers[:2])
            ctypes.memmove(target, source, 4 * ctypes.c_uint32.from_address(pointers[2] or 0).value)
            return
        a, b, c = (
            np.ctypeslib.as_array((ctypes.c_float * 12).from_address(ctypes.c_uint64.from_address(p or 0).value))
            for p in pointers
        )
        c[...] = a + b
        self.addresses.append(a.ctypes.data)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adding]:
    made = Adding()
    loaded = api.Api(made, made, (Raised,), 13, os.getpid())
    monkeypatch.setattr(device, "load", lambda: loaded)
    monkeypatch.setattr(backend, "_opened", {})
    monkeypatch.setattr(backend, "_infos", {})
    for each in (device, blas, recorder, nvrtc, libraries):
        monkeypatch.setattr(each, "load_library", Library)
    nvrtc.nvrtc.cache_clear()
    monkeypatch.setattr(eager, "CACHE", eager.Cache())
    monkeypatch.setenv("RLX_CUDA_PTX_CACHE", "off")
    yield made
    backend.open(0).close()
    nvrtc.nvrtc.cache_clear()


def test_a_call_is_one_launch_on_the_memory_of_its_arguments(runtime: Adding) -> None:
    x, y = (rlx.array(a, device="cuda:0") for a in (X, Y))
    x + y  # compiles
    del runtime.calls[:]
    made = x + y
    assert runtime.calls == ["launchKernel"]
    np.testing.assert_array_equal(made.numpy(), X + Y)
    other = y + made  # the same program on other memory
    np.testing.assert_array_equal(other.numpy(), X + Y + Y)
    np.testing.assert_array_equal(made.numpy(), X + Y)


def test_numbers_that_come_again_are_not_copied_again(runtime: Adding) -> None:
    x = rlx.array(X, device="cuda:0")
    x + 2.5
    del runtime.calls[:]
    x + 2.5
    assert runtime.calls == ["launchKernel"]
    x + 3.5
    assert "memcpyAsync" in runtime.calls


def test_a_number_is_known_by_its_bits(runtime: Adding) -> None:
    x = rlx.array(X, device="cuda:0")
    for number in (0.0, -0.0, np.nan, np.nan, 1, 1.0, np.float64(1.0)):
        x + number
    del runtime.calls[:]
    for number in (0.0, -0.0, np.nan, 1, 1.0):
        x + number
    assert runtime.calls == ["launchKernel"] * 5


def test_reshaped_arrays_and_rows_take_no_call_and_other_parts_one_launch(runtime: Adding) -> None:
    x = rlx.array(X, device="cuda:0")
    runtime.copier = backend.open(0).compiler.get(copies.KERNEL).function
    for view in (lambda: x.reshape(12), lambda: x.reshape(2, 6), lambda: x[None, :2], lambda: x[1], lambda: x[1:3]):
        view()
        del runtime.calls[:]
        assert view()._buffer is x._buffer and not runtime.calls
    for key in (np.s_[1, 1:], np.s_[0, 3], np.s_[None, 2, 2]):
        x[key]
        del runtime.calls[:]
        part = x[key]
        assert part._buffer is not x._buffer and runtime.calls == ["launchKernel"]
        np.testing.assert_array_equal(part.numpy(), X[key])
    np.testing.assert_array_equal(x[1:3].numpy(), X[1:3])
    np.testing.assert_array_equal((x[1:].reshape(8)).numpy(), X[1:].reshape(8))
    halves = rlx.array(X.astype(np.float16), device="cuda:0")
    np.testing.assert_array_equal(halves[0, 1:].numpy(), X[0, 1:])  # no whole words


def test_results_of_other_sizes_between_do_not_send_memory_through_the_pool(runtime: Adding) -> None:
    device = backend.open(0)
    x, y = (rlx.array(a, device="cuda:0") for a in (X, np.ones((64, 12), np.float32)))
    for i in range(20):
        several = [x + x for _ in range(3)], y + y
        if i == 3:
            taken = device.taken_bytes()
            del runtime.calls[:]
    assert set(runtime.calls) == {"launchKernel"}
    assert device.taken_bytes() == taken
    del several
    gc.collect()
    assert device.taken_bytes() < taken


def test_spare_memory_is_freed_where_the_device_has_no_more(
    runtime: Adding, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = backend.open(0)
    x = rlx.array(X, device="cuda:0")
    kept = [x + x for _ in range(40)]
    del kept
    free, malloc = len(device._allocated), runtime.malloc

    def full(nbytes: int) -> int:
        if len(device._allocated) >= free:
            raise Raised(2)  # cudaErrorMemoryAllocation
        return malloc(nbytes)

    monkeypatch.setattr(runtime, "malloc", full)
    assert device.acquire(1 << 20).nbytes == 1 << 20


def test_dropped_results_are_used_again_by_later_work_alone(runtime: Adding) -> None:
    x, y = (rlx.array(a, device="cuda:0") for a in (X, Y))
    address = (x + y)._buffer.address  # type: ignore[union-attr]
    pair = [x + y, x + y]  # the loop has a result while it computes the next
    del pair, runtime.calls[:]
    addresses = set()
    for _ in range(50):
        made = x + y
        addresses.add(made._buffer.address)  # type: ignore[union-attr]
    assert address in addresses and len(addresses) <= 2
    assert set(runtime.calls) == {"launchKernel"}  # no memory is acquired or freed
    lent = made._buffer
    lent.lend(0)  # type: ignore[union-attr]
    address = lent.address  # type: ignore[union-attr]
    del made, lent
    assert (x + y)._buffer.address != address  # type: ignore[union-attr]


def test_products_take_the_addresses_of_a_call(runtime: Adding, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (rlx.array(np.ones((256, 256), np.float32), device="cuda:0") for _ in range(2))
    a @ b
    seen: list[Any] = []
    lib = backend.open(0).blas._lib
    monkeypatch.setattr(lib, "cublasGemmEx", lambda *args: seen.append(args) or 0, raising=False)
    eager.CACHE.programs.clear()
    made = a @ b
    pointers = [seen[-1][i].value for i in (7, 10, 14)]
    assert pointers == [x._buffer.address for x in (b, a, made)]  # type: ignore[union-attr]


def test_a_small_product_is_a_launch(runtime: Adding) -> None:
    a = rlx.array(np.ones((64, 64), np.float32), device="cuda:0")
    a @ a
    del runtime.calls[:]
    a @ a
    assert runtime.calls == ["launchKernel"]


def test_a_programs_own_memory_lives_as_long_as_the_program(runtime: Adding) -> None:
    x = rlx.array(X, device="cuda:0")
    rlx.transpose(x)  # its first argument is a block of lengths and strides
    block = runtime.addresses[-1]
    gc.collect()
    others = [rlx.array(np.zeros(n, np.float32), device="cuda:0") for n in (4, 8, 64, 128) for _ in range(4)]
    assert block not in {o._buffer.address for o in others}  # type: ignore[union-attr]
    rlx.transpose(x)
    assert runtime.addresses[-1] == block
