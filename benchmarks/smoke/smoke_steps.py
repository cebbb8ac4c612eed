"""The list of gpu_smoke.py's steps, and functions that the steps of both backends share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.driver import BufferArena, MemoryPlan, Slot
from rlx.dtypes import f32

Step = Callable[[], str]
STEPS: list[tuple[str, str, Step]] = []


def step(backend: str) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        STEPS.append((backend, function.__name__.replace("_", " "), function))
        return function

    return add


def per_call(function: Callable[[], object], seconds: float = 0.3) -> float:
    """Microseconds a call, after 50 ms of warm-up (idle clocks are several times slower)."""
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        function()
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        function()
        calls += 1
    return spent / calls * 1e6


def arena_of(device: Any, nbytes: int) -> BufferArena:
    plan = MemoryPlan("bump", {0: Slot("arena0", 0, nbytes, f32)}, {"arena0": nbytes})
    arena: BufferArena = device.arena(plan, {})
    return arena


def exercise_buffers(device: Any) -> str:
    """Checks zero fill, write, read, fill and overlapping copy; then measures rates."""
    total = 64 << 20
    one, two = device.acquire(total), device.acquire(total)
    out = np.empty(total, np.uint8)
    one.read(0, out)
    assert not out.any(), "memory is not zero when acquired"
    data = np.random.default_rng(0).integers(0, 256, total, np.uint8)
    one.write(0, data)
    one.read(0, out)
    np.testing.assert_array_equal(out, data)
    one.write(12345, data[:777])
    data[12345 : 12345 + 777] = data[:777].copy()
    one.fill(100, 50, 9)
    data[100:150] = 9
    one.copy_from(one, 1000, 1003, 40 << 20)
    data[1003 : 1003 + (40 << 20)] = data[1000 : 1000 + (40 << 20)].copy()
    two.copy_from(one, 0, 0, total)
    two.read(0, out)
    np.testing.assert_array_equal(out, data)
    write, read = per_call(lambda: one.write(0, data)), per_call(lambda: one.read(0, out))
    small = np.zeros(64, np.uint8)
    tiny = per_call(lambda: one.write(0, small)), per_call(lambda: one.read(0, small))
    view = one.view()
    one.close()
    two.close()
    again = device.acquire(total)
    again.read(0, out)
    assert not out.any(), "memory from the pool is not zero"
    again.close()
    return (
        f"64 MiB: write {total / write / 1e3:.1f} GB/s, read {total / read / 1e3:.1f} GB/s; 64 bytes: write "
        f"{tiny[0]:.1f} µs, read {tiny[1]:.1f} µs; mapped: {view is not None}; free {device.free_bytes() >> 20} MiB"
    )


def whole_way(name: str) -> str:
    """Runs a small network through the public API and compares it with float64."""
    import rlx

    rng = np.random.default_rng(3)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((64, 96), (96, 32)))
    graph = rlx.Graph("smoke")
    product_ = graph.input("x", x.shape) @ graph.param("w", w.shape)
    graph.output("y", rlx.softmax(rlx.tanh(product_) * 3.0 + 0.5))
    program = rlx.Session(device=name, fallback="error").compile(graph)
    program.set_param("w", w)
    got = program.run({"x": x})["y"].astype(np.float64)
    z = np.exp(np.tanh(x.astype(np.float64) @ w.astype(np.float64)) * 3.0 + 0.5)
    expected = z / z.sum(axis=-1, keepdims=True)
    error = float(np.square(got - expected).sum() / np.square(expected).sum())
    assert error < 1e-11, error
    overhead = per_call(lambda: program.run({"x": x}))
    return f"NMSE {error:.1e}, run() {overhead:.1f} µs"
