"""`python -m rlx.conformance.ops_page`: writes docs/ops.md, the table of all ops: how they run and are judged.

The lowering rules tell how an op runs on typical devices, from the devices' features, so no device is needed. The worst
errors come from outcome files of `python -m rlx.conformance`.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import runs_natively
from rlx.backends.gpu.program.target import MatrixUnits, Target, matrix_types
from rlx.conformance.case import Case, all_cases, cases_of
from rlx.conformance.tolerances import Tolerance
from rlx.driver.device import Limits, Support
from rlx.errors import RlxError
from rlx.ir import HOST, REGISTRY, Node, Op, bodies
from rlx.ops.batching import how as how_batched
from rlx.passes.legalize import decomposition

PAGE = Path("docs/ops.md")
COMMAND = "python -m rlx.conformance.ops_page"
_STORAGE = frozenset({"16bit_storage", "8bit_storage", "i64"})
# The features of typical devices of each kind, named as in DeviceInfo.features.
KINDS = {
    "cuda": _STORAGE
    | {"f16", "bf16", "i8", "f64", "subgroup", "tensorcore", "denorm_preserve", "coopmat", "bf16_coopmat"},
    "vulkan (NVIDIA)": _STORAGE
    | {
        "f16", "i8", "i16", "f64", "subgroup", "scalar_layout", "memory_model", "intdot", "float_controls",
        "float_controls_f16", "float_controls_f64", "denorm_preserve", "denorm_preserve_f64", "rte", "rte_f64",
        "coopmat", "coopmat2", "bf16_coopmat",
    },
    "vulkan (lavapipe)": _STORAGE
    | {
        "f16", "i8", "i16", "f64", "subgroup", "scalar_layout", "memory_model", "intdot", "float_controls",
        "float_controls_f16", "float_controls_f64", "rte", "rte_f64",
    },
}  # fmt: skip
_DTYPES = ("f32", "f16", "bf16", "f64", "i32", "i64", "i8", "u8", "bool")


@dataclass(slots=True)
class Errors:
    """The outcomes of one op on one device: counts, and the worst errors in ULP of the result's dtype and as NMSE."""

    passed: int = 0
    others: int = 0
    ulp: float = 0.0
    nmse: float = 0.0

    def add(self, status: str, ulp: float, nmse: float) -> None:
        self.passed += status == "pass"
        self.others += status != "pass"
        if status == "pass" and math.isfinite(ulp) and math.isfinite(nmse):
            self.ulp, self.nmse = max(self.ulp, ulp), max(self.nmse, nmse)


Seen = dict[str, dict[str, Errors]]  # device, then op


def read_outcomes(files: Iterable[Path], tolerances: dict[str, Tolerance]) -> Seen:
    """The errors of outcome files, by device and op; each case's tolerance decides whether ULP or NMSE counts.

    Cases that no longer exist and incomplete lines are left out. Raises: RlxError for a file that cannot be read.
    """
    seen: Seen = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise RlxError(f"outcome file {file}: {error.strerror}; python -m rlx.conformance writes them") from error
        for entry in _entries(text):
            tolerance = tolerances.get(entry["case"])
            if tolerance is not None:
                errors = seen.setdefault(entry["device"], {}).setdefault(entry["op"], Errors())
                by_norm = tolerance.kind == "norm"
                errors.add(
                    entry["status"], 0.0 if by_norm else entry["max_ulp"], entry["nmse"] if by_norm else 0.0
                )
    return seen


def _entries(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the incomplete line of a run that was killed while writing
        if isinstance(entry, dict) and {"case", "op", "device", "status", "max_ulp", "nmse"} <= set(entry):
            yield entry


def how(case: Case, features: frozenset[str]) -> str:
    """How the node of a case runs on a device with these features: native, decomposed, host or control."""
    target = Target(features, matrices=MatrixUnits(matrix_types(features, Limits())))

    def support(node: Node) -> Support:
        return "native" if node.op.leaf or runs_natively(node, target) else "host"

    (node,) = (n for n in case.graph().nodes if not n.op.leaf)
    if support(node) == "native":
        return "control" if bodies(node) else "native"
    return "host" if decomposition(node, support) is None else "decomposed"


@functools.cache
def _ways(op: str, features: frozenset[str]) -> str:
    """One word if all of an op's cases run in the same way; else the number of cases for each way."""
    counts = Counter(how(c, features) for c in cases_of(op))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {w}" for w, n in counts.most_common())


def _dtypes(cases: Sequence[Case]) -> str:
    dtypes = {s.dtype.name for c in cases for s in c.inputs}
    return " ".join(d for d in _DTYPES if d in dtypes)


def _tolerance(t: Tolerance) -> str:
    if t.kind == "ulp":
        return f"{t.ulp:g} ULP" + (f" + {t.floor:g}" if t.floor else "")
    return f"NMSE {t.nmse:g}, {t.max_error:g}" if t.kind == "norm" else t.kind


def _tolerances(cases: Sequence[Case]) -> str:
    return "; ".join(text for text, _ in Counter(_tolerance(c.tolerance) for c in cases).most_common())


def _worst(errors: Errors) -> str:
    figures = [f"{errors.ulp:.2g} ULP"] if errors.ulp else []
    figures += [f"NMSE {errors.nmse:.1e}"] if errors.nmse else []
    figures += [f"{errors.others} not passed"] if errors.others else []
    return ", ".join(figures) or "0"


@dataclass(slots=True)
class Column:
    """The page's worst errors on one device: the number of cases that were run, and a cell for each op."""

    done: int
    cells: dict[str, str]


def columns(seen: Seen, before: str = "") -> dict[str, Column]:
    """The columns of the devices that have outcomes. Those of other devices, and the cells of ops that were not run on
    these, are those of `before`, the old page."""
    said = before.partition("ULP of the result's dtype: ")[2].partition("\n")[0]
    listed = re.findall(r"(\w[^,()]*) \(([\d,]+) cases\)", said)
    result = {device: Column(int(count.replace(",", "")), {}) for device, count in listed}
    head: list[str] = []
    for line in before.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0] == "op":
            head = cells
        for name, cell in zip(head, cells, strict=False):
            device = name.removeprefix("worst, ")
            if device != name and device in result and cells[0].startswith("`"):
                result[device].cells[cells[0].strip("`")] = cell
    for device, ops in seen.items():
        done = sum(e.passed + e.others for e in ops.values())
        kept = {op: cell for op, cell in result[device].cells.items() if op not in ops} if device in result else {}
        done += sum(len(cases_of(op)) for op in kept if op in REGISTRY and kept[op] != "–")
        result[device] = Column(done, kept | {op: _worst(errors) for op, errors in ops.items()})
    return dict(sorted(result.items()))


def row(op: Op, cases: Sequence[Case], worst: Mapping[str, Column]) -> str:
    """The op's row of the table."""
    cells = [f"`{op.name}`", *(_ways(op.name, features) for features in KINDS.values())]
    cells += [how_batched(op), _dtypes(cases), str(len(cases)), _tolerances(cases), op.judge]
    cells += [column.cells.get(op.name, "–") for column in worst.values()]
    return f"| {' | '.join(cells)} |"


def page(seen: Seen, before: str = "") -> str:
    """The whole page. Devices and ops that were not run keep their cells of `before`, the old page."""
    worst = columns(seen, before)
    load_rules()
    cases: dict[str, list[Case]] = {}
    for case in all_cases():
        cases.setdefault(case.op, []).append(case)
    ops = [op for op in REGISTRY.values() if not op.leaf]
    total = sum(map(len, cases.values()))
    head = ["op", *KINDS, "vmap", "dtypes", "cases", "tolerance", "judge", *(f"worst, {d}" for d in worst)]
    lines = [
        "# Ops", "",
        f"Written by `{COMMAND}`; do not edit. {len(ops)} ops, {total:,} conformance cases, which every device runs.",
        "",
        "How an op runs: **native**, by kernels of its own; **decomposed**, written with native ops; **host**, by",
        "NumPy, and the report says so; **control**, by recorded bodies that the host launches; numbers where its",
        "cases differ. The CPU decomposes few. A device of other features may differ:",
        "`CompiledGraph.report()` tells.", "",
        "How `rlx.vmap` batches it: by a **rule**, one op for all examples; by its **parts**, the ops that it is",
        "written with, each by its rule; or in a **loop** on the device, one example after the other. Where examples",
        "differ in weights that a rule takes to be shared, it goes by parts, or in a loop where it has none. A packed",
        "weight that is to differ is refused.", "",
        "Dtypes are those of the cases' inputs.", "",
        "Tolerance: *bits* allows no difference; *equal* none but the sign of a zero; *ULP* counts units in the",
        "last place of f32 (f64: of f64), + an absolute floor; *NMSE* is the squared error over the squared reference,",
        "beside it the largest error over the largest value. f16 and bf16 results may be one ULP of their own further",
        "off.",
        "The judge is what holds the float64 reference to account.", "",
    ]  # fmt: skip
    if worst:
        which = ", ".join(f"{d} ({column.done:,} cases)" for d, column in worst.items())
        lines += [
            f"Worst errors seen, in ULP of the result's dtype: {which}. A 0 is an exact result; – was not run.", ""
        ]
    for family in dict.fromkeys(op.family for op in ops):
        lines += [f"## {family}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        lines += [row(op, cases.get(op.name, []), worst) for op in ops if op.family == family]
        lines.append("")
    judges = ", ".join(f"`{op.name}` ({op.judge})" for op in HOST.values() if op.meets is None)
    collectives = ", ".join(f"`{op.name}` ({op.judge})" for op in HOST.values() if op.meets is not None)
    lines += [
        "## linalg", "",
        "The ops of `rlx.linalg` have no kernels: NumPy's LAPACK computes them on every device, and the report says",
        "so. They take f32 and f64, have gradients, tangents and a vmap rule each, and cannot be written as ONNX.",
        f"With their judges: {judges}.", "",
        "## collectives", "",
        "The ops of [ranks](ranks.md) run through NCCL on CUDA, each rank on a GPU of its own, and on the host",
        "elsewhere, where ranks meet in memory or by MPI; the report says so. They take every dtype (means: floats;",
        "sums and products: numbers), have gradients, tangents and a vmap rule each, and cannot be written as ONNX.",
        f"With their judges: {collectives}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def latest(folder: Path) -> list[Path]:
    """The newest outcome file of each device in a folder, whose files are named <device>-<digest>.jsonl."""
    newest: dict[str, Path] = {}
    for file in sorted(folder.glob("*.jsonl"), key=lambda f: f.stat().st_mtime):
        newest[file.stem.rpartition("-")[0]] = file
    return list(newest.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page. Exit status 2 where an outcome file cannot be read."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "--outcomes", type=Path, nargs="+", help="outcome files (default: the newest of each device in .conformance/)"
    )
    parser.add_argument("--out", type=Path, default=PAGE, help=f"the page (default {PAGE})")
    options = parser.parse_args(arguments)
    try:
        files = options.outcomes or latest(Path(".conformance"))
        before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
        text = page(read_outcomes(files, {c.id: c.tolerance for c in all_cases()}), before)
    except RlxError as error:
        print(f"ops_page: {error}", file=sys.stderr)
        return 2
    options.out.write_text(text, encoding="utf-8")
    print(f"{options.out}: {len(text.splitlines())} lines, outcomes of {', '.join(map(str, files)) or 'no device'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
