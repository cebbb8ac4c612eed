"""The cases of onnx.backend.test on one device: `python -m rlx.formats.onnx.suite --device cpu [--only REGEX]`.

Every case is run and counted: pass, fail, or unsupported with the reason. Nothing is skipped.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from rlx.errors import RlxError, UnsupportedOp
from rlx.formats.onnx.backend import Backend

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
    return item


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


def compare(expected: list[Any], made: tuple[Any, ...], rtol: float, atol: float) -> str | None:
    """What differs, None where nothing does: dtypes, shapes, and values as onnx's own runner compares them."""
    if len(expected) != len(made):
        return f"{len(made)} outputs, expected {len(expected)}"
    for i, (want, got) in enumerate(zip(expected, made, strict=True)):
        if not isinstance(want, np.ndarray | np.generic):
            return f"output {i} should be a {type(want).__name__}"
        want = np.asarray(want)
        if want.dtype != got.dtype or want.shape != got.shape:
            return f"output {i} is {got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
        if want.dtype.kind not in "fV":
            if not np.array_equal(want, got):
                return f"output {i}: {int(np.sum(want != got))} of {want.size} elements differ"
            continue
        a, b = want.astype(np.float64), got.astype(np.float64)
        if not np.allclose(b, a, rtol=rtol, atol=atol, equal_nan=True):
            with np.errstate(all="ignore"):
                return f"output {i}: differs by up to {np.nanmax(np.abs(a - b)):.3g}"
    return None


def run_case(case: Any, device: str) -> tuple[str, str]:
    """("pass" | "fail" | "unsupported", reason)."""
    try:
        with np.errstate(all="ignore"):
            model, sets = data_of(case)
            prepared = Backend.prepare(model, device)
            for inputs, expected in sets:
                wrong = compare(expected, prepared.run(inputs), case.rtol, case.atol)
                if wrong is not None:
                    return "fail", wrong
    except UnsupportedOp as error:
        return "unsupported", str(error)
    except RlxError as error:
        return "fail", f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  (a crash is a result that the table must show)
        return "fail", f"crash: {type(error).__name__}: {error}"
    return "pass", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="a regular expression of case names")
    parser.add_argument("--sets", default="", help="a JSON file of named lists of cases, counted one by one")
    parser.add_argument("--out", default="", help="where to write every result as JSON")
    parser.add_argument("--show", action="store_true", help="print what did not pass")
    args = parser.parse_args()
    results: dict[str, tuple[str, str]] = {}
    start = time.perf_counter()
    for case in cases():
        if re.search(args.only, case.name):
            results[case.name] = run_case(case, args.device)
            status, reason = results[case.name]
            if args.show and status != "pass":
                print(f"{status} {case.name}: {reason[:300]}", flush=True)
    report("all", list(results), results)
    if args.sets:
        for name, names in json.loads(Path(args.sets).read_text(encoding="utf-8")).items():
            if isinstance(names, list):
                report(name, [n for n in names if n in results], results)
    print(f"{args.device}: {time.perf_counter() - start:.0f} s")
    if args.out:
        text = json.dumps(dict(sorted(results.items())), indent=1)
        Path(args.out).write_text(text + "\n", encoding="utf-8")


def report(title: str, names: list[str], results: dict[str, tuple[str, str]]) -> None:
    count = Counter(results[n][0] for n in names)
    print(
        f"{title}: {len(names)} cases, "
        + ", ".join(f"{count[k]} {k}" for k in ("pass", "fail", "unsupported"))
    )


if __name__ == "__main__":
    main()
