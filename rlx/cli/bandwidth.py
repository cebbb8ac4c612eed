"""How fast a device reads its memory and multiplies, beside which commands set what a model reads and computes."""

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
_CPU_SIDE, _GPU_SIDE = 1024, 4096  # elements


@lru_cache(maxsize=4)
def read_bandwidth(session: Session) -> float | None:
    """Bytes a second at which the largest of many f32 is found, the best of a few runs; None where the device has no
    room for enough of them."""
    most = 256 << 20 if session.info.kind == "cpu" else 4 << 30  # more on a GPU, whose runs add a launch and a wait
    nbytes = min(most, session.device.free_bytes() // 4)
    return None if nbytes < _LEAST else _measured(session, nbytes)


def _measured(session: Session, nbytes: int) -> float | None:
    g = Graph("read")
    x = g.state("x", (nbytes // (4 * _ROW), _ROW))
    g.output("largest", ops.max(x))
    try:
        with session.compile(g) as program:
            if session.info.kind == "cpu":  # pages of zeros that were never written are one page in memory
                program.set_state("x", np.ones(x.shape, np.float32))
            program.run()
            seconds = []
            for _ in range(_RUNS):
                start = time.perf_counter()
                program.run()
                seconds.append(time.perf_counter() - start)
    except OutOfDeviceMemory:  # another process may have taken the memory
        return None
    return x.type.nbytes / min(seconds)


@lru_cache(maxsize=4)
def product_rate(session: Session) -> float:
    """Operations a second (two for each multiplication) of a large square product at the session's precision, the best
    of a few runs; of f16 and bf16 with operands stored so."""
    n = _CPU_SIDE if session.info.kind == "cpu" else _GPU_SIDE
    g = Graph("product")
    dtype = session.options.precision if session.options.precision in ("f16", "bf16") else "f32"
    a, b = (g.state(name, (n, n), dtype) for name in "ab")
    g.output("corner", ops.matmul(a, b)[:1, :1])
    options = session.options
    timed = Session(session.info.id, precision=options.precision, threads=options.threads, timings=True)
    with timed.compile(g) as program:
        us = []
        for _ in range(_RUNS):
            program.run()
            us.append(max(step.us for step in program.timings()))
    return 2 * n**3 / (min(us) / 1e6)
