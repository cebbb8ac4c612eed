"""The validation layers are silent over this folder's tests, and are heard when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.backends.vulkan import api
from rlx.backends.vulkan.discovery import Physical
from tests.full import full
from tests.vulkan.conftest import child

pytestmark = pytest.mark.vulkan


@pytest.mark.late
def test_validation_layers_say_nothing(repo: Path, clean_env: dict[str, str], physical: Physical) -> None:
    if "VK_LAYER_KHRONOS_validation" not in api.instance_layers():
        pytest.skip("vulkan-validationlayers is not installed")
    if os.environ.get("RLX_VULKAN_VALIDATION"):
        pytest.skip("this run has them on already")
    env = {**clean_env, "RLX_VULKAN_VALIDATION": "1"}
    names = ("recorder", "memory", "device", "pipelines") if full() else ("recorder", "pipelines")
    tests = [f"tests/vulkan/test_{name}.py" for name in names]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests, "-k", "not thousand and not fork"],
        cwd=repo, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:]


def test_validation_hears(repo: Path, clean_env: dict[str, str], physical: Physical) -> None:
    """A mistake made on purpose is heard, so that silence means something."""
    if "VK_LAYER_KHRONOS_validation" not in api.instance_layers():
        pytest.skip("vulkan-validationlayers is not installed")
    code = (
        "from rlx.backends.vulkan import api, backend\n"
        "d = backend.open(0)\n"
        "i = api.struct('VkBufferCreateInfo', 'BUFFER_CREATE_INFO', size=0, usage=1)\n"
        "out = d.ffi.new('VkBuffer *')\n"
        "d.lib.vkCreateBuffer(d.handle, i, d.ffi.NULL, out)\n"
        "print(any('VUID-VkBufferCreateInfo-size' in m for m in api.instance().messages))"
    )
    said = child(code, {**clean_env, "PYTHONPATH": str(repo), "RLX_VULKAN_VALIDATION": "1"})
    assert said.stdout.strip() == "True", said
