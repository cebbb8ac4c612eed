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


@pytest.mark.parametrize(
    "part, functions",
    [
        ("open", OPEN),
        ("pipeline", PIPELINES),
        ("program", MEMORY | COMMANDS),
        ("lost", {"vkQueueSubmit", "vkWaitForFences", "vkGetQueryPoolResults"}),
    ],
)
def test_each_call_fails_in_turn(
    part: str, functions: set[str], repo: Path, clean_env: dict[str, str], physical: Physical
) -> None:
    said = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.vulkan.faults", part],
        env={**clean_env, "PYTHONPATH": str(repo)}, cwd=repo, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, ""), said
    found = json.loads(said.stdout)
    assert {line.split()[0] for line in found} >= functions
    assert sum(found.values()) >= len(found)
