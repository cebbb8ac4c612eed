"""Each test of the runtime runs on every device that is here."""

from __future__ import annotations

import pytest

from rlx.errors import DeviceUnavailable
from rlx.runtime import Session


@pytest.fixture(params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> Session:
    try:
        return Session(request.param)
    except DeviceUnavailable as error:
        pytest.skip(f"{request.param}: {error}")
