"""A cache of what tests compile, kept between runs: a run compiles only what has changed since."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from rlx.host.diskcache import DiskCache

FOLDER_ENV = "RLX_TEST_CACHE"
_LIMIT = 1 << 28  # bytes of each kind; all of a run's libraries take a tenth of it


@cache
def kept(kind: str) -> DiskCache:
    """The records of one kind in the folder that RLX_TEST_CACHE names ("off": nothing is kept), by default .cache/tests
    of the source tree. Keys must name all that a payload depends on."""
    root = os.environ.get(FOLDER_ENV) or Path(__file__).resolve().parent.parent / ".cache/tests"
    return DiskCache(kind, root, _LIMIT)
