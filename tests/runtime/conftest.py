"""Each test of the runtime runs on every available device."""

from __future__ import annotations

import pytest

from rlx.runtime import Session
from tests.devices import session_here


@pytest.fixture(params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> Session:
    return session_here(request.param)
