"""Quantized files, one quantized tensor at a time: a number between two steps may round to either, and all numbers
behind it follow. So each tensor of integers is computed from those that ONNX Runtime has made, by rlx and by ONNX
Runtime with its optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.onnx.runtime import session

Arrays = dict[str, np.ndarray]
NARROW = ("int8", "uint8", "int16", "uint16")
SHARE = 0.02  # of the numbers of a tensor that may lie between two steps


def run(model: bytes, feeds: Arrays, level: str) -> Arrays:
    """ONNX Runtime's results by name, with its optimizations up to a level."""
    judge = session(onnx.load_from_string(model), level)
    given = {i.name: feeds[i.name] for i in judge.get_inputs()}
    found = zip(judge.get_outputs(), judge.run(None, given), strict=True)
    # ONNX Runtime gives floats of 8 bits as their bytes, and integers of 4 bits as it packs them.
    return {o.name: a if "float8" not in o.type and "int4" not in o.type else a.view("V1") for o, a in found}


def _cut(proto: onnx.ModelProto, feeds: Arrays) -> tuple[onnx.ModelProto, Arrays, Arrays]:
    """The model with each narrow tensor that depends on the inputs as an input and, under another name, an output; its
    feeds; and what ONNX Runtime makes of the file as it is, without optimizations."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    final = [o.name for o in graph.output]
    depend = {i.name for i in graph.input} - {w.name for w in graph.initializer}
    inner = [n for n in graph.node if any(i in depend for i in n.input) and not depend.update(n.output)]
    watched = [o for n in inner for o in n.output if o and o not in final]
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in watched)
    made = run(model.SerializeToString(), feeds, "DISABLE_ALL")
    narrow = [name for name in watched if made[name].dtype.name in NARROW]
    del graph.output[len(final) :]
    for node in graph.node:
        for k, name in enumerate(node.output):
            if name in narrow:
                node.output[k] = f"{name}.made"
    kept = [v for v in graph.value_info if v.name not in narrow]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for name in narrow:
        kind = helper.np_dtype_to_tensor_dtype(made[name].dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, made[name].shape))
        graph.output.append(helper.make_tensor_value_info(f"{name}.made", kind, made[name].shape))
    wanted = {n.removesuffix(".made"): n for n in [o.name for o in graph.output]}
    return model, {**feeds, **{n: made[n] for n in narrow}}, {wanted[n]: made[n] for n in wanted}


def compared(proto: onnx.ModelProto, feeds: Arrays, load: Any) -> tuple[str, bool]:
    """What rlx makes of each quantized tensor from ONNX Runtime's, in words; and whether all of it is as it should be:
    one step off at most, in few numbers, and floats equal."""
    model, given, want = _cut(proto, feeds)
    data = model.SerializeToString()
    session = load(data)
    got = dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))
    optimized = run(data, given, "ENABLE_ALL")
    good, between, others, whole, worst = True, 0, 0, 0, 0.0
    for name, right in want.items():
        a, b = np.asarray(got[name]), np.asarray(right)
        if b.dtype.name in NARROW:
            off = np.abs(a.astype(np.int64) - b.astype(np.int64))
            between, whole = between + np.count_nonzero(off), whole + off.size
            others += np.count_nonzero(optimized[name] != b)
            good &= off.max(initial=0) <= 1 and np.count_nonzero(off) <= max(1, SHARE * off.size)
        elif b.dtype.kind == "f":
            x, y = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(y)
            top = max(float(np.abs(y[finite]).max(initial=0)), 1e-30)
            far = float(np.abs(x - y)[finite].max(initial=0)) / top
            worst = max(worst, far)
            good &= far <= (2e-3 if b.dtype == np.float16 else 1e-5)
        else:
            good &= np.array_equal(a, b)
    said = f"tensor by tensor {between} of {whole} numbers are a step off (ONNX Runtime optimized: {others})"
    return f"{said}, floats {worst:.0e}", bool(good and whole)
