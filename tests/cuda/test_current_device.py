"""A device answers for itself, whichever device is current in the thread that asks: CUDA is stood in for."""

from __future__ import annotations

import os
import threading

import pytest

from rlx.backends.cuda import device as module
from rlx.backends.cuda.api import Api
from rlx.backends.cuda.device import CudaBackend, CudaDevice, _describe
from tests.cuda.unreal import Raised, Runtime


class TwoDevices(Runtime):
    """Two devices with different numbers of free bytes; every thread begins on the first."""

    def __init__(self) -> None:
        super().__init__()
        self.current = threading.local()

    def setDevice(self, index: int) -> None:
        self.current.index = index

    def memGetInfo(self) -> tuple[int, int]:
        return 1000 + getattr(self.current, "index", 0), 1 << 34


def test_free_bytes_of_the_second_device_in_a_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gpu_uuid", lambda index: b"")
    runtime = TwoDevices()
    api = Api(runtime, runtime, (Raised,), 13, os.getpid())
    backend = CudaBackend()
    device = backend._opened[1] = CudaDevice(api, _describe(api, 1))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(device.free_bytes()))
    thread.start()
    thread.join()
    assert found == [1001]
    assert backend.opened(1) is device
    device._lost = "it was lost"
    assert backend.opened(1) is None and device.taken_bytes() == 0  # and a listing of the devices does not fail
    device._lost = ""
    device.close()
    assert backend.opened(1) is None
