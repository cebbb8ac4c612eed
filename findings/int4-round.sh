#!/usr/bin/env bash
# Claim: ONNX Runtime 1.32's Cast of floats to INT4, UINT4, INT2 and UINT2 rounds halves away from zero and then wraps:
#   0.5 becomes 1, -1.5 becomes -2, and 7.6 becomes -8 in INT4. Its Cast to INT8 drops the fraction (0, -1 and 7), and
#   its QuantizeLinear to INT4 with a scale of 1 rounds halves to even and saturates (0, -2 and 7).
# A good guess says: a cast to an integer drops the fraction, whatever its width, as onnx's reference, ml_dtypes and
#   ONNX Runtime's own casts to 8 to 64 bits do; or it rounds as QuantizeLinear does.
# What is so: the casts to packed integers are a path of their own, which calls C's round on the float first. So casts
#   to INT8 and on to INT4 give other numbers than one cast, and 7.6, whose integer part INT4 holds, changes its sign.
# Why it matters to a tensor runtime: three roundings for one format of weights in one runtime; a model that casts to
#   INT4 cannot be judged by ONNX Runtime unless its numbers are integers.
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

x = np.float32([0.5, 0.7, 1.5, 2.5, -0.7, -1.5, 6.4, 7.6])
print("onnxruntime", onnxruntime.__version__, "of", x)


def run(*nodes):
    """What ONNX Runtime and onnx's reference give for the nodes, read as floats."""
    nodes = [*nodes, helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy"]
    one = [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])] if nodes[0].op_type == "QuantizeLinear" else []
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], one)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].tolist(), ReferenceEvaluator(model).run(None, {"x": x})[0].tolist()


def cast(name):
    return helper.make_node("Cast", ["x"], ["m"], to=getattr(TensorProto, name))


quantize = helper.make_node("QuantizeLinear", ["x", "one"], ["m"], output_dtype=TensorProto.INT4)
twice = [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT8),
         helper.make_node("Cast", ["i"], ["m"], to=TensorProto.INT4)]
dropped = [0, 0, 1, 2, 0, -1, 6, 7]
same = True
for title, nodes, seen, reference in (
    ("Cast to INT8", [cast("INT8")], dropped, dropped),
    ("Cast to INT4", [cast("INT4")], [1, 1, 2, 3, -1, -2, 6, -8], dropped),
    ("Cast to UINT4", [cast("UINT4")], [1, 1, 2, 3, 15, 14, 6, 8], [0, 0, 1, 2, 0, 15, 6, 7]),
    ("Cast to INT2", [cast("INT2")], [1, 1, -2, -1, -1, -2, -2, 0], [0, 0, 1, -2, 0, -1, -2, -1]),
    ("Cast to INT8, then to INT4", twice, dropped, dropped),
    ("QuantizeLinear to INT4", [quantize], [0, 1, 2, 2, -1, -2, 6, 7], None),
):
    got, want = run(*nodes)
    print(f"{title}: ONNX Runtime {got}, onnx's reference {want}")
    same &= got == seen and (reference is None or want == reference)
sys.exit(0 if same else "the behaviour has changed")
PY
