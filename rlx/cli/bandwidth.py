"""How fast a device reads its memory, beside which `--stats` sets the weights that generation reads."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

import rlx.ops as ops
from rlx.errors import OutOfDeviceMemory
from rlx.ir import Graph
from rlx.runtime import Session

_LEAST = 64 << 20  # bytes, more than caches keep
_ROW = 4096  # elements
_RUNS = 5


@lru_cache(maxsize=4)
def read_bandwidth(session: Session) -> float | None:
    """Bytes a second at which the largest of many f32 is found, the best of a few runs; None where the device has no
    room for enough of them."""
    most = 256 << 20 if session.info.kind == "cpu" else 4 << 30  # a GPU's run also takes a launch and a wait
    nbytes = min(most, session.device.free_bytes() // 4)
    return None if nbytes < _LEAST else _measured(session, nbytes)


def _measured(session: Session, nbytes: int) -> float | None:
    g = Graph("read")
    x = g.state("x", (nbytes // (4 * _ROW), _ROW))
    g.output("largest", ops.max(x))
    try:
        with session.compile(g) as program:
            if session.info.kind == "cpu":  # its zeros are one page until they are written
                program.set_state("x", np.ones(x.shape, np.float32))
            program.run()
            seconds = []
            for _ in range(_RUNS):
                start = time.perf_counter()
                program.run()
                seconds.append(time.perf_counter() - start)
    except OutOfDeviceMemory:  # others may have taken the room
        return None
    return x.type.nbytes / min(seconds)
