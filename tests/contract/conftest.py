"""The arena contract is written once and run on every backend's arena."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from rlx.driver import Device, DeviceArena, MemoryPlan, Slot, align
from rlx.dtypes import DType
from tests.devices import device_here


@pytest.fixture(params=["cpu", "vulkan", "cuda"])
def device(request: pytest.FixtureRequest) -> Device:
    return device_here(request.param)


def pattern(n: int, seed: int = 1) -> npt.NDArray[np.uint8]:
    """Bytes of noise."""
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)


class MakeArena:
    """Lays slots out one after another, each `(node, dtype, elements)`, with `gap` bytes between them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.made: list[DeviceArena] = []

    def __call__(
        self, *slots: tuple[int, DType, int], gap: int = 0, alias: dict[int, int] | None = None
    ) -> DeviceArena:
        plan, offset = MemoryPlan("test"), 0
        for node, dtype, count in slots:
            plan.slots[node] = Slot("arena0", offset, count * dtype.itemsize, dtype)
            offset += align(count * dtype.itemsize) + gap
        for node, target in (alias or {}).items():
            plan.slots[node] = plan.slots[target]
            plan.alias_of[node] = target
        plan.segments["arena0"] = offset
        arena = self.device.arena(plan, {})
        self.made.append(arena)
        return arena


@pytest.fixture
def make_arena(device: Device) -> Iterator[MakeArena]:
    maker = MakeArena(device)
    yield maker
    for arena in maker.made:
        arena.close()
