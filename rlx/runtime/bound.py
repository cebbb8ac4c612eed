"""Bound: a program whose inputs and outputs the caller reaches in place, for runs that cost little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from rlx.errors import GraphError, UnsupportedOp
from rlx.runtime import debug

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph


class Bound:
    """A program bound to its own memory, made by `CompiledGraph.bind`.

    `inputs` and `outputs` are the program's memory as NumPy arrays, where the host can address it: on the CPU and on
    GPUs that share its memory. What is written into an input stays there for all runs; a run overwrites the outputs.
    Elsewhere, and for any device, `write` and `read` copy. `run` does the work and nothing else.

    The views stay readable after the program is closed. Other threads' runs of the same program use the same memory.
    """

    def __init__(self, owner: CompiledGraph) -> None:
        self._owner = owner
        self._lock = owner._lock
        self._program = program = owner._ready()
        self._executable = program.executable
        self._ins = {port.name: port for port in program.inputs}
        self._outs = {port.name: port for port in program.outputs}
        options = owner.options
        self._watched = bool(owner._replaced) or options.build.debug >= debug.TIMINGS or options.stream is not None

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
            self._same()
            port.write(port.accept(value, self._owner.device))

    def read(self, name: str, out: Literal["host", "device"] = "host") -> Any:
        """A copy of an output: a NumPy array, or an rlx.Array."""
        port = self._named(self._outs, name)
        with self._lock:
            self._same()
            return port.give(self._owner.device) if out == "device" else port.take()

    def run(self) -> None:
        """Runs the program on what its inputs hold. Raises: GraphError where it was closed, or recorded anew since a
        weight changed its dtype: bind it again."""
        owner = self._owner
        with self._lock:
            program = self._program
            if owner._program is not program or owner._version != owner.weights.version or program.broken_off:
                self._same()
            owner._busy += 1
            program.broken_off = True
            try:
                if self._watched:
                    self._run_watched()
                else:
                    self._executable.run()
                program.broken_off = False
            finally:
                owner._busy -= 1

    def _run_watched(self) -> None:
        owner = self._owner
        for name in owner._replaced:
            owner.state.reclaim(name)
        if owner.options.stream is not None:
            owner.device.follow(owner.options.stream)
        before = debug.before_run(owner)
        self._executable.run()
        owner.state.replaced(owner._replaced)
        debug.show_run(owner, before)

    def _same(self) -> None:
        """Raises: GraphError unless the program is still the one that was bound."""
        owner = self._owner
        if owner._ready() is not self._program:
            raise GraphError(
                f"the program of {owner.graph.name!r} was recorded anew, as a weight changed its dtype; bind it again"
            )
        if self._program.broken_off:
            owner.device.synchronize()  # work of an interrupted run may still use the memory

    def _named(self, ports: Mapping[str, Any], name: str) -> Any:
        if name not in ports:
            what = "input" if ports is self._ins else "output"
            raise GraphError(f"the graph has no {what} {name!r}; it has {sorted(ports)}")
        return ports[name]

    def _view(self, name: str, port: Any) -> npt.NDArray[Any]:
        with self._lock:
            self._same()
            made: npt.NDArray[Any] | None = port.view()
        if made is None:
            where = self._owner.device.info.id
            raise UnsupportedOp(f"the host cannot address {name!r} on {where}; bound.write and bound.read copy it")
        return made
