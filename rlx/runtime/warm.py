"""The device's matrix product library, loaded while this thread makes a program that will use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rlx.driver import Device
from rlx.host.background import aside


@contextmanager
def warmed(device: Device, products: bool) -> Iterator[None]:
    """Within this context another thread loads what matrix products need first, if there are any: a tenth of a second,
    once a process. Errors of the device are raised again by the program's own calls."""
    warm_up = getattr(device, "warm_up", None)
    if warm_up is None or not products:
        yield
        return
    wait = aside(warm_up)
    try:
        yield
    finally:
        with suppress(Exception):
            wait()
