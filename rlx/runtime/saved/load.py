"""`load_program`: a saved program's file, ready to run. It imports only what a program in the cache needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rlx.driver.memory.plan import PLANNERS
from rlx.errors import (
    DeviceLost,
    DeviceUnavailable,
    GraphError,
    ModelFormatError,
    OutOfDeviceMemory,
    ProgramMismatch,
    RlxError,
)
from rlx.host.files import shown
from rlx.host.progress import report
from rlx.runtime.saved.container import ProgramFile
from rlx.runtime.session import PRECISIONS, STORAGES, Session
from rlx.runtime.version import VERSION, described

if TYPE_CHECKING:
    from pathlib import Path

    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.store import Store

FORMAT = 3
_KEYS = frozenset({"format", "rlx", "device", "options", "exprs", "graphs", "program", "declared", "donated",
                   "decomposed", "param_dtypes", "plan_bytes", "weights", "states", "kernels",
                   "products", "choices"})  # fmt: skip
OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "planner": PLANNERS, "storage": STORAGES, "optimize": (True, False), "fallback": ("host", "error"),
    "precision": PRECISIONS,
}  # fmt: skip
# What ops, planner, lowering and NumPy may raise for an invalid graph.
_FAULTS = (RlxError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError,
           TypeError, ValueError)  # fmt: skip
_NOT_THE_FILES = (ModelFormatError, DeviceUnavailable, DeviceLost, OutOfDeviceMemory)


def load_program(
    path: str | os.PathLike[str],
    device: str | Session | None = None,
    *,
    weights: Store | None = None,
    state: Store | None = None,
    trusted: bool = False,
) -> CompiledGraph:
    """A program that `CompiledGraph.save` wrote, ready to run: nothing is traced or optimized again.

    `device` is one of the kind that the program was saved on (None: the same device), or a session on it with the
    precision that the program was compiled for. Tensors that `weights` and `state` already hold keep their values, so
    that several programs share one copy; the others are read from the file, all or, if loading fails, none. The file's
    contents are checked like those of any untrusted file. Machine code cannot be checked: unless the file is `trusted`,
    kernels come from this machine's own cache (RLX_CACHE_DIR), and those that are not in it are compiled anew. With
    `trusted=True` they come from the file, and its graphs may take longer than some seconds to read and plan; give it
    for files whose writer you trust.

    >>> rlx.Session("cuda").compile(graph).save("model.rlx")
    >>> program = rlx.load_program("model.rlx")

    Raises: ModelFormatError for a file that is damaged or contradicts itself; ProgramMismatch, one of these, for a
    program of another version of rlx, another device, driver or precision; ShapeError or DTypeError for stores with
    other tensors of the same names; GraphError for what is no path or no store; DeviceUnavailable, OutOfDeviceMemory.
    """
    from rlx.runtime.saved import ready

    with ExitStack() as stack:
        file = stack.enter_context(opened(path))
        if weights is not None or state is not None:
            return _whole(file, device, weights, state, trusted)
        program = ready.find(file, device)
        if program is None:
            program = _whole(file, device, None, None, trusted)
            ready.keep(file, program)
        else:
            stack.pop_all()  # the file stays open: the program may have to read more of it
        return program


def load_whole(path: Path, device: str | None, trusted: bool = False) -> CompiledGraph:
    """As `load_program`, but never a `ReadyProgram` from the cache: always a CompiledGraph with its graph."""
    with opened(path) as file:
        return _whole(file, device, None, None, trusted)


def opened(path: Any) -> ProgramFile:
    """A saved program's file, with a table of this version. Raises: GraphError if `path` is not a path,
    ModelFormatError, ProgramMismatch."""
    if not isinstance(path, str | os.PathLike):
        raise GraphError(
            f"load_program: expected the path of a file, got {type(path).__name__}; write bytes to a file first"
        )
    file = ProgramFile(os.fspath(path))
    try:
        check_table(file)
    except BaseException:
        file.close()
        raise
    report("reading")
    return file


def _whole(
    file: ProgramFile, device: str | Session | None, weights: Store | None, state: Store | None, trusted: bool
) -> CompiledGraph:
    from rlx.runtime.saved.program import load

    return load(file, device, weights, state, trusted)


@contextmanager
def blamed(file: ProgramFile) -> Iterator[None]:
    """Turns errors raised inside into a ModelFormatError about the file, except those of the device itself."""
    try:
        yield
    except _NOT_THE_FILES:
        raise
    except _FAULTS as error:
        said = " ".join(str(error).split())
        raise file.wrong(f"contradicts itself: {shown(said, 400)[1:-1]}") from error


def check_table(file: ProgramFile) -> None:
    """Checks the table. Raises: ProgramMismatch for a file of another version, which may have another table;
    ModelFormatError."""
    number, version = file.table.get("format"), file.table.get("rlx")
    if number != FORMAT or version != VERSION:
        raise ProgramMismatch(
            f"{file.path}: was saved by rlx {shown(version)} in format {shown(number)}; this is rlx {VERSION}, "
            f"format {FORMAT}: compile the model with this version and save it anew"
        )
    table = file.table
    if (
        table.keys() != _KEYS
        or not isinstance(table["options"], dict)
        or not isinstance(table["device"], dict)
    ):
        raise file.wrong(f"has a table of {shown(sorted(table))}")
    options = table["options"]
    if options.keys() != OPTIONS.keys() or any(options[n] not in known for n, known in OPTIONS.items()):
        raise file.wrong(f"has options that rlx does not have: {shown(options)}")


def session_of(file: ProgramFile, device: str | Session | None) -> Session:
    """The session to build in. Raises: ProgramMismatch if the program was not made for it."""
    options, saved = file.table["options"], file.table["device"]
    if not isinstance(device, Session):
        backend = saved.get("backend")
        try:
            device = Session(
                str(backend) if device is None else device,
                precision=options["precision"],
                fallback=options["fallback"],
            )
        except DeviceUnavailable as error:
            if device is not None:
                raise
            raise ProgramMismatch(
                f"{file.path}: was saved on {shown(saved.get('name'))} ({shown(backend)}), which is not here: {error}"
            ) from error
    here = described(device.device)
    asked = {"precision": device.options.precision, "fallback": device.fallback}
    for what, was, now in (
        *((what, saved.get(what), value) for what, value in here.items()),
        *((what, options[what], value) for what, value in asked.items()),
    ):
        if type(was) is not type(now) or was != now:
            raise ProgramMismatch(
                f"{file.path}: was saved for {what} {shown(was, 300)}, and {device.info.id} has {shown(now, 300)}: "
                "compile the model here and save it anew"
            )
    return device
