#!/usr/bin/env bash
# Claim: safetensors 0.8.0's safetensors.numpy writes what lies in memory behind an array's first element: of x.T, of
#   every other element and of arrays in Fortran's order the elements come back in other places, or others come back.
# A good guess says: the array that is read equals the one that was saved, or the call refuses what is not contiguous, as
#   safetensors.torch does with an error that says what to do.
# What is so: save and save_file pass the address of the first element and a length. Bytes in the other order (>f4) are
#   turned round in the array's own layout first, and then taken in the same way.
# Why it matters to a tensor runtime: NumPy's transposes are views, and weights are transposed when they are converted;
#   such a file is valid, has the right names and shapes, and other numbers. A writer has to make a contiguous copy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 safetensors==0.8.0
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load, save

print("safetensors", safetensors.__version__)
x = np.arange(1, 7, dtype=np.float32)
cases = {
    "contiguous": (x.reshape(2, 3), [[1, 2, 3], [4, 5, 6]]),
    "transposed": (x.reshape(2, 3).T, [[1, 2], [3, 4], [5, 6]]),
    "in Fortran's order": (np.asfortranarray(x.reshape(2, 3)), [[1, 4, 2], [5, 3, 6]]),
    "every other": (x[::2], [1, 2, 3]),
    "transposed, big-endian": (x.astype(">f4").reshape(2, 3).T, [[1, 2], [3, 4], [5, 6]]),
}
same = True
for name, (array, want) in cases.items():
    got = load(save({"x": array}))["x"].tolist()
    print(f"{name}: saved {array.tolist()}, read {got}")
    same &= got == want and (got == array.tolist()) == (name == "contiguous")
sys.exit(0 if same else "the behaviour has changed")
PY
