#!/usr/bin/env bash
# Claim: ONNX Runtime 1.32's Range of floats adds the step again and again: from 0 to 20000 by 0.3 its last elements
#   are 7.5 too large, 25 steps away and beyond the limit; from 0 to 1000 by 0.1 they are one step off, from 0 to 1 by
#   0.0001 half a step.
# A good guess says: element i is start + i * delta, as the operator's text says, within a rounding or two of float32.
# What is so: the number of elements is computed from the formula, the elements by a running sum in the inputs' dtype,
#   whose roundings all go one way while the sum stays between two powers of two. In float64 it is the same on its
#   scale.
# Why it matters to a tensor runtime: times, positions and grids of exported models are Ranges of floats, and one that
#   follows the text differs from ONNX Runtime by whole steps in long ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, []) for n in ("start", "limit", "delta")]
graph = helper.make_graph([helper.make_node("Range", ["start", "limit", "delta"], ["y"])], "g", infos,
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
same = True
print("onnxruntime", onnxruntime.__version__)
for limit, delta, steps in ((1, 1e-4, 0.5), (1000, 0.1, 0.9), (20000, 0.3, 25), (100000, 1, 0)):
    feed = {n: np.array(v, np.float32) for n, v in (("start", 0), ("limit", limit), ("delta", delta))}
    got, want = session.run(None, feed)[0], ReferenceEvaluator(model).run(None, feed)[0]
    exact = np.arange(len(got)) * float(np.float32(delta))
    off, reference = (np.abs(y - exact).max() / delta for y in (got, want))
    print(f"0 to {limit} by {delta}: {len(got)} elements, the last {got[-1]}, exactly {exact[-1]:.7g}; "
          f"off by at most {off:.2g} steps, onnx's reference by {reference:.1g}")
    same &= abs(off - steps) <= 0.2 * steps and reference < 0.01 and len(got) == len(want)
sys.exit(0 if same else "the behaviour has changed")
PY
