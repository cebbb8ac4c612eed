"""ONNX models whose programs are in the disk cache from earlier runs, found by the file's bytes.

A file that was once read without a warning is not read again for runs that the cache knows: on NumPy arrays of the same
types, in a session with the same settings. For anything else a model is read from the same bytes.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import finalize

import numpy as np

from rlx.host.background import aside
from rlx.host.digest import sha256
from rlx.host.diskcache import Part, shared
from rlx.host.files import read_bytes
from rlx.host.sources import stamp
from rlx.host.threads import Threads
from rlx.ir.graph import TRACING
from rlx.runtime.saved.ready import DECLINED, KIND, SOURCES, Ready, key_of, threads_of
from rlx.runtime.session import Session, Target, precision_for
from rlx.runtime.version import VERSION

if TYPE_CHECKING:
    from rlx.backends.cpu.thawed import Thawed
    from rlx.ir import Tensor
    from rlx.onnx.channel_scales import F64
    from rlx.onnx.kept_program import KeptProgram
    from rlx.onnx.model import Model
    from rlx.onnx.program import Program
    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.store import Store

DEPARTED: list[str] = []  # the warnings so far: a model with one is read at each load, to warn again
MOST_BYTES = 1 << 26  # reading a larger file is fast beside loading its weights
_PIECE = 1 << 22  # bytes of a file that a thread hashes at a time
LARGE_BYTES = 1 << 29  # a GPU's programs are kept of files up to this size


class Content(NamedTuple):
    """The bytes of a file, what errors call it, and the folder that its external data lies in."""

    content: bytes
    what: str
    folder: str


def content_of(source: Any) -> Content | None:
    """The bytes of a file that may be ready; None for one that is large, and for what is no file."""
    if not isinstance(source, str | os.PathLike) or shared(KIND).off:
        return None
    path = os.fspath(source)
    try:
        if os.stat(path).st_size > LARGE_BYTES:
            return None
        content = read_bytes(path, LARGE_BYTES)
    except Exception:  # noqa: BLE001 the model's own reading says what is wrong
        return None
    small = content
    if len(content) > MOST_BYTES:
        from rlx.onnx.blocks import without_blocks  # most files are small

        small = without_blocks(content, {})
    # External data, which a tensor's field `location` names, may change while the file does not.
    return None if b"location" in small else Content(content, path, os.path.dirname(path))


def find(content: Content, options: Mapping[str, Any]) -> Model | None:
    """The model of a file that was read before with these options, if the cache knows it."""
    if len(content.content) > MOST_BYTES and shared(KIND).get(_of_size(content)) is None:
        return None
    key = _key(content, options)
    record = shared(KIND).get(key)
    try:
        names = None if record is None else [str(name) for name in marshal.loads(record)]
    except (EOFError, ValueError, TypeError):
        names = None
    return None if names is None else cast("Model", ReadyModel(content, options, key, names))


def read(content: Content, options: Mapping[str, Any], **more: Any) -> Model:
    """The model of a file, whose programs are kept where nothing was warned of. Raises: as Model."""
    from rlx.onnx.model import Model

    departed, large = len(DEPARTED), len(content.content) > MOST_BYTES
    key = aside(partial(_key, content, options)) if large else partial(_key, content, options)
    model = Model(content, **options, **more)
    if len(DEPARTED) == departed:
        size = _of_size(content) if large else None
        model.keeper = Keeper(key, departed, [info.name for info in model.inputs], model.places, size)
        if not large:
            model.keeper.name()
    return model


def _of_size(content: Content) -> list[Part]:
    """The key that notes that the cache knows a large file of this size; files of other sizes need no checksum."""
    return ["onnx", "large", VERSION, len(content.content)]


def _key(content: Content, options: Mapping[str, Any]) -> list[Part]:
    """A key of everything that the result of reading a file depends on."""
    said = repr(sorted(options.items()))
    digest = _digest(content.content)
    return ["onnx", VERSION, sys.version, np.__version__, _package(), stamp("onnx", "formats", *SOURCES), said, digest]


def _digest(content: bytes) -> bytes:
    """A checksum of the checksums of the content's pieces, which threads compute."""
    view = memoryview(content)
    pieces = [view[at : at + _PIECE] for at in range(0, len(content), _PIECE)]
    with Threads(min(8, len(pieces), os.cpu_count() or 1)) as threads:
        return sha256(b"".join(threads.map(lambda piece: sha256(piece).digest(), pieces))).digest()


def _package() -> bytes:
    """The identity of the installed package onnx."""
    spec = find_spec("onnx")
    status = None if spec is None or spec.origin is None else os.stat(spec.origin)
    return b"" if status is None else b"%d %d" % (status.st_size, status.st_mtime_ns)


def _types(arrays: Mapping[str, Any]) -> str:
    return repr(sorted((name, x.dtype.name, x.dtype.isnative, x.shape) for name, x in arrays.items()))


def _program_key(key: Sequence[Part], session: Session, arrays: Mapping[str, Any]) -> list[Part] | None:
    """The key of a program of a model; None for a session whose programs are not kept."""
    if session.info.backend == "cpu":
        return key_of(session.options, session.fallback, session.room, session.stream, *key, _types(arrays))
    from rlx.onnx import kept_program

    parts = kept_program.key_of(session)
    return None if parts is None else [*key, *parts, _types(arrays)]


class Keeper:
    """Keeps the programs of a model that was read without a warning. `key` gives the file's key; `places` are the
    offset and bytes of its initializers in the file; `size` is the key of a large file's size (`_of_size`)."""

    def __init__(
        self, key: Callable[[], list[Part]], departed: int, inputs: Sequence[str],
        places: Mapping[str, tuple[int, int]], size: list[Part] | None,
    ) -> None:  # fmt: skip
        self._file, self._departed, self._changed = key, departed, False
        self._inputs, self._places, self._size = list(inputs), places, size

    def name(self) -> list[Part]:
        """The key of the file, under which the cache has the names of the model's inputs."""
        key = self._file()
        self._file = lambda: key
        cache = shared(KIND)
        if cache.get(key) is None:
            cache.put(key, marshal.dumps(self._inputs))
        if self._size is not None and cache.get(self._size) is None:
            cache.put(self._size, b"large")
        return key

    def compare(self, store: Store, held: Mapping[str, Any]) -> None:
        """Notes whether a device has other weights than `held`, those of the file: the user has replaced some."""
        from rlx.runtime.saved.program import raw_of

        for name, value in held.items():
            own = store.get(name)
            self._changed |= own.dtype != value.dtype or not np.array_equal(raw_of(own), raw_of(value))

    def keep(
        self, program: Program, session: Session, arrays: Mapping[str, Any], initializers: Mapping[str, Any],
        scales: Mapping[str, F64],
    ) -> None:  # fmt: skip
        """Keeps a program that has run on arrays of these types, where it can be kept; `scales` are those of
        `kept_program.record_of`."""
        if self._changed or len(DEPARTED) != self._departed:  # the next load must warn again
            return
        on_cpu = session.info.backend == "cpu"
        if not all(type(x) is np.ndarray for x in arrays.values()) or (on_cpu and self._size is not None):
            return
        key = _program_key(self.name(), session, arrays)
        if key is None or program.fixed or program.rounded or not program.plain or shared(KIND).get(key) is not None:
            return
        compiled = program.graph
        ends = {name: compiled.graph.outputs[name] for name in program.types}
        if any(t.dtype.np != program.types[name] for name, t in ends.items()):
            return
        if on_cpu:
            record = _frozen(compiled, ends, session)
        else:
            from rlx.onnx import kept_program

            if compiled.graph.inputs.keys() != arrays.keys():
                return
            record = kept_program.record_of(compiled, list(ends), initializers, self._places, scales)
        shared(KIND).put(key, DECLINED if record is None else record)


def _frozen(compiled: CompiledGraph, ends: Mapping[str, Tensor], session: Session) -> bytes | None:
    """The record of a program for the CPU, with its weights."""
    from rlx.backends.cpu.frozen import freeze
    from rlx.runtime.saved.program import raw_of

    graph = compiled.program
    if len(ends) != len(compiled.graph.outputs):
        return None
    weights = {name: raw_of(compiled.weights.get(name)) for name in graph.params}
    ins, runs = compiled.graph.inputs, compiled.executable
    data = freeze(runs, graph, compiled.plan, session.options, ins, ends, weights.__getitem__)
    held = {name: raw.tobytes() for name, raw in weights.items()}
    return marshal.dumps((data, held)) if isinstance(data, bytes) else None


class ReadyModel(Ready):
    """A Model by all that is asked of it, which reads its file when more is asked than runs that the cache knows."""

    def __init__(self, content: Content, options: Mapping[str, Any], key: list[Part], names: Sequence[str]) -> None:
        super().__init__()
        self._content, self._options, self._key, self._names = content, dict(options), key, list(names)
        self._sessions: dict[tuple[Target, str], Session] = {}
        self._programs: dict[tuple[Session, str], Thawed | KeptProgram | None] = {}
        self._runs: dict[tuple[Session, str], tuple[dict[str, Any], Target, str]] = {}
        self._end = finalize(self, _close, self._programs)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        from rlx.onnx.model import Model

        return Model

    def run(
        self, inputs: Any = None, device: Target = "auto", precision: str | None = None, out: Any = "host"
    ) -> dict[str, Any]:
        """As `Model.run`."""
        simple = type(inputs) is dict and out == "host" and all(type(x) is np.ndarray for x in inputs.values())
        if simple and self._whole is None and TRACING.graph is None:
            with self._turn:
                ready = self._ready(inputs, device, precision_for(device, precision))
                if ready is not None:
                    return ready.run([inputs[name] for name in ready.inputs])
        results: dict[str, Any] = self._loaded().run(inputs, device, precision, out)
        return results

    def __call__(
        self, *args: Any, device: Target = "auto", precision: str | None = None, out: Any = "host", **inputs: Any
    ) -> Any:
        """As `Model.__call__`."""
        names = [n for n in self._names if n not in inputs]
        if self._whole is not None or len(args) != len(names) or any(type(x) is not np.ndarray for x in args):
            return self._loaded()(*args, device=device, precision=precision, out=out, **inputs)
        results = self.run({**dict(zip(names, args, strict=True)), **inputs}, device, precision, out)
        return next(iter(results.values())) if len(results) == 1 else results

    run.__qualname__, __call__.__qualname__ = "Model.run", "Model.__call__"  # as errors of Python name them

    def _ready(self, arrays: dict[str, Any], device: Target, precision: str) -> Thawed | KeptProgram | None:
        """The program for arrays of these types, if the cache has it."""
        if self._whole is not None:
            return None
        if (device, precision) not in self._sessions:
            own = device if isinstance(device, Session) else None
            threads = self._options["threads"]
            self._sessions[device, precision] = own or Session(device, precision=precision, threads=threads)  # type: ignore[arg-type]
        session = self._sessions[device, precision]
        at = session, _types(arrays)
        if at not in self._programs:
            self._programs[at] = self._thawed(session, arrays)
            if self._programs[at] is not None:
                self._runs[at] = {n: np.zeros(x.shape, x.dtype) for n, x in arrays.items()}, device, precision
        return self._programs[at]

    def _thawed(self, session: Session, arrays: dict[str, Any]) -> Thawed | KeptProgram | None:
        key = _program_key(self._key, session, arrays)
        record = None if key is None else shared(KIND).get(key)
        if not record:
            return None
        if session.info.backend != "cpu":
            from rlx.onnx.kept_program import KeptProgram

            with suppress(Exception):  # whatever is wrong with an entry, the file has the model
                return KeptProgram(record, self._content.content, session)
            return None
        from rlx.backends.cpu.thawed import Thawed

        try:
            data, held = marshal.loads(record)
            weights = ((name, np.frombuffer(raw, np.uint8)) for name, raw in held.items())
            thawed = Thawed(data, session.device, threads_of(session.options), weights)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 whatever is wrong with an entry, the file has the model
            return None
        return thawed

    def _read(self) -> Model:
        """The model as its file says it, with the programs that have run."""
        model = read(self._content, self._options)
        for arrays, device, precision in self._runs.values():
            model.prepare(arrays, device, precision)
        self._end()
        return model

    def close(self) -> None:
        with self._turn:
            if self._whole is not None:
                self._whole.close()
            _close(self._programs)
            self._runs.clear()


def _close(programs: dict[Any, Thawed | KeptProgram | None]) -> None:
    while programs:
        thawed = programs.popitem()[1]
        if thawed is not None:
            thawed.close()
