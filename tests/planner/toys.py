"""Toy ops with only the traits that planning depends on, and a strategy of random graphs over them.

The movement toys have the attributes and the `view` of the real ops, by which the planner recognizes views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlx.driver import Slot
from rlx.dtypes import bool_, f16, f32, i8, i32, i64, u8
from rlx.ir import NOT_DIFFERENTIABLE, Graph, Op, Tensor, TensorType, expr
from rlx.ops import views

DTYPES = (f32, f32, f32, f16, i32, i64, i8, u8, bool_)


def _toy(name: str, infer: Any, reference: Any = None, **more: Any) -> Op:
    return Op(name, "toy", infer, reference or (lambda *a, **k: a), "numpy", NOT_DIFFERENTIABLE, **more)


def _first(types: Sequence[TensorType], attrs: Any) -> TensorType:
    return types[0]


def _broadcast(types: Sequence[TensorType], attrs: Any) -> TensorType:
    return TensorType(np.broadcast_shapes(*(t.shape for t in types)), types[0].dtype)


def _like(rule: Any) -> Any:
    """The `infer` of a movement op: its output's type, found by moving an array of that shape."""
    return lambda types, attrs: TensorType(
        rule(np.zeros(types[0].shape, np.int8), **attrs).shape, types[0].dtype
    )


def _slice(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    cut = [slice(a, None if b < 0 else b, s) for a, b, s in zip(starts, stops, steps, strict=True)]
    return x[tuple(cut)]


def _moving(name: str, rule: Any, view: Any) -> Op:
    return _toy(name, _like(rule), rule, view=view)


ADD = _toy("add", _broadcast, expr=lambda xs, a: xs[0], inplace=(0, 1))
MIX = _toy("mix", _broadcast)  # reads all elements of its inputs for each result: never in place
NORM = _toy("norm", _first, inplace=(0,))  # may overwrite input 0, and reads the others meanwhile
TWO = _toy("two", lambda types, attrs: (types[0], TensorType((2, *types[0].shape), f32)))
FAIL = _toy("fail", _first, fallible=True)
PAIR = _toy("fused", lambda types, attrs: (types[0], types[1]), expr=lambda xs, a: xs[0], inplace=(0, 1))
COPY = _moving("copy", lambda x: x, views.whole)
RESHAPE = _moving("reshape", lambda x, shape: x.reshape(shape), views.whole)
TRANSPOSE = _moving("transpose", lambda x, perm: x.transpose(perm), views.transpose)
EXPAND = _moving("expand", lambda x, shape: np.broadcast_to(x, shape), views.expand)
SLICE = _moving("slice", _slice, views.slice)
CAST = _toy("cast", lambda types, attrs: TensorType(types[0].shape, attrs["dtype"]), inplace=(0,), view=views.cast)
MOVES = {"copy", "reshape", "transpose", "expand", "slice"}


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 14) -> Graph:
    """A valid graph of toys with inputs, params, states, constants, views, dead nodes and results of every kind."""
    g = Graph("toys")
    shapes = st.lists(st.sampled_from((0, 1, 1, 2, 3, 4, 8, 40)), max_size=3).map(tuple)
    dtypes = st.sampled_from(DTYPES)
    pool = [g.input("x", draw(shapes), draw(dtypes))]
    for k in range(draw(st.integers(0, 3))):
        declare = draw(st.sampled_from((g.input, g.param, g.state, g.state)))
        pool.append(declare(f"leaf{k}", draw(shapes), draw(dtypes)))
    if draw(st.booleans()):
        pool.append(g.constant(np.ones(draw(shapes), draw(dtypes).np)))
    for _ in range(draw(st.integers(1, max_nodes))):
        pool += _node(draw, g, pool)
    for state in list(
        g.states.values()
    ):  # so that a state's old value, under another name, is a frequent result
        pool += g.add(COPY, (state,)) + g.add(ADD, (state, state))
    for k, t in enumerate(draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))):
        if t.node.op.name != "state":
            g.output(f"y{k}", t)
    for name, state in g.states.items():
        fitting = [t for t in pool if t.type == state.type and t.node.op.name != "state"]
        if fitting and draw(st.booleans()):
            new = draw(st.sampled_from(fitting))
            for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):  # after every other read, one by one
                new = g.add(draw(st.sampled_from((ADD, NORM))), (new,))[0]
            g.update(name, new)
            if draw(st.booleans()):
                g.add(FAIL, (new,))
    return g


def _node(draw: st.DrawFn, g: Graph, pool: list[Tensor]) -> tuple[Tensor, ...]:
    x = draw(st.sampled_from(pool[-6:] if draw(st.booleans()) else pool))
    kind = draw(st.sampled_from(("add", "add", "mix", "norm", "two", "pair", "view", "view", "cast", "fail")))
    if kind in ("add", "mix", "norm"):
        ys: list[Tensor] = []
        for _ in range(draw(st.integers(0, 2))):
            ys.append(draw(st.sampled_from([t for t in pool if _joins(x, *ys, t)])))
        op = {"add": ADD, "mix": MIX, "norm": NORM}[kind]
        return g.add(op, (x, *ys) if draw(st.booleans()) or kind == "norm" else (*ys, x))
    if kind in ("two", "fail"):
        return g.add({"two": TWO, "fail": FAIL}[kind], (x,))
    if kind == "pair":
        y = draw(st.sampled_from([t for t in pool if t.shape == x.shape]))
        a, b = expr.arg(0, x.dtype), expr.arg(1, y.dtype)
        trees = draw(
            st.sampled_from(((a, b), (a, expr.cast(a, y.dtype)), (expr.cast(b, x.dtype), b), (a + b, b)))
        )
        return g.add(PAIR, (x, y), {"trees": trees, "shape": x.shape})
    if kind == "cast":
        return g.add(CAST, (x,), {"dtype": draw(st.sampled_from(DTYPES))})
    return _view(draw, g, x)


def _joins(*tensors: Tensor) -> bool:
    try:
        return np.broadcast_shapes(*(t.shape for t in tensors)) is not None
    except ValueError:
        return False


def _view(draw: st.DrawFn, g: Graph, x: Tensor) -> tuple[Tensor, ...]:
    kind = draw(st.sampled_from(("copy", "reshape", "transpose", "expand", "slice", "slice")))
    if kind == "copy":
        return g.add(COPY, (x,))
    if kind == "reshape":
        return g.add(
            RESHAPE, (x,), {"shape": draw(st.sampled_from(((x.size,), (1, *x.shape), x.shape[::-1])))}
        )
    if kind == "transpose":
        return g.add(TRANSPOSE, (x,), {"perm": tuple(draw(st.permutations(range(x.ndim))))})
    if kind == "expand":
        return g.add(EXPAND, (x,), {"shape": (draw(st.sampled_from((1, 1, 2))), *x.shape)})
    cuts = [_cut(draw, n) for n in x.shape]
    starts, stops, steps = (tuple(c[i] for c in cuts) for i in range(3))
    return g.add(SLICE, (x,), {"starts": starts, "stops": stops, "steps": steps})


def _cut(draw: st.DrawFn, n: int) -> tuple[int, int, int]:
    how = draw(st.sampled_from(("all", "all", "head", "tail", "one", "reverse", "odd")))
    half = n // 2
    if how == "head":
        return 0, half, 1
    if how == "tail":
        return half, n, 1
    if how == "one" and n:
        return half, half + 1, 1
    if how == "reverse" and n:
        return n - 1, -1, -1
    if how == "odd":
        return 0, n, 2
    return 0, n, 1


def stores(g: Graph) -> dict[str, dict[str, Slot]]:
    """Slots for params and states, each in a segment of its own."""
    return {
        "param_slots": {n: Slot(f"w_{n}", 0, t.type.nbytes, t.dtype) for n, t in g.params.items()},
        "state_slots": {n: Slot(f"s_{n}", 0, t.type.nbytes, t.dtype) for n, t in g.states.items()},
    }
