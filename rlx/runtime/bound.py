"""Bound: a program whose inputs and outputs the caller reaches in place, for runs that cost little."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.errors import GraphError, UnsupportedOp, meant
from rlx.runtime import debug

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.recorded import Recorded


class Bound(Closing):
    """A program bound to its own memory, made by `CompiledGraph.bind`.

    `inputs` and `outputs` are the program's memory as NumPy arrays, where the host can address it: on the CPU and on
    GPUs that share its memory. What is written into an input stays there for all runs; a run overwrites the outputs.
    Elsewhere, and for any device, `write` and `read` copy; `bound.inputs["x"] = array` is `write`. `run()` does the
    work and nothing else; it raises GraphError where the program was closed, or recorded anew since a weight changed
    its dtype: bind it again.

    Getting a view waits for launches under way. One that is held over a `CompiledGraph.launch` may be used again once
    that is done (`Launch.wait`): until then the device is at work on the same memory.

    A bound program keeps its memory, also where the session has a `memory_limit`; `close`, or the end of a `with`
    block, ends that. The views stay readable after the program is closed. Other threads' runs of the same program use
    the same memory.
    """

    instead = "bind the program again"

    def __init__(self, owner: CompiledGraph) -> None:
        self._owner = owner
        self._closed = False
        self._lock = owner._lock
        self._program = program = owner._ready()
        self._ins = {port.name: port for port in program.inputs}
        self._outs = {port.name: port for port in program.outputs}
        options = owner.options
        beside = owner._replaced or program.checks or options.stream is not None
        watched = bool(beside) or options.build.debug >= debug.TIMINGS
        again: Callable[[], None]
        work: Callable[[], None]
        if watched:
            again = work = partial(_run_watched, owner, program)
        else:
            again, work = program.executable.run, program.executable.quick()
        self.run, self._end = _runner(owner, program, work, again)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(f"{n}: {p.declared}" for n, p in t.items()) for t in (self._ins, self._outs))
        return f"Bound({self._owner.graph.name!r} on {self._owner.device.info.id}: ({inputs}) -> ({outputs}))"

    @property
    def inputs(self) -> BoundArrays:
        """The inputs by name, to be written in place, or by `inputs[name] = array` on any device.

        Raises: GraphError for an unknown name; UnsupportedOp, for one that is read, where the host cannot address it.
        """
        return BoundArrays(self, self._ins)

    @property
    def outputs(self) -> BoundArrays:
        """The outputs by name, as the last run left them. Raises: as `inputs`, and GraphError where one is set."""
        return BoundArrays(self, self._outs)

    def close(self) -> None:
        """Ends the binding: the program may give its memory to others again. `run` raises GraphError then."""
        with self._lock:
            self._owner._bound.discard(self.run)
            self._closed = True
            self._end()

    def _open(self) -> None:
        if self._closed:
            _refuse(self._owner.graph.name)

    def write(self, name: str, value: Any) -> None:
        """Copies an array of NumPy, or an rlx.Array of this device, into an input.

        Raises: GraphError for an unknown name and an Array of another device, ShapeError, DTypeError."""
        port = self._named(self._ins, name)
        with self._lock:
            self._open()
            _same(self._owner, self._program)
            port.write(port.accept(value, self._owner.device))

    def read(self, name: str, out: Literal["host", "device"] = "host") -> Any:
        """A copy of an output: a NumPy array, or an rlx.Array.

        Raises: GraphError for an unknown name, and where the last run's outputs are gone: the program gave its memory
        to another before it was bound, or was recorded anew."""
        port = self._named(self._outs, name)
        with self._lock:
            self._open()
            _same(self._owner, self._program)
            self._owner._still_there()
            return port.give(self._owner.device) if out == "device" else port.take()

    def _named(self, ports: Mapping[str, Any], name: str) -> Any:
        if name not in ports:
            what = "input" if ports is self._ins else "output"
            raise GraphError(f"the graph has no {what} {name!r}; it has {sorted(ports)}{meant(name, ports)}")
        return ports[name]

    def _view(self, name: str, port: Any) -> npt.NDArray[Any]:
        with self._lock:
            self._open()
            _same(self._owner, self._program)
            result: npt.NDArray[Any] | None = port.view()
            if result is not None:
                if self._owner.graph.states:
                    self._owner.state.viewed(port._slot)
                self._owner.device.synchronize()  # a launch may still be using this memory
        if result is None:
            where = self._owner.device.info.id
            raise UnsupportedOp(f"the host cannot address {name!r} on {where}; bound.write and bound.read copy it")
        return result


_ENDED = object()  # stands for the program of a closed binding


class BoundArrays(Mapping[str, "npt.NDArray[Any]"]):
    """The inputs or the outputs of a `Bound`, by name: views of the program's memory."""

    def __init__(self, bound: Bound, ports: Mapping[str, Any]) -> None:
        self._bound = bound
        self._ports = ports

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._bound._view(name, self._bound._named(self._ports, name))

    def __setitem__(self, name: str, value: Any) -> None:
        self._bound._named(self._ports, name)
        if self._ports is not self._bound._ins:
            raise GraphError(f"{name!r} is an output, which each run writes; only inputs are set")
        self._bound.write(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._ports

    def __iter__(self) -> Iterator[str]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{n!r}: {p.declared}' for n, p in self._ports.items())}}}"


def _runner(
    owner: CompiledGraph, program: Recorded, work: Callable[[], None], again: Callable[[], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """`Bound.run`, which calls the program's `work`, and a function that closes the binding.

    `again` is called instead of `work` where a user's function calls it during a run of the same program. A closure
    reads its variables faster than an object its attributes. It does not refer to the `Bound`: in a reference cycle the
    memory of a dropped program would stay until Python's collector runs."""
    weights, lock = owner.weights, owner._lock
    # Once closed this is `_ENDED`, which equals no owner's `_program`, not even None: the comparison with the program
    # also finds closed bindings.
    bound: object = program

    def end() -> None:
        nonlocal bound
        bound = _ENDED

    def run() -> None:
        with lock:
            if owner._program is not bound or owner._version != weights.version or program.broken_off:
                if bound is _ENDED:
                    _refuse(owner.graph.name)
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

    return run, end


def _run_watched(owner: CompiledGraph, program: Recorded) -> None:
    owner.state.reclaim_each(owner._replaced)
    if owner.options.stream is not None:
        owner.device.follow(owner.options.stream)
    before = debug.before_run(owner)
    program.executable.run()
    owner.state.replaced(owner._replaced)
    for check in program.checks:
        check.after({})
    debug.show_run(owner, before)


def _refuse(name: str) -> None:
    raise GraphError(f"this binding of {name!r} is closed; bind the program again")


def _same(owner: CompiledGraph, program: Recorded) -> None:
    """Raises: GraphError unless the program is still the one that was bound."""
    if owner._ready() is not program:
        raise GraphError(
            f"the program of {owner.graph.name!r} was recorded anew, as a weight changed its dtype; bind it again"
        )
    if program.broken_off:
        owner.device.synchronize()  # work of an interrupted run may still use the memory
