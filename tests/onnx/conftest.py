"""Devices that are not here skip."""

from __future__ import annotations

import pytest

from rlx.driver.registry import open_device
from rlx.errors import DeviceUnavailable


@pytest.fixture(params=["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device that is here."""
    name = str(request.param)
    try:
        open_device(name)
    except DeviceUnavailable as error:
        pytest.skip(f"{name}: {error}")
    return name
