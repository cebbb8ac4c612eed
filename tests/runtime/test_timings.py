"""`CompiledGraph.timings`: the steps of a run, what they move and compute, the table and the trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.driver.times import StepTime
from rlx.errors import ArenaError, UnsupportedOp
from rlx.runtime.timings import Timings
from tests.devices import device_here

X, W = np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)


def layer(on_host: bool = False) -> rlx.Graph:
    g = rlx.Graph()
    h = g.input("x", (16, 32)) @ g.param("w", (32, 8))
    if on_host:
        h = rlx.linalg.det(h[:8]) + h
    g.output("y", rlx.softmax(h))
    return g


def timed(device: str, graph: rlx.Graph) -> rlx.CompiledGraph:
    program = rlx.Session(device_here(device).info.id, timings=True).compile(graph)
    program.set_params({"w": W})
    return program


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
def test_each_step_has_its_bytes_and_products_their_operations(device: str, tmp_path: Path) -> None:
    with timed(device, layer()) as program:
        with pytest.raises(ArenaError, match="run it first"):
            program.timings()
        program.run({"x": X})
        timings = program.timings()
    assert sum(step.operations for step in timings) == 2 * 16 * 32 * 8
    product = next(step for step in timings if step.operations)
    assert "matmul" in product.name and product.nbytes == X.nbytes + W.nbytes + 16 * 8 * 4
    starts = [step.start for step in timings]
    assert starts == sorted(starts) and all(step.us >= 0 for step in timings)
    assert timings.us == pytest.approx(sum(step.us for step in timings))
    lines = str(timings).splitlines()
    assert len(lines) == len(timings) + 2 and product.name in str(timings)
    timings.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "device"]
    assert named == [step.name for step in timings]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"launching", "host steps"}


def test_host_steps_of_a_gpu_are_on_a_track_of_their_own() -> None:
    with timed("vulkan", layer(on_host=True)) as program:
        program.run({"x": X})
        timings, on_host = program.timings(), program.report().host_nodes
    host = [step for step in timings if step.track == "host"]
    assert len(host) == len(on_host) > 0 and all(step.name.startswith("host:") for step in host)
    assert len(timings.launches) == 2  # the pieces before and behind the host's step
    tracks = {e["tid"] for e in timings.trace()["traceEvents"] if e["ph"] == "X"}
    assert len(tracks) == 3


def test_programs_without_a_clock_say_how_to_get_one() -> None:
    with rlx.Session("cpu").compile(layer()) as program:
        program.set_params({"w": W})
        with pytest.raises(UnsupportedOp, match="timings=True"):
            program.timings()


def test_a_step_is_bound_by_what_it_uses_more_of() -> None:
    moving = StepTime("copy", 10.0, 0.0, nbytes=8_000_000)  # 0.8 TB/s
    multiplying = StepTime("matmul", 10.0, 10.0, nbytes=1000, operations=900_000_000)  # 90 TFLOP/s
    short = StepTime("add", 2.0, 20.0, nbytes=4000)
    timings = Timings("cuda:0", (moving, multiplying, short), bandwidth=1e12, rate=1e14)
    assert [timings.bound(step) for step in timings] == ["memory", "arithmetic", "launch"]
    assert timings.shares(moving) == (pytest.approx(0.8), 0)
    assert timings.shares(multiplying)[1] == pytest.approx(0.9)
    text = str(timings)
    assert "80%" in text and "90%" in text and "copies 1,000 GB/s" in text
    assert Timings("cuda:0", (moving,)).bound(moving) is None
