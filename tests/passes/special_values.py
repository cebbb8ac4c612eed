"""Special values come out the same however an elementwise op is computed: folded into a constant, by a NumPy session,
as the host step of a GPU's program, by the CPU's engine, by Vulkan; with whole, broadcast or 0-d operands.

The whole sweep takes about five minutes: `python -m tests.passes.special_values`, or with `--op` some ops of it. It
prints `special_values.txt`, in which each row that differs from the op's reference has its reason; its exit status is 1
where a row has none.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.backends.gpu.program import lowering
from rlx.conformance.case import all_cases
from rlx.conformance.domains import special_values
from rlx.dtypes import DType
from rlx.errors import DeviceUnavailable, ShapeError
from rlx.ir import Graph, Node, Tensor, apply, get_op
from rlx.passes import simplify
from rlx.runtime import Session

Array = npt.NDArray[Any]
Run = Callable[..., list[Array]]  # takes a graph and the inputs of each run, gives the output "y" of each
COLUMNS = 37  # of each combination of values: whole vectors of a processor, and a rest
_MOST = 2000  # combinations of values; of ops with more inputs some values are left out
# Random numbers and conversions have tests of their own, "fused" is what the other ops become, and batch_norm takes
# rows of channels.
_LEFT_OUT = frozenset({"fused", "threefry", "random_bits", "multiply_high", "gumbel", "batch_norm", "cast"})


def _each_once(values: Array) -> Array:
    """The values without those whose bits stand before: of narrow integers some are the same."""
    _, first = np.unique(values.view(f"u{values.itemsize}"), return_index=True)
    return values[np.sort(first)]


@dataclass(frozen=True)
class Subject:
    """An op with its attributes, and the dtypes of its inputs."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    dtypes: tuple[DType, ...]

    @property
    def name(self) -> str:
        attrs = ", ".join(f"{name}={value}" for name, value in self.attrs)
        return f"{self.op}({', '.join((*(d.name for d in self.dtypes), *([attrs] if attrs else ())))})"

    def columns(self) -> list[Array]:
        """The values of each input, (combinations, 1)."""
        values = [_each_once(special_values(d)) for d in self.dtypes]
        while np.prod([len(v) for v in values]) > _MOST:
            longest = max(range(len(values)), key=lambda i: len(values[i]))
            values[longest] = values[longest][::2]
        grid = np.meshgrid(*values, indexing="ij")
        return [np.ascontiguousarray(g).reshape(-1, 1) for g in grid]

    def apply(self, *inputs: Tensor) -> Tensor:
        return apply(self.op, *inputs, **dict(self.attrs))

    def reference(self) -> Array:
        """What the op's reference gives for whole arrays, (combinations, COLUMNS)."""
        full = [np.repeat(c, COLUMNS, 1) for c in self.columns()]
        with np.errstate(all="ignore"):
            return np.asarray(get_op(self.op).reference(*full, **dict(self.attrs)))


def subjects(names: Iterable[str] | None = None) -> list[Subject]:
    """The elementwise ops, with each set of attributes and dtypes that a conformance case has, where its numbers are of
    one dtype: others are converted first."""
    wanted = None if names is None else set(names)
    kept: dict[str, Subject] = {}
    for case in all_cases():
        if get_op(case.op).expr is None or case.op in _LEFT_OUT or (wanted is not None and case.op not in wanted):
            continue
        subject = Subject(case.op, tuple(sorted(case.attrs.items())), tuple(s.dtype for s in case.inputs))
        mixed = {d for d in subject.dtypes if d.kind != "b"}
        if len(mixed) > 1 and not case.op.startswith("fake_quantize"):
            continue
        kept.setdefault(subject.name, subject)
    return list(kept.values())


def results(subject: Subject, form: str, run: Run) -> Array:
    """The results of one form of operands, (combinations, columns).

    "full": whole arrays. "broadcast i": input i has one column, or, as the only input, is expanded. "0-d i": input i
    is 0-d, in a run of one program for each of its values. "0-d": every input is.
    """
    columns = subject.columns()
    full = [np.repeat(c, COLUMNS, 1) for c in columns]
    kind, _, which = form.partition(" ")
    rows, arrays, scalars = np.arange(len(full[0]))[None], full, set[int]()
    if kind == "broadcast":
        arrays = [columns[j] if j == int(which) else a for j, a in enumerate(full)]
    elif kind == "0-d":
        arrays = columns if not which else full
        scalars = {int(which)} if which else set(range(len(full)))
        rows = rows.reshape(-1, 1)
        if which:
            values = columns[int(which)].reshape(-1)
            _, places = np.unique(values.view(f"u{values.itemsize}"), return_inverse=True)
            rows = np.argsort(places, kind="stable").reshape(places.max() + 1, -1)
    feeds = [
        {f"x{j}": np.asarray(a[at[0], 0]) if j in scalars else a[at] for j, a in enumerate(arrays)} for at in rows
    ]
    g = Graph("special")
    inputs = [g.input(name, a.shape, a.dtype) for name, a in feeds[0].items()]
    if kind == "broadcast" and len(full) == 1:
        inputs = [ops.expand(inputs[0], full[0].shape)]
    g.output("y", subject.apply(*inputs))
    got = np.stack(run(g, *feeds)).reshape(rows.size, -1)
    ordered = np.empty_like(got)
    ordered[rows.reshape(-1)] = got
    return ordered


def forms(subject: Subject, every: bool) -> Iterator[str]:
    """The forms of operands; with `every` also that where all inputs of several are 0-d, which has many nodes."""
    count = len(subject.dtypes)
    yield "full"
    yield from (f"broadcast {i}" for i in range(count))
    yield from (f"0-d {i}" for i in range(count if count > 1 else 0))
    if count == 1 or (every and len(subject.columns()[0]) < 1000):
        yield "0-d"


def folded(graph: Graph, *feeds: Mapping[str, Array]) -> list[Array]:
    """The output where the inputs are constants, of which all must be folded."""
    g = Graph("folded")
    for n, each in enumerate(feeds):
        known: dict[int, Tensor] = {graph.inputs[name].id: g.constant(a) for name, a in each.items()}
        for node in graph.nodes:
            if node.op.leaf:
                continue
            inputs = [known[t.id] for t in node.inputs]
            if node.op.broadcasts:  # simplify leaves these to the run: the constant itself is broadcast
                known[node.outputs[0].id] = g.constant(np.broadcast_to(each["x0"], node.outputs[0].shape))
                continue
            known[node.outputs[0].id] = apply(node.op.name, *inputs, **dict(node.attrs))
        g.output(f"y{n}", known[graph.outputs["y"].id])
    constants = simplify(g).outputs.values()
    return [np.asarray(t.node.attrs["value"]) for t in constants]


def ran(session: Session) -> Run:
    def run(graph: Graph, *feeds: Mapping[str, Array]) -> list[Array]:
        with session.compile(graph) as compiled:
            return [np.array(compiled.run(dict(each))["y"]) for each in feeds]

    return run


@contextmanager
def on_host(op: str) -> Iterator[None]:
    """No GPU lowers this op, nor a fusion group."""
    rule_for = lowering.rule_for

    def rule(node: Node, target: Any) -> Any:
        return None if node.op.name in (op, "fused") else rule_for(node, target)

    with patch.object(lowering, "rule_for", rule):
        yield


WAYS = ("folded", "numpy", "host", "engine", "vulkan")


def ways(names: Sequence[str]) -> dict[str, Run]:
    """The runs of these names, without those for which this machine has no device."""
    makers: dict[str, Callable[[], Run]] = {
        "folded": lambda: folded,
        "numpy": lambda: ran(Session("cpu", engine="numpy")),
        "host": lambda: ran(Session("vulkan")),
        "engine": lambda: ran(Session("cpu", engine="compiled")),
        "vulkan": lambda: ran(Session("vulkan")),
    }
    kept: dict[str, Run] = {}
    for name in names:
        try:
            kept[name] = makers[name]()
        except DeviceUnavailable as error:
            print(f"special_values: no {name}: {error}", file=sys.stderr)
    return kept


@dataclass(frozen=True)
class Difference:
    """How far results are from others. `ulp`: units in the last place, where both are numbers of one sign that are not
    0; `small`: the largest difference of others that are finite; `zeros`: elements of which only the sign of a zero
    differs; `others`: NaN and infinities in other places, and integers, with the first of these."""

    ulp: int = 0
    small: float = 0.0
    zeros: int = 0
    others: int = 0
    first: str = ""


def difference(want: Array, got: Array, columns: Sequence[Array]) -> Difference:
    """The difference of results; any NaN is the same as any other."""
    want = np.broadcast_to(want[:, : got.shape[1]], got.shape)
    if want.dtype.kind in "iub":
        differs = want != got
        return Difference(others=int(differs.sum()), first=_first(differs, want, got, columns))
    a, b = (np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").astype(np.int64) for x in (want, got))
    wide, narrow = want.astype(np.float64), got.astype(np.float64)
    differs = (a != b) & ~(np.isnan(wide) & np.isnan(narrow))
    finite = differs & np.isfinite(wide) & np.isfinite(narrow)
    zeros = finite & (wide == 0) & (narrow == 0)
    plain = finite & (wide != 0) & (narrow != 0) & (np.signbit(wide) == np.signbit(narrow))
    small, others = finite & ~plain, differs & ~finite
    return Difference(
        int(np.abs(a - b)[plain].max(initial=0)),
        float(np.abs(wide[small] - narrow[small]).max(initial=0)),
        int(zeros.sum()),
        int(others.sum()),
        _first(others, want, got, columns),
    )


def _first(where: Array, want: Array, got: Array, columns: Sequence[Array]) -> str:
    if not where.any():
        return ""
    row, column = np.argwhere(where)[0]
    values = ", ".join(str(c[row, 0]) for c in columns)
    return f"{values}: {got[row, column]} instead of {want[row, column]}"


def reason(subject: Subject, form: str, found: Difference) -> str:
    """Why results may differ; empty where they may not. Forms of operands change nothing, nor does any device change
    NaN, infinities, integers or the sign of a zero. Functions are within the tolerances of their
    conformance cases."""
    cases = [c for c in all_cases() if c.op == subject.op]
    limit = max(c.tolerance.ulp if c.tolerance.kind == "ulp" else 0.0 for c in cases)
    if form != "full" or found.others or found.zeros or not limit:
        return ""
    looser = next((c.reason for c in cases if c.reason), "")
    if found.ulp <= limit and not found.small:
        return f"each computes the function in its own way, within {limit:g} ULP"
    return looser if found.small < 1e-20 else ""


def sweep(
    subject: Subject, runs: Mapping[str, Run], every: bool = True
) -> Iterator[tuple[str, str, Difference]]:
    """The differences of each run: of whole arrays from the reference, of its other forms from whole arrays. `every`:
    also where all of several operands are 0-d, but on a GPU, where each run takes long."""
    want, columns = subject.reference(), subject.columns()
    for name, run in runs.items():
        with on_host(subject.op) if name == "host" else nullcontext():
            whole = results(subject, "full", run)
            yield name, "full", difference(want, whole, columns)
            for form in itertools.islice(forms(subject, every and name in ("folded", "numpy", "engine")), 1, None):
                try:
                    got = results(subject, form, run)
                except ShapeError:  # of fake_quantize, whose scale is no larger than its input
                    continue
                yield name, form, difference(whole, got, columns)


def main(arguments: list[str] | None = None) -> int:
    """Prints a row for each way, form and op that differ, and how many of all those were tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.passes.special_values", description=__doc__)
    parser.add_argument("--op", action="append", help="only this op; may be repeated")
    parser.add_argument("--ways", default=",".join(WAYS), help="only these, with commas between")
    args = parser.parse_args(arguments)
    runs = ways(args.ways.split(","))
    tried, wrong = dict.fromkeys(runs, 0), 0
    asked = subjects(args.op)
    for done, subject in enumerate(asked):
        if done % 20 == 0:
            print(f"special_values: {done} of {len(asked)}, at {subject.name}", file=sys.stderr, flush=True)
        for name, form, found in sweep(subject, runs):
            tried[name] += 1
            if found != Difference():
                why = reason(subject, form, found)
                wrong += not why
                counts = f"{found.ulp} ULP, {found.small:.1e}, {found.zeros} zeros, {found.others} others"
                print(f"{name} | {subject.name} | {form} | {counts} | {why or 'WRONG ' + found.first}", flush=True)
    for name, count in tried.items():
        print(f"{name} | {count} ops, dtypes, attributes and forms of operands")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
