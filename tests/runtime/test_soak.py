"""Dozens of runs of each kind gain no memory; `python -m tests.runtime.soak` makes a hundred thousand."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

import rlx
from tests.full import full
from tests.runtime import soak


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("kind", soak.KINDS)
@pytest.mark.sample(vulkan=4)
@pytest.mark.late
def test_memory_is_flat_and_results_are_the_same(session: rlx.Session, kind: soak.Kind) -> None:
    few = soak.KINDS[kind] >= 100
    with kind(session) as once:
        once()
        counted = session.device.info.kind == "software"  # on hardware other processes use the same memory
        free = session.device.free_bytes()
        if few:
            runs, warm = (30, 20) if full() else (10, 20)
        else:
            runs, warm = (300, 220) if full() else (30, 30)
        limit = soak.PYTHON_LIMIT if full() else 16 << 10  # fewer runs gain less
        for _ in range(3):  # what tests before left to other threads is gained once, a leak each time
            _, python, hashes = soak.soak(once, runs, warm)
            if python < limit:
                break
        left = session.device.free_bytes()
    assert python < limit
    assert hashes == 1
    assert not counted or free - left <= 1 << 20  # the size of a weight in its other dtype
