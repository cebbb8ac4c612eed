"""Report: how every node of a compiled graph runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, overload

from rlx.driver import Dispatch, MemoryPlan
from rlx.ir import Graph
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.runtime.recorded import Recorded
    from rlx.runtime.store import Store


class Report(Record, repr=False):
    """How each node runs on `device` ("native", "alias", "decomposed", "host", "control"), and the memory plan.

    `engine_bytes` is the memory of the CPU's compiled engine in addition to plan and weights: its steps, tables,
    machine code and reordered weights, less the original weights that these replace (so it may be negative). `remark`
    says why the CPU runs without that engine."""

    device: str
    nodes: Sequence[Dispatch]
    plan: MemoryPlan
    weight_bytes: int
    engine_bytes: int = 0
    remark: str = ""

    def __iter__(self) -> Iterator[Dispatch]:
        return iter(self.nodes)

    @property
    def counts(self) -> dict[str, int]:
        """The number of nodes for each value of `how`."""
        return dict(Counter(d.how for d in self.nodes))

    @property
    def host_nodes(self) -> list[Dispatch]:
        """The nodes that are host steps."""
        return [d for d in self.nodes if d.how == "host"]

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {how}" for how, n in sorted(self.counts.items()))
        plan = self.plan
        lines = [
            f"device {self.device}: {len(self.nodes)} nodes ({counts or 'none'})",
            f"arena {plan.arena_bytes:,} bytes, bound {plan.max_live_bytes:,} ({plan.overhead:.3f}), without reuse "
            f"{plan.no_reuse_bytes:,}; weights {self.weight_bytes:,}"
            + (f"; compiled engine {self.engine_bytes:,}" if self.engine_bytes else ""),
            *([self.remark] if self.remark else []),
        ]
        shared = any(d.by == "engine" for d in self.nodes)  # nodes of the CPU run in the engine or by NumPy
        lines += [
            f"  {d.how:10} {f'{d.by:6} ' if shared else ''}{d.op:14} {d.node}  [{' '.join(d.steps)}]"
            + (f" with {d.within}" if d.within else "")
            for d in self.nodes
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What notebooks show: the text in a fixed-width font, which keeps its columns aligned."""
        from html import escape  # imported where it is used, not by `import rlx`

        return f"<pre>{escape(str(self))}</pre>"


class ReportOfCalls(Sequence[Report]):
    """The reports of a jitted function's programs, in the order of their last calls, the latest last.

    `report[-1]` is the one of the latest call; `programs` are the graphs as they were traced."""

    def __init__(self, name: str, parts: Sequence[tuple[Graph, Report]]) -> None:
        self.name = name
        self.programs = [graph for graph, _ in parts]
        self._reports = [report for _, report in parts]

    @overload
    def __getitem__(self, at: int) -> Report: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Report]: ...

    def __getitem__(self, at: int | slice) -> Report | Sequence[Report]:
        return self._reports[at]

    def __len__(self) -> int:
        return len(self._reports)

    def __str__(self) -> str:
        lines = []
        for graph, report in zip(self.programs, self._reports, strict=True):
            types = ", ".join(f"{n}: {t.type}" for n, t in graph.inputs.items())
            lines.append(f"{self.name}({types}): {report}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape  # imported where it is used, not by `import rlx`

        return f"<pre>{escape(str(self))}</pre>"


def report_of(
    recorded: Recorded, decomposed: Collection[str], device: str, plan: MemoryPlan, weights: Store
) -> Report:
    """The report of a recorded program; `decomposed` are the labels of nodes that come from a decomposed op."""
    executable = recorded.executable
    nodes = [
        d._replace(how="decomposed") if d.how == "native" and d.node in decomposed else d for d in executable.dispatch
    ]
    extra = weights.room_bytes - weights.nbytes
    remark = getattr(executable, "remark", "")
    return Report(device, nodes, plan, weights.nbytes, recorded.own_bytes + extra, remark)
