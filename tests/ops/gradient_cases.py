"""Code that gradient cases share. A case is (function, shapes, a function applied to the normal random inputs), and
near a kink, fourth, the step of the finite difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.ir import Tensor

Shape = tuple[int, ...]
Build = Callable[..., Tensor]
Prepare = Callable[[np.ndarray], np.ndarray]
Gradients = dict[str, list[Any]]
Ties = dict[str, tuple[Build, Callable[..., Any]]]

KINK = 1e-5  # a step that stays on one side of a kink


class GradientCase(NamedTuple):
    build: Build
    shapes: list[Shape]
    prepare: Prepare | None = None
    step: float = 1e-3

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The inputs, in float64."""
        made = [rng.standard_normal(s) for s in self.shapes]
        return made if self.prepare is None else [np.asarray(self.prepare(a)) for a in made]


def positive(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 0.5


def apart(x: np.ndarray) -> np.ndarray:
    """Numbers of which no two are closer than the step of the difference, and none is near 0 or an integer."""
    return np.round(x * 7) / 7 + 1 / 14 + np.arange(x.size).reshape(x.shape) * 1e-3


def one_zero(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[0, 1] = 0.0
    x[1, 0] = x[1, 2] = 0.0
    return x


def constant_indices(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.array(values, np.int64))


def varying_indices(x: Tensor, values: Any) -> Tensor:
    """Indices that are not constant, so that they may be out of range."""
    return constant_indices(x, values) + ops.cast(ops.sum(x) * 0.0, "i64")


def whole(outs: tuple[Tensor, ...]) -> Tensor:
    """A tensor that depends on every output."""
    total = outs[0]
    for i, t in enumerate(outs[1:]):
        total = total * 1.5 + ops.sum(ops.sin(t)) * (0.5 + i)
    return total
