"""Counts and times of a server, as text that Prometheus reads (exposition format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts of times below each of some limits."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += times
        self.sum += seconds * times

    def lines(self, name: str) -> list[str]:
        lines, total = [], 0
        for limit, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{limit}"}} {total}')
        return [*lines, f"{name}_sum {self.sum:.6f}", f"{name}_count {total}"]


class Metrics:
    """What is counted; `gauges` are asked for their values when the page is."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.prompt_tokens = self.generated_tokens = self.left = 0
        self.first_token, self.between_tokens = Histogram(), Histogram()
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def text(self) -> str:
        lines = _head("rlx_requests_total", "counter", "Requests by route and status.")
        for (route, status), count in sorted(self.requests.items()):
            lines.append(f'rlx_requests_total{{route="{route}",status="{status}"}} {count}')
        for name, what, value in (
            ("rlx_prompt_tokens_total", "Tokens of prompts taken in.", self.prompt_tokens),
            ("rlx_generated_tokens_total", "Tokens made.", self.generated_tokens),
            ("rlx_clients_left_total", "Requests whose client left before the end.", self.left),
        ):
            lines += [*_head(name, "counter", what), f"{name} {value}"]
        for name, (what, gauge) in self.gauges.items():
            lines += [*_head(name, "gauge", what), f"{name} {gauge():g}"]
        for name, what, histogram in (
            ("rlx_first_token_seconds", "From a request to its first token.", self.first_token),
            ("rlx_between_tokens_seconds", "Between two tokens of a sequence.", self.between_tokens),
        ):
            lines += [*_head(name, "histogram", what), *histogram.lines(name)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
