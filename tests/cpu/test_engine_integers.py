"""Integers of 8 bits, scans, gathers and scatters of the compiled engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice, program
from rlx.backends.cpu.machine import Machine
from rlx.conformance.oracle import evaluate
from tests.cpu.processors import on_machines, on_multipliers
from tests.cpu.test_engine_products import bound, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_RNG = np.random.default_rng(0)


def drawn(shape: tuple[int, ...], dtype: Any) -> Array:
    info = np.iinfo(dtype)
    return _RNG.integers(info.min, info.max + 1, shape).astype(dtype)


# (n, channels, outputs, sizes, kernel, stride, pads, dilation, groups)
SETTINGS: dict[str, Any] = {
    "dense": (1, 64, 70, (9, 8), (3, 3), 1, 1, 1, 1),
    "few channels": (2, 3, 20, (17, 15), (7, 7), 2, 3, 1, 1),
    "channels that fill no word": (1, 5, 7, (9, 8), (1, 1), 2, 0, 1, 1),
    "depthwise": (1, 40, 40, (7, 6), (5, 5), 2, 2, 1, 40),
    "groups": (1, 6, 9, (8, 7), (3, 2), 1, 1, 2, 3),
    "volume": (1, 8, 8, (5, 6, 4), (3, 3, 3), 1, 1, 1, 1),
    "signal": (2, 3, 5, (17,), (3,), 1, 1, 2, 1),
}


@on_multipliers
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.uint8)], ids=["u8s8", "s8u8"])
@pytest.mark.parametrize("each", [False, True], ids=["one zero point", "many"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.sample(5)
def test_convolutions_of_bytes_are_exact(setting: str, each: bool, kinds: Any, machine: Machine) -> None:
    n, c, o, sizes, kernel, strides, pads, dilations, groups = SETTINGS[setting]
    x, w = drawn((n, c, *sizes), kinds[0]), drawn((o, c // groups, *kernel), kinds[1])
    x_zero = drawn((1,), kinds[0]).astype(np.int32)
    w_zero = _RNG.integers(-90, 90, o) if each else np.array([0 if kinds[1] == np.int8 else 128])
    graph = rlx.Graph("bytes")
    given = [x, w, x_zero, w_zero.astype(np.int32)]
    tensors = [graph.input("x", x.shape, x.dtype), *map(graph.constant, given[1:])]
    y = rlx.integer_conv(*tensors, strides=strides, pads=pads, dilations=dilations, groups=groups)
    out = np.zeros(y.shape, np.int32)
    run(bound(y.node, given, [out], machine, True), machine, 2)
    assert np.array_equal(out, y.node.op.reference(*given, **y.node.attrs))


@on_machines
@pytest.mark.parametrize("groups", [1, 4])
def test_a_zero_point_that_no_byte_is(groups: int, machine: Machine) -> None:
    graph = rlx.Graph("beyond")
    given = [drawn((1, 4, 5, 5), np.uint8), drawn((4, 4 // groups, 3, 3), np.int8), np.array([428], np.int32)]
    for pads in (0, 1):
        tensors = [graph.input(f"x{pads}", (1, 4, 5, 5), "u8"), *map(graph.constant, given[1:])]
        y = rlx.integer_conv(*tensors, groups=groups, pads=pads)
        out = np.zeros(y.shape, np.int32)
        run(bound(y.node, [*given, np.zeros(1, np.int32)], [out], machine, True), machine)
        assert np.array_equal(out, y.node.op.reference(*given, np.zeros(1, np.int32), **y.node.attrs))


@on_machines
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_zero_points_that_a_run_computes(kind: Any, machine: Machine) -> None:
    """As in models that are quantized dynamically."""
    graph = rlx.Graph("dynamic")
    a, b, zero = drawn((13, 50), kind), drawn((37, 50), np.int8), drawn((1,), kind)
    at = rlx.cast(graph.input("zero", (1,), kind), "i32")
    y = rlx.integer_matmul(graph.input("a", a.shape, kind), graph.constant(b), at)
    given = [a, b, zero.astype(np.int32), np.zeros(1, np.int32)]
    out = np.zeros(y.shape, np.int32)
    run(bound(y.node, given, [out], machine, True), machine)
    assert np.array_equal(out, (a.astype(np.int64) - int(zero[0])) @ b.astype(np.int64).T)


def requantized(whole: rlx.Tensor, scale: float, zero: int) -> rlx.Tensor:
    real = rlx.round(rlx.cast(whole, "f32") * scale) + float(zero)
    return rlx.cast(rlx.clip(real, 0.0, 255.0), "u8")


def test_a_quantized_network_stays_in_bytes_with_its_channels_last() -> None:
    graph = rlx.Graph("network")
    x = drawn((2, 3, 20, 18), np.uint8)
    image = graph.input("x", x.shape, "u8")

    def layer(t: rlx.Tensor, outputs: int, kernel: int, groups: int = 1) -> rlx.Tensor:
        w = graph.constant(drawn((outputs, t.shape[1] // groups, kernel, kernel), np.int8))
        whole = rlx.integer_conv(t, w, 7, pads=kernel // 2, groups=groups)
        bias = graph.constant(_RNG.integers(-999, 999, (outputs, 1, 1)).astype(np.int32))
        return requantized(whole + bias, 0.002, 7)

    first = layer(image, 24, 3)
    second = layer(layer(layer(first, 24, 3, 24), 24, 1), 24, 3)
    real = rlx.round(rlx.cast(second, "f32") * 0.4 + rlx.cast(first, "f32") * 0.7)
    graph.output("y", rlx.cast(rlx.clip(real, 0.0, 255.0), "u8"))
    made = {e: rlx.Session("cpu", engine=e).compile(graph) for e in ("compiled", "numpy")}
    got = {e: exe.run({"x": x})["y"] for e, exe in made.items()}
    (wanted,) = (evaluate(graph, {"x": x})[t.id] for t in graph.outputs.values())
    assert np.array_equal(got["compiled"], got["numpy"])
    assert (abs(got["compiled"].astype(int) - wanted) > 1).sum() == 0  # f64 rounds other ties
    nodes = made["compiled"].report().nodes
    assert {n.by for n in nodes} <= {"engine", ""}
    assert sum(bool(n.within) for n in nodes if n.op == "fused") >= 3


@pytest.mark.parametrize("rows", [None, 100], ids=["whole", "in parts"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_one_table(reverse: bool, rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows of bytes, values that steps exchange, and a captured matrix; a long one in parts, of which the last is
    shorter."""
    if rows is not None:
        monkeypatch.setattr(program, "_MAX_TABLE_ROWS", rows)
    graph = rlx.Graph("scan")
    x, small = _RNG.standard_normal((23, 5)).astype(np.float32), drawn((23, 3), np.uint8)
    w = graph.param("w", (5, 5))

    def step(state: Any, row: Any) -> Any:
        a, b = state
        return (b, rlx.tanh(rlx.matmul(rlx.reshape(a, (1, 5)), w)[0] + row[0])), (a, row[1] + 1)

    start = (graph.constant(np.ones(5, np.float32)), graph.constant(np.zeros(5, np.float32)))
    state, rows = rlx.scan(
        step, start, (graph.input("x", x.shape), graph.input("s", small.shape, "u8")), reverse=reverse
    )
    for i, t in enumerate((*state, *rows)):
        graph.output(f"y{i}", t)
    weight = (_RNG.standard_normal((5, 5)) / 3).astype(np.float32)
    exe = rlx.Session("cpu", engine="compiled").compile(graph)
    exe.set_params({"w": weight})
    for _ in range(2):
        got = exe.run({"x": x, "s": small})
    a, b, seen = np.ones(5), np.zeros(5), np.zeros((23, 5))
    for t in reversed(range(23)) if reverse else range(23):
        seen[t] = a
        a, b = b, np.tanh(a @ weight.astype(np.float64) + x[t])
    for name, wanted in (("y0", a), ("y1", b), ("y2", seen)):
        assert np.allclose(got[name], wanted, atol=1e-6)
    assert np.array_equal(got["y3"], small + np.uint8(1))


@on_machines
def test_words_are_gathered(machine: Machine) -> None:
    graph = rlx.Graph("gather")
    table, x = _RNG.standard_normal(50).astype(np.float32), drawn((3, 9), np.int32)
    at = _RNG.integers(-50, 50, (3, 37)).astype(np.int32)
    places = _RNG.integers(-9, 9, (3, 37)).astype(np.int32)
    index = graph.input("i", at.shape, "i32")
    cases = [
        (rlx.gather(graph.input("t", (50,)), index, 0), [table, at], table[at]),
        (
            rlx.gather_elements(graph.input("x", x.shape, "i32"), index, 1),
            [x, places],
            np.take_along_axis(x, places, 1),
        ),
    ]
    for y, given, wanted in cases:
        out = np.zeros(y.shape, wanted.dtype)
        run(bound(y.node, given, [out], machine, False), machine, 5)
        assert np.array_equal(out, wanted)


@on_machines
@pytest.mark.parametrize(("reduction", "columns"), [("none", 37), ("add", 37), ("max", 1)])
def test_updates_are_scattered_in_their_order(reduction: str, columns: int, machine: Machine) -> None:
    """Some twice, some from the end, and some out of range, which are left out."""
    graph = rlx.Graph("scatter")
    at = np.array([3, -1, 3, 9, -6, 0, 4], np.int32)
    x, updates = (_RNG.standard_normal((2, n, columns)).astype(np.float32) for n in (5, 7))
    index, given = graph.input("i", at.shape, "i32"), graph.input("u", updates.shape)
    made = rlx.scatter(graph.input("x", x.shape), index, given, axis=1, reduction=reduction)
    out, wanted = np.full(x.shape, np.nan, np.float32), x.copy()
    for i, place in enumerate(at):
        if -5 <= place < 5:
            old, new = wanted[:, place], updates[:, i]
            wanted[:, place] = {"none": new, "add": old + new, "max": np.maximum(old, new)}[reduction]
    run(bound(made.node, [at, updates, x], [out], machine, False), machine)
    assert np.array_equal(out, wanted)
