#!/usr/bin/env bash
# Claim: ONNX Runtime 1.32's Attention gives 0 for a query whose keys all have the lowest float in a float mask
#   (torch.finfo(dtype).min, -3.4028235e38 or, in f16, -65504), and the mean of the values where they have -3.3e38,
#   -1e9 or, in f16, -60000.
# A good guess says: a finite number that is added to all scores of a row leaves the weights as they are or, rounded,
#   equal, as onnx's reference has it; only -inf shuts a key out, and the operator's text says that a float mask is
#   added "rather than disabling positions".
# What is so: the kernel writes -inf of boolean masks and of the causal rule as the lowest float and takes a row for
#   shut out where its greatest score is that number; a row whose mask has the number itself cannot be told from it.
# Why it matters to a tensor runtime: the lowest float is what transformers writes into its masks, and rows of padding
#   have it everywhere: their states are 0 in ONNX Runtime and the mean of the values in torch and in the reference,
#   after which a norm makes much of the difference.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

print("onnxruntime", onnxruntime.__version__)
rng = np.random.default_rng(0)
same = True
for dtype, numbers in ((np.float32, (-1e9, -3.3e38, np.finfo(np.float32).min)), (np.float16, (-60000, -65504))):
    q, k, v = (rng.standard_normal((1, 2, n, 8)).astype(dtype) for n in (4, 6, 6))
    for number in numbers:
        feed = {"q": q, "k": k, "v": v, "mask": np.full((4, 6), number, dtype)}
        kind = helper.np_dtype_to_tensor_dtype(q.dtype)
        infos = [helper.make_tensor_value_info(n, kind, a.shape) for n, a in feed.items()]
        y = helper.make_tensor_value_info("y", kind, None)
        graph = helper.make_graph([helper.make_node("Attention", list(feed), ["y"])], "g", infos, [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        mean = v.astype(np.float64).mean(2, keepdims=True)
        got = session.run(None, feed)[0]
        want = ReferenceEvaluator(model).run(None, feed)[0]
        off, reference = (float(np.abs(a - mean).max()) for a in (got, want))
        print(f"{dtype.__name__}, mask {number:g}: ONNX Runtime is {off:.1e} from the mean of the values"
              f"{', all zeros' if not got.any() else ''}; onnx's reference {reference:.1e}")
        lowest = number == numbers[-1]
        same &= (not got.any()) == lowest and reference < 2e-3
        same &= lowest or dtype == np.float16 or off < 1e-5
sys.exit(0 if same else "the behaviour has changed")
PY
