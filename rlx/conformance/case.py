"""Case: an op with inputs, attributes and a tolerance, as data. Tests and `rlx selftest` run the same cases."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.conformance import domains
from rlx.conformance.oracle import evaluate
from rlx.conformance.record import record_of, records
from rlx.conformance.terms import order_dependent, term_scale, undecided
from rlx.conformance.tolerances import Tolerance, Verdict, compare, largest
from rlx.dtypes import DType, f32, f64
from rlx.ir import Attrs, Graph, get_op
from rlx.packed import PackedArray

Array = npt.NDArray[Any]
# Each float input has cases of these kinds. A missing one is generated, in which only that input has the domain.
_IN_ONE = {"zero": "zeros", "special": "holes", "wide": "wide", "far": "far"}
_HARD = frozenset().union(*domains.KINDS.values()) | {"large", "top", "swings", "reciprocals"}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input: its type, and the name of the domain (see `domains`) that its values come from."""

    shape: tuple[int, ...]
    dtype: DType
    domain: str = "normal"
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """One op under test.

    `name` is unique among the op's cases. `reason` says why, if the tolerance is looser than the table of tolerances.
    """

    op: str
    name: str
    inputs: tuple[InputSpec, ...]
    attrs: Attrs
    tolerance: Tolerance
    reason: str = ""

    @property
    def id(self) -> str:
        return f"{self.op}-{self.name}"

    @property
    def has_f64(self) -> bool:
        """Whether an input is f64; GPUs decompose some ops for that dtype alone."""
        return any(s.dtype == f64 for s in self.inputs)

    def arrays(self) -> list[Array]:
        """The input arrays, in the inputs' dtypes; for packed weights their bytes."""
        base = zlib.crc32(self.id.encode())
        return [
            domains.make(s.shape, s.dtype, s.domain, base + 7919 * i + s.seed)
            for i, s in enumerate(self.inputs)
        ]

    def feeds(self) -> dict[str, Any]:
        """The inputs under the names of `graph`'s inputs."""
        pairs = zip(self.arrays(), self.inputs, strict=True)
        return {
            f"x{i}": PackedArray(s.dtype, s.shape, a) if s.dtype.is_packed else a for i, (a, s) in enumerate(pairs)
        }

    def graph(self) -> Graph:
        """A graph with the op as its only node, inputs x0, x1, … and outputs y0, y1, …"""
        g = Graph(self.id)
        ins = [g.input(f"x{i}", s.shape, s.dtype) for i, s in enumerate(self.inputs)]
        for i, t in enumerate(g.add(self.op, ins, self.attrs)):
            g.output(f"y{i}", t)
        return g

    def expected(self) -> dict[str, Array]:
        """The reference of each output: in float64, or for exact tolerances in the output's own dtype."""
        g = self.graph()
        upcast = self.tolerance.kind in ("ulp", "norm")
        values = evaluate(g, self.feeds(), upcast=upcast)
        return {name: values[t.id] for name, t in g.outputs.items()}

    def scale(self) -> Array | None:
        """The magnitude that errors are measured against; None for the result's own."""
        if self.tolerance.kind not in ("ulp", "norm"):
            return None
        return term_scale(self.op, self.arrays(), self.attrs)

    def order_dependent(self) -> Array | None:
        """The elements that may also be infinite or NaN, depending on the order of partial sums (see `terms`)."""
        top = largest(f64 if self.has_f64 else f32) * (1 - 2.0**-6)
        return order_dependent(self.op, self.arrays(), self.attrs, top)

    def undecided(self) -> Array | None:
        """The elements of the first output that may be any number, since algorithms differ there (see `record`)."""
        return undecided(self.op, self.arrays(), self.attrs)

    def check(self, outputs: Mapping[str, Any], subnormals: bool = True) -> Verdict:
        """Compares the outputs of a run with the reference. Returns: the first verdict that fails, else the one with
        the largest error."""
        scale, choice, free = self.scale(), self.order_dependent(), self.undecided()
        worst = Verdict(True)
        types = {name: t.dtype for name, t in self.graph().outputs.items()}
        for name, reference in self.expected().items():
            output = outputs[name]
            got = output.data if isinstance(output, PackedArray) else np.asarray(output)
            if got.dtype != types[name].np:
                return Verdict(False, message=f"{name}: dtype {got.dtype}, expected {types[name]}")
            if free is not None and name == "y0":
                reference = np.where(free, got, reference)
            verdict = compare(got, reference, self.tolerance, scale, subnormals, choice)
            if not verdict.ok:
                return Verdict(
                    False, verdict.max_ulp, verdict.nmse, verdict.max_error, f"{name}: {verdict.message}"
                )
            worst = max(worst, verdict, key=lambda v: (v.nmse, v.max_ulp))
        return worst


def missing_of_inputs(cases: Iterable[Case]) -> list[tuple[int, str]]:
    """(input index, kind) for each kind of numbers that these cases of an op lack in a float input."""
    listed = list(cases)
    kinds: dict[int, set[str]] = {}
    for case in listed:
        for i, spec in enumerate(case.inputs):
            if spec.dtype.is_float:
                kinds.setdefault(i, set()).add(spec.domain.partition(":")[0])
    return [(i, kind) for i in sorted(kinds) for kind in _asked(listed) if not kinds[i] & domains.KINDS[kind]]


def _asked(cases: Sequence[Case]) -> list[str]:
    """The kinds of numbers that cases of an op should have. "far" is needed neither by elementwise ops, whose "wide"
    inputs include such numbers, nor by ops with exact results, where nothing can cancel."""
    exact = bool(cases) and (
        get_op(cases[0].op).elementwise or all(c.tolerance.kind in ("bits", "equal") for c in cases)
    )
    return [kind for kind in _IN_ONE if kind != "far" or not exact]


def _with(cases: Sequence[Case], i: int, domain: str) -> Case:
    """A copy of one of the cases with input i of this domain. It is chosen among those whose other inputs are plain
    numbers: small but not trivial, in f32 if possible."""

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        plain = all(s.domain not in _HARD for k, s in enumerate(case.inputs) if k != i and s.dtype.is_float)
        size = sum(math.prod(s.shape) for s in case.inputs)
        empty = any(0 in s.shape for s in case.inputs)
        return empty, not plain, case.inputs[i].dtype != f32, abs(size - 400)

    case = min((c for c in cases if i < len(c.inputs) and c.inputs[i].dtype.is_float), key=rank)
    spec = replace(case.inputs[i], domain=domain)
    inputs = (*case.inputs[:i], spec, *case.inputs[i + 1 :])
    return replace(case, name=f"{case.name}-x{i}-{spec.domain}", inputs=inputs)


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Every case of every op, family by family, in a fixed order."""
    return tuple(case for record in records() for case in cases_of(record.op))


@functools.cache
def cases_of(op: str) -> tuple[Case, ...]:
    """The cases of one op. Only the module of its family is imported."""
    record = record_of(op)
    if record is None:
        return ()
    cases: dict[str, Case] = {}
    for case in (case for make in record.cases for case in make() if case.op == op):
        if cases.setdefault(case.id, case) != case:
            raise ValueError(f"two different cases are named {case.id}")
    for case in record.in_f64(tuple(cases.values())):
        cases.setdefault(case.id, case)
    for i, kind in missing_of_inputs(cases.values()):
        if (i, kind) not in record.without:
            domain, _ = record.narrower.get((i, kind), (_IN_ONE[kind], ""))
            case = _with(tuple(cases.values()), i, domain)
            cases.setdefault(case.id, case)
    return tuple(cases.values())
