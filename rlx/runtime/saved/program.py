"""A compiled program as a file: `save` writes it, `load` brings it back on the same kind of device.

The file holds the graph after the passes, the bytes of weights and states, and the kernels' machine code. Nothing in it
decides where kernels read and write: slots and launches are made again from the checked graph, by the code that plans
and lowers any graph, which takes a tenth of the time of the passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlx.driver import Device, MemoryPlan
from rlx.driver.closing import Resources
from rlx.driver.device import Bytes
from rlx.dtypes import as_dtype
from rlx.errors import (
    GraphError,
    OutOfDeviceMemory,
    UnsupportedOp,
)
from rlx.host.background import aside
from rlx.host.collector import paused
from rlx.host.diskcache import DiskCache
from rlx.host.files import shown
from rlx.ir import REGISTRY, Graph, TensorType
from rlx.packed import PackedArray
from rlx.records import Record
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.debug import TIMINGS
from rlx.runtime.options import CompileOptions
from rlx.runtime.prepare import Prepared
from rlx.runtime.saved.container import ProgramFile, Writer, written
from rlx.runtime.saved.graph_data import GraphsReader, GraphsWriter, array_of, names_of
from rlx.runtime.saved.load import FORMAT, OPTIONS, blamed, opened, session_of
from rlx.runtime.session import Session
from rlx.runtime.store import State, Store, Weights
from rlx.runtime.version import VERSION, described
from rlx.runtime.warm import warmed

if TYPE_CHECKING:
    from rlx.backends.gpu.program.steps import Kernel, Step

class CompiledKernels(Protocol):
    """The attribute `kernels` of a GPU's device."""

    cache: DiskCache

    def codes(self, kernels: Iterable[Kernel]) -> dict[bytes, bytes]: ...


def save(
    program: CompiledGraph, prepared: Prepared, plan: MemoryPlan, path: str | os.PathLike[str], weights: bool
) -> None:
    """Writes a program's file, as `CompiledGraph.save` says; `prepared` and `plan` are for its weights' current dtypes.

    Requires: nobody runs the program or writes its weights meanwhile."""
    missing = program.weights.missing(list(program.graph.params))
    if weights and missing:
        raise GraphError(
            f"save: weights not set: {missing[:8]}; set them before, or save the program without any: weights=False"
        )
    table: dict[str, Any] = {}
    with written(Path(path), table) as file:
        graphs = GraphsWriter(file.shared)
        options = program.options
        chosen = {
            **{name: getattr(options, name, None) for name in OPTIONS},
            "precision": options.build.precision,
        }
        table.update(
            format=FORMAT,
            rlx=VERSION,
            device=described(program.device),
            options=chosen,
            program=graphs.add(prepared.graph),
            declared=None if _alike(program.graph, prepared.graph) else graphs.add(program.graph),
            exprs=graphs.exprs,
            graphs=graphs.graphs,
            donated=program.donated,
            decomposed=sorted(prepared.decomposed),
            param_dtypes={name: dtype.name for name, dtype in prepared.param_dtypes.items()},
            plan_bytes=plan.total_bytes,
            weights={n: file.add(raw_of(program.weights.get(n))) for n in program.graph.params}
            if weights
            else {},
            states=dict(_states(program.state, program.graph, file)),
            kernels=[] if missing else _kernels(program, file),
            products=[] if missing else _products(program),
            choices=_choices(program, built=not missing),
        )


def load(
    file: ProgramFile, device: str | Session | None, weights: Store | None, state: Store | None, trusted: bool,
    left_out: Callable[[str, TensorType], Bytes] | None = None,
) -> CompiledGraph:  # fmt: skip
    """The program of an open file with a table of this version; arguments and errors as for `load_program`. `left_out`
    gives, in another thread, the bytes of the weights that neither the file nor the given store holds."""
    for what, store, kind in (("weights", weights, Weights), ("state", state, State)):
        if store is not None and not isinstance(store, Store):
            raise GraphError(
                f"load_program: {what} is {type(store).__name__}; expected a store that programs share, an "
                f"rlx.{kind.__name__}; set_params and set_state of what load_program returns take arrays"
            )
    resources = Resources()
    with paused(), resources.unwound(), ExitStack() as threads:
        listed = file.table["weights"] if isinstance(file.table["weights"], dict) else {}
        wanted = [name for name in listed if weights is None or weights.find(name) is None]
        with blamed(file):  # threads begin to read while the device is being opened
            blocks = threads.enter_context(file.reading(listed[name] for name in wanted))
        session = session_of(file, device)
        threads.enter_context(warmed(session.device, hasattr(session.device, "warm_up") and _multiplies(file)))
        with blamed(file):
            declared, prepared = _graphs(file, trusted)
            _check_support(file, session, prepared.graph)
        own = weights is None
        weights = _store("weights", Weights, weights, session, resources)
        state = _store("state", State, state, session, resources)
        # The stores are counted before they acquire memory, so that they keep to the session's memory_limit.
        resources.callback(session.room.unbind, *session.room.bind(weights, state))
        resources.callback(weights.taking_back(declared.params))
        resources.callback(state.taking_back(declared.states))
        weights.check({name: t.type for name, t in declared.params.items()})
        state.check({name: t.type for name, t in declared.states.items()}, states=True)
        with blamed(file):
            _check_blocks(file, declared)
            held = {name for name in declared.states if state.find(name) is not None}
            if left_out is not None:
                wanted = [name for name in declared.params if weights.find(name) is None]
                blocks = (left_out(name, prepared.graph.params[name].type) for name in wanted)
            write = _place_weights(str(file.path), declared, prepared, weights, wanted, blocks, own)
            upload = aside(write)
            threads.callback(_ended, upload)
            if not own or not _compiles(session.device):
                # Recording needs slots, which weights in a given store get when written; on the CPU it reads them too.
                upload()
            program = _built(file, session, declared, prepared, weights, state)
            resources.callback(program.close)
            _set_states(file, state, {n: t.type for n, t in declared.states.items() if n not in held})
            _prepare(file, program, trusted)
            upload()
            return program


class Contents(Record):
    """The contents of a saved program's file. `graph` has the inputs, outputs, weights and states that the program was
    compiled with; `kernels` counts those whose machine code is in the file."""

    graph: Graph
    device: Mapping[str, Any]
    options: Mapping[str, Any]
    weight_bytes: int
    plan_bytes: int
    kernels: int


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """Reads the table of a saved program, on any device. Raises: ModelFormatError, ProgramMismatch for a version of rlx
    other than this one."""
    with opened(path) as file:
        with blamed(file):
            declared, _ = _graphs(file)
            _check_blocks(file, declared)
            table = file.table
            nbytes = sum(file.nbytes(block) for block in table["weights"].values())
        return Contents(
            declared, table["device"], table["options"], nbytes, table["plan_bytes"], len(table["kernels"])
        )


# -- what a program is


def _alike(a: Graph, b: Graph) -> bool:
    """Whether two graphs have the same inputs, outputs, weights and states, in the same order."""
    if names_of(a) != names_of(b):
        return False
    tables = ((a.inputs, b.inputs), (a.params, b.params), (a.states, b.states), (a.outputs, b.outputs))
    return all(x[n].type == y[n].type for x, y in tables for n in x)


def raw_of(value: Any) -> Bytes:
    """The bytes of a weight or a state, packed or not."""
    data = value.data if isinstance(value, PackedArray) else value
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _states(store: Store, graph: Graph, file: Writer) -> Iterator[tuple[str, list[int | None]]]:
    """[block, valid bytes] of each state; no block where all of it is zero, as it is at first."""
    for name in graph.states:
        raw = raw_of(store.get(name))
        yield name, [file.add(raw) if raw.any() else None, store.length(name)]


def _kernels(program: CompiledGraph, file: Writer) -> list[list[Any]]:
    """[key in the cache, block] of each kernel's machine code, if the device compiles kernels."""
    from rlx.backends.gpu.program.steps import Launch  # `load_program` does not need it for the CPU

    if not _compiles(program.device):
        return []
    compiled: CompiledKernels = getattr(program.device, "kernels")  # noqa: B009 a property that not all devices have
    codes = compiled.codes(dict.fromkeys(step.kernel for step in _steps(program) if isinstance(step, Launch)))
    return [[key.hex(), file.add(np.frombuffer(code, np.uint8))] for key, code in codes.items()]


def _compiles(device: Device) -> bool:
    """Whether the device compiles kernels for programs, as GPUs do; recording there does not read weights."""
    return hasattr(type(device), "kernels")


def _products(program: CompiledGraph) -> list[Any]:
    """What the device's matrix product library answered when the program was lowered."""
    products = getattr(program.device, "products", None)
    return [] if products is None else products(_steps(program))


def _choices(program: CompiledGraph, built: bool) -> dict[str, str]:
    """The measured choices that the program follows, or that it will."""
    held = program.executable if built else program.options.build
    return dict(getattr(held, "choices", None) or {})


def _steps(program: CompiledGraph) -> list[Step]:
    from rlx.backends.gpu.program.executable import GpuExecutable

    executable = program.executable
    recordings = executable.recordings if isinstance(executable, GpuExecutable) else []
    return [step for recorded, _ in recordings for step in recorded.schedule[0]]


# -- what a file says


def _graphs(file: ProgramFile, trusted: bool = False) -> tuple[Graph, Prepared]:
    """The declared graph, which only carries the signature, and the prepared graph, which runs."""
    table = file.table
    reader = GraphsReader(table["exprs"], file.block, str(file.path), trusted)
    if not isinstance(table["graphs"], list):
        raise file.wrong("lists no graphs")
    graphs = [reader.read(data) for data in table["graphs"]]

    def named(what: str) -> Graph:
        number = table[what]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(graphs):
            raise file.wrong(f"names {shown(number)} as its {what} graph, of {len(graphs)}")
        return graphs[number]

    program = named("program")
    declared = program if table["declared"] is None else named("declared")
    kept = {name: as_dtype(dtype) for name, dtype in dict(table["param_dtypes"]).items()}
    labels = table["decomposed"]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise file.wrong(f"lists no labels but {shown(labels)}")
    if names_of(declared) != names_of(program):
        raise file.wrong("has two graphs that differ in what they take and return")
    tables = (
        (declared.inputs, program.inputs),
        (declared.states, program.states),
        (declared.outputs, program.outputs),
    )
    if any(a[n].shape != b[n].shape for a, b in tables for n in a):
        raise file.wrong("has two graphs that take or return tensors of other shapes")
    for name, t in declared.params.items():
        stored = TensorType(t.shape, kept.pop(name, t.dtype))
        if program.params[name].type != stored or not (stored == t.type or stored.dtype.is_half):
            raise file.wrong(
                f"keeps the weight {shown(name)}, which is {t.type}, as {program.params[name].type}"
            )
    if kept or any(t.type != program.states[name].type for name, t in declared.states.items()):
        raise file.wrong("keeps weights or states in dtypes that they cannot have")
    dtypes = {
        n: program.params[n].dtype for n, t in declared.params.items() if program.params[n].dtype != t.dtype
    }
    return declared, Prepared(program, frozenset(labels), dtypes)


def _store(what: str, kind: type[Store], store: Store | None, session: Session, resources: Resources) -> Store:
    """The store that the caller gave, or a new one. Raises: GraphError for one on another device."""
    if store is None:
        new = kind(session.device)
        resources.callback(new.close)
        return new
    if store.device is not session.device:
        raise GraphError(f"load_program: the {what} store is not on {session.info.id}; make it with session.device")
    return store


def _built(
    file: ProgramFile, session: Session, declared: Graph, prepared: Prepared, weights: Store, state: Store
) -> CompiledGraph:
    """The planned program. Its weights are in the store; its states are not set yet."""
    table, chosen = file.table, file.table["options"]
    _check_donated(file, declared)
    choices = table["choices"]
    if not isinstance(choices, dict) or not all(isinstance(line, str) for line in choices.values()):
        raise file.wrong(f"chooses by {shown(choices)}")
    build = session.options._replace(debug=min(session.options.debug, TIMINGS), choices=choices)
    options = CompileOptions(
        chosen["planner"], chosen["storage"], chosen["optimize"], chosen["fallback"], build, session.room,
        stream=session.stream,
    )  # fmt: skip
    try:
        program = CompiledGraph(declared, session.device, weights, state, options, table["donated"], prepared)
    except OutOfDeviceMemory as error:
        need = table["plan_bytes"] + state.need({name: t.type for name, t in declared.states.items()})
        if need <= session.room.free():  # the memory that the file states would fit: its graph needs more
            raise file.wrong(f"contradicts itself: {error}") from error
        raise
    if program.plan.total_bytes != table["plan_bytes"]:
        program.close()
        raise file.wrong(f"needs {program.plan.total_bytes:,} bytes, and not {shown(table['plan_bytes'])}")
    return program


def _set_states(file: ProgramFile, state: Store, types: Mapping[str, TensorType]) -> None:
    """Writes what the states held when the program was saved; those without a block are zero."""
    for name, t in types.items():
        block, length = file.table["states"][name]
        if block is not None:
            state.set(name, _given(t, file.block(block), file))
        state.set_length(name, length)


def _prepare(file: ProgramFile, program: CompiledGraph, trusted: bool) -> None:
    """Records the program if its weights are there, with the file's machine code where it is trusted."""
    codes = {bytes.fromhex(key): file.block(block).tobytes() for key, block in file.table["kernels"]}
    products = [tuple(key) for key in file.table["products"]]
    if program.weights.missing(list(program.graph.params)):
        return
    device: Any = program.device
    with ExitStack() as within:
        if trusted and codes and _compiles(device):
            within.enter_context(device.kernels.cache.lending(codes))
        if products and hasattr(device, "promising"):
            # Only a hint: the library is asked again before it is used, and may differ from the one at saving.
            with suppress(UnsupportedOp), device.promising(products):
                program.prepare()
        program.prepare()


def _check_blocks(file: ProgramFile, declared: Graph) -> None:
    """Checks the names of weights and states, and that each has its own block, so that tensors take no more memory than
    the file has bytes."""
    table = file.table
    weights, states, kernels = table["weights"], table["states"], table["kernels"]
    if not (isinstance(weights, dict) and isinstance(states, dict) and isinstance(kernels, list)):
        raise file.wrong("lists no weights, states or kernels")
    if weights.keys() not in (set(), declared.params.keys()) or states.keys() != declared.states.keys():
        raise file.wrong("has other weights or states than its graph")
    for entry in (*states.values(), *kernels):
        if not isinstance(entry, list) or len(entry) != 2:
            raise file.wrong(f"has {shown(entry)} in the place of a block and what it is")
    for name, (_, length) in states.items():
        if type(length) is not int:
            raise file.wrong(f"has {shown(length)} valid bytes of the state {shown(name)}")
    blocks = [*weights.values(), *(b for b, _ in states.values() if b is not None), *(b for _, b in kernels)]
    for number in blocks:
        file.nbytes(number)
    if len(set(blocks)) != len(blocks):
        raise file.wrong("gives several tensors one block")
    if type(table["plan_bytes"]) is not int:
        raise file.wrong(f"needs {shown(table['plan_bytes'])} bytes")


def _check_donated(file: ProgramFile, graph: Graph) -> None:
    """Checks the inputs that are states of the graph, each with the output that is its new value."""
    pairs = file.table["donated"]
    if not isinstance(pairs, dict) or len(set(map(str, pairs.values()))) != len(pairs):
        raise file.wrong(f"donates {shown(pairs)}")
    for name, output in pairs.items():
        tensor = graph.outputs.get(output) if isinstance(output, str) else None
        if name not in graph.updates or tensor is None or tensor.type != graph.states[name].type:
            raise file.wrong(f"donates {shown(name)} to {shown(output)}, which cannot be its new value")


def _multiplies(file: ProgramFile) -> bool:
    """Whether the program may have matrix products."""
    names: set[Any] = set()
    with suppress(LookupError, TypeError):  # the table is not checked yet
        names = {node[0] for graph in file.table["graphs"] for node in graph["nodes"]}
    return any(op is not None and op.contracts for op in map(REGISTRY.get, names))


def _ended(wait: Callable[[], None]) -> None:
    """Waits for another thread's work and ignores its error, which is raised elsewhere."""
    with suppress(Exception):
        wait()


def _check_support(file: ProgramFile, session: Session, graph: Graph) -> None:
    """With fallback="error", checks as the passes did that the device supports each node."""
    for node in graph.nodes if session.fallback == "error" else ():
        if session.device.support(node) == "host":
            raise file.wrong(f"has a node that goes to the host, {shown(node.name)}, with fallback='error'")


def _place_weights(
    where: str, declared: Graph, prepared: Prepared, weights: Store, wanted: Iterable[str], blocks: Iterable[Bytes],
    own: bool,
) -> Callable[[], None]:  # fmt: skip
    """Returns a function that writes the weights into the store, which any thread may call. A store of the program's
    `own` gets their slots before. A given store does not: another thread loading a program would take a weight with a
    slot for set."""
    weights.expect({n: dtype for n, dtype in prepared.param_dtypes.items() if weights.find(n) is None})
    weights.declare({name: t.type for name, t in declared.params.items()})
    types = {name: prepared.graph.params[name].type for name in wanted}
    puts = [
        weights.place(name, t.dtype) if own else partial(weights.put, name, t.dtype) for name, t in types.items()
    ]

    def write() -> None:
        for t, put, raw in zip(types.values(), puts, blocks, strict=True):
            array_of(t, raw, where)  # checks the bytes
            put(raw)

    return write


def _given(t: TensorType, raw: Bytes, file: ProgramFile) -> Any:
    array = array_of(t, raw, str(file.path))
    return PackedArray(t.dtype, t.shape, array) if t.dtype.is_packed else array
