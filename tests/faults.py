"""Lets each call of a driver fail in turn while a program is compiled, run and closed; shared by the GPU backends."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import rlx

BEFORE, AFTER = "interrupted before", "interrupted after"
Result = int | str
Call = tuple[str, int]  # a function's name, and which of its calls
X, W = np.linspace(-1, 1, 6, dtype=np.float32), np.linspace(0.5, 2, 6, dtype=np.float32)

# Calls whose number depends on how soon the device finishes.
POLLS = {"vkGetFenceStatus", "vkCreateFence"}


class Injector:
    """Counts calls by name; inside `failing` one of them is to fail with a result."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._counts: Counter[str] = Counter()
        self._at: Call | None = None
        self._result: Result = 0

    def reached(self, name: str) -> Result | None:
        """Counts a call. Returns how it is to fail, None where it is not."""
        call = (name, self._counts[name])
        self._counts[name] += 1
        self.calls.append(call)
        return self._result if call == self._at else None

    @contextmanager
    def failing(self, at: Call | None, result: Result) -> Iterator[None]:
        """The call `at` of the block fails."""
        self._at, self._result = at, result
        self.calls.clear()
        self._counts.clear()
        try:
            yield
        finally:
            self._at = None


def each_fault(
    driver: Injector,
    work: Callable[[], None],
    ways: Callable[[str], tuple[Result, ...]],
    expected: Callable[[Result], type[BaseException]],
    after: Callable[[], None],
    most: int = 1000,
    share: tuple[int, int] = (0, 1),
) -> Counter[str]:
    """Lets each call of `work` fail in turn: `work` must raise the error expected for the result, or succeed, and
    `after` checks that nothing is left of it. Each call fails in at least one way (of a function called more than
    `most` times, only that many calls), and each function in each of its ways; with "all" among the command's
    arguments, each call fails in each way. Only faults whose number modulo `share[1]` is `share[0]` are made. Returns
    how often each function failed in each way."""
    after()
    with driver.failing(None, 0):
        work()
    calls = list(driver.calls)
    after()
    made: Counter[str] = Counter()
    number = 0
    for name, which in calls:
        given = ways(name)
        if "all" not in sys.argv and given:
            count = sum(name == other for other, _ in calls)
            if which % -(-count // most):
                continue
            given = tuple(w for i, w in enumerate(given) if i % count == which) or (
                given[which % len(given)],
            )
        for result in given:
            number += 1
            if number % share[1] != share[0]:
                continue
            told = "done"
            with driver.failing((name, which), result):
                try:
                    work()
                except expected(result):
                    told = "told"
            assert name in POLLS or (name, which) in driver.calls, (name, which)
            made[f"{name} {result}: {told}"] += 1
            try:
                after()
            except Exception as error:
                raise AssertionError(f"after call {which} of {name} failed with {result}") from error
    return made


def program() -> rlx.Graph:
    g = rlx.Graph("life")
    s = g.state("s", (6,))
    y = rlx.tanh(g.input("x", (6,)) * g.param("w", (6,)) + s)
    g.update("s", s + y)
    g.output("y", y)
    g.output("z", rlx.cumsum(y, 0))
    return g


def run(exe: rlx.CompiledGraph, s: np.ndarray) -> np.ndarray:
    """y of a run from the state s. Raises: AssertionError where it is not right."""
    got = exe.run({"x": X})
    y = np.tanh(X.astype(float) * W + s)
    np.testing.assert_allclose(got["y"], y, atol=2e-3)
    np.testing.assert_allclose(got["z"], np.cumsum(y), atol=5e-3)
    return y


def launched(exe: rlx.CompiledGraph, s: np.ndarray) -> None:
    """Launches two runs that the host does not wait for; their results are Arrays and are dropped at once."""
    x = rlx.array(X, device=exe.device)
    for out in ("device", "host"):
        launch = exe.launch({"x": x})
        y = np.tanh(X.astype(float) * W + s)
        s = s + y
        launch.done()
        np.testing.assert_allclose(launch.wait(out)["y"], y, atol=2e-3)  # type: ignore[arg-type]


def life(session: rlx.Session, make: Callable[[], rlx.Graph] = program) -> None:
    """A program compiled, run, read, copied, timed, closed. Raises: AssertionError for a wrong result."""
    weights, state = rlx.Weights(session.device), rlx.State(session.device)
    with weights, state, session.compile(make(), weights=weights, state=state) as exe:
        exe.set_param("w", W)
        exe.set_param("w", W, dtype="f16")
        s = np.zeros(6)
        for _ in range(2):
            s = s + run(exe, s)
        np.testing.assert_allclose(exe.get_state("s"), s, atol=2e-3)
        np.testing.assert_allclose(weights.get("w").astype(np.float32), W, atol=1e-3)
        launched(exe, s)
        exe.set_state("s", np.zeros(6, np.float32))
        with exe.clone() as twin:
            run(twin, np.zeros(6))
            if session.options.timed:
                assert len(twin.executable.timings()) > 1
