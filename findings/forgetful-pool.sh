#!/usr/bin/env bash
# Claim: ONNX Runtime 1.32's MaxPool over 2 axes gives other values where its second output, the indices, is asked for
#   as well; of a window in which a NaN is not the first element it gives, without them, the greatest of what follows
#   the last NaN: of columns of 9, NaN and -1 it gives -1.
# A good guess says: a NaN wins, as in torch, or is passed over, as in fmax; the values do not depend on whether the
#   indices are wanted.
# What is so: without indices a vector kernel takes the maximum by an instruction whose answer beside a NaN is always
#   the same operand, so that the next number replaces the NaN and all before it is lost. With indices a loop keeps
#   what it has unless the next is greater: it passes over every NaN but a first one, which it keeps.
# Why it matters to a tensor runtime: a finite result that is none of the two sensible ones hides a NaN behind a pool,
#   and the same file with an unused output removed has other values.
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

print("onnxruntime", onnxruntime.__version__)


def pool(x, outputs):
    node = helper.make_node("MaxPool", ["x"], ["y", "i"][:outputs], kernel_shape=[3, 3])
    kinds = [TensorProto.FLOAT, TensorProto.INT64]
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in zip(["y", "i"][:outputs], kinds)]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].ravel()


nan = float("nan")
same = True
for row, alone, beside in (
    ([9, nan, -1], -1, 9),
    ([nan, 9, -1], 9, nan),
    ([9, -1, nan], nan, 9),
):
    x = np.tile(np.float32([*row, 0, 0, 0]), (3, 1))[None, None]
    got = pool(x, 1)[0], pool(x, 2)[0]
    print(f"a window of three rows {row} beside zeros: {got[0]} without the indices, {got[1]} with them")
    same &= np.array_equal(np.float32(got), np.float32([alone, beside]), equal_nan=True)
sys.exit(0 if same else "the behaviour has changed")
PY
