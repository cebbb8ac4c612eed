"""Staged: a model whose shapes depend on values, as the program before its cut and the nodes behind it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from rlx.driver import Dispatch
from rlx.driver.closing import Closing, close_each
from rlx.errors import UnsupportedOp
from rlx.onnx.program import Part, Program
from rlx.onnx.reader.budget import Budget, building, refused_memory
from rlx.onnx.reader.elements import STRING, carrier
from rlx.onnx.reader.held import unheld
from rlx.onnx.stages.block import Block, Values
from rlx.runtime import CompiledGraph
from rlx.runtime.array import array as on_device
from rlx.runtime.outs import Out
from rlx.runtime.report import Report


class StagedReport(Report, repr=False):
    """A report of a model that is cut: the nodes of all its programs, those of the host, and in `parts` what the last
    run consisted of, in order."""

    parts: Sequence[Part] = ()

    def __str__(self) -> str:
        parts = [f"  {p}" for p in self.parts]
        return "\n".join(["the last run:", *parts, Report.__str__(self)] if parts else [Report.__str__(self)])

    __repr__ = __str__


class Staged(Closing):
    """A model for given input shapes on one device: `first`, the program of all nodes whose shapes follow from those of
    the inputs, and a block of the nodes after the cut. It has the interface of a Program."""

    def __init__(
        self,
        first: Program,
        block: Block,
        kinds: Mapping[str, str],
        constants: Mapping[str, Any],
        wanted: Sequence[str],
        budget: Budget,
        check: Callable[[Mapping[str, Any]], None],
        owns: bool = True,
    ) -> None:
        self.first = first
        self.block = block
        self.parts: list[Part] = []
        self._kinds = dict(kinds)
        self._constants = dict(constants)
        self._wanted = list(wanted)
        self._budget = budget
        self._check = check
        self._owns = owns  # whether the block is its own, not shared with programs of other lengths

    def __repr__(self) -> str:
        return f"Staged({self.first!r}, then {len(self.block.steps):,} nodes behind a cut)"

    @property
    def graph(self) -> CompiledGraph:
        """The compiled graph of the part before the cut."""
        return self.first.graph

    @property
    def fixed(self) -> tuple[str, ...]:
        """The inputs whose values are compiled in."""
        return self.first.fixed

    @property
    def draws(self) -> bool:
        """Whether each run draws random numbers of its own."""
        return self.first.draws or any(step.generators for step in self.block.steps)

    def report(self) -> StagedReport:
        """How each node runs, and the parts of the last run: the device, whether its program was compiled or used
        again, and the time."""
        report = self.first.report()
        hosted = [
            Dispatch(step.label, step.kind, "host", ("numpy",))
            for step in self.block.steps[: self.block.reached]
        ]
        nodes = [*report.nodes, *hosted, *(n for r in self.block.reports() for n in r.nodes)]
        return StagedReport(
            report.device, nodes, report.plan, report.weight_bytes, remark=report.remark, parts=self.parts
        )

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Raises: UnsupportedOp, always: the nodes after the cut are in no program that could be saved."""
        raise UnsupportedOp(
            f"save {os.fspath(path)}: the model is cut, since shapes depend on values; what is behind the cut is in no "
            "program that could be saved: load the model itself"
        )

    def run(self, inputs: Mapping[str, Any] | None = None, out: Out = "host") -> dict[str, Any]:
        """Runs once. With `out="device"` the outputs are rlx.Arrays where rlx has their type: those of the program
        before the cut stay on the device, and what the host makes behind it is copied there.

        Raises: as Program.run; what the nodes behind the cut raise."""
        return self.run_in(inputs or {}, [], None, out)

    def run_in(
        self, inputs: Mapping[str, Any], parts: list[Part], compiled: float | None, out: Out
    ) -> dict[str, Any]:
        """Runs, and adds the parts to `parts`; `compiled` is how long compiling took, if it was for this run."""
        begin = time.perf_counter()
        # Results for programs after the cut stay on the device, but padded results are trimmed on the host.
        outputs = self.first.run(inputs, "host" if self.first.rounded else "device")
        if self.graph.program.nodes:
            parts.append(self.first.part(time.perf_counter() - begin, compiled))
        arrays = {n: unheld(v) for n, v in inputs.items()}
        values = Values({**self._constants, **arrays, **outputs}, self._kinds, parts)
        with refused_memory("running the model"), building(self._budget), np.errstate(all="ignore"):
            self.block.run(values)
        self.parts = parts
        results = {n: values.made(n) if out == "device" else values.host(n) for n in self._wanted}
        self._check(results)
        if out == "device":
            return {n: _placed(v, self.first.graph.device) for n, v in results.items()}
        shared = {id(a) for v in (*self._constants.values(), *arrays.values()) for a in _arrays(v)}
        return {n: _owned(v, shared) for n, v in results.items()}

    def close(self) -> None:
        """Frees the memory of every part that no other program uses; the weights stay with the model. Idempotent."""
        close_each(self.first.close, *([self.block.close] if self._owns else []))


def _arrays(value: Any) -> Iterator[Any]:
    """An array, or those of a list and of the lists in it."""
    if isinstance(value, list):
        for v in value:
            yield from _arrays(v)
    else:
        yield value


def _owned(value: Any, shared: set[int]) -> Any:
    """A result that the caller alone owns: a copy if it is a constant, an input or another result, whose identities are
    in `shared`. The returned arrays are added to `shared`."""
    if isinstance(value, list):
        return [_owned(v, shared) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.base is not None or not value.flags.writeable or id(value) in shared:
        return np.array(value, order="C")
    shared.add(id(value))
    return value


def _placed(value: Any, device: Any) -> Any:
    """A result on the device, where rlx has its type."""
    if isinstance(value, list):
        return [_placed(v, device) for v in value]
    plain = isinstance(value, np.ndarray) and value.dtype != STRING and carrier(value.dtype).np == value.dtype
    return on_device(value, device=device) if plain else value
