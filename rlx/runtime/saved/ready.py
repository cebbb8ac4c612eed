"""Saved programs that the disk's cache has ready to run on the CPU: bound tables, what they point to, and machine code.

Only entries of this user's own cache are run, as for all machine code. The key of an entry contains the checksum of the
program's file, which covers every byte, and everything that lowering depends on. Such a program runs on NumPy arrays
from the cache; for any other use it loads its file like any program.
"""

from __future__ import annotations

import os
import sys
import threading
from abc import abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

import numpy as np

from rlx.driver.closing import Closing
from rlx.host.diskcache import Part, shared
from rlx.host.locks import renewed
from rlx.host.sources import stamp
from rlx.ir.checks import visible
from rlx.ir.graph import TRACING
from rlx.runtime.saved.container import ProgramFile
from rlx.runtime.saved.load import session_of
from rlx.runtime.session import Session
from rlx.runtime.version import VERSION

if TYPE_CHECKING:
    from rlx.backends.cpu.thawed import Thawed
    from rlx.driver.device import BuildOptions
    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.room import Room

KIND = "programs"  # the kind of these records in the disk's cache
DECLINED = b""  # the record of a program that cannot be kept, so that keeping it is not tried at each load
MOST_BYTES = 1 << 28  # limit on the bytes of weights; reading more takes much longer than lowering the program
SOURCES = ("backends/cpu", "backends/device_code", "driver", "ir", "ops", "packed", "passes", "runtime")


def find(file: ProgramFile, device: str | Session | None) -> CompiledGraph | None:
    """The program of a file, if the cache has it ready. Raises: ModelFormatError for a damaged file, ProgramMismatch
    for one of another device or session."""
    if not _may_be_ready(file):
        return None
    session = session_of(file, device)
    key = key_of(session.options, session.fallback, session.room, session.stream, file.digest)
    data = None if key is None else shared(KIND).get(key)
    if not data:
        return None
    from rlx.backends.cpu.thawed import Thawed

    listed = {block: name for name, block in file.table["weights"].items()}
    weights = ((listed[n], raw) for group in file.groups() for n, raw in group if n in listed)
    try:
        thawed = Thawed(data, session.device, threads_of(session.options), weights)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 whatever is wrong with an entry or the file, loading the file raises it
        return None
    return cast("CompiledGraph", ReadyProgram(file, session, thawed))


def keep(file: ProgramFile, program: CompiledGraph) -> None:
    """Puts a program that was loaded from a file into the cache, if it can be kept."""
    if not _may_be_ready(file) or program.donated or program.weights.missing(list(program.graph.params)):
        return
    options = program.options
    key = key_of(options.build, options.fallback, options.room, options.stream, file.digest)
    cache = shared(KIND)
    if key is None or cache.off or cache.get(key) is not None:
        return
    from rlx.backends.cpu.frozen import freeze
    from rlx.runtime.saved.program import raw_of

    graph, inputs, outputs = program.program, program.graph.inputs, program.graph.outputs
    if len(visible(outputs)) != len(outputs):  # hidden outputs are index checks, which such a run would not make
        return
    store, runs = program.weights, program.executable
    data = freeze(runs, graph, program.plan, options.build, inputs, outputs, lambda name: raw_of(store.get(name)))
    cache.put(key, data if isinstance(data, bytes) else DECLINED)


def _may_be_ready(file: ProgramFile) -> bool:
    """Whether the file's program is for the CPU, has no states, and has its weights in the file, at most MOST_BYTES."""
    table = file.table
    weights = table["weights"]
    if table["device"].get("backend") != "cpu" or table["states"] != {} or not isinstance(weights, dict):
        return False
    return sum(file.nbytes(block) for block in weights.values()) <= MOST_BYTES


def key_of(
    build: BuildOptions, fallback: str, room: Room, stream: int | None, *program: Part
) -> list[Part] | None:
    """The cache key of a bound program: the session's settings, and `program`, which identifies the program. None if
    the compiled engine is not used, or the session has timings, debugging, a memory limit or a stream."""
    from rlx.backends.cpu.choice import usable
    from rlx.backends.cpu.machine import this_machine

    machine = this_machine()
    if build.timed or build.debug or room.limit is not None or stream is not None or not usable(build.engine):
        return None
    compiler = find_spec("llvmlite")
    if machine is None or compiler is None or compiler.origin is None:
        return None
    status = os.stat(compiler.origin)
    return [
        VERSION, sys.version, np.__version__, compiler.origin, status.st_size, status.st_mtime_ns, stamp(*SOURCES),
        machine.arch, machine.llvm_features, machine.looks_ahead, threads_of(build), build.precision, fallback,
        *program,
    ]  # fmt: skip


def threads_of(build: BuildOptions) -> int:
    from rlx.host.processors import available_threads

    return max(1, build.threads if build.threads is not None else available_threads())


class Ready(Closing):
    """An object that does part of another object's work, and loads that object from its file for everything else."""

    def __init__(self) -> None:
        self._whole: Any = None
        self._turn = renewed(self, "_turn", threading.RLock)

    @abstractmethod
    def _read(self) -> Any:
        """The whole object, read from the file; `_turn` is held."""

    def _loaded(self) -> Any:
        with self._turn:
            if self._whole is None:
                self._whole = self._read()
            return self._whole

    def __getattr__(self, name: str) -> Any:
        if name in ("_turn", "_whole"):  # not set yet by the constructor
            raise AttributeError(name)
        return getattr(self._loaded(), name)

    def __repr__(self) -> str:
        return repr(self._loaded())

    def __reduce__(self) -> tuple[Any, ...]:
        return cast("tuple[Any, ...]", self._loaded().__reduce__())


class ReadyProgram(Ready):
    """Stands for a CompiledGraph. It runs on NumPy arrays from the cache's tables; at the first other use the program
    is loaded from its file, which stays open for that."""

    def __init__(self, file: ProgramFile, session: Session, thawed: Thawed) -> None:
        super().__init__()
        self._file, self._session = file, session
        self._ready: Thawed | None = thawed
        self._closed = False
        self._names = list(thawed.inputs)
        self._file_end, self._ready_end = finalize(self, file.close), finalize(self, thawed.close)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        from rlx.runtime.compiled import CompiledGraph

        return CompiledGraph

    def run(self, inputs: Any = None, out: Any = "host") -> dict[str, Any]:
        """As `CompiledGraph.run`."""
        if self._ready is not None and type(inputs) is dict and out == "host" and TRACING.graph is None:
            with self._turn:
                ready, arrays = self._ready, [cast(Any, inputs.get(name)) for name in self._names]
                if ready is not None and len(inputs) == len(arrays) and ready.takes(arrays):
                    return ready.run(arrays)
        results: dict[str, Any] = self._loaded().run(inputs, out)
        return results

    def __call__(self, *args: Any, out: Any = "host", **inputs: Any) -> Any:
        """As `CompiledGraph.__call__`."""
        names = [n for n in self._names if n not in inputs]
        if self._ready is None or len(args) != len(names) or any(type(x) is not np.ndarray for x in args):
            return self._loaded()(*args, out=out, **inputs)
        outputs = self.run({**dict(zip(names, args, strict=True)), **inputs}, out)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _read(self) -> CompiledGraph:
        from rlx.runtime.saved.program import load

        whole = load(self._file, self._session, None, None, trusted=True)  # loaded on this machine before
        self._leave()
        self._file_end()
        if self._closed:
            whole.close()
        return whole

    def _leave(self) -> None:
        self._ready = None
        self._ready_end()

    def close(self) -> None:
        with self._turn:
            self._closed = True
            if self._whole is not None:
                self._whole.close()
            self._leave()
