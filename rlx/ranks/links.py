"""Links: how long a collective takes over them, from measured times of sums over two ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.records import Record

Points = tuple[tuple[float, float], ...]  # bytes and seconds, by rising bytes


class Link(Record):
    """The link between two ranks: the seconds of an all-reduce over them by its bytes, linear between measured points
    and beyond the last as between the last two."""

    points: Points

    @classmethod
    def of(cls, latency: float, bandwidth: float) -> Link:
        """A link of this latency in seconds and this bandwidth in bytes a second."""
        return cls(((0.0, latency), (1e9, latency + 1e9 / bandwidth)))

    @property
    def latency(self) -> float:
        return self.points[0][1]

    def wire(self, nbytes: float) -> float:
        """The seconds of an all-reduce of two ranks beyond the latency."""
        points = self.points
        after = next((i for i, (b, _) in enumerate(points) if b >= nbytes and i), len(points) - 1)
        (b0, t0), (b1, t1) = points[max(after - 1, 0)], points[after]
        if nbytes <= points[0][0] or b1 == b0:
            return 0.0
        return max(t0 + (nbytes - b0) * (t1 - t0) / (b1 - b0) - self.latency, 0.0)


class Links(Record):
    """The links of ranks: `near` within a machine of `machine` ranks, `far` between machines; None if all are near."""

    near: Link
    far: Link | None = None
    machine: int = 8

    def seconds(self, op: str, nbytes: float, ranks: int) -> float:
        """How long a collective of `ranks` takes, each of which gives `nbytes`.

        An all-reduce is estimated from the bytes of a ring, 2 (n - 1) / n of the array over each link, and the latency
        of a tree, log2 n times that of two ranks. A gather or a reduce-scatter moves half as many bytes, an exchange
        and a broadcast no more than an all-reduce. Over several machines, the ranks of each machine reduce-scatter,
        ranks of equal position all-reduce their parts over the links between machines, and each machine gathers
        them."""
        if ranks == 1:
            return 0.0
        inner = ranks if self.far is None else math.gcd(ranks, self.machine)
        outer = ranks // inner
        whole = nbytes * ranks if op == "all_gather" else nbytes
        half = 0.5 if op in ("all_gather", "reduce_scatter") else 1.0
        seconds = _ring(self.near, whole * half, inner)
        if outer > 1:
            assert self.far is not None
            seconds += _ring(self.far, whole * half / inner, outer)
        return seconds


def _ring(link: Link, nbytes: float, ranks: int) -> float:
    if ranks == 1:
        return 0.0
    return link.latency * math.log2(ranks) + link.wire(nbytes * 2 * (ranks - 1) / ranks)


def stops(sizes: Sequence[int], speeds: Sequence[float], least: float = 0.5) -> int | None:
    """The first number of ranks at which each rank is slower than `least` times one rank alone; None if none is.

    `sizes` are numbers of ranks, `speeds` the speed of all ranks together at each."""
    one = speeds[0] / sizes[0]
    return next((n for n, speed in zip(sizes, speeds, strict=True) if speed / n < least * one), None)
