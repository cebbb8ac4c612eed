"""Images in the compiled engine: taps in the padding, few channels, and results in another order of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.conformance.oracle import evaluate
from tests.cpu.processors import on_machines
from tests.cpu.test_conv import DEPTHWISE
from tests.cpu.test_engine_ops import by_engine
from tests.cpu.test_engine_products import bound, close, floats, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)


@pytest.mark.parametrize("channels", [20, 5000], ids=["one sum", "sums in parts"])
def test_taps_that_lie_in_the_padding(channels: int) -> None:
    """They add nothing, unless a weight is infinite: zero times infinity is NaN."""
    graph = rlx.Graph("atrous")
    values = {"x": floats(1, channels, 9, 9), "w": floats(7, channels, 3, 3)}
    x, w = graph.input("x", values["x"].shape), graph.param("w", values["w"].shape)
    y = rlx.relu(rlx.conv(x, w, pads=8, dilations=8))
    graph.output("y", y)
    bits = []
    for threads in (1, 2, 4):
        program = rlx.Session("cpu", engine="compiled", threads=threads).compile(graph)
        program.set_param("w", values["w"])
        bits.append(program.run({"x": values["x"]})["y"].tobytes())
    assert bits == bits[:1] * 3
    for bad in (0.0, np.inf):
        if bad:
            values["w"][3, 1, 0, 0] = bad
        program.set_param("w", values["w"])
        got, wanted = program.run({"x": values["x"]})["y"], evaluate(graph, values)[y.id]
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
        assert bool(bad) == bool(np.isnan(got).any())
        assert close(np.nan_to_num(got, posinf=0), np.nan_to_num(wanted, posinf=0))


@on_machines
@pytest.mark.parametrize("channels", [5, 32, 40])
@pytest.mark.parametrize("geometry", DEPTHWISE, ids=str)
@pytest.mark.sample(8)
def test_depthwise_convolutions_with_weights(geometry: Any, channels: int, machine: Machine) -> None:
    """Positions of a row are computed several at once, whatever the stride, the dilation and the padding."""
    image, kernel, strides, dilations, pads = geometry
    graph = rlx.Graph("depthwise")
    values = {"x": floats(2, channels, *image), "w": floats(channels, 1, *kernel), "b": floats(channels)}
    given = (graph.input(n, a.shape) for n, a in values.items())
    y = rlx.conv(*given, strides=strides, dilations=dilations, pads=pads, groups=channels, activation="relu")
    graph.output("y", y)
    out = np.full(y.shape, np.nan, np.float32)
    steps = bound(y.node, [*values.values()], [out], machine, True)
    run(steps, machine, pieces=3)
    assert close(out, evaluate(graph, values)[y.id])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("size", [(20, 5), (3, 21), (14, 33)])
def test_an_image_of_another_size_in_another_order(mode: str, size: tuple[int, int]) -> None:
    """A convolution leaves its channels last; the caller gets the order of the shape, and so the other way round."""
    graph = rlx.Graph("resized")
    values = {"x": floats(2, 6, 7, 11), "w": floats(18, 6, 3, 3)}
    x, w = (graph.input(n, a.shape) for n, a in values.items())
    graph.output("last", rlx.resize(rlx.conv(x, w, pads=1), (2, 18, *size), mode=mode))
    graph.output("first", rlx.conv(rlx.resize(x, (2, 6, *size), mode=mode), w, pads=1))
    got, left = by_engine(graph, values)
    found = evaluate(graph, values)
    assert all(close(got[name], found[t.id]) for name, t in graph.outputs.items())
    assert not left


@on_machines
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("sizes", [(5, 37), (16,), (3, 4)])
@pytest.mark.sample(4)
def test_images_of_few_channels(channels: int, sizes: Any, machine: Machine) -> None:
    graph = rlx.Graph("few")
    values = {"x": floats(2, channels, *sizes), "w": floats(9, channels, *[3] * len(sizes))}
    y = rlx.conv(*(graph.input(n, a.shape) for n, a in values.items()), pads=1, strides=2)
    graph.output("y", y)
    out = np.full(y.shape, np.nan, np.float32)
    run(bound(y.node, [*values.values()], [out], machine, False), machine, pieces=3)
    assert close(out, evaluate(graph, values)[y.id])
