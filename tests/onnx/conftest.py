"""Devices that are not here skip."""

from __future__ import annotations

import pytest

from tests.devices import device_here


@pytest.fixture(params=["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device that is here."""
    name = str(request.param)
    device_here(name)
    return name
