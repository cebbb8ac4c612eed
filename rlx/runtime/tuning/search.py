"""The search: the algorithms of a program's nodes, measured where they stand, in runs of the whole program.

A run is timed step by step, so that one round measures one candidate of every problem: there are as many rounds as the
largest number of candidates of a problem. A candidate that changes a tensor's layout gives the neighbouring nodes other
problems, which that round cannot measure; these candidates are tried again one at a time. At last the fastest
candidates are measured once more, all together and against the rules; they are kept if they still gain, in their steps
and in the whole run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlx.errors import OutOfDeviceMemory, UnsupportedOp
from rlx.host.progress import report
from rlx.records import Record
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.tuning.table import Measured

if TYPE_CHECKING:
    from rlx.backends.gpu.program.candidates import Decision

LEAST_GAIN = 1.03  # a smaller gain is within the noise of such measurements
MOST = 24  # the candidates of a problem that are tried at most, cheapest estimates first
_WARM_UPS, _RUNS = 2, 5
_ENOUGH = 0.25  # seconds after which warming up ends; after twice as long, timing does too
_TURNS = 10  # runs of each program when two are compared as a whole
_NOISE = 1.005  # the ratio of times that is within the noise of such runs
_CONFIRMING = 3  # the time kept for the final measurements, in timed runs by the rules

Feeds = Mapping[str, Any]
Clock = Callable[[CompiledGraph, Feeds], Mapping[str, float]]
Whole = Callable[[CompiledGraph, CompiledGraph, Feeds], tuple[float, float]]


class Found(Record):
    """The result of a search: for each problem with several candidates its measured choice and number of nodes; and the
    µs of a whole run by the rules and by the choices. `kept`: whether the choices are worth keeping. `tried` counts the
    measured candidates, `left` those for which there was no time, and `lines` lists the measured ones by problem."""

    problems: Mapping[str, Measured]
    nodes: Mapping[str, int]
    rule_us: float
    us: float
    kept: bool
    tried: int
    left: int
    lines: Mapping[str, frozenset[str]]

    @property
    def choices(self) -> dict[str, Measured]:
        """The choices that differ from the rules', if they are worth keeping."""
        return {p: m for p, m in self.problems.items() if self.kept and m.chosen != m.rule}


class _Problem:
    """A problem of a program: the nodes that have it, the rules' candidate, and the best candidate so far with its time
    as a fraction of that of the rules' candidate."""

    def __init__(self, decision: Decision) -> None:
        from rlx.backends.gpu.program.candidates import text_of

        self.nodes: set[str] = set()
        self.rule = text_of(decision.chosen)
        self.best, self.share = self.rule, 1.0
        self.us = self.rule_us = 0.0
        self.tried: set[str] = set()
        lines = dict.fromkeys(map(text_of, _in_turn(decision.candidates)))
        lines.pop(self.rule, None)
        self.left = deque(list(lines)[: MOST - 1])


def search(
    program: CompiledGraph, feeds: Feeds, seconds: float, clock: Clock | None = None, whole: Whole | None = None
) -> Found:
    """Measures the candidates of a GPU's program, for at most `seconds`; `feeds` are the inputs of its runs.

    `clock` gives the µs of each node of a program, `whole` the µs of a run of each of two programs.
    Raises: UnsupportedOp for a device without choices, or without a clock for its steps."""
    clock, whole = clock or node_times, whole or run_times
    if program.device.info.kind == "cpu":
        raise UnsupportedOp("tune: the CPU has nothing to choose; give a GPU, such as --device cuda or vulkan")
    end = time.monotonic() + seconds
    rules = _Run(program, {}, feeds, clock)
    problems = _problems(rules)
    total = sum(len(p.left) for p in problems.values())
    tried, last, alone = 0, 0.0, deque[tuple[str, str]]()
    while True:
        begun = time.monotonic()
        if begun + last + _CONFIRMING * rules.seconds > end:
            break
        wanted = {text: p.left.popleft() for text, p in problems.items() if p.left}
        together = bool(wanted)
        if not together:
            if not alone:
                break
            wanted = dict([alone.popleft()])
        report("tuning", tried, total)
        run = _run(program, wanted, feeds, clock)
        for text, line in wanted.items():
            measured = run is not None and _measure(problems[text], text, line, rules, run)
            tried += measured or not together
            if not measured and together:
                alone.append((text, line))
        last = time.monotonic() - begun
    left = sum(len(p.left) for p in problems.values()) + len(alone)
    return _confirmed(program, feeds, clock, whole, problems, (tried, left))


def _in_turn(candidates: Sequence[Any]) -> list[Any]:
    """The candidates in the order in which they are measured: the sizes of the likeliest algorithm, then the likeliest
    candidate of each other algorithm, then all others. Candidates whose costs are equal in the first two numbers are
    much alike: only the likeliest of them comes early."""
    likely = sorted(candidates, key=lambda c: c.cost)
    order: dict[int, Any] = {}
    for of in (
        [(c.cost[:2], c) for c in likely if c.algorithm == likely[0].algorithm],
        [(c.algorithm, c) for c in likely],
        [(c.cost[:2], c) for c in likely],
        [(id(c), c) for c in likely],
    ):
        first: list[Any] = list(dict(reversed(of)).values())
        order |= {id(c): c for c in sorted(first, key=lambda c: c.cost)}
    return list(order.values())


def node_times(program: CompiledGraph, feeds: Feeds) -> dict[str, float]:
    """The µs of each node, by its name: the least of a few runs (fewer if they take long).

    Raises: UnsupportedOp where steps have no clock."""
    least: dict[str, float] = {}
    executable: Any = program.executable
    begun = time.monotonic()
    for turn in range(_WARM_UPS + _RUNS):
        program.run(feeds)
        spent = time.monotonic() - begun
        if turn < _WARM_UPS and spent < _ENOUGH:
            continue
        now: dict[str, float] = {}
        for piece in executable.recorded:
            for step, us in zip(piece.schedule[0], piece.timings(), strict=True):
                now[step.label] = now.get(step.label, 0.0) + us
        least = {node: min(us, least.get(node, math.inf)) for node, us in now.items()}
        if spent > 2 * _ENOUGH:
            break
    return least


def run_times(a: CompiledGraph, b: CompiledGraph, feeds: Feeds) -> tuple[float, float]:
    """The µs of a run of each of two programs: the least of several runs, which take turns."""
    best = [math.inf, math.inf]
    with a.bind() as first, b.bind() as second:
        for bound in (first, second):
            for name, value in feeds.items():
                bound.inputs[name] = value
        for turn in range(_WARM_UPS + _TURNS):
            for k, bound in enumerate((first, second)):
                begun = time.perf_counter()
                bound.run()
                if turn >= _WARM_UPS:
                    best[k] = min(best[k], 1e6 * (time.perf_counter() - begun))
    return best[0], best[1]


class _Run:
    """A timed run by some choices: the µs of nodes, what was chosen for them, and, for nodes computed as part of a
    later node, that node (`within`). `seconds`: how long compiling and timing took."""

    def __init__(self, program: CompiledGraph, choices: Mapping[str, str], feeds: Feeds, clock: Clock) -> None:
        begun = time.monotonic()
        twin = program.chosen_by(choices, timed=True)
        try:
            self.us = dict(clock(twin, feeds))
            executable: Any = twin.executable
            # The lowering also asks what would be chosen for other layouts of tensors, before it decides; the last
            # decision for a node is the one that holds.
            self.decisions = list({d.node: d for d in executable.decisions if d.node}.values())
            self.within = {d.node: d.within for d in executable.dispatch if d.within}
        finally:
            _close(twin)
        self.seconds = time.monotonic() - begun

    def of(self, nodes: Iterable[str]) -> float:
        """The µs of these nodes."""
        return sum(self.us.get(node, 0.0) for node in nodes)


def _run(program: CompiledGraph, choices: Mapping[str, str], feeds: Feeds, clock: Clock) -> _Run | None:
    """None where a candidate needs more memory than there is."""
    with suppress(OutOfDeviceMemory):
        return _Run(program, choices, feeds, clock)
    return None


def _problems(run: _Run) -> dict[str, _Problem]:
    """The problems with more than one candidate, those that take the longest first."""
    from rlx.backends.gpu.program.candidates import text_of

    problems: dict[str, _Problem] = {}
    for decision in run.decisions:
        text = text_of(decision.problem)
        if text not in problems and len(decision.candidates) > 1:
            problems[text] = _Problem(decision)
        if text in problems and decision.node in run.us | run.within:
            problems[text].nodes.add(decision.node)
    problems = {text: p for text, p in problems.items() if p.nodes}
    for p in problems.values():
        p.us = p.rule_us = run.of(_group(p.nodes, run)) / len(p.nodes)
    return dict(sorted(problems.items(), key=lambda item: -item[1].rule_us * len(item[1].nodes)))


def _group(nodes: Iterable[str], *runs: _Run) -> set[str]:
    """The nodes, and the nodes as part of which they are computed in these runs."""
    nodes = set(nodes)
    return nodes | {run.within[node] for run in runs for node in nodes if node in run.within}


def _measure(p: _Problem, text: str, line: str, rules: _Run, run: _Run) -> bool:
    """Takes a candidate's time from a run. False if not all of the problem's nodes were computed by it."""
    from rlx.backends.gpu.program.candidates import text_of

    done = {d.node for d in run.decisions if text_of(d.chosen) == line and text_of(d.problem) == text}
    if not done >= p.nodes:
        return False
    p.tried.add(line)
    group = _group(p.nodes, rules, run)
    before = rules.of(group)
    share = run.of(group) / before if before else 1.0
    if share < p.share:
        p.best, p.share = line, share
        p.us, p.rule_us = run.of(group) / len(p.nodes), before / len(p.nodes)
    return True


def _confirmed(
    program: CompiledGraph, feeds: Feeds, clock: Clock, whole: Whole, problems: Mapping[str, _Problem],
    counts: tuple[int, int],
) -> Found:  # fmt: skip
    """Measures the best candidates again, all together and against the rules; those that no longer gain are dropped."""
    report("tuning")
    chosen = {text: p.best for text, p in problems.items() if p.best != p.rule and p.share * LEAST_GAIN <= 1}
    rules = _Run(program, {}, feeds, clock)
    run = _run(program, chosen, feeds, clock) if chosen else None
    for text, p in problems.items():
        p.share, p.us = 1.0, p.rule_us
        gains = text in chosen and run is not None and _measure(p, text, p.best, rules, run)
        if not gains or p.share * LEAST_GAIN > 1:
            p.best, p.share, p.us = p.rule, 1.0, p.rule_us
    chosen = {text: p.best for text, p in problems.items() if p.best != p.rule}
    rule_us, us = _whole(program, chosen, feeds, whole)
    results = {text: Measured(p.best, p.us, p.rule, p.rule_us) for text, p in problems.items()}
    nodes = {text: len(p.nodes) for text, p in problems.items()}
    lines = {text: frozenset(p.tried) for text, p in problems.items()}
    return Found(results, nodes, rule_us, us, us <= _NOISE * rule_us, *counts, lines)


def _whole(
    program: CompiledGraph, chosen: Mapping[str, str], feeds: Feeds, whole: Whole
) -> tuple[float, float]:
    """The µs of a run by the rules and by the choices."""
    by_rules = program.chosen_by(None)
    try:
        if not chosen:
            us, _ = whole(by_rules, by_rules, feeds)
            return us, us
        by_choices = program.chosen_by(chosen)
        try:
            return whole(by_rules, by_choices, feeds)
        finally:
            _close(by_choices)
    finally:
        _close(by_rules)


def _close(twin: CompiledGraph) -> None:
    twin.close()
    twin.state.close()
