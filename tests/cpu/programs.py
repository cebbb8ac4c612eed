"""Small graphs on the CPU device, and their float64 answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu import CpuDevice, backend
from rlx.conformance.oracle import evaluate
from rlx.driver import BuildOptions
from rlx.driver.memory.planner import plan
from rlx.dtypes import DType, as_dtype
from rlx.ir import Graph, Tensor, verify

Array = npt.NDArray[Any]
# Largest error allowed, relative to the largest value: honest f32, and one rounding to the halves.
TOLERANCE = {"f64": 1e-13, "f32": 1e-5, "f16": 2**-10.5, "bf16": 2**-7.5}


def device() -> CpuDevice:
    return backend.open(0)


class Program:
    """A graph planned and built on the CPU, its arena full of NaN bytes before the first write."""

    def __init__(
        self, graph: Graph, planner: str = "reuse", threads: int | None = None, fill: int = 255
    ) -> None:
        verify(graph)
        self.graph = graph
        self.plan = plan(graph, planner=planner)
        self.arena = device().arena(self.plan)
        for name in self.plan.segments:
            buffer = self.arena.buffer(name)
            buffer.fill(0, buffer.nbytes, fill)
        self.executable = device().build(graph, self.plan, self.arena, BuildOptions(threads=threads))

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        for name, t in self.graph.inputs.items():
            self.arena.write_bytes(t.id, np.ascontiguousarray(feeds[name], t.dtype.np))
        self.executable.run()
        return {
            name: self.arena.read_bytes(t.id, t.type.nbytes).view(t.dtype.np).reshape(t.shape)
            for name, t in self.graph.outputs.items()
        }

    def close(self) -> None:
        self.executable.close()
        self.arena.close()


def graph_of(build: Callable[..., Any], arrays: Sequence[Array]) -> Graph:
    """A graph of inputs x0, x1, … with the outputs of `build`."""
    graph = Graph("test")
    made = build(*(graph.input(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)))
    for i, t in enumerate(made if isinstance(made, tuple) else (made,)):
        graph.output(f"y{i}", t)
    return graph


def run_both(
    build: Callable[..., Tensor | tuple[Tensor, ...]], *arrays: Array, threads: int | None = None
) -> list[tuple[Array, Array]]:
    """(what the CPU device gives, the float64 answer) for each output."""
    graph = graph_of(build, arrays)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    program = Program(graph, threads=threads)
    first = program.run(feeds)
    again = program.run(feeds)
    program.close()
    values = evaluate(graph, feeds)
    pairs = []
    for name, t in graph.outputs.items():
        assert first[name].tobytes() == again[name].tobytes(), "a second run gives other bits"
        pairs.append((first[name], values[t.id]))
    return pairs


def assert_close(got: Array, want: Array, dtype: DType | None = None) -> None:
    """Floats within their dtype's tolerance, NaN and infinities in the same places; everything else equal."""
    kind = as_dtype(got.dtype)
    assert got.shape == want.shape
    if not kind.is_float:
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(invalid="ignore"):  # signaling NaN among them
        wide, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    # A finite answer beyond the dtype's range is infinite in it.
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.where(finite, want.astype(kind.np).astype(np.float64), want)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(wide), np.isposinf(expected))
    np.testing.assert_array_equal(np.isneginf(wide), np.isneginf(expected))
    keep = np.isfinite(expected)
    if not keep.any():
        return
    scale = np.abs(want[keep]).max()
    error = np.abs(wide[keep] - want[keep])
    tiny = float(np.finfo(np.float16).smallest_subnormal) if kind.name == "f16" else 1e-38
    assert error.max() <= TOLERANCE[kind.name] * scale + tiny
    if kind.name == "f32":
        assert (error**2).sum() <= 1e-11 * (want[keep] ** 2).sum() + 1e-70


def check(build: Callable[..., Any], *arrays: Array, threads: int | None = None) -> None:
    for got, want in run_both(build, *arrays, threads=threads):
        assert_close(got, want)


def data(
    shape: Sequence[int], dtype: str = "f32", seed: int = 0, low: float = -3.0, high: float = 3.0
) -> Array:
    """Values between low and high (integers over the whole range where the dtype is small)."""
    rng = np.random.default_rng([seed, *shape])
    kind = as_dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.is_int:
        info = np.iinfo(kind.np)
        return rng.integers(max(info.min, -200), min(info.max, 200), shape, endpoint=True).astype(kind.np)
    return rng.uniform(low, high, shape).astype(kind.np)
