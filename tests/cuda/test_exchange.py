"""CUDA memory exchanged with torch and CuPy: the same bits at the same address, in the order of the caller's stream."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda.device import CudaDevice
from rlx.dtypes import ALL, DType

SLEEP = 20_000_000  # clock cycles that a stream waits: longer than the host needs for what follows


@pytest.fixture(scope="module")
def torch(device: CudaDevice) -> Any:
    found = pytest.importorskip("torch", reason="there is no torch here")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


@pytest.fixture(scope="module")
def doubled(device: CudaDevice) -> rlx.CompiledGraph:
    g = rlx.Graph("doubled")
    g.output("y", g.input("x", (1000,)) * 2)
    return rlx.Session("cuda").compile(g)


def bits(dtype: DType) -> Any:
    return np.random.default_rng(3).integers(0, 2, (3, 4, dtype.itemsize), np.uint8).view(dtype.np).reshape(3, 4)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_torch_and_back_in_the_same_memory(torch: Any, dtype: DType) -> None:
    x = bits(dtype)
    name = {"bool": "bool", "u8": "uint8"}.get(dtype.name, dtype.np.name)
    tensor = torch.from_numpy(x.view(np.uint8).copy()).cuda().view(getattr(torch, name)).reshape(3, 4)
    array = rlx.from_dlpack(tensor)
    assert array.dtype is dtype and array.device.info.id == "cuda:0"
    back = torch.from_dlpack(array)
    assert back.dtype == tensor.dtype and back.data_ptr() == tensor.data_ptr()
    assert array.numpy().tobytes() == x.tobytes() == back.view(torch.uint8).cpu().numpy().tobytes()


def test_lengths_that_vary_are_padded_on_the_device(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    f = rlx.jit(lambda x: x * 2, dims={"x": rlx.Dim("batch", max=8)}, device="cuda", out="device")
    rows = cupy.arange(15, dtype=np.float32).reshape(5, 3)
    f(rows)
    monkeypatch.setattr(rlx.Array, "numpy", lambda self: pytest.fail("a copy to the host"))
    np.testing.assert_array_equal(cupy.asarray(f(rows)).get(), rows.get() * 2)


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not rlx.bf16], ids=str)
def test_cupy_and_back_in_the_same_memory(device: CudaDevice, dtype: DType) -> None:
    import cupy

    x = cupy.asarray(bits(dtype))
    array = rlx.from_dlpack(x)
    for back in (cupy.from_dlpack(array), cupy.asarray(array)):
        assert back.data.ptr == x.data.ptr
        np.testing.assert_array_equal(back.get(), x.get())
    np.testing.assert_array_equal(rlx.from_dlpack(x.T), x.T.get())


def test_a_tensor_on_the_device_feeds_programs_without_the_host(torch: Any, doubled: rlx.CompiledGraph) -> None:
    x = torch.randn(1000, device="cuda")
    doubled.run({"x": x}, out="device")
    cuda = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=cuda, acc_events=True) as profile:  # without it torch warns
        y = torch.from_dlpack(doubled.run({"x": x}, out="device")["y"])
        torch.cuda.synchronize()
    copies = [event.name for event in profile.events() if "memcpy" in event.name.lower()]
    assert not [name for name in copies if "HtoD" in name or "DtoH" in name], copies
    assert torch.equal(y, x * 2)
    twice = rlx.jit(lambda a: a + a, device="cuda", out="device")
    assert torch.equal(torch.from_dlpack(twice(x)), x + x)


def test_the_callers_streams_are_waited_for_by_16_threads(torch: Any, doubled: rlx.CompiledGraph) -> None:
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    wrong: list[int] = []

    def work(i: int) -> None:
        dice = random.Random(i)
        with torch.cuda.stream(streams[i % 2]):
            for n in range(20):
                x = torch.zeros(1000, device="cuda")
                if n % 5 == 0:
                    torch.cuda._sleep(SLEEP // 20)
                x += 100 * i + n
                y = torch.from_dlpack(doubled.run({"x": x}, out="device")["y"])
                if dice.random() < 0.5:
                    del x
                if n % 5 == 1:
                    torch.cuda._sleep(SLEEP // 20)
                z = y + 1
                del y
                if not bool((z == 2 * (100 * i + n) + 1).all()):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("side", [False, True])
def test_lent_memory_is_not_reused_while_a_stream_reads_it(torch: Any, side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    for n in range(5):
        array = rlx.array(np.full(1 << 16, n, np.float32), device="cuda")
        with torch.cuda.stream(stream):
            lent = torch.from_dlpack(array)
            torch.cuda._sleep(SLEEP)
            z = lent + 1
            del lent, array
        others = [rlx.array(np.full(1 << 16, 99, np.float32), device="cuda") for _ in range(4)]
        stream.synchronize()
        assert bool((z == n + 1).all()) and len(others) == 4


def test_borrowed_memory_is_kept_until_our_work_has_read_it(torch: Any, doubled: rlx.CompiledGraph) -> None:
    for n in range(5):
        x = torch.full((1000,), float(n), device="cuda")
        torch.cuda._sleep(SLEEP)  # our stream waits for this
        array = rlx.from_dlpack(x)
        copied = array.copy()  # enqueued, and not done
        del x, array
        others = [torch.full((1000,), 77.0, device="cuda") for _ in range(8)]
        assert (copied.numpy() == n).all() and len(others) == 8


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_all_may_be_dropped_in_any_order(torch: Any, order: tuple[int, ...]) -> None:
    g = rlx.Graph("order")
    g.output("y", g.input("x", (1000,)) * 2)
    x = torch.arange(1000.0, device="cuda")
    exe = rlx.Session("cuda").compile(g)
    given = rlx.from_dlpack(x)
    made = exe.run({"x": given}, out="device")["y"]
    held: dict[int, Any] = {0: x, 1: given, 2: exe, 3: made}
    back = torch.from_dlpack(made)
    del x, given, exe, made
    for key in order:
        gone = held.pop(key)
        if hasattr(gone, "close"):
            gone.close()
        del gone
        rlx.array(np.zeros(1000, np.float32), device="cuda")
    np.testing.assert_array_equal(back.cpu().numpy(), 2 * np.arange(1000.0, dtype=np.float32))
