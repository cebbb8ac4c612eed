"""Devices and sessions by name, and functions run on them; where there is no such device the test skips, with the
reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu import choice
from rlx.driver import Device
from rlx.driver.registry import open_device
from rlx.errors import DeviceUnavailable
from rlx.ir import Graph
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


def session_on_engine(name: str) -> Session:
    """A session on the device, on the CPU with compiled kernels where there can be any, whatever the tests' default."""
    return session_here(name, engine="compiled" if name == "cpu" and choice.why_not() is None else None)


def run(session: Session, function: Callable[..., Any], *arrays: Any) -> Any:
    """What the function gives for these arrays as inputs of a program."""
    g = Graph("function")
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    made = function(*(g.input(name, a.shape, a.dtype) for name, a in feeds.items()))
    outs = made if isinstance(made, tuple) else (made,)
    for i, t in enumerate(outs):
        g.output(f"y{i}", t)
    with session.compile(g) as compiled:
        found = compiled.run(feeds)
    values = [found[f"y{i}"] for i in range(len(outs))]
    return values if isinstance(made, tuple) else values[0]
