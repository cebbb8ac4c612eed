"""Random graphs of a length: the same seed gives the same program at every length, where its ops allow that."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.conformance.random_graphs import Builder, RandomGraph
from rlx.dtypes import DType, bool_, f32, f64, i32, i64
from rlx.ir import Tensor

LEAST, LARGEST = 9, 16  # beside them the graphs' other sizes are small


class LengthBuilder(Builder):
    """Builds a random graph whose tensors may have an axis of length n at any place.

    Choices are drawn apart from values, so that they do not depend on n. `poisoned` floats of a varying input make the
    graph compute with NaN where the array is padded by zeros; raw ones leave it to know that these are zeros."""

    def __init__(self, seed: int, n: int, poisoned: bool) -> None:
        super().__init__(seed, True, (f32, f32, f32, f32, f64, i32, bool_))
        self.n = n
        self.poisoned = poisoned
        self.values = np.random.default_rng(seed)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        sizes = (self.n, self.n, self.n, 1, 2, 3, 4, 5)
        return tuple(self.choose(sizes) for _ in range(self.below(4) if rank is None else rank))

    def value(self, shape: tuple[int, ...], dtype: DType) -> Any:
        kept, self.rng = self.rng, self.values
        try:
            full = tuple(LARGEST if k == self.n else k for k in shape)
            value = super().value(full, dtype)
            if dtype.is_float:
                value = np.where(value == 0, dtype.np.type(1), value)
            return np.asarray(value)[tuple(map(slice, shape))].copy()
        finally:
            self.rng = kept

    def leaf(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        if self.n not in shape:
            return super().leaf(shape, dtype)
        name = f"input{len(self.made.feeds)}"
        self.made.feeds[name] = self.value(shape, dtype)
        made = self.graph.input(name, shape, dtype)
        if dtype.is_float and self.poisoned:
            made = made / ops.cast(ops.not_equal(made, 0), dtype)
        self.pool.append(made)
        return made

    def indices(self, shape: tuple[int, ...], n: int) -> Tensor:
        size = LARGEST if n == self.n else n
        full = tuple(LARGEST if k == self.n else k for k in shape)
        drawn = self.values.integers(-size - 2, size + 2, full)
        name = f"indices{len(self.made.feeds)}"
        dtype = self.choose((i32, i64))
        self.made.feeds[name] = drawn[tuple(map(slice, shape))].astype(dtype.np)
        return self.graph.input(name, shape, dtype)


def graph_of_length(seed: int, n: int, nodes: int = 90, poisoned: bool = True) -> RandomGraph:
    """The graph of a seed at a length, and its arrays."""
    builder = LengthBuilder(seed, n, poisoned)
    for shape in ((n,), (n, 4), (3, n), (n, 2, 3), (2, n, 4), (n, 3, 4, 4), (2, 2, n, 4)):
        if builder.chance(0.5):
            builder.leaf(shape, f32)
    return builder.build(nodes)
