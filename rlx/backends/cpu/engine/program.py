"""The engine's part of one executable: binds nodes to kernels, compiles all of them together, runs tables of steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, Step
from rlx.backends.cpu.engine.compile import addresses
from rlx.backends.cpu.engine.machine import this_machine
from rlx.backends.cpu.engine.step import Declined, EngineContext, EngineStep, load_binders
from rlx.driver.device import Bytes
from rlx.ir import Node, Tensor

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Segment:
    """Consecutive steps of the engine, run by one call."""

    def __init__(self) -> None:
        self.steps: list[EngineStep] = []
        self._calls: list[Callable[[], Any]] = []
        self._keep: list[Any] = []

    def finish(self, place: dict[int, int]) -> None:
        for step in self.steps:
            words = np.array([w if w < 1 << 63 else w - (1 << 64) for w in step.words] or [0], np.int64)
            call = _CALL(place[id(step)])
            self._keep.append((words, call, step.keep))
            arguments = words.ctypes.data, 0, step.items
            self._calls.append(lambda call=call, arguments=arguments: call(*arguments))  # type: ignore[misc]
        for step in self.steps:
            if step.prepare is not None:
                step.prepare()

    def run(self) -> None:
        for call in self._calls:
            call()


class EngineProgram:
    """Binds the nodes of one executable, as far as there are kernels. `finish` compiles; no segment runs before."""

    def __init__(
        self, acquire: Callable[[int], Bytes], threads: int, is_fixed: Callable[[Tensor], bool]
    ) -> None:
        machine = this_machine()
        assert machine is not None
        self._binders = load_binders()
        self._ctx = EngineContext(machine, threads, acquire, is_fixed)
        self._segments: list[Segment] = []
        self._open: Segment | None = None

    def bind(
        self, node: Node, ins: Sequence[Array], outs: Sequence[Array], alike: bool = False
    ) -> tuple[list[Step], list[EngineStep]] | None:
        """The calls that run the node, none where an open segment has taken its steps, and these steps; None where
        NumPy has to run it."""
        binder = self._binders.get(node.op.name) or (self._binders.get("*") if node.op.elementwise else None)
        if binder is None:
            return None
        self._ctx.alike = alike
        try:
            made = binder(node, ins, outs, self._ctx)
        except Declined:
            return None
        if made is None:
            return None
        calls: list[Step] = []
        if self._open is None:
            self._open = Segment()
            self._segments.append(self._open)
            calls = [self._open.run]
        self._open.steps += made
        return calls, made

    def cut(self) -> None:
        """Ends the open segment: what follows is NumPy's."""
        self._open = None

    def finish(self) -> None:
        steps = [step for segment in self._segments for step in segment.steps]
        found = addresses([s.spec for s in steps], self._ctx.machine)
        place = {id(s): a for s, a in zip(steps, found, strict=True)}
        for segment in self._segments:
            segment.finish(place)

