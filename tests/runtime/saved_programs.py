"""Small programs of many kinds, which tests save and load: each with the settings of its session, its weights and its
inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rlx
from rlx.conformance.case import cases_of
from rlx.ir import REGISTRY, Graph
from rlx.runtime import CompiledGraph, Session


@dataclass
class Saved:
    """A program to save. `halves` are weights kept in bf16, `runs` the runs made before it is saved."""

    graph: Graph
    weights: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    halves: tuple[str, ...] = ()
    runs: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def compiled(self, session: Session) -> CompiledGraph:
        exe = session.compile(self.graph, **self.options)
        for name, array in self.weights.items():
            exe.set_param(name, array, "bf16" if name in self.halves else None)
        for _ in range(self.runs):
            exe.run(self.inputs)
        return exe


def _normal(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def dense() -> Saved:
    """Products, a table, an attention, two results, one of which is an input, and a weight in bf16."""
    g = Graph("dense")
    x, ids = g.input("x", (2, 8)), g.input("ids", (2, 3), "i64")
    w, b, table = g.param("w", (8, 4)), g.param("b", (4,)), g.constant(_normal(0, 5, 8))
    g.output("y", rlx.softmax(rlx.gelu(x @ w + b)))
    rows = rlx.gather(table, ids)
    g.output("z", rlx.attention(*(rlx.reshape(rows, (2, 1, 3, 8)) for _ in range(3)), causal=True))
    g.output("same", x)
    weights = {"w": _normal(1, 8, 4), "b": _normal(2, 4)}
    return Saved(g, weights, {"x": _normal(3, 2, 8), "ids": np.array([[0, 4, 2], [1, 1, 3]])}, halves=("w",))


def kinds() -> Saved:
    """Every dtype, random numbers, infinite attributes, and ops whose attributes are tuples of tuples."""
    g = Graph("kinds")
    h, d, n = g.input("h", (3, 4), "f16"), g.input("d", (3, 4), "f64"), g.input("n", (4,), "i64")
    b, k = g.input("b", (4,), "bool"), g.input("k", (2,), "i32")
    g.output("half", rlx.clip(rlx.exp(h) * 2 + h, -np.inf, 3.0))
    g.output("wide", rlx.where(b, rlx.log(rlx.abs(d) + 1), d))
    g.output("whole", rlx.max(n) + rlx.cumsum(n))
    g.output("drawn", rlx.random.normal(k, (3, 4)) + rlx.cast(h, "f32"))
    picture = rlx.cast(rlx.reshape(d, (1, 1, 3, 4)), "f32")
    g.output("conv", rlx.conv(picture, g.constant(_normal(4, 2, 1, 2, 2)), strides=(1, 2), pads=((1, 0), (0, 1))))
    g.output("pool", rlx.max_pool(picture, (2, 2)))
    g.output("top", rlx.top_k(rlx.cast(h, "bf16"), 2)[0])
    inputs = {"h": _normal(5, 3, 4, dtype=np.float16), "d": _normal(6, 3, 4, dtype=np.float64),
              "n": np.array([1, -2, 1 << 40, 3]), "b": np.array([True, False, True, True]),
              "k": np.array([1, 2], np.int32)}  # fmt: skip
    return Saved(g, {}, inputs)


def control() -> Saved:
    """A scan, a loop and a branch, with captures and a constant too large to be copied into a body."""
    g = Graph("control")
    x, w, large = g.input("x", (3, 4)), g.param("w", (4, 4)), g.constant(_normal(7, 300, 4))
    carry, rows = rlx.scan(lambda c, r: (rlx.tanh(c @ w + r), c + r), x[0], x)
    g.output("carry", carry)
    g.output("rows", rows)
    last, steps = rlx.while_loop(
        lambda c: rlx.sum(c[0]) < 40.0, lambda c: (c[0] * 2 + rlx.max(large, 0), c[1] + 1),
        (rlx.abs(carry) + 1, g.constant(0, "i32")), max_steps=20,
    )  # fmt: skip
    g.output("steps", steps)
    g.output("branch", rlx.cond(rlx.sum(last) > 50.0, lambda v: v @ w, lambda v: v - 1, last))
    return Saved(g, {"w": _normal(8, 4, 4)}, {"x": _normal(9, 3, 4)})


def state() -> Saved:
    """A cache that grows by a row in each run, a counter, and a state that is zero still."""
    g = Graph("state")
    row = g.input("row", (1, 4))
    cache, at, idle = g.state("cache", (6, 4)), g.state("at", (), "i32"), g.state("idle", (2,), "f64")
    grown = rlx.dynamic_update_slice(cache, row, (at, 0))
    g.update("cache", grown)
    g.update("at", at + 1)
    g.output("sum", rlx.sum(grown, 0) + rlx.cast(rlx.sum(idle), "f32"))
    return Saved(g, {}, {"row": _normal(10, 1, 4)}, runs=2)


def packed() -> Saved:
    """A packed weight and a packed constant, in a program with the storage of f32."""
    g = Graph("packed")
    x, h = g.input("x", (2, 64)), g.input("h", (2, 64), "f16")
    q = g.param("q", (6, 64), "q4_0")
    k = g.constant(rlx.quantize(_normal(11, 6, 64), "q8_0"))
    g.output("y", x @ rlx.transpose(rlx.dequantize(q), (1, 0)) + rlx.packed_matmul(x, k))
    g.output("h", h * 2)
    weights = {"q": rlx.quantize(_normal(12, 6, 64), "q4_0")}
    inputs = {"x": _normal(13, 2, 64), "h": _normal(14, 2, 64, dtype=np.float16)}
    return Saved(g, weights, inputs, options={"storage": "f32"})


def donated() -> Saved:
    """An input that a run may overwrite."""
    g = Graph("donated")
    cache, row = g.input("cache", (4, 3)), g.input("row", (1, 3))
    g.output("grown", rlx.dynamic_update_slice(cache, row, (2, 0)))
    inputs = {"cache": _normal(15, 4, 3), "row": _normal(16, 1, 3)}
    return Saved(g, {}, inputs, options={"donate": ("cache",)})


PROGRAMS: dict[str, Callable[[], Saved]] = {
    "dense": dense, "kinds": kinds, "control": control, "state": state, "packed": packed,
    "donated": donated,
}  # fmt: skip


def of_op(op: str, number: int) -> Saved:
    """One of an op's conformance cases as a program."""
    cases = [c for c in cases_of(op) if sum(math.prod(i.shape) for i in c.inputs) < 1 << 12] or cases_of(op)
    case = cases[number * 7919 % len(cases)]
    return Saved(case.graph(), {}, case.feeds())


def ops() -> list[str]:
    """The ops that have conformance cases."""
    return [n for n, op in REGISTRY.items() if op.leaf is None and cases_of(n)]
