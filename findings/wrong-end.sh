#!/usr/bin/env bash
# Claim: onnx 1.23.2's reference of QuantizeLinear saturates numbers beyond 2**31 scales to the wrong end: 3e9 and
#   infinity become -128 in int8 and 0 in uint8, and of int16 and uint16 the lowest number too.
# A good guess says: y = saturate(round(x / scale) + zero_point), so the greatest number of the type, as in ONNX
#   Runtime.
# What is so: the rounded quotient is cast to int32 before it is clipped, and x86's cast of a float beyond int32 is
#   -2**31, which the clip takes to the lowest end. Negative numbers are right by the same accident.
# Why it matters to a tensor runtime: an outlier or an infinity over a small scale is the case for which saturation is
#   there, and beside that reference the runtime that saturates is wrong by the whole range.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/venv/bin/python" - <<'PY'
import platform
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

if platform.machine() != "x86_64":
    sys.exit(print("other processors cast otherwise: not run"))
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
x = np.float32([1e9, 3e9, np.inf, -3e9, -np.inf])
same = True
for dtype in (np.int8, np.uint8, np.int16, np.uint16):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    feed = {"x": x, "scale": np.array(1, np.float32), "zero": np.array(0, dtype)}
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
             helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
             helper.make_tensor_value_info("zero", kind, [])]
    graph = helper.make_graph([helper.make_node("QuantizeLinear", list(feed), ["y"])], "g", infos,
                              [helper.make_tensor_value_info("y", kind, x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model).run(None, feed)[0].tolist()
    got = session.run(None, feed)[0].tolist()
    print(f"{x} as {dtype.__name__}: onnx's reference {want}, ONNX Runtime {got}")
    same &= want == [high, low, low, low, low] and got == [high, high, high, low, low]
sys.exit(0 if same else "the behaviour has changed")
PY
