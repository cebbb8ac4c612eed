"""What families of bombs are made of: hostile numbers, and the nodes whose last makes t."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Rng = random.Random
SIZES = (
    0,
    1,
    2,
    3,
    7,
    100,
    1000,
    4097,
    1 << 16,
    10**6,
    1 << 22,
    1 << 26,
    1 << 28,
    1 << 31,
    1 << 40,
    1 << 62,
    2**63 - 1,
)
ODD = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 5, 64, 1000, 10**6, 2**31 - 1, 2**31, 2**62, 2**63 - 1)


@dataclass(frozen=True)
class Made:
    """The nodes of a bomb, the last of which makes t, and the constants that they read."""

    nodes: Sequence[Any]
    weights: dict[str, Any] = field(default_factory=dict)
    functions: Sequence[Any] = ()
    opset: int = 21
    sequence: bool = False


def some_shape(rng: Rng, most: int = 5) -> list[int]:
    if rng.random() < 0.05:
        return [1] * rng.choice((31, 32, 33, 64, 65, 200))
    return [rng.choice(SIZES) for _ in range(rng.randrange(1, most))]


def some_numbers(rng: Rng, n: int) -> list[int]:
    """Mostly sound numbers, and one that is not."""
    made = [rng.choice((0, 1, 2, 3)) for _ in range(n)]
    if made and rng.random() < 0.8:
        made[rng.randrange(n)] = rng.choice(ODD)
    return made


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)
