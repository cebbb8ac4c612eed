"""Vulkan's arrays in torch and CuPy and back, on a GPU that both drivers have: the same bits, without the host."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.vulkan.memory import VulkanBuffer
from rlx.dtypes import ALL, DType
from rlx.errors import DeviceUnavailable
from rlx.runtime.device_copies import cuda_twin
from tests.cuda.test_exchange import SLEEP, bits
from tests.cuda.test_exchange import torch as torch  # a fixture


@pytest.fixture(scope="module")
def vulkan(device: CudaDevice) -> str:
    """The Vulkan device that is the CUDA device's GPU."""
    try:
        session = rlx.Session("vulkan")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    if cuda_twin(session.info) is None:
        pytest.skip(f"CUDA does not have {session.info.name}")
    return session.info.id


@pytest.fixture(scope="module")
def doubled(vulkan: str) -> rlx.CompiledGraph:
    g = rlx.Graph("doubled")
    g.output("y", g.input("x", (1000,)) * 2)
    return rlx.Session(vulkan).compile(g)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_torch_to_vulkan_and_back(torch: Any, vulkan: str, dtype: DType) -> None:
    x = bits(dtype)
    name = {"bool": "bool", "u8": "uint8"}.get(dtype.name, dtype.np.name)
    tensor = torch.from_numpy(x.view(np.uint8).copy()).cuda().view(getattr(torch, name)).reshape(3, 4)
    array = rlx.from_dlpack(tensor, device=vulkan)
    assert array.dtype is dtype and array.device.info.id == vulkan and array.__dlpack_device__()[0] == 2
    back = torch.from_dlpack(array)
    assert back.dtype == tensor.dtype and back.device == tensor.device
    assert array.numpy().tobytes() == x.tobytes() == back.view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not rlx.bf16], ids=str)
def test_cupy_by_both_protocols(vulkan: str, dtype: DType) -> None:
    import cupy

    array = rlx.array(bits(dtype), device=vulkan)
    for found in (cupy.from_dlpack(array), cupy.asarray(array)):
        np.testing.assert_array_equal(found.get(), bits(dtype))
    np.testing.assert_array_equal(rlx.from_dlpack(cupy.asarray(bits(dtype)).T, device=vulkan), bits(dtype).T)


def test_nothing_passes_through_the_host(
    torch: Any, vulkan: str, doubled: rlx.CompiledGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1000, device="cuda")
    torch.from_dlpack(doubled.run({"x": rlx.from_dlpack(x, device=vulkan)}, out="device")["y"])

    def refuse(*args: Any) -> None:
        raise AssertionError("a copy through the host")

    monkeypatch.setattr(VulkanBuffer, "read", refuse)
    monkeypatch.setattr(VulkanBuffer, "write", refuse)
    cuda = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=cuda, acc_events=True) as profile:
        given = rlx.from_dlpack(x, device=vulkan)
        y = torch.from_dlpack(doubled.run({"x": given}, out="device")["y"])
        torch.cuda.synchronize()
    copies = [event.name for event in profile.events() if "memcpy" in event.name.lower()]
    assert copies and not [name for name in copies if "HtoD" in name or "DtoH" in name], copies
    assert torch.equal(y, x * 2)


def test_the_callers_stream_is_waited_for_by_8_threads(
    torch: Any, vulkan: str, doubled: rlx.CompiledGraph
) -> None:
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(streams[i % 2]):
            for n in range(20):
                x = torch.zeros(1000, device="cuda")
                torch.cuda._sleep(SLEEP // 20)
                x += 100 * i + n
                given = rlx.from_dlpack(x, device=vulkan)
                x.fill_(-1)  # the copy is complete
                y = torch.from_dlpack(doubled.run({"x": given}, out="device")["y"])
                if n % 5 == 1:
                    torch.cuda._sleep(SLEEP // 20)
                z = y + 1
                del y, given
                if not bool((z == 2 * (100 * i + n) + 1).all()):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("side", [False, True])
def test_lent_memory_is_not_reused_while_a_stream_reads_it(torch: Any, vulkan: str, side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    for n in range(5):
        array = rlx.array(np.full(1 << 16, n, np.float32), device=vulkan)
        with torch.cuda.stream(stream):
            lent = torch.from_dlpack(array)
            torch.cuda._sleep(SLEEP)
            z = lent + 1
            del lent, array
        others = [rlx.array(np.full(1 << 16, 99, np.float32), device=vulkan).to("cuda") for _ in range(4)]
        stream.synchronize()
        assert bool((z == n + 1).all()) and len(others) == 4


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_all_may_be_dropped_in_any_order(torch: Any, vulkan: str, order: tuple[int, ...]) -> None:
    g = rlx.Graph("order")
    g.output("y", g.input("x", (1000,)) * 2)
    x = torch.arange(1000.0, device="cuda")
    exe = rlx.Session(vulkan).compile(g)
    given = rlx.from_dlpack(x, device=vulkan)
    made = exe.run({"x": given}, out="device")["y"]
    held: dict[int, Any] = {0: x, 1: given, 2: exe, 3: made}
    back = torch.from_dlpack(made)
    del x, given, exe, made
    for key in order:
        gone = held.pop(key)
        if hasattr(gone, "close"):
            gone.close()
        del gone
        rlx.array(np.zeros(1000, np.float32), device=vulkan).to("cuda")
    np.testing.assert_array_equal(back.cpu().numpy(), 2 * np.arange(1000.0, dtype=np.float32))


def test_a_loop_takes_no_more_memory(torch: Any, vulkan: str) -> None:
    array = rlx.array(np.zeros(1 << 22, np.float32), device=vulkan)
    torch.from_dlpack(array)
    device: Any = array.device
    before = None
    for n in range(40):
        torch.from_dlpack(array)
        rlx.from_dlpack(torch.zeros(1 << 22, device="cuda"), device=vulkan)
        if n == 10:
            before = sum(device._in_use.values())
    assert before == sum(device._in_use.values())
