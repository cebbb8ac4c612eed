"""Random numbers: new in every run, the same again from a seed, of the distribution that is asked for."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.errors import GraphError, ModelFormatError, RlxError
from tests.onnx.models import I64, info, model, node

F64, BOOL, I32 = TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.INT32


def drawn(made: Any, device: str, to: int = TensorProto.FLOAT, runs: int = 2) -> list[np.ndarray]:
    loaded = rlx.onnx.load(model([made], {}, {"y": (None, to)}))
    made_by_run = [loaded.run(device=device)["y"] for _ in range(runs)]
    assert len(loaded.programs) == 1
    return made_by_run


@pytest.mark.parametrize("seed", [{}, {"seed": 3.0}])
def test_numbers_are_new_in_every_run_and_repeat_from_a_seed(seed: dict[str, float], device: str) -> None:
    normal = node("RandomNormal", "", "y", shape=[200, 100], mean=2.0, scale=3.0, **seed)
    a, b = drawn(normal, device)
    assert a.shape == (200, 100) and not np.array_equal(a, b)
    # Six standard errors.
    assert abs(a.mean() - 2) < 6 * 3 / 20_000**0.5 and abs(a.std() - 3) < 6 * 3 / 40_000**0.5
    again = drawn(normal, device)
    assert np.array_equal(again[0], a) == np.array_equal(again[1], b) == bool(seed)
    uniform = node("RandomUniform", "", "y", shape=[20_000], low=-1.0, high=3.0, dtype=F64, **seed)
    (u,) = drawn(uniform, device, F64, 1)
    assert u.dtype == np.float64 and -1 <= u.min() < -0.99 and 2.99 < u.max() <= 3
    assert abs(u.mean() - 1) < 6 * (16 / 12 / 20_000) ** 0.5


def test_two_nodes_draw_apart_and_shapes_follow_the_input(device: str) -> None:
    nodes = [node("RandomNormalLike", "x", "a"), node("RandomNormalLike", "x", "b"), node("Sub", "a b", "y")]
    loaded = rlx.onnx.load(model(nodes, {"x": ["n"]}, {"y": ["n"]}))
    for n in (3, 5):
        y = loaded.run({"x": np.ones(n, np.float32)}, device=device)["y"]
        assert y.shape == (n,) and np.all(y != 0)


def test_nobody_but_the_program_gives_the_numbers() -> None:
    loaded = rlx.onnx.load(model([node("RandomNormalLike", "x", "y")], {"x": [2]}, {"y": [2]}))
    with loaded, closing(loaded.compile(device="cpu")) as program:
        (name,) = program.graph.graph.inputs.keys() - {"x"}
        with pytest.raises(GraphError, match=rf"no input '{name}'; it takes \['x'\]"):
            program.run({"x": np.zeros(2, np.float32), name: np.zeros(2, np.float32)})


def test_bernoulli_and_multinomial(device: str) -> None:
    p = np.float32([0, 0.25, 1]).repeat(4000)
    proto = model([node("Bernoulli", "p", "y", dtype=BOOL)], {"p": [12_000]}, {"y": (None, BOOL)})
    y = rlx.onnx.load(proto).run({"p": p}, device=device)["y"].reshape(3, 4000)
    assert not y[0].any() and y[2].all() and abs(y[1].mean() - 0.25) < 6 * (0.1875 / 4000) ** 0.5
    made = node("Multinomial", "p", "y", sample_size=4000)
    proto = model([made], {"p": [2, 3]}, {"y": (None, I32)})
    odds = np.float32([[0.5, 0.3, 0.2], [0, 0, 1]])
    with np.errstate(divide="ignore"):
        y = rlx.onnx.load(proto).run({"p": np.log(odds)}, device=device)["y"]
    assert y.dtype == np.int32 and y.shape == (2, 4000) and np.all(y[1] == 2)
    shares = np.bincount(y[0], minlength=3) / 4000
    assert np.all(np.abs(shares - odds[0]) < 6 * (0.25 / 4000) ** 0.5)


def test_dropout_in_training(device: str) -> None:
    weights = {"r": np.float32(0.25), "t": np.array(True)}
    loaded = rlx.onnx.load(model([node("Dropout", "x r t", "y")], {"x": [8000]}, {"y": [8000]}, weights))
    a, b = (loaded.run({"x": np.ones(8000, np.float32)}, device=device)["y"] for _ in range(2))
    assert np.allclose(a[a != 0], 4 / 3) and abs((a != 0).mean() - 0.75) < 0.04 and not np.array_equal(a, b)


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(ModelFormatError, match="expected a floating-point type"):
        drawn(node("RandomUniform", "", "y", shape=[2], dtype=I64), "cpu", I64)
    with pytest.raises(RlxError):
        drawn(node("RandomUniform", "", "y", shape=[1 << 20, 1 << 20]), "cpu")
    for kind in ("Bernoulli", "Multinomial"):
        made = node(kind, "x", "y", dtype=TensorProto.STRING)
        proto = model([made], {"x": [2, 3]}, {"y": (None, TensorProto.STRING)})
        with pytest.raises(ModelFormatError, match="draws strings"):
            rlx.onnx.load(proto).run({"x": np.zeros((2, 3), np.float32)}, device="cpu")


def test_a_shape_that_is_drawn(device: str) -> None:
    nodes = [
        node("RandomUniform", "", "r", shape=[1], high=9.0),
        node("Cast", "r", "k", to=I64),
        node("Expand", "x k", "y"),
        node("RandomUniformLike", "y", "z", seed=3.0),
    ]
    loaded = rlx.onnx.load(model(nodes, {"x": [1]}, {"y": [None], "z": [None]}))
    made = [loaded.run({"x": np.ones(1, np.float32)}, device=device) for _ in range(12)]
    assert len({m["y"].shape for m in made}) > 2 and len(loaded.programs) == 1
    assert all(m["z"].shape == m["y"].shape and (m["y"] == 1).all() for m in made)
    drawn = np.concatenate([m["z"] for m in made])
    assert len(np.unique(drawn)) == len(drawn)  # the generator goes on from run to run


def test_every_step_of_a_loop_draws_its_own() -> None:
    body = helper.make_graph(
        [node("RandomUniform", "", "r", shape=[1]), node("Identity", "go", "on")], "body",
        [info("i", [], I64), info("go", [], BOOL)], [info("on", [], BOOL), info("r", [1])],
    )  # fmt: skip
    loop = node("Loop", "n _", "y", body=body)
    proto = model([loop], {}, {"y": None}, {"n": np.array(40)})
    y = rlx.onnx.load(proto).run(device="cpu")["y"]
    assert y.shape == (40, 1) and len(np.unique(y)) == 40
