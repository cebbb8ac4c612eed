"""The device's matrix product library, loaded while this thread compiles a program that will use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rlx.driver import Device
from rlx.host.background import aside


@contextmanager
def warmed(device: Device, products: bool) -> Iterator[None]:
    """In this context another thread loads the library, if there are matrix products: this takes a tenth of a second,
    once per process. Errors are ignored here, since the program's own calls raise them again."""
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
