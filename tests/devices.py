"""Devices and sessions by name; where there is no such device the test skips, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlx.driver import Device
from rlx.driver.registry import open_device
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session


@contextmanager
def or_skip() -> Iterator[None]:
    """Skips the test where something inside is not here."""
    try:
        yield
    except DeviceUnavailable as error:
        pytest.skip(str(error))


def device_here(name: str) -> Device:
    """The device, opened."""
    with or_skip():
        return open_device(name)


def session_here(name: str, **options: Any) -> Session:
    """A session on the device."""
    with or_skip():
        return Session(name, **options)
