"""Random graphs: a seed gives a valid graph of ops of all kinds, and arrays to run it on.

They cover what hand-written graphs seldom have: values used several times, dead nodes, outputs that alias leaves, views
or each other, states, sizes of 0, mixed dtypes. The same seed gives the same graph on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.conformance.random_rules import MAX_ELEMENTS, in_order, is_number, joined
from rlx.conformance.record import records
from rlx.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from rlx.ir import Graph, Tensor

_DTYPES = (f32, f32, f32, f32, f32, f16, bf16, f64, i32, i64, i8, u8, bool_)
_SMOOTH_DTYPES = (f32, f32, f32, f32, f32, f16, bf16, i32, bool_)
_SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e-30)


@dataclass(slots=True)
class RandomGraph:
    """A graph and a value for each of its inputs, params and states."""

    seed: int
    graph: Graph
    feeds: dict[str, Any] = field(default_factory=dict)

    def of(self, table: dict[str, Tensor]) -> dict[str, Any]:
        """The values of the graph's inputs, params or states."""
        return {name: self.feeds[name] for name in table}


def random_graph(
    seed: int, *, nodes: int = 18, smooth: bool = False, dtypes: tuple[DType, ...] | None = None
) -> RandomGraph:
    """A graph of about `nodes` nodes.

    With `smooth`, results may be compared with a tolerance, since a small error of a value stays small: there are no
    roundings to integers, comparisons or exponentials, and no special values.
    """
    return Builder(seed, smooth, dtypes or (_SMOOTH_DTYPES if smooth else _DTYPES)).build(nodes)


class Builder:
    def __init__(self, seed: int, smooth: bool, dtypes: tuple[DType, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        self.smooth = smooth
        self.dtypes = dtypes
        self.graph = Graph(f"random{seed}")
        self.made = RandomGraph(seed, self.graph)
        self.pool: list[Tensor] = []

    def build(self, nodes: int) -> RandomGraph:
        for _ in range(1 + self.below(3)):
            self.leaf(self.shape(), self.dtype())
        rules = in_order(rule for record in records() for rule in record.random)
        rules = [rule for rule in rules if not (self.smooth and rule.rough)]
        target = 1 + self.below(nodes)
        while len(self.graph.nodes) < target + len(self.made.feeds):
            outputs = self.choose(rules).add(self)
            self.pool += [t for t in outputs if t.size <= MAX_ELEMENTS]
        self.results()
        return self.made

    def results(self) -> None:
        """Declares outputs (recent values more often), and new values for most states."""
        late = [t for t in self.pool if not t.node.op.leaf][-6:] or self.pool
        for k in range(1 + self.below(4)):
            self.graph.output(f"y{k}", self.choose(late if self.chance(0.8) else self.pool))
        for name, state in list(self.graph.states.items()):
            if self.chance(0.8):
                fitting = [t for t in self.pool if t.type == state.type and t is not state]
                value = (
                    self.choose(fitting)
                    if fitting and self.chance(0.7)
                    else ops.add(state, 1)
                    if is_number(state)
                    else state
                )
                self.graph.update(name, value)

    # -- choices

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def choose(self, items: list[Any] | tuple[Any, ...]) -> Any:
        return items[self.below(len(items))]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        sizes = (1, 1, 2, 3, 4, 5, 8, 17) if self.chance(0.96) else (0, 1, 2, 64)
        n = self.below(5) if rank is None else rank
        shape = tuple(self.choose(sizes) for _ in range(n))
        return shape if math.prod(shape) <= MAX_ELEMENTS else shape[:2]

    def dtype(self) -> DType:
        result: DType = self.choose(self.dtypes)
        return result

    def value(self, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(np.bool_)
        if dtype.is_int:
            low = 0 if dtype.kind == "u" else -9
            return self.rng.integers(low, 10, shape).astype(dtype.np)
        value = np.asarray(self.rng.standard_normal(shape))
        if not self.smooth and value.size and self.chance(0.1):
            value.reshape(-1)[self.below(value.size)] = self.choose(_SPECIAL)
        with np.errstate(over="ignore"):
            return value.astype(dtype.np)

    # -- tensors

    def leaf(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A new input, param, state or constant."""
        kind = self.choose(("input", "input", "param", "param", "state", "constant"))
        if kind == "constant":
            value = self.value(shape, dtype)
            if self.chance(0.3) and value.size:
                value = np.full(shape, self.choose((0, 1, 1, 2)), dtype.np)  # constants that `simplify` has rules for
            result = self.graph.constant(value)
        else:
            name = f"{kind}{len(self.made.feeds)}"
            self.made.feeds[name] = self.value(shape, dtype)
            result = {"input": self.graph.input, "param": self.graph.param, "state": self.graph.state}[kind](
                name, shape, dtype
            )
        self.pool.append(result)
        return result

    def pick(self, want: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        """A tensor of the graph that fits, recent ones more often; None if there is none."""
        fitting = [t for t in self.pool if want(t)]
        if not fitting:
            return None
        chosen: Tensor = self.choose(fitting[-4:] if self.chance(0.6) else fitting)
        return chosen

    def pick_or(self, want: Callable[[Tensor], bool], shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A tensor of the graph that fits, or a new leaf."""
        tensor = self.pick(want)
        return tensor if tensor is not None else self.leaf(shape, dtype)

    def any(self) -> Tensor:
        return self.pick_or(lambda t: True, self.shape(), self.dtype())

    def floating(self) -> Tensor:
        return self.pick_or(lambda t: t.dtype.is_float, self.shape(), f32)

    def number(self) -> Tensor:
        return self.pick_or(is_number, self.shape(), f32)

    def ranked(self, low: int, want: Callable[[Tensor], bool] = lambda t: True) -> Tensor:
        """A tensor of `low` axes or more that is not empty."""
        shape = tuple(1 + self.below(5) for _ in range(low))
        return self.pick_or(lambda t: t.ndim >= low and t.size > 0 and want(t), shape, f32)

    def beside(self, x: Tensor, want: Callable[[Tensor], bool] = lambda t: True) -> Tensor:
        """A tensor that broadcasts with x, or a constant of one element."""
        tensor = self.pick(lambda t: want(t) and joined(x, t) <= MAX_ELEMENTS) if self.chance(0.85) else None
        return (
            tensor if tensor is not None else self.graph.constant(self.value((), x.dtype if want(x) else f32))
        )

    def picture(self, channels: int | None = None) -> Tensor:
        """A new leaf (N, C, H, W) of small sizes."""
        shape = (1 + self.below(2), channels or 1 + self.below(4), 4 + self.below(4), 4 + self.below(4))
        return self.leaf(shape, self.choose((f32, f16)) if f16 in self.dtypes else f32)

    def indices(self, shape: tuple[int, ...], n: int) -> Tensor:
        """An input of indices into n elements, so known only in a run: in or near the range, or anywhere."""
        dtype = self.choose((i32, i64))
        name = f"indices{len(self.made.feeds)}"
        value: Any = self.rng.integers(-n - 2, n + 2, shape)
        if self.chance(0.3):
            info = np.iinfo(dtype.np)
            far = np.array([info.min, info.max, info.min + 1, -(2**31), 2**31 - 1, 0, -1, n, -n - 1], np.int64)
            value = np.where(self.rng.random(shape) < 0.5, far[self.rng.integers(0, far.size, shape)], value)
        self.made.feeds[name] = np.asarray(value).astype(dtype.np)
        return self.graph.input(name, shape, dtype)
