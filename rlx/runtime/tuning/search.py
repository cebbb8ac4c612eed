"""The search: the algorithms of a program's nodes, measured where they stand, in runs of the whole program.

A run is timed step by step, so that one run measures a candidate of each problem at once: the rounds are as many as a
problem has candidates, not as all have together. A candidate that changes how tensors lie makes other problems of its
neighbours, which are then not measured in that round; it is tried again by itself. What was the fastest is measured
once more, all together and beside the rules, and is kept where it still gains, in its steps and in the whole run.
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

LEAST_GAIN = 1.03  # what gains less is within what such times are off
MOST = 24  # candidates of a problem, those of the least estimated cost
_WARM_UPS, _RUNS = 2, 5
_ENOUGH = 0.25  # seconds of warming up, and half of those in which a program is timed
_TURNS = 10  # runs of either program that are compared as a whole
_NOISE = 1.005  # what such runs are off
_CONFIRMING = 3  # what follows the rounds takes as long as so many runs by the rules

Feeds = Mapping[str, Any]
Clock = Callable[[CompiledGraph, Feeds], Mapping[str, float]]
Whole = Callable[[CompiledGraph, CompiledGraph, Feeds], tuple[float, float]]


class Found(Record):
    """What a search found: of each problem with several candidates what was measured, the µs of its nodes together by
    the rules and now, and the µs of a whole run. `kept`: whether the choices are worth it. `tried` counts candidates
    that were measured, `left` those for which there was no time, and `lines` are the lines of the former by problem."""

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
        """The choices that differ from the rules', where they are worth it."""
        return {p: m for p, m in self.problems.items() if self.kept and m.chosen != m.rule}


class _Problem:
    """A problem of a program: the nodes that have it, the rules' candidate, and the best so far with its share of the
    time of the rules' one."""

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
    """Measures the candidates of a GPU's program, for so many seconds at most; `feeds` are the inputs of its runs.

    `clock` gives the µs of each node of a program, `whole` those of two programs' runs.
    Raises: UnsupportedOp for a device that chooses nothing, or has no clock for its steps."""
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
    """The candidates in the order in which they are measured: sizes of the likeliest algorithm, then the likeliest of
    each other, then all others. Those whose costs differ in the third number and later are much alike, and come late.
    """
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
    """The µs of each node, by its name: the least of a few runs, of fewer where they take long.

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
    """The µs of a run of two programs, which take turns: the least of each."""
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
    """A timed run by some choices: the µs of nodes, what was chosen for them, and the node with which each is computed
    where it is computed with a later one. `seconds`: how long all of it took."""

    def __init__(self, program: CompiledGraph, choices: Mapping[str, str], feeds: Feeds, clock: Clock) -> None:
        begun = time.monotonic()
        twin = program.chosen_by(choices, timed=True)
        try:
            self.us = dict(clock(twin, feeds))
            executable: Any = twin.executable
            # Before nodes are lowered, and before a rule decides, it is asked what would be chosen if tensors lay
            # otherwise; what counts is what was asked for last, for a node.
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
    """The nodes, and those with which they are computed in these runs."""
    nodes = set(nodes)
    return nodes | {run.within[node] for run in runs for node in nodes if node in run.within}


def _measure(p: _Problem, text: str, line: str, rules: _Run, run: _Run) -> bool:
    """Takes the time of a candidate; whether all of the problem's nodes were computed by it."""
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
    """Measures the best together and beside the rules again; what does not gain any more is by the rules."""
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
