"""Each Vulkan call of a program's life fails in turn: typed, nothing left, others unharmed, the next life well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.backends.vulkan.discovery import Physical

pytestmark = pytest.mark.vulkan

OPEN = {
    "vkCreateInstance",
    "vkEnumeratePhysicalDevices",
    "vkCreateDevice",
    "vkCreatePipelineLayout",
    "vkCreateFence",
}
MEMORY = {"vkCreateBuffer", "vkAllocateMemory", "vkBindBufferMemory"}
COMMANDS = {
    "vkCreateCommandPool", "vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkCreateFence",
    "vkResetFences", "vkQueueSubmit", "vkWaitForFences", "vkCreateQueryPool", "vkGetQueryPoolResults",
}  # fmt: skip
PIPELINES = {
    "vkCreateShaderModule",
    "vkCreatePipelineCache",
    "vkCreateComputePipelines",
    "vkGetPipelineCacheData",
}


PARTS = {
    "open": OPEN,
    "pipeline": PIPELINES,
    "program": MEMORY | COMMANDS,
    "lost": {"vkQueueSubmit", "vkWaitForFences", "vkGetQueryPoolResults"},
}


@pytest.mark.late
def test_each_call_fails_in_turn(repo: Path, clean_env: dict[str, str], physical: Physical) -> None:
    # NVIDIA's driver makes only some dozens of instances in a process.
    processes = [list(PARTS)] if physical.info.kind == "software" else [[part] for part in PARTS]
    made: dict[str, list[str]] = {}
    for parts in processes:
        said = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.vulkan.faults", *parts],
            env={**clean_env, "PYTHONPATH": str(repo)}, cwd=repo, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert (said.returncode, said.stderr) == (0, ""), said
        made |= json.loads(said.stdout)
    for part, functions in PARTS.items():
        assert {line.split()[0] for line in made[part] if line.endswith(": told")} >= functions, part
