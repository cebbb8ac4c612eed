"""A sweep over ONNX files that other tools write, beside ONNX Runtime.

    python -m tests.onnx.sweep FOLDER [--only TEXT] [--device cpu]

Makes some hundreds of small files in the folder, where they stay for the next sweep: networks through both of torch's
exporters, estimators of scikit-learn, LightGBM and XGBoost, and what quantizers, optimizers, fp16 converters and
onnxslim make of some of them. Whatever ONNX Runtime runs is run by rlx.onnx.InferenceSession on the same seeded
numbers. Results are equal where integers, strings and shapes are, and floats to 1e-5 of the largest. A difference is
explained where the file draws random numbers, where each tensor of integers within a quantized file, computed from
ONNX Runtime's, is the same but for a step in few numbers, where it rounds to 16 bits on its way and differs by less
than a few such roundings, where rlx is as near as ONNX Runtime to the float64 reference of the same graph, and where
ONNX Runtime's error there is larger than the result.

It needs what it sweeps: onnxruntime, torch with onnxscript, torchvision, transformers, scikit-learn with skl2onnx,
LightGBM and XGBoost with onnxmltools, onnxconverter-common, onnxslim; what is missing is left out. Exit status 1 where
less than 97 % of what ONNX Runtime runs is run, or a difference has no explanation.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import rlx
from rlx.conformance.oracle import evaluate
from tests.onnx.runtime import session
from tests.onnx.sweep import steps

NEAR = 1e-5  # of the largest number
HALF = 2e-3  # of the largest number, after several roundings to 16 bits
SHARE = 0.97
COLUMNS = ("made", "ORT runs", "rlx runs", "equal", "explained")
Feeds = dict[str, np.ndarray]
Maker = Callable[[Path], Feeds | None]


def files(folder: Path) -> Iterator[tuple[str, str, Maker]]:
    """(kind, name, what writes the file and gives the feeds); reworked files come after those that they are made of."""
    import torch

    from tests.onnx.sweep import architectures, networks, quantizers, tables, tools

    for name, build in (*networks.families(), *architectures.families()):
        for kind, dynamo in (("torch, TorchScript", False), ("torch, dynamo", True)):
            if dynamo and name in architectures.LARGE:
                continue  # that exporter takes minutes for these

            def export(path: Path, build: Any = build, dynamo: bool = dynamo, axes: int = 0) -> Feeds:
                torch.manual_seed(0)
                with tools.silent():
                    return networks.exported(build(), path, dynamo, axes)

            yield kind, name, export
            if name in networks.OPEN:
                yield f"{kind}, open lengths", name, partial(export, axes=networks.OPEN[name])
    for package, group in (("sklearn", tables.SKLEARN), *((n, {n: t}) for n, t in tables.BOOSTERS.items())):
        for name, write in tables.estimators(group, "sklearn" if package == "sklearn" else "").items():
            yield package, name, write
    for name, write in tables.pipelines().items():
        yield "sklearn, pipelines", name, write
    for name, write in quantizers.scales().items():
        yield "scales", name, write
    for kind, what, make, sources in (*tools.reworks(), *quantizers.settings()):
        for source in sources:

            def rework(path: Path, source: str = source, make: Any = make) -> Feeds | None:
                exports = [
                    folder / f"{_plain(k)}--{source}.onnx" for k in ("torch, TorchScript", "torch, dynamo")
                ]
                given = next((p for p in exports if _feeds_beside(p) is not None), exports[0])
                feeds = _feeds_beside(given)
                if feeds is None:
                    return None
                with tools.silent():
                    make()(given, path, feeds)
                inputs = {i.name: i for i in onnx.load(path, load_external_data=False).graph.input}
                kinds = {n: inputs[n].type.tensor_type.elem_type for n in feeds if n in inputs}
                return {
                    n: a.astype(np.float16)
                    if kinds.get(n) == onnx.TensorProto.FLOAT16 and a.dtype == np.float32
                    else a
                    for n, a in feeds.items()
                }

            yield kind, f"{what}-{source}", rework


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in name)


def _feeds_beside(path: Path) -> Feeds | None:
    """The feeds that were saved beside a file; None where the file was not made."""
    beside = path.with_suffix(".npz")
    return dict(np.load(beside)) if path.exists() and beside.exists() else None


def made(path: Path, make: Maker) -> Feeds | None:
    """The feeds of a file, which is made where it is not there. None, and a reason beside it, where that fails."""
    reason = path.with_suffix(".txt")
    if reason.exists():
        return None
    feeds = _feeds_beside(path)
    if feeds is not None:
        return feeds
    try:
        feeds = make(path)
    except Exception as error:  # noqa: BLE001 - exporters raise what they like
        reason.write_text(f"{type(error).__name__}: {error}")
        return None
    if feeds is not None:
        np.savez(path.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]
    return feeds


def flat(value: Any) -> list[np.ndarray]:
    """The arrays of a result: of a list its items, of maps their keys and values."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [np.array([list(v) for v in value], object), np.array([list(v.values()) for v in value])]
    return [a for v in value for a in flat(v)] if isinstance(value, list) else [np.asarray(value)]


def distance(got: list[np.ndarray], want: list[np.ndarray]) -> tuple[float, str]:
    """The largest difference of floats, as a share of the largest number; and what differs otherwise."""
    worst = 0.0
    if len(got) != len(want):
        return np.inf, f"{len(got)} results for {len(want)}"
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.shape != b.shape or (b.dtype != object and a.dtype != b.dtype):
            return np.inf, f"output {k} is {a.dtype} {a.shape}, expected {b.dtype} {b.shape}"
        if b.dtype.kind not in "fV":
            wrong = np.count_nonzero(a != b)
            if wrong:
                return np.inf, f"{wrong} of {b.size} of output {k} differ"
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(y)
        if not np.array_equal(np.where(finite, 0, y), np.where(np.isfinite(x), 0, x), equal_nan=True):
            return np.inf, f"output {k} is not finite elsewhere"
        top = max(float(np.abs(y[finite]).max(initial=0)), 1e-30)
        worst = max(worst, float(np.abs(x[finite] - y[finite]).max(initial=0)) / top)
    return worst, ""


def explained(
    path: Path, feeds: Feeds, device: str, off: float, got: list[np.ndarray], want: list[np.ndarray]
) -> str:
    """Why results that differ by `off` are both right; empty where nothing explains it."""
    proto = onnx.load(path)
    kinds = {n.op_type for n in _nodes(proto.graph)} | {n.op_type for f in proto.functions for n in f.node}
    if any(k.startswith("Random") or k in ("Bernoulli", "Multinomial") for k in kinds):
        return "draws random numbers"
    plain = steps.run(path.read_bytes(), feeds, "DISABLE_ALL")
    if distance(got, flat([plain[o.name] for o in proto.graph.output]))[0] <= NEAR:
        return f"ONNX Runtime gives the same without its optimizations, which change it by {off:.0e}"
    if any("Quant" in k or k.startswith("QLinear") or k in ("QGemm", "MatMulInteger", "ConvInteger") for k in kinds):
        said, good = steps.compared(proto, feeds, lambda data: rlx.onnx.InferenceSession(data, device=device))
        if good:
            return said
    built = rlx.onnx.load(path).built(feeds)
    values = evaluate(built.graph, {**built.feeds, **built.weights})
    exact = [
        values[built.graph.outputs[o.name].id] for o in proto.graph.output if o.name in built.graph.outputs
    ]
    if len(exact) != len(want):
        return ""
    ours, theirs = (
        max(distance([a.astype(np.float64)], [_as_far_as(a.dtype, e)])[0]
            for a, e in zip(each, exact, strict=True) if a.dtype.kind == "f")
        for each in (got, want)
    )  # fmt: skip
    if ours <= max(NEAR, 1.5 * theirs):
        return f"beside float64 rlx is {ours:.0e} off, ONNX Runtime {theirs:.0e}"
    if theirs > 1:
        return f"nothing is left in f32: ONNX Runtime is {theirs:.0e} off, rlx {ours:.0e}"
    halves = any(i.data_type == onnx.TensorProto.FLOAT16 for i in proto.graph.initializer)
    return f"f16, {off:.0e}" if halves and off < HALF else ""


def _as_far_as(dtype: Any, exact: np.ndarray) -> np.ndarray:
    """Results in float64, infinite where they are beyond the largest number of a type."""
    wide = exact.astype(np.float64)
    return np.where(np.abs(wide) > np.finfo(dtype).max, np.copysign(np.inf, wide), wide)


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def compared(path: Path, feeds: Feeds, device: str) -> tuple[str, str]:
    """What became of a file: the last of `COLUMNS` it reached, or "differs", and what is to be said."""
    try:
        judge = session(onnx.load(path))
        names = [i.name for i in judge.get_inputs()]
        feeds = {n: feeds[n].astype(object) if feeds[n].dtype.kind == "U" else feeds[n] for n in names}
        want = flat(judge.run(None, feeds))
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no base
        return "made", str(error).replace("\n", " ")[:160]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = flat(rlx.onnx.InferenceSession(path, device=device).run(None, feeds))
    except Exception as error:  # noqa: BLE001 - whatever comes is a finding
        return "ORT runs", f"{type(error).__name__}: {str(error)[:400]}"
    off, said = distance(got, want)
    if off <= NEAR:
        return "equal", f"{off:.0e}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            why = explained(path, feeds, device, off, got, want)
        except Exception as error:  # noqa: BLE001 - one file must not end the sweep
            return "rlx runs", f"{said or f'differs by {off:.1e}'}; {type(error).__name__}: {str(error)[:200]}"
    return ("explained", why) if why else ("rlx runs", said or f"differs by {off:.1e}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="files whose kind or name holds this text")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="a line for each file")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, Counter[str]] = {}
    for kind, name, make in files(args.folder):
        if args.only not in f"{kind} {name}":
            continue
        path = args.folder / f"{_plain(kind)}--{_plain(name)}.onnx"
        start = time.perf_counter()
        feeds = made(path, make)
        row = counts.setdefault(kind, Counter())
        if feeds is None:
            continue
        reached, said = compared(path, feeds, args.device)
        row.update(COLUMNS[: 4 if reached == "equal" else COLUMNS.index(reached) + 1])
        row["equal"] -= reached == "explained"
        if args.verbose or reached in ("ORT runs", "rlx runs"):
            took = time.perf_counter() - start
            print(f"{kind}: {name}: {reached}: {said} [{took:.1f} s]", file=sys.stderr, flush=True)
    counts["all"] = sum(counts.values(), Counter())
    print(f"| Files | {' | '.join(COLUMNS)} |\n|{'---|' * (1 + len(COLUMNS))}")
    for kind, row in counts.items():
        print(f"| {kind} | {' | '.join(str(row[c]) for c in COLUMNS)} |")
    whole = counts["all"]
    unexplained = whole["rlx runs"] - whole["equal"] - whole["explained"]
    return int(whole["rlx runs"] < SHARE * whole["ORT runs"] or unexplained > 0)


if __name__ == "__main__":
    raise SystemExit(main())
