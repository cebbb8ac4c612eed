"""Kernels of the compiled engine for single ops: products of whole numbers, transposed convolutions, images in two
orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.conformance.oracle import evaluate
from rlx.dtypes import as_dtype
from rlx.ir import apply, apply_multi
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, close, floats, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_RNG = np.random.default_rng(0)


def by_engine(graph: rlx.Graph, values: dict[str, Array], threads: int = 1) -> tuple[dict[str, Array], set[str]]:
    """The outputs of a graph of inputs, and the ops that NumPy ran."""
    program = rlx.Session("cpu", engine="compiled", threads=threads).compile(graph)
    got = {name: x.copy() for name, x in program.run(values).items()}
    return got, {d.op for d in program.report().nodes if d.by == "numpy"}


@on_machines
@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.sample(2)
def test_products_of_integers_wrap(turned: bool, kind: str, machine: Machine) -> None:
    graph = rlx.Graph("whole")
    limits = np.iinfo(as_dtype(kind).np)
    a, b = (_RNG.integers(limits.min, limits.max, s, limits.dtype) for s in ((3, 37, 50), (3, 21, 50)))
    given = [a, b if turned else np.ascontiguousarray(b.swapaxes(1, 2))]
    left, right = (graph.input(n, x.shape, kind) for n, x in zip("ab", given, strict=True))
    y = rlx.matmul(left, rlx.transpose(right, (0, 2, 1))) if turned else rlx.matmul(left, right)
    wanted = (a.astype(np.int64) @ b.swapaxes(1, 2).astype(np.int64)).astype(limits.dtype)
    if turned:
        given[1] = given[1].swapaxes(1, 2)
    out = np.zeros(y.shape, limits.dtype)
    run(bound(y.node, given, [out], machine, False), machine, pieces=3)
    assert np.array_equal(out, wanted)


@on_machines
@pytest.mark.parametrize(
    "op",
    ["few rows", "activation", "transposed", "i32 beside i64", "conv", "depthwise", "max_pool", "avg_pool"],
)
@pytest.mark.sample(3)
def test_numbers_of_64_bits(op: str, machine: Machine) -> None:
    """As exact as f64 is, and the same for any pieces."""
    graph = rlx.Graph("wide")
    if "pool" in op or op in ("conv", "depthwise"):
        x = graph.input("x", (2, 12, 9, 11), "f64")
        groups = 12 if op == "depthwise" else 1
        if "pool" in op:
            y = getattr(rlx, op)(x, (3, 2), strides=(2, 1), pads=1)
        else:
            y = rlx.conv(x, graph.input("w", (24, 12 // groups, 3, 3), "f64"), pads=1, groups=groups)
    elif op == "i32 beside i64":
        y = apply("matmul", graph.input("x", (9, 40), "i32"), graph.input("w", (40, 33), "i64"), transpose_a=False,
                  transpose_b=False, activation=None)  # fmt: skip
    else:
        m, turned = (3 if op == "few rows" else 29), op != "activation"
        x, w = graph.input("x", (m, 40), "f64"), graph.input("w", (70, 40) if turned else (40, 70), "f64")
        b = graph.input("b", (70,), "f64")
        y = rlx.matmul(x, w, b, transpose_b=turned, activation=None if turned else "gelu")
    graph.output("y", y)
    values = {
        n: _RNG.integers(-999, 999, t.shape).astype(t.dtype.np) if t.dtype.is_int else _RNG.standard_normal(t.shape)
        for n, t in graph.inputs.items()
    }
    made = [np.zeros(y.shape, y.dtype.np) for _ in range(2)]
    for out, pieces in zip(made, (1, 3), strict=True):
        run(bound(y.node, [*values.values()], [out], machine, op == "depthwise"), machine, pieces)
    assert np.allclose(made[0], evaluate(graph, values)[y.id], rtol=1e-13, atol=1e-13)
    assert made[0].tobytes() == made[1].tobytes()


# (n, channels, outputs, sizes, kernel, stride, pads, dilation, groups)
SETTINGS: dict[str, Any] = {
    "phases of different taps": (2, 6, 8, (9, 7), (3, 4), 2, 1, 1, 2),
    "a kernel shorter than the stride": (1, 5, 9, (4, 5), (2, 2), 3, 0, 1, 1),
    "depthwise": (1, 20, 20, (9, 7), (3, 3), 2, 2, 1, 20),
    "dilated": (1, 6, 8, (9, 8), (3, 2), 2, 3, 3, 1),
    "volume": (1, 4, 6, (5, 6, 4), (3, 2, 3), 2, 1, 1, 1),
    "signal": (2, 3, 5, (17,), (5,), 1, 1, 2, 1),
}


@on_machines
@pytest.mark.parametrize("fixed", [True, False], ids=["weights", "computed"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("bad", [0.0, np.inf])
@pytest.mark.sample(4)
def test_transposed_convolutions(setting: str, bad: float, fixed: bool, machine: Machine) -> None:
    """With weights that are not finite too: an element that such a tap does not reach is a number."""
    n, c, o, sizes, kernel, strides, pads, dilations, groups = SETTINGS[setting]
    values = {"x": floats(n, c, *sizes), "w": floats(c, o // groups, *kernel), "b": floats(o)}
    if bad:
        values["w"][1, 0].flat[0] = bad
    graph = rlx.Graph("spread")
    y = rlx.conv_transpose(
        *(graph.input(name, a.shape) for name, a in values.items()),
        strides=strides, pads=pads, dilations=dilations, groups=groups,
    )  # fmt: skip
    graph.output("y", y)
    out = np.full(y.shape, np.nan, np.float32)
    run(bound(y.node, [*values.values()], [out], machine, fixed), machine, pieces=2)
    wanted = evaluate(graph, values)[y.id]
    assert np.array_equal(np.isfinite(out), np.isfinite(wanted))
    assert close(np.nan_to_num(out, posinf=0, neginf=0), np.nan_to_num(wanted, posinf=0, neginf=0))


def test_an_image_in_another_order_than_its_result() -> None:
    """A convolution makes its channels last, and what the caller gets has the order of its shape, in the same bytes."""
    graph = rlx.Graph("orders")
    values = {"x": floats(1, 6, 9, 8), "w": floats(6, 6, 3, 3), "u": floats(6, 4, 2, 2)}
    x, w, u = (graph.input(n, a.shape) for n, a in values.items())
    image = rlx.conv(x, w, pads=1)
    graph.output("y", rlx.tanh(image))
    graph.output("up", rlx.relu(rlx.conv_transpose(image, u, strides=2)))
    graph.output("channels", rlx.max(image, axis=1))
    graph.output("all", rlx.sum(image))
    got, left = by_engine(graph, values)
    found = evaluate(graph, values)
    assert all(close(got[name], found[t.id]) for name, t in graph.outputs.items())
    assert not left


@on_machines
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.sample(2)
def test_gradients_of_the_weights_of_convolutions(setting: str, machine: Machine) -> None:
    n, c, o, sizes, kernel, strides, pads, dilations, groups = SETTINGS[setting]
    graph = rlx.Graph("weights")
    rank = len(sizes)
    x, w = graph.input("x", (n, c, *sizes)), graph.input("w", (o - o % groups, c // groups, *kernel))
    made = rlx.conv(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups)
    d = graph.input("d", made.shape)
    attrs = {"strides": (strides,) * rank, "pads": ((pads, pads),) * rank, "dilations": (dilations,) * rank}
    y = apply("conv_grad_weight", x, d, kernel=kernel, groups=groups, **attrs)
    graph.output("y", y)
    values = {"x": floats(*x.shape), "w": floats(*w.shape), "d": floats(*d.shape)}
    out = np.full(y.shape, np.nan, np.float32)
    run(bound(y.node, [values["x"], values["d"]], [out], machine, False), machine, pieces=2)
    assert close(out, evaluate(graph, values)[y.id])


def test_a_long_sum_of_gradients_is_added_up_in_parts() -> None:
    graph = rlx.Graph("parts")
    values = {"x": floats(1, 2, 20_000), "d": floats(1, 3, 20_000)}
    x, d = (graph.input(n, a.shape) for n, a in values.items())
    geometry: dict[str, Any] = {"strides": (1,), "pads": ((1, 1),), "dilations": (1,), "groups": 1}
    y = apply("conv_grad_weight", x, d, kernel=(3,), **geometry)
    graph.output("y", y)
    bits = set()
    for threads in (1, 2, 4):
        got, left = by_engine(graph, values, threads)
        assert close(got["y"], evaluate(graph, values)[y.id]) and not left
        bits.add(got["y"].tobytes())
    assert len(bits) == 1


def test_a_step_of_training_stays_in_the_engine() -> None:
    """A small network of images: its loss and the gradients to its weights; images lie in two orders."""
    graph = rlx.Graph("training")
    values = {
        "x": floats(2, 3, 16, 16), "c1": floats(20, 3, 3, 3), "c2": floats(20, 20, 3, 3) * 0.2,
        "dw": floats(20, 1, 3, 3), "up": floats(20, 4, 2, 2),
    }  # fmt: skip
    x, *weights = (graph.input(n, a.shape) for n, a in values.items())
    image = rlx.max_pool(rlx.relu(rlx.conv(x, weights[0], pads=1)), 3, strides=2, pads=1)
    image = rlx.conv(rlx.silu(rlx.conv(image, weights[1], pads=1, strides=2)), weights[2], pads=1, groups=20)
    graph.output("loss", rlx.mean(rlx.silu(rlx.conv_transpose(image, weights[3], strides=2))))
    for n, d in zip(list(values)[1:], gradients(graph.outputs["loss"], weights), strict=True):
        graph.output(n, d)
    found = evaluate(graph, values)
    for threads in (1, 2):
        got, left = by_engine(graph, values, threads)
        assert all(close(got[name], found[t.id]) for name, t in graph.outputs.items())
        assert not left


@on_machines
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("op", ["max_pool", "avg_pool", "max_pool_grad"])
@pytest.mark.sample(2)
def test_pools_of_volumes(op: str, last: bool, machine: Machine) -> None:
    graph = rlx.Graph("pool")
    values = {"x": np.round(floats(2, 9, 7, 6, 8) * 3)}
    attrs: dict[str, Any] = {"strides": (2, 1, 2), "pads": 1}
    x = graph.input("x", values["x"].shape)
    y = (rlx.avg_pool if op == "avg_pool" else rlx.max_pool)(x, (3, 2, 3), **attrs)
    if op == "max_pool_grad":
        values["d"] = floats(*y.shape)
        y = apply(op, x, graph.input("d", y.shape), **y.node.attrs)
    graph.output("y", y)
    out = np.full(y.shape, np.nan, np.float32)
    given = [*values.values(), out]
    if last:
        given = [np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) for a in given]
    run(bound(y.node, given[:-1], given[-1:], machine, False), machine, pieces=2)
    assert close(given[-1], evaluate(graph, values)[y.id])


@on_machines
@pytest.mark.parametrize("shape", [(3, 40), (2, 1000), (2, 200, 3)])
@pytest.mark.parametrize("kind", ["f64", "f32", "bf16", "i64", "i32", "i8", "u8", "bool"])
@pytest.mark.parametrize("first", [False, True], ids=["least", "greatest"])
@pytest.mark.sample(4)
def test_rows_are_sorted_stably(first: bool, kind: str, shape: tuple[int, ...], machine: Machine) -> None:
    graph = rlx.Graph("order")
    x = (_RNG.integers(-300, 300, shape) / 2).astype(as_dtype(kind).np)
    if kind in ("f32", "f64"):
        x.flat[::9], x.flat[5], x.flat[7] = np.nan, -0.0, np.inf
    given = graph.input("x", shape, kind)
    order = np.argsort(x if not first else x[:, ::-1], axis=1, kind="stable")
    order = order if not first else shape[1] - 1 - order[:, ::-1]
    for op, attrs, kept in (
        ("sort", {"descending": first}, shape[1]), ("argsort", {"descending": first}, shape[1]),
        ("top_k", {"largest": first, "k": 5}, 5), ("top_k", {"largest": first, "k": shape[1]}, shape[1]),
    ):  # fmt: skip
        made = apply_multi(op, given, axis=1, **attrs)
        outs = [np.empty(t.shape, t.dtype.np) for t in made]
        run(bound(made[0].node, [x], outs, machine, False), machine, pieces=2)
        assert np.array_equal(outs[-1], order[:, :kept])
        if len(outs) == 2:
            values = np.take_along_axis(x, order[:, :kept], 1)
            assert outs[0].tobytes() == values.tobytes()
