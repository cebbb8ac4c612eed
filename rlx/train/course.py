"""The course of a run as a picture: the loss of each step, its running mean, and the losses of evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

Points = Sequence[tuple[float, float]]
_LEFT, _TOP, _WIDTH, _HEIGHT = 72, 40, 820, 360
_COLUMNS = 410  # columns of the picture; several steps share one if there are more steps
_DECADES = 20.0  # the axis is logarithmic if the largest loss is at least this many times the least


def course_svg(losses: Points, evaluations: Points = ()) -> str:
    """SVG of the losses by step: a pale band for the range of each column's steps, a dark line for their running mean,
    dots for evaluations. Losses that are not finite are left out, and counted in the caption."""
    shown = [(s, v) for s, v in losses if math.isfinite(v)]
    dots = [(s, v) for s, v in evaluations if math.isfinite(v)]
    body: list[str] = []
    caption = "no loss yet"
    if shown:
        last = losses[-1][0]
        caption = f"loss, {last:,} steps, last {shown[-1][1]:.4g}"
        if dots:
            caption += f"; dots: evaluation, last {dots[-1][1]:.4g}"
        if len(shown) < len(losses):
            caption += f"; {len(losses) - len(shown):,} not finite"
        columns, mean = _columns(shown), _mean(shown)
        seen = [v for _, low, high in columns for v in (low, high)] + [v for _, v in dots]
        axis = _Axis(min(seen), max(seen))
        first = shown[0][0]

        def x(step: float) -> float:
            return _LEFT + _WIDTH * (step - first) / max(last - first, 1)

        band = [f"{x(s):.1f},{axis.y(high):.1f}" for s, _, high in columns]
        band += [f"{x(s):.1f},{axis.y(low):.1f}" for s, low, _ in reversed(columns)]
        line = " ".join(f"{x(s):.1f},{axis.y(v):.1f}" for s, v in mean)
        body = [
            *axis.lines(),
            *_steps(first, last, x),
            f'<polygon points="{" ".join(band)}" fill="#9ecae9" stroke="#9ecae9"/>',
            f'<polyline points="{line}" fill="none" stroke="#14517f" stroke-width="2"/>',
            *(f'<circle cx="{x(s):.1f}" cy="{axis.y(v):.1f}" r="3.5" fill="#c00"/>' for s, v in dots),
        ]
    width, height = _LEFT + _WIDTH + 28, _TOP + _HEIGHT + 40
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#111">',
            '<rect width="100%" height="100%" rx="6" fill="#fff"/>',
            f'<text x="{_LEFT}" y="24" font-size="14">{caption}</text>',
            *body,
            "</svg>",
            "",
        ]
    )


class _Axis:
    """The axis of losses from `low` to `high`."""

    def __init__(self, low: float, high: float) -> None:
        self.log = low > 0 and high / low >= _DECADES
        a, b = (math.log10(low), math.log10(high)) if self.log else (low, high)
        room = (b - a) * 0.05 or abs(a) * 0.05 or 1.0
        self._from, self._to = a - room, b + room

    def y(self, value: float) -> float:
        at = math.log10(value) if self.log else value
        return _TOP + _HEIGHT * (self._to - at) / (self._to - self._from)

    def lines(self) -> Iterator[str]:
        """A grid line and a label at each round value."""
        for value in self._ticks():
            y = self.y(value)
            yield (
                f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
            )

    def _ticks(self) -> list[float]:
        if not self.log:
            return _rounds(self._from, self._to, 6)
        decades = range(math.floor(self._from), math.ceil(self._to) + 1)
        parts = (1, 2, 5) if len(decades) < 5 else (1,)
        return [p * 10.0**d for d in decades for p in parts if self._from <= math.log10(p) + d <= self._to]


def _rounds(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers between `low` and `high`."""
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    tick = next(unit * p for p in (1, 2, 5, 10) if unit * p >= raw)
    return [i * tick for i in range(math.ceil(low / tick), math.floor(high / tick) + 1)]


def _columns(points: Points) -> list[tuple[float, float, float]]:
    """(first step, least value, largest value) of each column of the picture that has points."""
    first, last = points[0][0], points[-1][0]
    columns: dict[int, tuple[float, float, float]] = {}
    for step, value in points:
        at = int((step - first) / max(last - first, 1) * _COLUMNS)
        s, low, high = columns.get(at, (step, value, value))
        columns[at] = s, min(low, value), max(high, value)
    return list(columns.values())


def _mean(points: Points) -> list[tuple[float, float]]:
    """The exponential running mean over about a fiftieth of the steps."""
    keep = 1.0 - 1.0 / max(len(points) / 50, 1.0)
    every = max(len(points) // _COLUMNS, 1)
    total = weight = 0.0
    means = []
    for i, (step, value) in enumerate(points):
        total, weight = total * keep + value, weight * keep + 1.0
        if i % every == 0 or i == len(points) - 1:
            means.append((step, total / weight))
    return means


def _steps(first: float, last: float, x: Callable[[float], float]) -> Iterator[str]:
    """The labels of the step axis, at round numbers."""
    for step in _rounds(first, max(last, first + 1), 8):
        if step == int(step):
            yield f'<text x="{x(step):.1f}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">{int(step):,}</text>'
