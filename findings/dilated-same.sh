#!/usr/bin/env bash
# Claim: ONNX Runtime 1.32's MaxPool, AveragePool and LpPool with auto_pad=SAME_UPPER or SAME_LOWER pad as if there
#   were no dilations: 8 elements pooled by 3 with a step of 1 and a dilation of 2 become 6.
# A good guess says: SAME gives ceil(length / stride) elements, 8 here, as the operators' text and onnx's shape
#   inference have it; or dilations are refused, as ONNX Runtime's Conv refuses them beside SAME.
# What is so: the padding is (kernel - 1) / 2 on each side, not dilation times as much, and the result's length follows
#   from it; each window is then right for that padding. A declared shape of 8 is passed over with a warning in the
#   log.
# Why it matters to a tensor runtime: the result is shorter than what the model's shapes say, and a sum with a branch
#   that kept its length fails, or broadcasts.
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

onnxruntime.set_default_logger_severity(4)
print("onnxruntime", onnxruntime.__version__)
x = np.random.default_rng(0).standard_normal((1, 1, 8)).astype(np.float32)
same = True
for op in ("MaxPool", "AveragePool", "LpPool", "Conv"):
    for pad in ("SAME_UPPER", "SAME_LOWER"):
        for dilation in (1, 2):
            inputs = [] if op != "Conv" else ["w"]
            node = helper.make_node(op, ["x", *inputs], ["y"], kernel_shape=[3], dilations=[dilation], auto_pad=pad)
            infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
            weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 3], [1.0, 1.0, 1.0])
            result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
            graph = helper.make_graph([node], "g", infos, result, [weight] if inputs else [])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
            shape = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
            inferred = shape.dim[2].dim_value
            try:
                session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
                got = session.run(None, {"x": x})[0].shape[2]
            except Exception as refused:
                got = type(refused).__name__
            print(f"{op}, {pad}, dilation {dilation}: ONNX Runtime {got}, shape inference {inferred}")
            same &= inferred == 8
            same &= got == (8 if dilation == 1 else 6) if op != "Conv" else isinstance(got, str) == (dilation == 2)
sys.exit(0 if same else "the behaviour has changed")
PY
