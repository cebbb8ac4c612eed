"""The cases of onnx.backend.test on one device: `python -m rlx.onnx.suite --device cpu [--only REGEX]`.

Every case is run and counted: pass, fail, or unsupported with the reason. Nothing is skipped.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from rlx.errors import RlxError, UnsupportedOp
from rlx.onnx.backend import Backend
from rlx.onnx.model import Program, Staged
from rlx.records import Record

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


def cases() -> Iterator[Any]:
    """Every case of the installed onnx."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for kind in KINDS:
            yield from load_model_tests(kind=kind)


def _value(item: Any) -> Any:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    if isinstance(item, onnx.SequenceProto):
        return numpy_helper.to_list(item)
    return numpy_helper.to_optional(item) if isinstance(item, onnx.OptionalProto) else item


def _from_file(path: str, info: Any) -> Any:
    content = Path(path).read_bytes()
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def data_of(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model of a case and its pairs of inputs and expected outputs."""
    if case.model is not None and case.data_sets is not None:
        return case.model, [([_value(v) for v in i], [_value(v) for v in out]) for i, out in case.data_sets]
    light = case.url is not None and case.url.startswith("onnx/backend/test/data/light/")
    if light:
        path = os.path.join(os.path.dirname(onnx.__file__), *case.url.split("/")[1:])
        model = onnx.load(path)
        constants = {i.name for i in model.graph.initializer}
        inputs = [_counting(i) for i in model.graph.input if i.name not in constants]
        stem = os.path.splitext(path)[0]
        outputs = [
            numpy_helper.to_array(onnx.TensorProto.FromString(Path(f"{stem}_output_{i}.pb").read_bytes()))
            for i in range(len(model.graph.output))
        ]
        return model, [(inputs, outputs)]
    model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
    sets = []
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set*"))):

        def read(stem: str, infos: Any, folder: str = folder) -> list[Any]:
            count = len(glob.glob(os.path.join(folder, f"{stem}_*.pb")))
            return [_from_file(os.path.join(folder, f"{stem}_{i}.pb"), infos[i]) for i in range(count)]

        sets.append((read("input", model.graph.input), read("output", model.graph.output)))
    return model, sets


def _counting(info: Any) -> Any:
    """The input that the light models' expected outputs were made with."""
    shape = [d.dim_value if d.HasField("dim_value") else 1 for d in info.type.tensor_type.shape.dim]
    n = int(np.prod(shape))
    return (np.arange(n).reshape(shape) / n).astype(np.float32)


def compare(expected: list[Any], outputs: tuple[Any, ...], rtol: float, atol: float) -> str | None:
    """The first difference, or None: dtypes, shapes, and values as onnx's own runner compares them."""
    if len(expected) != len(outputs):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for i, (want, got) in enumerate(zip(expected, outputs, strict=True)):
        wrong = _difference(want, got, rtol, atol)
        if wrong is not None:
            return f"output {i}{wrong}"
    return None


def _difference(want: Any, got: Any, rtol: float, atol: float) -> str | None:
    if want is None or got is None:
        return None if want is got else f" is {got}, expected {want}"
    if isinstance(want, list) or isinstance(got, list):
        if not (isinstance(want, list) and isinstance(got, list) and len(want) == len(got)):
            return f" is {got}, expected {want}"
        wrong = (_difference(w, g, rtol, atol) for w, g in zip(want, got, strict=True))
        return next((f": an item{text}" for text in wrong if text is not None), None)
    want = np.asarray(want)
    want = want.astype(object) if want.dtype.kind == "U" else want
    if want.dtype != got.dtype or want.shape != got.shape:
        return f" is {got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    if want.dtype.kind not in "fV":
        return (
            None
            if np.array_equal(want, got)
            else f": {int(np.sum(want != got))} of {want.size} elements differ"
        )
    a, b = want.astype(np.float64), got.astype(np.float64)
    if np.allclose(b, a, rtol=rtol, atol=atol, equal_nan=True):
        return None
    with np.errstate(all="ignore"):
        return f": differs by up to {np.nanmax(np.abs(a - b)):.3g}"


class Outcome(Record):
    """The outcome of a case: "pass", "fail" or "unsupported", why, and how the device ran it: "device", "host" (some
    node ran with NumPy) or "compiled" (nothing was left for it to run: the results follow from values compiled in, or
    all nodes are behind a cut)."""

    status: str
    reason: str
    how: str = ""


def run_case(case: Any, device: str) -> Outcome:
    """Runs a case of onnx's suite and compares its outputs."""
    try:
        with np.errstate(all="ignore"):
            model, sets = data_of(case)
            prepared = Backend.prepare(model, device)
            for inputs, expected in sets:
                outputs = prepared.run(inputs)
                if any(p.draws for p in prepared.model.programs):
                    return Outcome("fail", "draws random numbers; the expected ones are another draw")
                wrong = compare(expected, outputs, case.rtol, case.atol)
                if wrong is not None:
                    return Outcome("fail", wrong)
    except UnsupportedOp as error:
        return Outcome("unsupported", str(error))
    except RlxError as error:
        return Outcome("fail", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  (a crash is an outcome that the table must show)
        return Outcome("fail", f"crash: {type(error).__name__}: {error}")
    return Outcome("pass", "", _how(prepared.model.programs))


def _how(programs: Sequence[Program | Staged]) -> str:
    if any(p.graph.report().host_nodes for p in programs):
        return "host"
    work = [n for p in programs for n in p.graph.program.nodes if not n.op.leaf and not n.op.materializes]
    return "device" if work else "compiled"


def run_suite(device: str, only: str = "", show: bool = False) -> dict[str, Outcome]:
    """Every case whose name matches, by name."""
    results: dict[str, Outcome] = {}
    for case in cases():
        if re.search(only, case.name):
            outcome = results[case.name] = run_case(case, device)
            if show and outcome.status != "pass":
                print(f"{outcome.status} {case.name}: {outcome.reason[:300]}", flush=True)
    return results


def counts(results: dict[str, Outcome], names: Iterable[str]) -> Counter[str]:
    """How many of the named cases have each status; "host" and "compiled" are passes of that kind."""
    result: Counter[str] = Counter()
    for name in names:
        if name in results:
            result[results[name].status] += 1
            if results[name].how in ("host", "compiled"):
                result[results[name].how] += 1
    return result


def differences(results: dict[str, Outcome], expected: dict[str, str]) -> list[str]:
    """The results that are not as expected: `expected` has the status of every case that does not pass."""
    result = []
    for name, outcome in results.items():
        want = expected.get(name, "pass")
        if outcome.status != want:
            result.append(
                f"{name}: {outcome.status}, expected {want}" + (f": {outcome.reason[:200]}" if outcome.reason else "")
            )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="The cases of onnx.backend.test, counted by device.")
    parser.add_argument("--device", action="append", help="may be repeated; default: cpu")
    parser.add_argument("--only", default="", help="a regular expression of case names")
    parser.add_argument("--sets", default="", help="a JSON file of named lists of cases, counted one by one")
    parser.add_argument(
        "--expect", default="", help="a JSON file of what does not pass; anything else is an error"
    )
    parser.add_argument("--write-expect", action="store_true", help="write that file from these results")
    parser.add_argument("--docs", default="", help="a page whose table of results is to be written")
    parser.add_argument("--show", action="store_true", help="print what did not pass")
    args = parser.parse_args()
    sets = json.loads(Path(args.sets).read_text(encoding="utf-8")) if args.sets else {}
    named = {k: v for k, v in sets.items() if isinstance(v, list)}
    expected = (
        json.loads(Path(args.expect).read_text(encoding="utf-8")) if Path(args.expect).is_file() else {}
    )
    rows, wrong = [], []
    for device in args.device or ["cpu"]:
        start = time.perf_counter()
        results = run_suite(device, args.only, args.show)
        for title, names in {"all": list(results), **named}.items():
            rows.append((device, title, counts(results, names)))
            print(_line(*rows[-1]))
        print(f"{device}: {time.perf_counter() - start:.0f} s", flush=True)
        if args.write_expect:
            expected[device] = {n: r.status for n, r in sorted(results.items()) if r.status != "pass"}
        elif args.expect:
            wrong += [f"{device}: {text}" for text in differences(results, expected.get(device, {}))]
    if args.write_expect:
        Path(args.expect).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    if args.docs:
        write_docs(Path(args.docs), rows)
    for text in wrong:
        print(text)
    sys.exit(1 if wrong else 0)


def _line(device: str, title: str, counts: Counter[str]) -> str:
    total = counts["pass"] + counts["fail"] + counts["unsupported"]
    kinds = ", ".join(f"{counts[k]} {k}" for k in ("pass", "fail", "unsupported", "host", "compiled"))
    return f"{device} {title}: {total} cases, {kinds}"


def write_docs(page: Path, rows: list[tuple[str, str, Counter[str]]]) -> None:
    """Puts the rows into the table between the page's two marks; rows of other devices stay."""
    begin, end = "<!-- results -->", "<!-- end of results -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    before, _, tail = rest.partition(end)
    table = ["| Device | Cases | Number | Pass | Fail | Unsupported | with a host step | while compiling |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for device, title, c in rows:
        cells = [device, title, c["pass"] + c["fail"] + c["unsupported"],
                 *(c[k] for k in ("pass", "fail", "unsupported", "host", "compiled"))]  # fmt: skip
        table.append("| " + " | ".join(map(str, cells)) + " |")
    heads = {f"| {device} |" for device, _, _ in rows}
    table += [line for line in before.splitlines()[3:] if not line.startswith(tuple(heads))]
    page.write_text(f"{head}{begin}\n" + "\n".join(table) + f"\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
