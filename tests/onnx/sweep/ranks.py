"""A sweep over the shapes of operators' inputs: onnx's own cases with one input in another form.

    python -m tests.onnx.sweep.ranks [--only OPERATOR …] [--write]

An input gets an axis more or less, becomes a scalar, is cut to length 1, is one shorter or longer. Counted is what rlx
refuses, what only strict=True refuses, and what that takes where onnx's strict shape inference refuses the model; the
counts are written into tests/onnx/data/ranks.md, exit status 1 where there are any of the last. Operators that
broadcast, or work on elements, take any shape and are left out, as are those whose bodies declare shapes. Listed, not
judged, is what rlx takes and ONNX Runtime refuses, which refuses more for want of a kernel.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

import rlx
from rlx.errors import RlxError
from rlx.onnx.suite import cases, data_of

TABLE = Path(__file__).parent.parent / "data" / "ranks.md"
ANY = frozenset(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
    "Cast CastLike Ceil Celu Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid "
    "HardSwish Identity If IsInf IsNaN LeakyRelu Less LessOrEqual Log Loop Max Mean Min Mish Mod Mul Neg NonZero "
    "Not Optional OptionalGetElement OptionalHasElement Or Pow RandomNormalLike Reciprocal RegexFullMatch Relu "
    "Round Scan Selu SequenceConstruct SequenceMap Shape Shrink Sigmoid Sign Sin Sinh Size Softplus Softsign Sqrt "
    "StringConcat Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor".split()
)
FAULTS = (
    ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.InvalidGraph, ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)  # fmt: skip
# The text gives these a value, which onnx's inference and ONNX Runtime refuse.
TAKEN = frozenset({("OneHot", "indices", "a scalar")})
EACH = 2  # cases of one operator, input, rank and form


def forms(a: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "an axis before", a.reshape(1, *a.shape)
    if not a.ndim:
        yield "two axes", a.reshape(1, 1)
        return
    yield "an axis behind", a.reshape(*a.shape, 1)
    if a.size:
        yield "a scalar", np.array(a.reshape(-1)[0], a.dtype)
    if a.ndim > 1:
        yield "two axes in one", a.reshape(-1, *a.shape[2:])
    for axis, n in enumerate(a.shape):
        if n == 1:
            yield f"without axis {axis}", np.squeeze(a, axis)
        if n > 1:
            yield f"axis {axis} of one", np.take(a, [0], axis)
        if n > 2:
            yield f"axis {axis} shorter", np.take(a, range(n - 1), axis)
        if n:
            yield f"axis {axis} longer", np.concatenate([a, np.take(a, [0], axis)], axis)


def mutated(model: Any, place: int, shape: tuple[int, ...]) -> Any:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    declared = copy.graph.input[place].type.tensor_type
    del declared.shape.dim[:]
    for n in shape:
        declared.shape.dim.add().dim_value = n
    for info in copy.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return copy


def taken(model: Any, feeds: dict[str, Any], strict: bool) -> bool:
    try:
        with np.errstate(all="ignore"):
            rlx.onnx.load(model, strict=strict).run(feeds, device="cpu")
    except RlxError:
        return False
    return True


def runs(model: Any, feeds: dict[str, Any]) -> bool:
    try:
        ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    except (RuntimeError, ValueError, *FAULTS):
        return False
    return True


def inferred(model: Any) -> bool:
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def sweep(only: list[str] | None) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    seen: Counter[Any] = Counter()
    for case in cases():
        model, sets = data_of(case) if case.kind == "node" else (None, [])
        if model is None or len(model.graph.node) != 1 or "expanded" in case.name:
            continue
        node = model.graph.node[0]
        inputs = dict(zip((i.name for i in model.graph.input), sets[0][0], strict=True))
        arrays = [(k, n, a) for k, (n, a) in enumerate(inputs.items()) if isinstance(a, np.ndarray)]
        if node.op_type in ANY or (only and node.op_type not in only) or not arrays:
            continue
        if not inferred(mutated(model, arrays[0][0], arrays[0][2].shape)):
            continue
        for place, name, array in arrays:
            for form, other in forms(array):
                key = node.op_type, name, array.ndim, form
                seen[key] += 1
                if seen[key] > EACH:
                    continue
                changed, feeds = mutated(model, place, other.shape), {**inputs, name: other}
                row = counts.setdefault(node.op_type, [0, 0, 0, 0])
                strict = taken(changed, feeds, True)
                loose = strict or taken(changed, feeds, False)
                wrong = strict and (node.op_type, name, form) not in TAKEN and not inferred(changed)
                row[0] += 1
                row[1] += not loose
                row[2] += loose and not strict
                row[3] += wrong
                if wrong or (strict and not runs(changed, feeds)):
                    judge = "shape inference" if wrong else "ONNX Runtime"
                    print(node.op_type, name, form, array.shape, other.shape, "taken,", judge, "refuses", flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(4)
    counts = sweep(options.only)
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = ["| Operator | forms | refused | if strict | taken against inference |", "|---|---|---|---|---|"]
    rows = (*sorted(counts.items()), ("all", total))
    lines += [f"| {kind} | {' | '.join(map(str, numbers))} |" for kind, numbers in rows]
    print("\n".join(lines))
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n")
    return 1 if total[3] else 0


if __name__ == "__main__":
    sys.exit(main())
