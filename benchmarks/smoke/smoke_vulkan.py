"""The Vulkan steps of gpu_smoke.py: memory and recorded copies, then a whole program."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from benchmarks.smoke.smoke_steps import arena_of, exercise_buffers, per_call, step, whole_way
from rlx.backends.gpu.program.steps import Copy, Ref
from rlx.driver.registry import load_backend, open_device


@cache
def vulkan() -> Any:
    return open_device("vulkan")


@step("vulkan")
def vulkan_probe() -> str:
    return "; ".join(
        f"{i.id} {i.name}, {i.kind}, {i.memory_bytes >> 30} GiB, {i.driver}, {' '.join(sorted(i.features))}"
        for i in load_backend("vulkan").probe()
    )


@step("vulkan")
def vulkan_open() -> str:
    return f"{vulkan().info.id}: {vulkan().limits}"


@step("vulkan")
def vulkan_buffers() -> str:
    return exercise_buffers(vulkan())


@step("vulkan")
def vulkan_copies_recorded() -> str:
    arena = arena_of(vulkan(), 3 << 20)
    a, b, c = (Ref("arena0", i << 20, 1 << 20) for i in range(3))
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    arena.write_bytes(0, data)
    recorded = vulkan().record([Copy(a, b), Copy(b, c)], arena)

    def run() -> None:
        recorded.launch()
        recorded.wait()

    run()
    np.testing.assert_array_equal(arena.read_bytes(0)[2 << 20 :], data)
    overhead = per_call(run)
    recorded.close()
    arena.close()
    return f"exact; launch and wait {overhead:.1f} µs"


@step("vulkan")
def vulkan_session() -> str:
    return whole_way("vulkan")
