"""One rank of several, run alone: its program without the other ranks, to measure it on a machine that lacks them.

The results are wrong, since collectives exchange nothing: only the time is of use."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rlx.errors import GraphError
from rlx.ir import Graph, Node, Rewriter, Tensor, bodies, inline, rebuild
from rlx.ops.collectives.alone import meets, own_part
from rlx.passes.bodies import change_bodies
from rlx.ranks.mesh import Mesh
from rlx.ranks.world import WORLDS, Bytes, Tell
from rlx.records import Record
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.session import Session


class Meeting(Record):
    """A collective of a program: the op, the bytes that each rank gives, and how often a run executes it."""

    op: str
    nbytes: int
    times: int


class _Nobody:
    """A world whose other ranks do not exist: calls return at once with the caller's own data."""

    gpus: Sequence[str] | None = None

    def __init__(self, size: int) -> None:
        self.name, self.size, self.rank, self.timeout = f"solo {id(self)}", size, 0, math.inf
        WORLDS[self.name] = self

    def ended(self) -> str:
        return ""

    def meet(self, rank: int, ranks: Sequence[int], card: bytes, tell: Tell) -> None:
        pass

    def gather(self, rank: int, ranks: Sequence[int], block: Bytes, whole: Bytes, counts: Sequence[int]) -> None:
        whole.reshape(len(ranks), -1)[:] = block

    def exchange(
        self, rank: int, ranks: Sequence[int], blocks: Bytes, sent: Sequence[int], whole: Bytes, taken: Sequence[int]
    ) -> None:
        whole[:] = blocks

    def spread(self, rank: int, ranks: Sequence[int], block: Bytes, root: int) -> None:
        pass


class SoloMesh(Mesh):
    """The mesh of the first of several ranks, of which the others do not exist."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes, self.size = dict(axes), math.prod(axes.values())
        self.timeout, self.devices, self._memory, self._rank = math.inf, None, None, 0
        self._world = _Nobody(self.size) if self.size > 1 else None
        self._turn = threading.Lock()


class SoloSession(Session):
    """A session whose programs have each collective replaced by the rank's own data. `meetings` lists each program's
    collectives."""

    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.meetings: dict[CompiledGraph, list[Meeting]] = {}

    def compile(self, graph: Graph, **settings: Any) -> CompiledGraph:
        program = super().compile(alone(graph), **settings)
        self.meetings[program] = meetings_of(graph)
        return program


def meetings_of(graph: Graph, times: int = 1) -> list[Meeting]:
    """The collectives of a graph and of its loops. Raises: GraphError for one in a while_loop, whose number of steps is
    unknown."""
    listed: list[Meeting] = []
    for node in graph.nodes:
        if meets(node):
            listed.append(Meeting(node.op.name, node.inputs[0].type.nbytes, times))
        for body in bodies(node).values():
            inner = meetings_of(body, times * node.attrs.get("length", 1))
            if inner and node.op.control is not None and node.op.control.repeats and "length" not in node.attrs:
                raise GraphError(f"{node}: how often ranks meet in a while_loop is not known before it runs")
            listed += inner
    return listed


def alone(graph: Graph) -> Graph:
    """The graph of a rank without the others: a sum gives its own part, a gather n copies of its own array."""

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if not meets(node):
            return None
        return inline(own_part(node), new, node.inputs, node.label)

    return change_bodies(rebuild(graph, rewrite), lambda _, body: alone(body))
