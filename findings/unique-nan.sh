#!/usr/bin/env bash
# Claim: ONNX Runtime 1.32's Unique of floats loses numbers beside a NaN: of [nan, 1, nan, 2, 3] the unique values are
#   [nan] with the count 5, and of [1, 2, 3, nan] they are [1, 2, 3], where the NaN is counted as a 1.
# A good guess says: NaNs are one value, as in NumPy and onnx's reference, or each is its own, as in torch; every
#   number stays what it is.
# What is so: an ordered map of the values compares with <, for which NaN is equal to everything, so that what comes
#   first at a place of the map stands for what follows: the inverse indices say that 2 and 3 are NaN, or that NaN is
#   the 3 or 1 which the map happens to hold at its root. No order of the input gives NaN and the numbers.
# Why it matters to a tensor runtime: one NaN among labels or clusters gives no error and no NaN but other groups;
#   counts and inverse indices of such inputs cannot be judged by ONNX Runtime.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/venv/bin/python" - <<'PY'
import itertools
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

names = ["values", "first", "inverse", "counts"]
kinds = [TensorProto.FLOAT, *[TensorProto.INT64] * 3]
infos = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(names, kinds)]
graph = helper.make_graph([helper.make_node("Unique", ["x"], names, sorted=0)], "g",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])], infos)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
nan = float("nan")
same = True
print("onnxruntime", onnxruntime.__version__)
for x, values, inverse in (
    ([nan, 1, nan, 2, 3], [nan], [0, 0, 0, 0, 0]),
    ([1, 2, 3, nan], [1, 2, 3], [0, 1, 2, 0]),
    ([3, 2, 1, nan, 1, 2, 3], [3, 2, 1], [0, 1, 2, 2, 2, 1, 0]),
):
    x = np.float32(x)
    got, want = session.run(None, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})
    for who, (v, _, i, c) in (("ONNX Runtime", got), ("onnx's reference", want)):
        print(f"{x}: {who}: values {v}, inverse {i}, counts {c}")
    same &= np.array_equal(got[0], np.float32(values), equal_nan=True) and got[2].tolist() == inverse
sizes = {len(session.run(None, {"x": np.float32(x)})[0]) for x in itertools.permutations([nan, 1, 2, 3])}
print("values of 4 different ones, in all orders:", sizes)
sys.exit(0 if same and max(sizes) == 3 else "the behaviour has changed")
PY
