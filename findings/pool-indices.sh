#!/usr/bin/env bash
# Claim: the indices that onnx 1.23.2's reference of MaxPool gives point outside their windows: with a kernel of 2 by 2
#   and a step of 1 each is 3 too small in rows of 5, negative with padding, and every channel counts from 0 again,
#   with 3 by 3 too.
# A good guess says: the index is that of the element in the flattened tensor of the operator's text, across images and
#   channels, so that taking x at the indices gives the values, as with ONNX Runtime.
# What is so: two implementations stand behind the operator. The one for steps or dilations other than 1 counts as the
#   text says; the other takes the offset in the window as one from a centre, which a kernel of even width has not, and
#   counts from 0 in each image and channel. Its maxima are right, but for padding on
#   one side alone.
# Why it matters to a tensor runtime: MaxUnpool takes these indices, and a runtime that is judged by the reference
#   fails where it is right; onnx's own cases have one channel and a kernel of odd width.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
x = np.arange(40, dtype=np.float32).reshape(1, 2, 4, 5)
same = True
for right, attributes in (
    (True, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    (False, {"kernel_shape": [2, 2]}),
    (False, {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
    (False, {"kernel_shape": [3, 3]}),
):
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in (("y", TensorProto.FLOAT), ("i", TensorProto.INT64))]
    graph = helper.make_graph([helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    print(attributes)
    for who, runner in (("ONNX Runtime", session), ("onnx's reference", ReferenceEvaluator(model))):
        y, i = runner.run(None, {"x": x})
        print(f"  {who}: maxima {y.ravel()[:4]}, indices {i.ravel()[:4]}, of the second channel {i[0, 1].ravel()[:4]}")
        meant = np.array_equal(x.ravel()[i], y)
        same &= meant == (right or who == "ONNX Runtime")
sys.exit(0 if same else "the behaviour has changed")
PY
