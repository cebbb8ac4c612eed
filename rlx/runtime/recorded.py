"""Recorded: a CompiledGraph's recorded program, which writes a run's inputs and reads its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakMethod

from rlx.driver import MemoryPlan
from rlx.driver.closing import Resources
from rlx.ir.checks import visible
from rlx.runtime.array import Array
from rlx.runtime.checks import IndexCheck, Unread, checks_in, earlier_launches
from rlx.runtime.entries import Entry
from rlx.runtime.ports import DonatedPort, Given, InputPort, OutputPort
from rlx.runtime.prepare import Prepared

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph


class Recorded:
    """A recorded program: arena, executable and ports."""

    def __init__(self, owner: CompiledGraph, prepared: Prepared, plan: MemoryPlan) -> None:
        device, declared, graph = owner.device, owner.graph, prepared.graph
        bound = owner.weights.segments() | owner.state.segments()
        # Set while a run is under way; a failed or interrupted run leaves it set. It is also set before the first run
        # if earlier outputs are gone: Bound.run, which tests it anyway, then knows that it must clear `owner._gone`.
        self.broken_off = bool(owner._gone)
        self._device, self._state, self._stream = device, owner.state, owner.options.stream
        self._overwritten = [n for n in owner._replaced if n not in owner.donated]
        self._held = Resources()
        with self._held.unwound():
            self._held.callback(owner.weights.end, owner.weights.lease(owner._let_go))
            self.arena = device.arena(plan, bound)
            self._held.callback(self.arena.close)
            self.arena.bind_entries(
                {t.id: Entry(n, owner.weights, WeakMethod(owner._keep)) for n, t in graph.params.items()}
                | {t.id: Entry(n, owner.state) for n, t in graph.states.items()}
            )
            self.executable = device.build(graph, plan, self.arena, owner.options.build)
            self._held.callback(self.executable.close)
            ins, ends = graph.inputs, graph.outputs
            self.inputs = [InputPort(n, t.type, ins[n], self.arena) for n, t in declared.inputs.items()]
            lends: dict[str, Callable[[], Array]] = {}
            for n, output in owner.donated.items():  # written last: another input may be the same Array
                state, t = graph.states[n], declared.states[n]
                self.inputs.append(DonatedPort(n, t.type, state, self.arena, owner.state, declared.name))
                if state.dtype == t.dtype:
                    lends[output] = partial(owner.state.lend, n)
            self.outputs = [
                OutputPort(n, t.type, ends[n], self.arena, lends.get(n)) for n, t in visible(declared.outputs).items()
            ]
            self.checks = checks_in(declared, graph, self.arena)

    @property
    def own_bytes(self) -> int:
        """Bytes that the executable takes in addition to the plan's."""
        own: int = getattr(self.executable, "own_bytes", 0)
        return own

    def checks_of(self, values: Sequence[Given]) -> tuple[dict[str, Given], list[IndexCheck], list[Unread]]:
        """The inputs by name, the checks that need the run, and the unread checks of earlier launches that it depends
        on. Raises: CapacityExceeded if an index that follows from the inputs is out of range."""
        feeds: dict[str, Given] = {}
        if self.checks:
            feeds = {port.name: value for port, value in zip(self.inputs, values, strict=True)}
        checks = [check for check in self.checks if not check.before(feeds)]
        states, self._state.unread = self._state.unread, None
        return feeds, checks, earlier_launches(values, states)

    def begin(self) -> None:
        """Notes that a run is under way."""
        if self.broken_off:
            self._device.synchronize()  # work of an interrupted run may still read its inputs
        self.broken_off = True

    def feed(self, values: Sequence[Given]) -> None:
        """Writes a run's inputs, after the work on the user's stream if the session has one."""
        if self._stream is not None:
            self._device.follow(self._stream)
        self._state.reclaim_each(self._overwritten)  # states that this run overwrites may be lent as Arrays
        for port, value in zip(self.inputs, values, strict=True):
            port.write(value)

    def give(self) -> dict[str, Array]:
        """A run's results as Arrays; the user's stream, if the session has one, waits for them."""
        results = {port.name: port.give(self._device) for port in self.outputs}
        if self._stream is not None:
            self._device.lead(self._stream)
        return results

    def close(self) -> None:
        self._held.close()
