"""Random numbers: each is an input of the graph that the caller does not see, drawn anew for every run."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import numpy as np

from rlx.errors import UnsupportedOp
from rlx.host.locks import renewed
from rlx.ir import Graph, Tensor
from rlx.ir.graph import traced_into
from rlx.onnx.reader.elements import Array, ElementType
from rlx.records import Record

MAX_DRAWN = 1 << 26  # numbers drawn in a run


class Draw(Record):
    """One random tensor: shape and type, normal numbers or uniform ones from 0 up to 1, and the seed if there is
    one."""

    shape: tuple[int, ...]
    dtype: ElementType
    normal: bool
    seed: float | None


class Draws:
    """The random tensors of a graph, by the name of the input."""

    def __init__(self) -> None:
        self.wanted: dict[str, Draw] = {}
        self._numbers = 0

    def add(self, graph: Graph, draw: Draw, where: str) -> Tensor:
        """The input with the numbers. Raises: UnsupportedOp in a compiled loop or branch, or for too many
        numbers."""
        if traced_into(graph) is not graph:
            raise UnsupportedOp(f"{where}: random numbers in a compiled loop or branch are not supported")
        self.count(draw, where)
        name = f"random {len(self.wanted)}"
        while name in graph.inputs:
            name += "'"
        self.wanted[name] = draw
        return graph.input(name, draw.shape, draw.dtype)

    def count(self, draw: Draw, where: str) -> None:
        """Raises: UnsupportedOp for too many numbers."""
        self._numbers += math.prod(draw.shape)
        if self._numbers > MAX_DRAWN:
            raise UnsupportedOp(f"{where}: more than {MAX_DRAWN:,} random numbers are drawn")


class Sampler:
    """The generators of a program: seeded ones start with the program, and every run continues them."""

    def __init__(self, wanted: Mapping[str, Draw]) -> None:
        self._wanted = dict(wanted)
        self._generators = {name: generator_of(draw.seed) for name, draw in wanted.items()}
        self._lock = renewed(self, "_lock", threading.Lock)

    @property
    def any(self) -> bool:
        return bool(self._wanted)

    def __call__(self) -> dict[str, Array]:
        """Numbers for one run."""
        with self._lock:
            return {name: numbers(self._generators[name], draw) for name, draw in self._wanted.items()}


def generator_of(seed: float | None) -> np.random.Generator:
    """A generator, new or of a seed."""
    bits = None if seed is None else int(np.float64(seed).view(np.uint64))
    return np.random.Generator(np.random.Philox(bits))


def numbers(generator: np.random.Generator, draw: Draw) -> Array:
    """The numbers of one draw."""
    make = generator.standard_normal if draw.normal else generator.random
    return np.asarray(make(draw.shape, draw.dtype.type))
