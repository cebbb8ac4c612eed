"""The CUDA device, where there is one, and a kernel on it."""

from __future__ import annotations

import pytest

from rlx.backends.cuda import backend
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.gpu.program import kernel
from rlx.backends.gpu.program.kernel import KernelDecl, floats, reads, uints, writes
from tests.cuda.programs import SCALE, SCALE_SOURCE
from tests.devices import or_skip


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    """The first CUDA device of this machine."""
    with or_skip():
        backend.probe()
    return backend.open(0)


@pytest.fixture
def scale(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE declared, and compiled for the device."""
    args = (*reads(x="f32"), *writes(y="f32"), *uints("n"), *floats("s"))
    monkeypatch.setitem(kernel.KERNELS, SCALE.stem, KernelDecl(SCALE.stem, args))
    device.enter()
    device.compiler.provide(SCALE, SCALE_SOURCE)
