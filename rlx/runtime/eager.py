"""Functions and operators outside a trace: each call runs a program, which equal calls share.

A call's key is its function, device, types and static values. The first call with a key traces the function as `jit`
does, compiles it and keeps the program; each later one runs it on the memory of its arrays and of fresh results
(`Device.build_call`). Where that is not possible, arrays are copied into the program's memory, and results out of it;
`copying()` says where and why.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from rlx import ops
from rlx.driver import Call, Device
from rlx.driver.device import CUDA, address
from rlx.driver.memory.views import VIEW_ALIGNMENT, view_offset
from rlx.driver.registry import open_device
from rlx.dtypes import DType
from rlx.errors import GraphError, RlxError, ShapeError
from rlx.host.locks import renewed
from rlx.ir import Tensor, TensorType
from rlx.ir.checks import visible
from rlx.ir.graph import TRACING, NoGraph
from rlx.ir.number import held
from rlx.ir.types import MAX_RANK
from rlx.ir.values import as_array, is_foreign
from rlx.ops import composite, operators
from rlx.ops.index.arrays import getitem
from rlx.ops.index.dynamic import dynamic_slice
from rlx.ops.operators import users_line
from rlx.ops.places import METHODS
from rlx.ops.public import REAL, Complexes, Function, Outside, any_complex
from rlx.ops.pytree import Static, children_of, flatten, sorted_items
from rlx.ops.spellings import respelled
from rlx.packed import PackedArray
from rlx.runtime.arguments import Call as Arguments
from rlx.runtime.arguments import NotBuiltIn, Parameters, static_key
from rlx.runtime.array import Array, array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.exchange import adopted
from rlx.runtime.jit import Traced, trace
from rlx.runtime.launch import Launch
from rlx.runtime.outs import Out
from rlx.runtime.session import Session

PROGRAMS = 1024  # limit on the programs kept
PROGRAM_BYTES = 256 << 20  # limit on their memory, not counting the newest program
_KNOWN_NUMBERS = 16  # limit on the scalars of a program that are kept in a GPU's memory
_MOVES = 4  # uses of an index by the program that serves all offsets, before it gets a program of its own
_DIRECT_NODES, _DIRECT_BYTES = 32, 1 << 20  # limits on a jitted function's program that runs as a call does
_I64 = 1 << 63  # integers from here on are refused, as constants of a program are
_AS_VALUES = 1 << 12  # elements of the largest array that may be built into a program, such as a shape
# Functions whose Python numbers are inputs, as in jit; those of other functions are built into the program.
_NUMBERS = frozenset(
    ("add", "sub", "mul", "div", "mod", "floor_divide", "maximum", "minimum", "equal", "not_equal", "less",
     "less_equal", "greater", "greater_equal", "where", "fold_in", "updated")
)  # fmt: skip

Run = Callable[[Sequence[Any]], Any]


class _InGraph(Exception):
    """An argument is a tensor of a graph: the call adds to it."""


class _Leaves(list[Any]):
    """The arrays of a call, and the numbers that are inputs. `once`: an argument is a function, or another object whose
    content the key cannot tell, so that the program serves only this call."""

    once = False


class _ByValue:
    """Stored in place of a program: calls with this key have the values of these leaves built in, such as a shape."""

    def __init__(self, leaves: Sequence[int]) -> None:
        self.leaves = leaves


class Program:
    """A compiled call. `run` takes the leaves of a call with the same key. `copies` says why arguments and results are
    copied into and out of the program's memory; it is empty where the program runs on their own memory."""

    __slots__ = ("copies", "nbytes", "run", "used")

    def __init__(self, run: Run, nbytes: int, copies: str) -> None:
        self.run = run
        self.copies = copies
        self.nbytes = nbytes
        self.used = 0


class Cache:
    """Programs by key. Adding one takes the lock; looking one up does not."""

    def __init__(self) -> None:
        self.programs: dict[Hashable, Program | _ByValue] = {}
        self.clock = count(1)
        self.lock = renewed(self, "lock", threading.RLock)
        self.needing: set[Function] = set()  # functions that raise NoGraph when called without a graph
        self.warned: set[str] = set()

    def add(self, key: Hashable, program: Program | _ByValue) -> None:
        """Adds a program; the least recently used ones are dropped to make room for it."""
        with self.lock:
            if isinstance(program, Program):
                program.used = next(self.clock)
            self.programs[key] = program
            nbytes = self.nbytes
            if len(self.programs) <= PROGRAMS and nbytes <= PROGRAM_BYTES:
                return
            for old, p in sorted(self.programs.items(), key=lambda item: getattr(item[1], "used", 0)):
                if len(self.programs) <= PROGRAMS * 7 // 8 and nbytes <= PROGRAM_BYTES * 7 // 8:
                    return
                if p is not program:  # not closed here: another thread may be about to run it
                    del self.programs[old]
                    nbytes -= getattr(p, "nbytes", 0)

    @property
    def nbytes(self) -> int:
        return sum(getattr(p, "nbytes", 0) for p in tuple(self.programs.values()))


CACHE = Cache()


def cache_info() -> dict[str, int]:
    """How many programs of calls outside a trace are kept, the bytes of their memory, and the limits of both."""
    return {"size": len(CACHE.programs), "max_size": PROGRAMS, "bytes": CACHE.nbytes, "max_bytes": PROGRAM_BYTES}


def copying() -> dict[str, set[str]]:
    """The functions among the kept programs whose arguments and results are copied in and out, and why."""
    found: dict[str, set[str]] = {}
    for key, p in tuple(CACHE.programs.items()):
        if isinstance(p, Program) and p.copies:
            while isinstance(key, tuple):  # a key with built-in arrays begins with the key without them
                key = key[0]
            found.setdefault(getattr(key, "__name__", str(key)), set()).add(p.copies)
    return found


# -- calls


def compute(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a public function outside a trace: rlx.Arrays, or what it returns without a graph (`rlx.zeros`)."""
    leaves = _Leaves()
    numbers = function.__name__ in _NUMBERS
    parts: list[Any] = [function]
    try:
        for x in args:
            if type(x) is Array:
                leaves.append(x)
                t = x.type
                parts.append((t.shape, t.dtype.name))
            else:
                parts.append(_part(x, leaves, numbers))
        for name in kwargs:
            parts += (name, _part(kwargs[name], leaves, numbers))
    except _InGraph:
        return function(*args, **kwargs)
    device: Any = None
    for x in leaves:
        if type(x) is Array and x.device is not device:
            if device is not None:
                raise _two_devices(function, device, x.device)
            device = x.device
    if device is None:
        if function not in CACHE.needing:
            try:
                return function(*args, **kwargs)
            except NoGraph:
                CACHE.needing.add(function)
        device = open_device("auto")
    if leaves.once:
        return _compiled(function, args, kwargs, leaves, device).run(leaves)
    parts.append(device)
    key = tuple(parts)
    program = CACHE.programs.get(key)
    if type(program) is Program:
        program.used = next(CACHE.clock)
        return program.run(leaves)
    return _others(key, function, args, kwargs, leaves, device)


def _others(
    key: Hashable, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: _Leaves, device: Device
) -> Any:
    """Runs a call whose key is new, or whose program has arrays built in."""
    make = partial(_compiled, function, args, kwargs, leaves, device)
    with CACHE.lock:
        program = CACHE.programs.get(key)
        if program is None:
            program = _new(key, make, leaves)
        if isinstance(program, _ByValue):
            static = program.leaves
            key = (key, *(np.asarray(leaves[i]).tobytes() for i in static))
            program = CACHE.programs.get(key)
            if program is None:
                CACHE.add(key, program := make(static))
            leaves = _Leaves(x for i, x in enumerate(leaves) if i not in static)
    assert isinstance(program, Program)
    program.used = next(CACHE.clock)
    return program.run(leaves)


def _new(key: Hashable, make: Callable[..., Program], leaves: Sequence[Any]) -> Program | _ByValue:
    """The program for a new key, or the leaves to build in if the function needs their values while it is traced."""
    arrays = [i for i, x in enumerate(leaves) if isinstance(x, np.ndarray) and x.size <= _AS_VALUES]
    small = [i for i, x in enumerate(leaves) if i and isinstance(x, Array) and x.dtype.is_int and x.size <= MAX_RANK]
    program: Program | _ByValue
    for static in ([], arrays, sorted(arrays + small)):
        try:
            program = make(static)
        except (RlxError, TypeError, ValueError):  # the function may need values of arrays, such as a shape
            if static != sorted(arrays + small):
                continue
            raise
        CACHE.add(key, _ByValue(static) if static else program)
        if static:
            CACHE.add((key, *(np.asarray(leaves[i]).tobytes() for i in static)), program)
            return _ByValue(static)
        return program
    raise AssertionError("the last of these raises")


def _part(x: Any, leaves: _Leaves, numbers: bool) -> Any:
    """An argument's part of the key. Appends its arrays to the leaves, and with `numbers` Python numbers too."""
    kind: Any = type(x)
    if kind is Array:
        leaves.append(x)
        t = x.type
        return t.shape, t.dtype.name
    if kind is np.ndarray:
        leaves.append(x)
        return x.shape, x.dtype
    if kind is int or kind is float:
        if numbers:
            leaves.append(x)
            return kind
        return kind, x if kind is int else repr(x)
    if x is None or kind is str or kind is bool:
        return kind, x
    if kind is tuple or kind is list:
        return kind, *[_part(v, leaves, False) for v in x]
    if kind is dict:
        return kind, *[(k, _part(v, leaves, False)) for k, v in sorted_items(x)]
    return _rare_part(x, leaves, numbers)


def _rare_part(x: Any, leaves: _Leaves, numbers: bool) -> Any:
    kind: Any = type(x)
    if isinstance(x, Tensor):
        raise _InGraph
    if isinstance(x, float):  # np.float64 takes the other operands' dtype, like Python's float
        return _part(float(x), leaves, numbers)
    if _is_array(x):
        leaves.append(_read(x))
        last = leaves[-1]
        return (last.shape, last.dtype) if isinstance(last, np.ndarray) else (kind, last.shape, str(last.dtype))
    if isinstance(x, tuple | list):
        return kind, *[_part(v, leaves, False) for v in x]
    found = children_of(x, _is_array_or_tensor)
    if found is not None:
        return kind, _part(found[1], leaves, False), *[_part(v, leaves, False) for v in found[0]]
    if callable(x) and not isinstance(x, type):
        leaves.once = True
        return None
    try:
        return static_key(x)
    except NotBuiltIn:
        leaves.once = True
        return None


def _is_array(x: Any) -> bool:
    return (isinstance(x, np.ndarray | np.generic | PackedArray) and not isinstance(x, float)) or is_foreign(x)


def _is_array_or_tensor(x: Any) -> bool:
    return _is_array(x) or isinstance(x, Tensor)


def _read(x: Any) -> Any:
    """An array of any library as a NumPy array, or as an Array if it is on a device; Arrays and PackedArrays are
    returned unchanged."""
    if isinstance(x, Array | PackedArray):
        return x
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    found = adopted(x, CUDA)
    return found if isinstance(found, Array) else as_array(found, "an argument")


def _two_devices(function: Function, one: Device, other: Device) -> GraphError:
    here, there = one.info.id, other.info.id
    return GraphError(
        f'{function.__name__}: an argument is on {here}, another on {there}; copy one, as by .to("{here}")'
    )


# -- programs


def _compiled(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: _Leaves, device: Device,
    static: Sequence[int] = (),
) -> Program:  # fmt: skip
    call = _arranged(function, args, kwargs, leaves, static)
    before, TRACING.checks = TRACING.checks, []
    try:
        traced = trace(function, call, Parameters("call", function, (), ()))
        checks = TRACING.checks
    finally:
        TRACING.checks = before
    _say_f64(call.leaves, device)
    exe = Session(device.info.id).compile(traced.graph)
    places = {name: i for i, name in enumerate(traced.names)}
    program = _runner(exe, traced, call.leaves, function.__name__)
    checked: list[tuple[int, Callable[[Any], None]]] = []
    for name, check, read in checks:
        leaf = call.leaves[places[name]] if name in places else None
        if isinstance(leaf, np.ndarray):
            checked.append((places[name], check))
        elif read and isinstance(leaf, Array):
            checked.append((places[name], _once(check)))
    if checked:
        program.run = _checking(program.run, checked)
    return program


def _checking(run: Run, checked: Sequence[tuple[int, Callable[[Any], None]]]) -> Run:
    """A run that first checks arguments whose values the host knows."""

    def work(leaves: Sequence[Any]) -> Any:
        for i, check in checked:
            check(leaves[i])
        return run(leaves)

    return work


def _once(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """The check of an Array's values. Reading them waits for the device, so the Array of the last call is not read
    again, unless another library may have changed it."""
    last: ReferenceType[Array] | None = None

    def of_array(x: Array) -> None:
        nonlocal last
        if last is None or last() is not x or x._borrowed or x._shared is not None:
            check(x.numpy())
            last = ref(x)

    return of_array


def _arranged(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: _Leaves, static: Sequence[int]
) -> Arguments:
    """The arguments as a call to trace. Leaves that are `static` are built in."""
    call, seen = Arguments(None, [], []), iter(enumerate(leaves))
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    numbers = function.__name__ in _NUMBERS

    def placed(skeleton: Any) -> Any:
        kind = skeleton[0]
        if kind == "leaf":
            i, leaf = next(seen)
            if i in static:
                value = np.asarray(leaf)
                return ("static", Static(None, value.item() if value.ndim == 0 else value))
            call.leaves.append(leaf)
            call.origins.append(at)
            return ("leaf", len(call.leaves) - 1)
        if kind == "static":
            return skeleton
        if kind == "dict":
            return (kind, tuple((k, placed(v)) for k, v in skeleton[1]))
        return (kind, tuple(placed(v) for v in skeleton[1]))

    at: int | str = 0
    made = []
    for at, x in given:
        number = numbers and isinstance(x, int | float) and not isinstance(x, bool | np.generic | np.bool_)
        number = number or (numbers and isinstance(x, float))
        made.append((at, placed(("leaf", 0) if number else flatten(x, [], _is_array, lambda v: None))))
    call.skeleton = (
        "tuple",
        (
            ("tuple", tuple(s for at, s in made if isinstance(at, int))),
            ("dict", tuple((at, s) for at, s in made if isinstance(at, str))),
        ),
    )
    return call


def _say_f64(leaves: Sequence[Any], device: Device) -> None:
    """Warns once for each GPU that it computes in f64, since NumPy's arrays are f64 unless a dtype is given."""
    where = device.info.id
    if device.info.kind == "cpu" or where in CACHE.warned:
        return
    if any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in leaves):
        CACHE.warned.add(where)
        warnings.warn(
            f"{where} computes in f64, as NumPy's arrays have it, which takes many times as long as f32 on most GPUs; "
            f"give them as .astype(np.float32) where that will do ({users_line()})",
            stacklevel=2,
        )


def _runner(
    exe: CompiledGraph, traced: Traced, leaves: Sequence[Any], name: str, out: Out = "device"
) -> Program:
    """The program of a call, which runs on its arguments' memory, on copies of them, or through `launch`. Results are
    as `out` says where the program runs on the host's memory without copies, else Arrays."""
    device = exe.device
    plain = all(isinstance(x, Array | np.ndarray | int | float) for x in leaves)
    users = any(node.op.family == "custom" for node in exe.graph.nodes)
    kept = all(isinstance(r, str) for r in traced.results)
    if not plain or users or exe.options.build.debug or not kept or traced.tape.steps:
        return Program(partial(_run_checked, exe, traced, name), exe.plan.total_bytes, "its arguments are checked")
    by_name = _sources(traced, leaves)
    view = _view(exe, traced, by_name, leaves) if out == "device" else None
    if view is not None:
        return Program(view, 0, "")
    call = exe.build_call(list(exe.graph.inputs))
    on_host = hasattr(device, "fresh")
    if not isinstance(call, str):
        begin = partial(_in_host_memory, out=out) if on_host else _in_device_memory
        sources = [by_name[n] for n in exe.graph.inputs]
        return Program(begin(exe, call[0], traced, sources, leaves), call[1], "")
    program = exe._ready()
    if program.checks:
        return Program(partial(_run_checked, exe, traced, name), exe.plan.total_bytes, call)
    sources = [by_name[p.name] for p in program.inputs]
    run = _on_host(exe, traced, sources, leaves) if on_host else _on_device(exe, traced, sources)
    return Program(run, exe.plan.total_bytes, call)


def _view(
    exe: CompiledGraph, traced: Traced, by_name: Mapping[str, _Source], leaves: Sequence[Any]
) -> Run | None:
    """A run that only returns an argument's memory with another shape, if the sole result is such a view; else None."""
    results = list(visible(exe.graph.outputs).values())
    makers = {t.id: node for node in exe.graph.nodes for t in node.outputs}
    t = results[0]
    while view_offset(makers[t.id]) == 0:
        t = makers[t.id].inputs[0]
    i = next((by_name[n][0] for n, x in exe.graph.inputs.items() if x.id == t.id), None)
    if len(results) > 1 or traced.out[0] != "leaf" or t.type.dtype.is_packed:
        return None
    if i is None or type(leaves[i]) is not Array:
        return None
    viewed = results[0].type
    return lambda given: _sharing(given[i], viewed, 0)


def _sharing(x: Array, t: TensorType, at: int) -> Array:
    """An Array that shares another's memory, starting at that array's byte `at`."""
    buffer = x._buffer
    if buffer is None or x._lender is not None:
        buffer = x._held()
    result = Array._of(x.device, t, buffer)
    result._offset = x._offset + at
    if x._unread is not None:
        result._unread = x._unread
    if x._borrowed:
        result._borrowed = True
    return result


def direct(
    exe: CompiledGraph, traced: Traced, args: Sequence[Any], leaves: Sequence[Any], out: Out
) -> Run | None:
    """A run of a jitted function's program on the memory of its arguments and of fresh results, as a call outside a
    trace: for a small program that takes a fraction of `CompiledGraph.run`'s time. None for all others, where arguments
    or results have to be copied, as to the host, and where the leaves are not the arguments themselves, as for complex
    numbers, which are two arrays."""
    if len(args) != len(leaves) or any(a is not leaf for a, leaf in zip(args, leaves, strict=True)):
        return None
    if exe.device.info.kind != "cpu":
        begin = direct_launch(exe, traced, leaves) if out == "device" else None
        return None if begin is None else partial(_waited, begin, exe, traced)
    if not _runs_directly(exe):
        return None
    program = _runner(exe, traced, leaves, exe.graph.name, out)
    return None if program.copies else program.run


def direct_launch(
    exe: CompiledGraph, traced: Traced, leaves: Sequence[Any]
) -> Callable[[Sequence[Any]], Launch[Any] | None] | None:
    """As `direct`, for a program on a GPU whose arguments lie there: it begins a run, or gives None where that is left
    to `CompiledGraph.launch`: for results with unread checks, and after errors."""
    device = exe.device
    plain = all(type(x) is Array or isinstance(x, int | float) for x in leaves)
    if device.info.kind == "cpu" or not plain or not _runs_directly(exe):
        return None
    if any(not isinstance(r, str) for r in traced.results):
        return None
    names = list(visible(exe.graph.outputs))
    single = len(names) == 1
    flat = ("leaf", 0) if single else ("tuple", tuple(("leaf", i) for i in range(len(names))))
    program = _runner(exe, traced._replace(out=flat, results=list(names)), leaves, exe.graph.name)
    if program.copies:
        return None
    run, mark, arrange = program.run, device.mark, partial(traced.result, ())

    def begin(given: Sequence[Any]) -> Launch[Any] | None:
        for x in given:
            if type(x) is Array and (x._unread is not None or x._buffer is None):
                return None
        try:
            outputs = run(given)
        except RlxError:
            return None
        arrays = {names[0]: outputs} if single else dict(zip(names, outputs, strict=True))
        return Launch(arrays, mark(), None, arrange)

    return begin


def _runs_directly(exe: CompiledGraph) -> bool:
    return len(exe.program.nodes) <= _DIRECT_NODES and exe.plan.total_bytes <= _DIRECT_BYTES


def _waited(
    begin: Callable[[Sequence[Any]], Launch[Any] | None], exe: CompiledGraph, traced: Traced, given: Sequence[Any]
) -> Any:
    """The results of a run once it is complete."""
    launch = begin(given)
    if launch is not None:
        return launch.wait()
    feeds, slots = traced.feeds(Arguments(None, list(given), []))
    return traced.result(slots, exe.run(feeds, "device"))


def _in_host_memory(
    exe: CompiledGraph, call: Any, traced: Traced, sources: Sequence[_Source], leaves: Sequence[Any],
    out: Out = "device",
) -> Run:  # fmt: skip
    """A run that passes the program the host addresses of arguments and of fresh results, with as few Python calls as
    possible between an operator and the program. With `out="host"` the results are NumPy arrays."""
    device: Any = exe.device
    types = [t.type for t in exe.graph.inputs.values()]
    outputs = [(t, max(t.nbytes, 1)) for t in (t.type for t in visible(exe.graph.outputs).values())]
    names, single = list(visible(exe.graph.outputs)), len(outputs) == 1 and traced.out[0] == "leaf"
    arrays: list[tuple[int, int]] = []
    others: list[tuple[int, int, Any]] = []
    numbers: list[tuple[int, Callable[[Any], None]]] = []
    places, cells = [0] * (len(sources) + len(outputs)), []
    for k, ((i, held_as), t) in enumerate(zip(sources, types, strict=True)):
        if held_as is not None:
            cell = np.zeros(t.shape, t.dtype.np)
            cells.append(cell)
            places[k] = address(cell)
            numbers.append((i, partial(_put_number, cell, held_as, t.dtype)))
        elif isinstance(leaves[i], Array):
            arrays.append((k, i))
        else:
            others.append((k, i, t.dtype.np))
    first, ((t0, nbytes0), *_) = len(sources), outputs
    at, fresh, of, host = call.at, device.fresh, Array._of, out == "host"

    def fresh_array(k: int, t: TensorType) -> Any:
        result = np.empty(t.shape, t.dtype.np)
        places[k] = address(result)
        return result

    def run(given: Sequence[Any]) -> Any:
        held: list[Any] = []  # keeps the memory alive until the run is over
        with call.turn:
            for k, i in arrays:
                x = given[i]
                buffer: Any = x._buffer
                if buffer is None or x._lender is not None or x._unread is not None:
                    x._checked()
                    buffer = x._held()
                place = buffer.place()
                if place:
                    held.append(buffer)
                    places[k] = place + x._offset
                else:
                    held.append(copied := np.empty(x.nbytes, np.uint8))
                    buffer.read(x._offset, copied)
                    places[k] = copied.ctypes.data
            for k, i, dtype in others:
                value = given[i]
                flags = value.flags
                if not (flags.c_contiguous and flags.aligned) or value.dtype != dtype:
                    value = np.array(value, dtype, order="C")
                held.append(value)
                places[k] = value.ctypes.data
            for i, put in numbers:
                put(given[i])
            if single and not host:
                buffer = fresh(nbytes0)
                places[first] = buffer.place()
                at(places)
                return of(device, t0, buffer)
            made = {}
            for k, (name, (t, nbytes)) in enumerate(zip(names, outputs, strict=True), first):
                if host:
                    made[name] = fresh_array(k, t)
                    continue
                buffer = fresh(nbytes)
                places[k] = buffer.place()
                made[name] = of(device, t, buffer)
            at(places)
        return traced.result((), made)

    run.cells = cells  # type: ignore[attr-defined]  # keeps alive the memory that the program reads
    return run


def _in_device_memory(
    exe: CompiledGraph, call: Call, traced: Traced, sources: Sequence[_Source], leaves: Sequence[Any]
) -> Run:
    """A run that enqueues the program on the device, on the memory of arguments and of fresh results."""
    device = exe.device
    types = [t.type for t in exe.graph.inputs.values()]
    outputs = [(t, max(t.nbytes, 1)) for t in (t.type for t in visible(exe.graph.outputs).values())]
    names, single = list(visible(exe.graph.outputs)), len(outputs) == 1 and traced.out[0] == "leaf"
    steps = [(k, *source, t) for k, (source, t) in enumerate(zip(sources, types, strict=True))]
    acquire, begin, of = device.acquire, call.begin, Array._of
    fresh = None if call.fresh is None else call.fresh([nbytes for _, nbytes in outputs])
    checked, first = partial(_run_checked, exe, traced, "a call"), outputs[0][0]
    known: dict[Hashable, Any] = {}  # numbers of earlier calls, in the device's memory
    last: dict[int, tuple[Any, Any]] = {}  # each input's last number and its memory: a loop often passes it again

    def of_number(k: int, held_as: Callable[[Any], Any], t: TensorType, value: int | float) -> Any:
        # 0.0 equals -0.0, and NaN nothing.
        key = k, type(value), value if value and value == value else repr(value)
        buffer = known.get(key)
        if buffer is None:
            buffer = array(held_as(value), t.dtype, device)._buffer
            if len(known) >= _KNOWN_NUMBERS:
                known.clear()
            known[key] = buffer
        return buffer

    def results(buffers: Sequence[Any]) -> Any:
        if single:
            return of(device, first, buffers[0])
        made = {n: of(device, t, buffer) for n, (t, _), buffer in zip(names, outputs, buffers, strict=True)}
        return traced.result((), made)

    def run(given: Sequence[Any]) -> Any:
        memory: list[tuple[Any, int]] = []
        for k, i, held_as, t in steps:
            x = given[i]
            if held_as is not None:
                memory.append((of_number(k, held_as, t, x), 0))
            elif type(x) is not Array:
                memory.append((array(x, t.dtype, device)._buffer, 0))
            elif x._unread is not None or x._buffer is None:
                return checked(given)
            else:
                buffer, offset = x._held(), x._offset
                if (buffer.address + offset) % VIEW_ALIGNMENT:
                    aligned = acquire(max(t.nbytes, 1), clear=False)
                    aligned.copy_from(buffer, offset, 0, t.nbytes)
                    buffer, offset = aligned, 0
                memory.append((buffer, offset))
        buffers = [acquire(nbytes, False) for _, nbytes in outputs]
        begin([*memory, *((buffer, 0) for buffer in buffers)])
        return results(buffers)

    def run_fresh(given: Sequence[Any]) -> Any:
        """As `run`, with fewer Python calls if all arrays are on the device, aligned and with nothing left to check."""
        places, kept = [], []  # kept until the steps are enqueued
        for k, i, held_as, t in steps:
            x = given[i]
            if type(x) is Array:
                buffer: Any = x._buffer
                if buffer is None or x._lender is not None or x._unread is not None:
                    return run(given)
                place = buffer.address + x._offset
                if place % VIEW_ALIGNMENT:
                    return run(given)
                places.append(place)
            else:
                if held_as is None:
                    buffer = array(x, t.dtype, device)._buffer
                elif (pair := last.get(k)) is not None and pair[0] is x:
                    buffer = pair[1]
                else:
                    buffer = of_number(k, held_as, t, x)
                    last[k] = x, buffer
                kept.append(buffer)
                places.append(buffer.address)
        made = fresh(places)  # type: ignore[misc]  # only called where `fresh` is not None
        return of(device, first, made[0]) if single else results(made)

    if fresh is not None:
        run_fresh.owner, run_fresh.call = exe, call  # type: ignore[attr-defined]
        return run_fresh
    run.owner, run.call = exe, call  # type: ignore[attr-defined]  # keep alive the program and its scratch memory
    return run


class _Source(NamedTuple):
    """Where a program's input comes from: the position of its leaf, and for a number how it is held as the input's
    dtype; a number may be several inputs, each of its own dtype."""

    leaf: int
    held: Callable[[int | float], Any] | None = None


def _sources(traced: Traced, leaves: Sequence[Any]) -> dict[str, _Source]:
    """The source of each input, by name."""
    sources = {n: _Source(i) for i, n in enumerate(traced.names)}
    numbers = [i for i, x in enumerate(leaves) if isinstance(x, int | float)]
    for n, (number, dtype) in traced.tape.inputs.items():
        sources[n] = _Source(numbers[number.slot], partial(_held, number, dtype))
    return sources


def _held(number: Any, dtype: DType, value: int | float) -> Any:
    """A Python number as an array of rank 0. Raises: DTypeError where the dtype does not hold it."""
    return held(number, dtype, [value] * (number.slot + 1))


def _run_checked(exe: CompiledGraph, traced: Traced, name: str, leaves: Sequence[Any]) -> Any:
    """A run through `launch`, which checks everything. Device errors are raised when a result is used, on the CPU at
    once."""
    feeds, slots = traced.feeds(Arguments(None, list(leaves), []))
    launch = exe.launch(feeds)
    if exe.device.info.kind == "cpu":
        launch.wait()
    elif launch._error is not None:
        launch._error.add_note(f"{name} was called in {users_line()}")
    return traced.result(slots, launch.results)


def _on_device(exe: CompiledGraph, traced: Traced, sources: Sequence[_Source]) -> Run:
    """A run that only enqueues work on the device: copies of the inputs, the program, copies of the results."""
    checked = partial(_run_checked, exe, traced, "a call")

    def run(leaves: Sequence[Any]) -> Any:
        values = []
        for i, held_as in sources:
            x = leaves[i]
            if type(x) is Array and (x._unread is not None or x._buffer is None):
                return checked(leaves)
            values.append(x if held_as is None else held_as(x))
        with exe._lock:
            program = exe._ready()
            if program.broken_off:
                exe.device.synchronize()
            program.broken_off = True
            for port, value in zip(program.inputs, values, strict=True):
                port.write(value)
            program.executable.begin()
            made = {port.name: port.give(exe.device) for port in program.outputs}
            program.broken_off = False
        return traced.result((), made)

    return run


class _Turn:
    """The lock of one program, made anew in a forked child."""

    def __init__(self) -> None:
        self.lock = renewed(self, "lock", threading.Lock)


def _on_host(
    exe: CompiledGraph, traced: Traced, sources: Sequence[_Source], leaves: Sequence[Any]
) -> Run:
    """A run in host memory, with as few Python calls as possible between an operator and the program."""
    program, device = exe._ready(), exe.device
    turn, work = _Turn(), program.executable.quick()
    arrays: list[tuple[int, Any, int]] = []
    others: list[tuple[int, Callable[[Any], None]]] = []
    for port, (i, held_as) in zip(program.inputs, sources, strict=True):
        raw = port.memory()
        if isinstance(leaves[i], Array):
            arrays.append((i, raw, raw.nbytes))
            continue
        view = raw.view(port.declared.dtype.np).reshape(port.declared.shape)
        put: Callable[[Any], None] = partial(view.__setitem__, ...)
        others.append((i, put if held_as is None else partial(_put_number, view, held_as, port.declared.dtype)))
    outputs = [(port.memory(), port.declared) for port in program.outputs]
    single = outputs[0] if len(outputs) == 1 and traced.out[0] == "leaf" else None
    names = [port.name for port in program.outputs]
    holding, of = device.holding, Array._of  # type: ignore[attr-defined]

    def run(given: Sequence[Any]) -> Any:
        with turn.lock:
            for i, raw, nbytes in arrays:
                x = given[i]
                buffer: Any = x._buffer
                if buffer is None or x._lender is not None or x._unread is not None:
                    x._checked()
                    buffer = x._held()
                data = buffer.settled()
                if data is None:
                    buffer.read(x._offset, raw)
                elif data.nbytes == nbytes:
                    raw[...] = data
                else:
                    raw[...] = data[x._offset : x._offset + nbytes]
            for i, put in others:
                put(given[i])
            work()
            if single is not None:
                return of(device, single[1], holding(single[0]))
            made = {n: of(device, t, holding(raw)) for n, (raw, t) in zip(names, outputs, strict=True)}
        return traced.result((), made)

    run.owner = exe  # type: ignore[attr-defined]  # keeps alive the memory of the views
    return run


def _put_number(view: Any, held_as: Callable[[Any], Any], dtype: DType, value: int | float) -> None:
    """Writes a Python number. Raises: DTypeError where the dtype does not hold it."""
    # NumPy converts these numbers with one rounding; to bf16 it would go through f32 and round twice.
    whole = type(value) is int
    wide = dtype.is_float and not dtype.is_half
    if (whole and 0 <= value <= 127) or (wide and abs(value) < (_I64 if whole else 1e38)):
        view[...] = value
    else:
        view[...] = held_as(value)


# -- Array's operators and methods


def _binary(name: str, method: Callable[[Any, Any], Any]) -> Callable[[Array, Any], Any]:
    """An operator. For two Arrays on one device it looks up the program itself; `compute` handles everything else."""
    op, swap = method.applies  # type: ignore[attr-defined]
    numbers = op.__name__ in _NUMBERS

    def operator(self: Array, other: Any) -> Any:
        if TRACING.graph is not None or TRACING.body is not None:
            return method(self, other)
        a, b = (other, self) if swap else (self, other)
        if type(other) is Array and other.device is self.device:
            s, t = a.type, b.type
            key = (op, (s.shape, s.dtype.name), (t.shape, t.dtype.name), self.device)
            program = CACHE.programs.get(key)
            if type(program) is Program:
                program.used = next(CACHE.clock)
                return program.run((a, b))
        elif (kind := type(other)) is float or kind is int:
            if numbers:
                t = self.type
                array = t.shape, t.dtype.name
                program = CACHE.programs.get((op, kind, array, self.device) if swap else (op, array, kind, self.device))
                if type(program) is Program:
                    program.used = next(CACHE.clock)
                    return program.run((a, b))
        elif any_complex((other,)):
            return Complexes.now(op.__name__, (a, b))
        elif not isinstance(other, _BESIDE) and not is_foreign(other):
            return NotImplemented
        return compute(op, (a, b), {})

    _named(operator, name)
    return operator


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A method, or an operator that just calls a function of `rlx.ops` on its operands."""

    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = dict(respelled(name, function, kwargs))
        if TRACING.graph is not None or TRACING.body is not None:
            return function(self, *args, **kwargs)
        if name.startswith("__") and args and not isinstance(args[0], _BESIDE) and not is_foreign(args[0]):
            return NotImplemented
        return compute(function, (self, *args), kwargs)

    call.__doc__ = function.__doc__
    _named(call, name)
    return call


def _named(function: Any, name: str) -> None:
    function.__name__, function.__qualname__ = name, f"Array.{name}"


def _getitem(self: Array, key: Any) -> Any:
    """self[key], with NumPy's meaning. Boolean masks work as in NumPy, since their values are known outside a trace."""
    if TRACING.graph is not None or TRACING.body is not None:
        return getitem(self, key)  # type: ignore[arg-type]
    parts = key if isinstance(key, tuple) else (key,)
    t = self.type
    device = self.device
    known: list[Any] = [getitem, t.shape, t.dtype.name, device]
    leaves = _Leaves((self,))
    for k in parts:
        kind: Any = type(k)
        if kind is slice:
            ends = k.start, k.stop, k.step
            for v in ends:
                if v is not None and type(v) is not int:  # 1.0 equals 1, and is refused
                    return compute(getitem, (self, key), {})
            known.append(ends)
        elif kind in _BASIC:
            known.append(k)
        elif kind is Array and k.device is device and k.dtype.is_int:
            known.append((k.shape, k.dtype.name))
            leaves.append(k)
        else:
            return compute(getitem, (self, _with_arrays(self, parts)), {})
    call = tuple(known)
    if len(leaves) == 1:
        found = _cut(self, parts, call)
        if found is not None:
            return found
    program = CACHE.programs.get(call)
    if type(program) is Program:
        program.used = next(CACHE.clock)
        return program.run(leaves)
    if len(leaves) == 1 and _PIECES.get(call) is not None:
        window = _window(t, parts)
        if window is not None:
            starts, sizes, steps = window
            if _uses((t, device, sizes, steps)) and _uses(call) < _MOVES:
                return compute(_moved, (self, np.array(starts), sizes, steps), {})
    return _others(call, getitem, (self, key), {}, leaves, device)


def _uses(key: Hashable) -> int:
    """How often this was called with the key before."""
    if len(_USES) >= PROGRAMS:
        _USES.clear()
    before = _USES.get(key, 0)
    _USES[key] = before + 1
    return before


def _window(t: TensorType, parts: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]] | None:
    """For an indexing key: the start on each axis, the number of elements spanned there, and for each part of the key
    its step, 0 for a dropped axis or None for a new one.

    None if a step is negative. Requires: the key selects something."""
    there = sum(k is not None and k is not Ellipsis for k in parts)
    at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    whole = (slice(None),) * (len(t.shape) - there)
    lengths = iter(t.shape)
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int | None] = []
    for k in (*parts[:at], *whole, *parts[at + 1 :]):
        if k is None:
            steps.append(None)
            continue
        n = next(lengths)
        chosen = range(*k.indices(n)) if isinstance(k, slice) else range(k % n, k % n + 1)
        if chosen.step < 0:
            return None
        starts.append(chosen[0])
        sizes.append(chosen[-1] - chosen[0] + 1)
        steps.append(chosen.step if isinstance(k, slice) else 0)
    return tuple(starts), tuple(sizes), tuple(steps)


def _moved(x: Any, starts: Any, sizes: tuple[int, ...], steps: tuple[int | None, ...]) -> Any:
    """x[key], as one function for all keys that differ only in their starts; see `_window`."""
    key = tuple(None if n is None else slice(None, None, n) if n else 0 for n in steps)
    return getitem(dynamic_slice(x, starts, sizes), key)


def _cut(x: Array, parts: tuple[Any, ...], known: Hashable) -> Array | None:
    """What a key of ints, slices, None and Ellipsis selects, without a program, if it is contiguous or on the CPU.

    The result is a copy, or on a GPU a view of the array's memory where it is aligned as programs require. None if a
    program has to do it, and for an invalid key."""
    t = x.type
    if x._buffer is None or x._lender is not None:
        x._held()
    buffer: Any = x._buffer
    host = buffer.settled() if hasattr(buffer, "settled") else None
    if host is not None:
        x._checked()
    piece = _PIECES.get(known, _PIECES)
    if piece is _PIECES:
        piece = _piece(t, parts)
        if len(_PIECES) >= PROGRAMS:
            _PIECES.clear()
        _PIECES[known] = piece
    if piece is None:
        return None
    at, result, in_one = piece
    if host is not None:
        data = host[x._offset + at : x._offset + at + result.nbytes] if in_one else _cut_of(host, x, parts)
        data = np.array(data).reshape(-1).view(np.uint8)
        return Array._of(x.device, result, x.device.holding(data))  # type: ignore[attr-defined]
    if not in_one:
        return None
    if not (x._offset + at) % VIEW_ALIGNMENT:  # every call on an unaligned view would copy it
        return _sharing(x, result, at)
    device: Any = x.device
    if hasattr(device, "copied"):
        copy = device.copied(buffer, x._offset + at, result.nbytes)
    else:
        copy = device.acquire(result.nbytes, False)
        copy.copy_from(buffer, x._offset + at, 0, result.nbytes)
    array = Array._of(device, result, copy)
    if x._unread is not None:
        array._unread = x._unread
    return array


def _piece(t: TensorType, parts: tuple[Any, ...]) -> tuple[int, TensorType, bool] | None:
    """The byte offset of the part of a tensor that a key selects, its type, and whether it is contiguous. None for an
    empty part, and for an invalid key, for which the op raises the error."""
    if t.dtype.is_packed or not t.nbytes:
        return None
    whole = np.lib.stride_tricks.as_strided(_NOTHING[:1].view(t.dtype.np)[:1], t.shape, _strides(t), writeable=False)
    try:
        part = whole[parts if Ellipsis in parts else (*parts, Ellipsis)]
    except (IndexError, ValueError, TypeError):
        return None
    if not part.size:
        return None
    at = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return at, TensorType(part.shape, t.dtype), bool(part.flags.c_contiguous)


def _cut_of(host: Any, x: Array, parts: tuple[Any, ...]) -> Any:
    whole = host[x._offset : x._offset + x.nbytes].view(x.dtype.np).reshape(x.shape)
    return whole[parts if Ellipsis in parts else (*parts, Ellipsis)]


def _strides(t: TensorType) -> tuple[int, ...]:
    made = [t.dtype.itemsize]
    for n in reversed(t.shape[1:]):
        made.append(made[-1] * n)
    return tuple(reversed(made[: len(t.shape)]))


def _with_arrays(x: Array, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key with lists as arrays, and masks as the arrays of indices that they select.

    Raises: ShapeError for a mask whose shape differs from that of the axes it indexes."""
    made: list[Any] = []
    axis = 0
    for k in parts:
        if isinstance(k, list):
            k = np.asarray(k, None if k else np.int64)
        if (type(k) is Array and k.dtype.name == "bool") or (isinstance(k, np.ndarray) and k.dtype.kind == "b"):
            mask = np.asarray(k)
            if any(p is Ellipsis for p in parts[: len(made)]):
                axis = x.ndim - sum(getattr(p, "ndim", 1) for p in parts[len(made) :] if p is not None)
            if mask.shape != x.shape[axis : axis + mask.ndim] or not mask.ndim:
                raise ShapeError(
                    f"index: a mask of shape {mask.shape} for the axes from {axis} of {x.type}; expected "
                    f"{x.shape[axis : axis + max(mask.ndim, 1)]}"
                )
            made += mask.nonzero()
            axis += mask.ndim
        else:
            made.append(k)
            axis += k is not None and k is not Ellipsis
    return tuple(made)


def _iter(self: Array) -> Iterator[Any]:
    if not self.shape:
        raise TypeError(f"iteration over an array of rank 0: {self.type}")
    return (self[i] for i in range(self.shape[0]))


def _contains(self: Array, value: Any) -> bool:
    return bool(compute(composite.any, (self == value,), {}))


def _index(self: Array) -> int:
    if self.shape or not self.dtype.is_int:
        raise TypeError(f"an array of {self.type} is no index: only integers of rank 0 are")
    return int(self.item())


def _format(self: Array, spec: str) -> str:
    return format(self.item() if spec and self.size == 1 else str(self), spec)


def _setitem(self: Array, key: Any, value: Any) -> None:
    raise TypeError(
        f"an rlx.Array never changes ({self.type}): write x = x.at[key].set(values), which gives a new one"
    )


_BESIDE = (Tensor, bool, int, float, np.ndarray, np.generic)
_BASIC = (int, slice, type(None), type(Ellipsis))
_NOTHING = np.zeros(1, np.complex128)
_PIECES: dict[Any, Any] = {}  # cached results of `_piece`
_USES: dict[Any, int] = {}
_OWN = ("__getitem__", "__iter__", "__contains__", "__int__", "__float__", "__bool__", "__index__", "__format__",
        "__setitem__", "__array__", "__array_ufunc__", "__array_function__", "copy", "item", "tolist", "__pos__"
        )  # fmt: skip


def _attach() -> None:
    for name, method in operators.TENSOR_METHODS.items():
        if name in _OWN:
            continue
        if isinstance(method, property):
            assert method.fget is not None
            setattr(Array, name, property(_method(name, method.fget)))
        else:
            make = _binary if hasattr(method, "applies") else _method
            setattr(Array, name, make(name, method))
    setattr(Array, "at", property(operators.at))  # noqa: B010
    own: dict[str, Any] = {
        "__getitem__": _getitem, "__iter__": _iter, "__contains__": _contains, "__index__": _index,
        "__setitem__": _setitem, "__format__": _format, "__pos__": lambda self: self,
    }  # fmt: skip
    for name, method in own.items():
        _named(method, name)
        setattr(Array, name, method)


def attach_method(name: str) -> None:
    """Adds a function of `rlx.ops` to Array as a method."""
    function = getattr(ops, name)
    setattr(Array, name, _method(name, inspect.unwrap(function)) if name in METHODS else function)


_attach()
REAL.add(Array)
Outside.compute = compute
