"""VulkanArena: an executable's memory on a Vulkan device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlx.driver.device import Buffer
from rlx.driver.memory.buffer_arena import BufferArena
from rlx.driver.memory.plan import MemoryPlan

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

_log = logging.getLogger(__name__)


class VulkanArena(BufferArena):
    """BufferArena over VulkanBuffers. When it is made, it logs its segments at the level DEBUG."""

    def __init__(
        self, plan: MemoryPlan, device: VulkanDevice, bound: Mapping[str, Buffer] | None = None
    ) -> None:
        super().__init__(plan, device, bound)
        if _log.isEnabledFor(logging.DEBUG):
            kinds = {name: getattr(self.buffer(name), "kind", "") for name in plan.segments}
            parts = ", ".join(f"{name} {nbytes} ({kinds[name]})" for name, nbytes in plan.segments.items())
            _log.debug(
                "%s arena of %d bytes: %s; bound: %s; pool: %d buffers, %d bytes; free: %d bytes",
                device.info.id, self.size_bytes, parts or "no segments", ", ".join(self._bound) or "none",
                len(device.pool), device.pool.nbytes, device.free_bytes(),
            )  # fmt: skip
