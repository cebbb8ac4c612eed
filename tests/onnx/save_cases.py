"""`python -m tests.onnx.save_cases`: every case saved as ONNX, run by others and by rlx again, and judged.

A case is saved, checked by onnx in full, and run by onnx's reference evaluator, by onnxruntime where it is installed,
and by rlx after loading it back. Each result is held against the float64 reference with the case's tolerance.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from rlx.conformance.case import Array, Case, all_cases
from rlx.conformance.runner import pick, sample
from rlx.dtypes import bf16
from rlx.errors import RlxError, UnsupportedOp
from rlx.formats.onnx import load, to_model

Run = Callable[[onnx.ModelProto, Mapping[str, Array]], "dict[str, Array]"]


class EngineError(Exception):
    """What another engine raised on a file."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a case: for each engine "pass", else what is wrong; `message` where it could not be saved."""

    case: str
    op: str
    results: dict[str, str]
    message: str = ""


def run_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By onnx's own definition of the operators, in NumPy."""
    names = [o.name for o in model.graph.output]
    try:
        return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feeds)), strict=True))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By onnxruntime on the CPU."""
    ort = importlib.import_module("onnxruntime")
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    names = [o.name for o in model.graph.output]
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))
    except (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.NotImplemented,
        state.RuntimeException,
    ) as e:
        raise EngineError(f"{type(e).__name__}: {e}") from e


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


def save_case(case: Case, runs: Mapping[str, Run], opset: int) -> Saved:
    """Saves one case and has every engine run it."""
    try:
        model = to_model(case.graph(), opset=opset)
    except UnsupportedOp as error:
        return Saved(case.id, case.op, {}, str(error))
    onnx.checker.check_model(model, full_check=True)
    feeds = case.feeds()
    halves = any(s.dtype == bf16 for s in case.inputs) or any(t.dtype == bf16 for t in case.graph().results())
    results = {}
    for name, run in runs.items():
        if name == "onnxruntime" and halves:
            continue  # its Python interface knows no bf16 arrays
        with np.errstate(all="ignore"):
            try:
                verdict = case.check(run(model, feeds))
            except (EngineError, RlxError) as error:
                results[name] = f"{type(error).__name__}: {error}"
                continue
        results[name] = "pass" if verdict.ok else verdict.message
    return Saved(case.id, case.op, results)


def save_cases(cases: Iterable[Case], opset: int) -> Iterator[Saved]:
    """The outcomes, one by one."""
    runs = engines()
    for case in cases:
        yield save_case(case, runs, opset)


def main(arguments: list[str] | None = None) -> int:
    """Prints a line an op and what did not pass. Exit status 1 where a case could not be saved, or rlx differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.save_cases", description=__doc__)
    parser.add_argument("--op", action="append", help="only this op's cases; may be repeated")
    parser.add_argument("--per-op", type=int, default=0, help="so many cases of every op (default: all)")
    parser.add_argument("--opset", type=int, default=21)
    parser.add_argument("--show", type=int, default=1, help="failures shown of an op and engine")
    given = parser.parse_args(arguments)
    try:
        cases = pick(all_cases(), given.op)
    except RlxError as error:
        print(f"onnx_save: {error}", file=sys.stderr)
        return 2
    cases = sample(cases, given.per_op) if given.per_op else cases
    names = list(engines())
    counts: dict[str, Counter[str]] = {}
    shown: Counter[tuple[str, str]] = Counter()
    start = told = time.monotonic()
    bad = elsewhere = 0
    for i, saved in enumerate(save_cases(cases, given.opset), 1):
        found = counts.setdefault(saved.op, Counter())
        found["cases"] += 1
        failures: dict[str, Any] = {n: t for n, t in saved.results.items() if t != "pass"}
        if saved.message:
            failures["save"] = saved.message
        found.update(n for n, t in saved.results.items() if t == "pass")
        found.update(f"not {n}" for n in failures)
        bad += bool({"save", "rlx"} & set(failures))
        right = any(t == "pass" for n, t in saved.results.items() if n != "rlx")
        elsewhere += right
        if not right:
            print(f"  nobody else: {saved.case}")
        for name, text in failures.items():
            shown[saved.op, name] += 1
            if shown[saved.op, name] <= given.show:
                print(f"  {name} {saved.case}: {text[:300]}")
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{i}/{len(cases)}, {i / (told - start):.0f} a second", file=sys.stderr)
    for op, found in counts.items():
        text = ", ".join(
            f"{n} {found[n]}" + (f" (-{found[f'not {n}']})" if found[f"not {n}"] else "") for n in names
        )
        print(
            f"{op}: {found['cases']} cases, {text}"
            + (f", NOT SAVED {found['not save']}" if found["not save"] else "")
        )
    print(f"{len(cases):,} cases, {elsewhere:,} right in another engine, {bad} not saved or not right in rlx")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
