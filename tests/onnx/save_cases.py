"""`python -m tests.onnx.save_cases`: every case saved as ONNX, run by others and by rlx again, and judged.

A case is saved, checked by onnx in full, and run by onnx's reference evaluator, by onnxruntime where it is installed,
and by rlx after loading it back. Each result is held against the float64 reference with the case's tolerance. Outcomes
are kept in a file, and a run that was stopped goes on where it was; `--docs` writes the table of docs/onnx-save.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from rlx.conformance.case import Array, Case, all_cases
from rlx.conformance.runner import pick, sample
from rlx.dtypes import bf16, f64
from rlx.errors import RlxError, UnsupportedOp
from rlx.onnx import load, to_model
from rlx.packed import PackedArray
from tests.onnx.outcomes import kept, lines

BEGIN, END = "<!-- table -->", "<!-- end of table -->"
Run = Callable[[onnx.ModelProto, Mapping[str, Array]], "dict[str, Array]"]


class EngineError(Exception):
    """What another engine raised on a file."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a case: for each engine "pass", else what is wrong; the operators it was written with; `message`
    where it could not be saved."""

    case: str
    op: str
    results: dict[str, str]
    kinds: tuple[str, ...] = ()
    message: str = ""
    excuse: str = ""

    @property
    def right(self) -> bool:
        """Whether rlx, and where one can at least one engine that is not rlx, give what the case expects."""
        others = [t for n, t in self.results.items() if n != "rlx"]
        return self.results.get("rlx") == "pass" and ("pass" in others or bool(self.excuse))


def run_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By onnx's own definition of the operators, in NumPy."""
    names = [o.name for o in model.graph.output]
    try:
        return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feeds)), strict=True))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By onnxruntime on the CPU. Its Python interface has no bf16 arrays: these go in and come out as f32."""
    ort = importlib.import_module("onnxruntime")
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    halves = [o.name for o in model.graph.output if o.type.tensor_type.elem_type == TensorProto.BFLOAT16]
    wide, names = _widened(model), [o.name for o in model.graph.output]
    given = {n: a.astype(np.float32) if a.dtype == bf16.np else a for n, a in feeds.items()}
    try:
        session = ort.InferenceSession(wide.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = dict(zip(names, session.run([o.name for o in wide.graph.output], given), strict=True))
    except (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.NotImplemented,
        state.RuntimeException,
    ) as e:
        raise EngineError(f"{type(e).__name__}: {e}") from e
    return {n: a.astype(bf16.np) if n in halves else a for n, a in found.items()}


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with bf16 inputs and outputs as f32, cast behind and in front: the same values."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for info in made.graph.input:
        if info.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
            inside = f"{info.name}.bf16"
            for n in made.graph.node:
                n.input[:] = [inside if name == info.name else name for name in n.input]
            made.graph.node.insert(
                0, helper.make_node("Cast", [info.name], [inside], to=TensorProto.BFLOAT16)
            )
    for info in made.graph.output:
        if info.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
            made.graph.node.append(
                helper.make_node("Cast", [info.name], [f"{info.name}.f32"], to=TensorProto.FLOAT)
            )
            info.name = f"{info.name}.f32"
    return made


def run_again(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By rlx, from the file."""
    with load(model.SerializeToString()) as again:
        return again.run(feeds, device="cpu")


def engines() -> dict[str, Run]:
    """Who runs the files here."""
    found: dict[str, Run] = {"reference": run_reference, "rlx": run_again}
    if importlib.util.find_spec("onnxruntime") is not None:
        found["onnxruntime"] = run_onnxruntime
    return found


def excuse(case: Case) -> str:
    """Why no other engine need give rlx's result for a case; "" if one must."""
    open_to_all = case.op in ("max_pool", "avg_pool", "scatter", "scatter_elements")
    if open_to_all and any(
        a.dtype.kind in "fV" and np.isnan(a.astype(np.float64)).any() for a in case.arrays()
    ):
        return "ONNX says nothing of NaN here"
    erf = case.op in ("erf", "gelu") or case.attrs.get("activation") == "gelu"
    if erf and any(s.dtype == f64 for s in case.inputs):
        return "the reference's erf is good to 8 digits, ONNX Runtime has none of f64"
    return ""


def save_case(case: Case, runs: Mapping[str, Run], opset: int) -> Saved:
    """Saves one case and has every engine run it."""
    try:
        model = to_model(case.graph(), opset=opset)
    except UnsupportedOp as error:
        return Saved(case.id, case.op, {}, (), str(error))
    onnx.checker.check_model(model, full_check=True)
    feeds = {n: a.dequantize() if isinstance(a, PackedArray) else a for n, a in case.feeds().items()}
    results = {}
    for name, run in runs.items():
        with np.errstate(all="ignore"):
            try:
                verdict = case.check(run(model, feeds))
            except (EngineError, RlxError) as error:
                results[name] = f"{type(error).__name__}: {error}"
                continue
        results[name] = "pass" if verdict.ok else verdict.message
    return Saved(
        case.id,
        case.op,
        results,
        excuse=excuse(case),
        kinds=tuple(dict.fromkeys(n.op_type for n in model.graph.node)),
    )


def read(file: Path) -> dict[str, Saved]:
    """The outcomes of runs before, by case."""
    return {e["case"]: Saved(**{**e, "kinds": tuple(e["kinds"])}) for e in lines(file)}


def run(cases: Sequence[Case], file: Path, opset: int, seconds: float) -> list[Saved]:
    """Works on the cases that the file does not have yet; gives the outcomes of all."""
    done, runs = read(file), engines()
    left = [c for c in cases if c.id not in done]
    start = told = time.monotonic()
    with file.open("a", encoding="utf-8") as log:
        for i, case in enumerate(left, 1):
            done[case.id] = save_case(case, runs, opset)
            log.write(json.dumps(dataclasses.asdict(done[case.id])) + "\n")
            now = time.monotonic()
            if seconds and now - start > seconds:
                break
            if now - told > 10:
                told = now
                print(f"{i}/{len(left)}, {i / (now - start):.0f} a second", file=sys.stderr)
    return [done[c.id] for c in cases if c.id in done]


def _counts(outcomes: Sequence[Saved], engine: str) -> str:
    ran = [o.results[engine] for o in outcomes if engine in o.results]
    return f"{ran.count('pass')} of {len(ran)}"


def table(outcomes: Sequence[Saved]) -> str:
    """A line an op: the operators it is written with, and in which engines its cases are right."""
    made = ["| op | written with | rlx again | onnx.reference | onnxruntime |", "|---|---|---|---|---|"]
    for op in dict.fromkeys(o.op for o in outcomes):
        mine = [o for o in outcomes if o.op == op]
        # What stands around in half of the cases or fewer depends on dtypes and attributes.
        often = Counter(k for o in mine for k in o.kinds)
        kinds = [k for k, n in often.most_common() if 2 * n > len(mine) and k != "Cast"]
        text = ", ".join(kinds[:4]) + (f" and {len(kinds) - 4} more" if len(kinds) > 4 else "")
        cells = [
            f"`{op}`",
            text or "nothing",
            *(_counts(mine, e) for e in ("rlx", "reference", "onnxruntime")),
        ]
        made.append(f"| {' | '.join(cells)} |")
    total = ["all", "", *(_counts(outcomes, e) for e in ("rlx", "reference", "onnxruntime"))]
    return "\n".join([*made, f"| {' | '.join(total)} |"])


def main(arguments: list[str] | None = None) -> int:
    """Prints what did not pass. Exit status 1 where a case is not right in rlx and one other; 3: not finished."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.save_cases", description=__doc__)
    parser.add_argument("--op", action="append", help="only this op's cases; may be repeated")
    parser.add_argument("--per-op", type=int, default=0, help="so many cases of every op (default: all)")
    parser.add_argument("--opset", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; the next run goes on")
    parser.add_argument(
        "--file", type=Path, help="where outcomes are kept (default: by the sources, in .cache)"
    )
    parser.add_argument("--show", type=int, default=1, help="failures shown of an op and engine")
    parser.add_argument("--docs", type=Path, help="write the table into this page")
    given = parser.parse_args(arguments)
    try:
        cases = pick(all_cases(), given.op)
    except RlxError as error:
        print(f"save_cases: {error}", file=sys.stderr)
        return 2
    cases = sample(cases, given.per_op) if given.per_op else cases
    outcomes = run(cases, given.file or kept(f"saved-{given.opset}"), given.opset, given.seconds)
    shown: Counter[tuple[str, str]] = Counter()
    for o in outcomes:
        failures = {n: t for n, t in {**o.results, "save": o.message or "pass"}.items() if t != "pass"}
        for name, text in failures.items():
            shown[o.op, name] += 1
            if shown[o.op, name] <= given.show:
                print(f"  {name} {o.case}: {text[:300]}")
    wrong = [o for o in outcomes if not o.right]
    print(
        f"{len(outcomes):,} cases, {len(wrong)} not right in rlx and one other engine: {[o.case for o in wrong[:20]]}"
    )
    if len(outcomes) < len(cases):
        print(f"{len(cases) - len(outcomes)} left: run again")
        return 3
    if given.docs is not None:
        page = given.docs.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        given.docs.write_text(
            f"{head}{BEGIN}\n{table(outcomes)}\n{END}{rest.partition(END)[2]}", encoding="utf-8"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
