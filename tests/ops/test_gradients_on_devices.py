"""Gradient graphs run on each device in f32 and in f64, and are compared with the same graph in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.ir import Graph
from tests.devices import session_here
from tests.full import sampled
from tests.ops.by_family import GRADIENTS


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


@pytest.mark.parametrize("session", ["cpu", "vulkan", "cuda"], indirect=True)
@pytest.mark.parametrize(
    "op", [op for op in sorted(GRADIENTS) if op not in ("fused", "cast")]
)  # their cases are in f64
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.sample(40, vulkan=20)
def test_gradient(session: rlx.Session, op: str, dtype: Any) -> None:
    finer = 1.0 if dtype is np.float32 else 4e-18  # the square of f64's last place over that of f32's
    for number, case in enumerate(sampled(GRADIENTS[op], most=1)):
        rng = np.random.default_rng(number)
        feeds = {f"x{i}": a.astype(dtype) for i, a in enumerate(case.arrays(rng))}
        g = Graph(op)
        xs = [g.input(name, a.shape, dtype) for name, a in feeds.items()]
        y = case.build(*xs)
        seed = g.constant(rng.standard_normal(y.shape).astype(dtype))
        for i, d in enumerate(gradients(y, xs, seed)):
            g.output(f"d{i}", d)
        values = evaluate(g, feeds)
        with session.compile(g) as compiled:
            outputs = compiled.run(feeds)
            if dtype is np.float64:
                assert not compiled.report().host_nodes
        for name, t in g.outputs.items():
            want = values[t.id]
            error, power = float(np.sum((outputs[name] - want) ** 2)), float(np.sum(want**2))
            # Gradients that cancel to zero are sums of terms of size 1, so that a few ULP of 1 remain.
            assert error <= finer * (1e-10 * power + 1e-13 * want.size), (number, name, outputs[name], want)
