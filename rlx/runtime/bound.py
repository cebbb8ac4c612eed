"""Bound: a program whose inputs and outputs the caller reaches in place, for runs that cost little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from rlx.errors import GraphError, UnsupportedOp
from rlx.runtime import debug

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph, _Program


class Bound:
    """A program bound to its own memory, made by `CompiledGraph.bind`.

    `inputs` and `outputs` are the program's memory as NumPy arrays, where the host can address it: on the CPU and on
    GPUs that share its memory. What is written into an input stays there for all runs; a run overwrites the outputs.
    Elsewhere, and for any device, `write` and `read` copy. `run()` does the work and nothing else; it raises GraphError
    where the program was closed, or recorded anew since a weight changed its dtype: bind it again.

    Getting a view waits for launches under way. One that is held over a `CompiledGraph.launch` may be used again once
    that is done (`Launch.wait`): until then the device is at work on the same memory.

    The views stay readable after the program is closed. Other threads' runs of the same program use the same memory.
    """

    def __init__(self, owner: CompiledGraph) -> None:
        self._owner = owner
        self._lock = owner._lock
        self._program = program = owner._ready()
        self._ins = {port.name: port for port in program.inputs}
        self._outs = {port.name: port for port in program.outputs}
        options = owner.options
        watched = bool(owner._replaced) or options.build.debug >= debug.TIMINGS or options.stream is not None
        again: Callable[[], None]
        work: Callable[[], None]
        if watched:
            again = work = partial(_run_watched, owner, program)
        else:
            again, work = program.executable.run, program.executable.quick()
        self.run: Callable[[], None] = _runner(owner, program, work, again)

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The inputs by name, to be written in place. Raises: UnsupportedOp where the host cannot address them."""
        return {name: self._view(name, port) for name, port in self._ins.items()}

    @property
    def outputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The outputs by name, as the last run left them. Raises: UnsupportedOp as `inputs`."""
        return {name: self._view(name, port) for name, port in self._outs.items()}

    def write(self, name: str, value: Any) -> None:
        """Copies an array of NumPy, or an rlx.Array of this device, into an input.

        Raises: GraphError for an unknown name and an Array of another device, ShapeError, DTypeError."""
        port = self._named(self._ins, name)
        with self._lock:
            _same(self._owner, self._program)
            port.write(port.accept(value, self._owner.device))

    def read(self, name: str, out: Literal["host", "device"] = "host") -> Any:
        """A copy of an output: a NumPy array, or an rlx.Array.

        Raises: GraphError for an unknown name, and where the last run's outputs are gone: the program gave its memory
        to another before it was bound, or was recorded anew."""
        port = self._named(self._outs, name)
        with self._lock:
            _same(self._owner, self._program)
            self._owner._still_there()
            return port.give(self._owner.device) if out == "device" else port.take()

    def _named(self, ports: Mapping[str, Any], name: str) -> Any:
        if name not in ports:
            what = "input" if ports is self._ins else "output"
            raise GraphError(f"the graph has no {what} {name!r}; it has {sorted(ports)}")
        return ports[name]

    def _view(self, name: str, port: Any) -> npt.NDArray[Any]:
        with self._lock:
            _same(self._owner, self._program)
            made: npt.NDArray[Any] | None = port.view()
            if made is not None:
                if self._owner.graph.states:
                    self._owner.state.viewed(port._slot)
                self._owner.device.synchronize()  # a launch may be at work on this memory
        if made is None:
            where = self._owner.device.info.id
            raise UnsupportedOp(f"the host cannot address {name!r} on {where}; bound.write and bound.read copy it")
        return made


def _runner(
    owner: CompiledGraph, program: _Program, work: Callable[[], None], again: Callable[[], None]
) -> Callable[[], None]:
    """`Bound.run` around the program's work; `again` is called in its place within another run of the program, by a
    user's function. What it needs is in its closure, where it is found faster than in an object, and `Bound` is not:
    in a cycle the memory of a dropped program would stay until Python's collector runs."""
    weights, lock = owner.weights, owner._lock

    def run() -> None:
        with lock:
            if owner._program is not program or owner._version != weights.version or program.broken_off:
                _same(owner, program)
                owner._gone = ""
            within = owner._busy
            owner._busy = within + 1
            program.broken_off = True
            try:
                if within:
                    again()
                else:
                    work()
                program.broken_off = False
            finally:
                owner._busy = within

    return run


def _run_watched(owner: CompiledGraph, program: _Program) -> None:
    for name in owner._replaced:
        owner.state.reclaim(name)
    if owner.options.stream is not None:
        owner.device.follow(owner.options.stream)
    before = debug.before_run(owner)
    program.executable.run()
    owner.state.replaced(owner._replaced)
    debug.show_run(owner, before)


def _same(owner: CompiledGraph, program: _Program) -> None:
    """Raises: GraphError unless the program is still the one that was bound."""
    if owner._ready() is not program:
        raise GraphError(
            f"the program of {owner.graph.name!r} was recorded anew, as a weight changed its dtype; bind it again"
        )
    if program.broken_off:
        owner.device.synchronize()  # work of an interrupted run may still use the memory
