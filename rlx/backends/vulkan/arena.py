"""VulkanArena: an executable's memory on a Vulkan device."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlx.driver.device import Buffer
from rlx.driver.memory.buffer_arena import BufferArena
from rlx.driver.memory.plan import MemoryPlan

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

DEBUG_ENV = "RLX_VULKAN_ARENA_DEBUG"


class VulkanArena(BufferArena):
    """BufferArena over VulkanBuffers. RLX_VULKAN_ARENA_DEBUG=1 logs its segments to stderr when it is made."""

    def __init__(
        self, plan: MemoryPlan, device: VulkanDevice, bound: Mapping[str, Buffer] | None = None
    ) -> None:
        super().__init__(plan, device, bound)
        if os.environ.get(DEBUG_ENV, "0") not in ("", "0"):
            kinds = {name: getattr(self.buffer(name), "kind", "") for name in plan.segments}
            parts = ", ".join(f"{name} {nbytes} ({kinds[name]})" for name, nbytes in plan.segments.items())
            print(
                f"rlx: {device.info.id} arena of {self.size_bytes} bytes: {parts or 'no segments'}; "
                f"bound: {', '.join(self._bound) or 'none'}; pool: {len(device.pool)} buffers, {device.pool.nbytes} "
                f"bytes; free: {device.free_bytes()} bytes",
                file=sys.stderr,
            )
