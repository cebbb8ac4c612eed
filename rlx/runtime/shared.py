"""Programs shared by functions that are made anew for each call, as by `rlx.grad(f)(x)` or `rlx.jvp(f, …)`.

Each call traces the function, which reads what it closes over, and looks up the program by the graph. So functions with
equal graphs share a program, and no program keeps a function alive.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.dtypes import DType
from rlx.host.locks import renewed
from rlx.ir import Expr, Graph, Node, Rewriter, Tensor
from rlx.runtime.compiled import CompiledGraph

PROGRAMS = 128  # limit on the programs kept
PROGRAM_BYTES = 256 << 20  # limit on their memory, not counting the newest program

Compile = Callable[[Graph], CompiledGraph]
Feeds = Mapping[str, Any]


class _Object:
    """A key for an object, compared by identity. It keeps the object alive, so that its id is not used again."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


class _Seen(NamedTuple):
    """For graphs that differ only in constants: those of the first graph, and the positions that differed since."""

    first: tuple[Hashable, ...]
    varying: frozenset[int]


class SharedPrograms:
    """Programs by their graphs. The least recently used are dropped to make room for others."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Hashable, CompiledGraph] = OrderedDict()
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._lock = renewed(self, "_lock", threading.Lock)
        self.compiled = 0  # since the process began

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(p.plan.total_bytes for p in self._programs.values())

    def program(self, graph: Graph, settings: Hashable, compile: Compile) -> tuple[CompiledGraph, Feeds]:
        """The program of a graph, and the constants that each run passes in addition to the graph's inputs.

        Constants that differ between calls with the same graph become inputs, so that all calls use one program."""
        from rlx.passes import without_rules  # imported with the first program, not by `import rlx`

        plain = without_rules(graph)
        structure = (settings, *graph_key(plain, constants=False))
        nodes = _constants(plain)
        values = tuple(_value_key(node.attrs["value"]) for node in nodes)
        with self._lock:
            first, varying = self._seen.get(structure, _Seen(values, frozenset()))
            varying = varying | {i for i, (a, b) in enumerate(zip(first, values, strict=True)) if a != b}
            key = (structure, varying, *(v for i, v in enumerate(values) if i not in varying))
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = compile(_opened(plain, nodes, varying) if varying else plain)
                self.compiled += 1
                self._shrink(program)
            self._programs.move_to_end(key)
            self._seen[structure] = _Seen(first, varying)
            self._seen.move_to_end(structure)
            while len(self._seen) > PROGRAMS:
                self._seen.popitem(last=False)
        return program, {_name(i): nodes[i].attrs["value"] for i in varying}

    def _shrink(self, last: CompiledGraph) -> None:
        nbytes = sum(p.plan.total_bytes for p in self._programs.values())
        for key, program in list(self._programs.items()):
            if len(self._programs) <= PROGRAMS and nbytes <= PROGRAM_BYTES:
                return
            if program is not last:  # not closed here: another thread may be about to run it
                nbytes -= program.plan.total_bytes
                del self._programs[key]


SHARED = SharedPrograms()


def graph_key(graph: Graph, constants: bool = True) -> tuple[Hashable, ...]:
    """A key that is equal for graphs of the same nodes in the same order. Without `constants` the values of the graph's
    own constants, but not of those in bodies, are left out of it."""
    open_ones = set() if constants else {id(node) for node in _constants(graph)}
    parts: list[Hashable] = [graph.budget]
    for node in graph.nodes:
        attrs = node.output.type if id(node) in open_ones else _value_key(node.attrs)
        parts.append((_Object(node.op), tuple([t.id for t in node.inputs]), tuple([t.id for t in node.outputs]), attrs))
    for table in (graph.inputs, graph.params, graph.states, graph.outputs, graph.updates):
        parts.append(tuple((name, t.id) for name, t in table.items()))
    return tuple(parts)


def _constants(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.is_constant and "packed" not in n.attrs]


def _value_key(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        from rlx.passes.attributes import attrs_key

        return attrs_key({"": value})
    if isinstance(value, tuple | list):
        return (type(value), *[_value_key(v) for v in value])
    if isinstance(value, Mapping):
        return tuple((name, _value_key(value[name])) for name in sorted(value))
    if isinstance(value, Graph):
        return graph_key(value)
    if value is None or isinstance(value, str | int | DType | Expr):
        return type(value), value
    if isinstance(value, float):
        return repr(value)  # 0.0 equals -0.0, and NaN equals nothing
    return _Object(value)


def _name(i: int) -> str:
    return f"constant {i}"


def _opened(graph: Graph, nodes: Sequence[Node], varying: frozenset[int]) -> Graph:
    """The graph with the constants at the positions of `varying` turned into inputs."""
    names = {id(nodes[i]): _name(i) for i in varying}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if id(node) in names:
            t: Tensor = node.output
            rewriter.put((t,), (rewriter.graph.input(names[id(node)], t.shape, t.dtype),))
        else:
            rewriter.keep(node)
    return rewriter.finish()
