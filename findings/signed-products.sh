#!/usr/bin/env bash
# Claim: in NumPy 2.4.6 products of ml_dtypes 0.6's integers of 2 and 4 bits have three answers: of uint4 u = [15, 3]
#   u @ u is -22 in int8, np.dot(u, u) is 10 in uint4, and the sum of squares is 234; 15 ** 2 of two uint4 is -31.
# A good guess says: they wrap modulo 16, as u * u does, for dot, @ and powers alike; or they are summed in a wider type
#   that holds them, and numbers without a sign stay without one.
# What is so: `*`, dot and tensordot are ml_dtypes' own. For matmul, matvec, power and what else it has none of, NumPy takes
#   the first loop that uint4 may be cast to, which is int8: it wraps modulo 256 and turns negative. For bfloat16 and floats
#   of 8 bits the same rule makes `@` a float32, and dot the narrow type: of 600 ones in float8_e4m3fn dot is NaN and `@`
#   600.
# Why it matters to a tensor runtime: packed weights that are checked by NumPy in their own types give a sign that
#   no uint4 has; the products must be taken after a cast to int32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PY'
import sys

import ml_dtypes
import numpy as np

print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__)
u = np.array([15, 3]).astype(ml_dtypes.uint4)
ones = np.ones(600).astype(ml_dtypes.float8_e4m3fn)
got = {
    "u * u": u * u, "u @ u": u @ u, "np.dot(u, u)": np.dot(u, u),
    "u ** 2 in uint4": u ** np.full(2, 2).astype(u.dtype),
    "of 600 ones in float8_e4m3fn, dot": np.dot(ones, ones), "of these, @": ones @ ones,
}
for name, value in got.items():
    print(f"{name}: {np.asarray(value).astype(np.float64).tolist()} in {value.dtype}")
want = [([1, 9], "uint4"), (-22, "int8"), (10, "uint4"), ([-31, 9], "int8"), (np.nan, "float8_e4m3fn"), (600, "float32")]
same = all(
    np.array_equal(np.asarray(a).astype(np.float64), np.float64(b), equal_nan=True) and str(a.dtype) == dtype
    for a, (b, dtype) in zip(got.values(), want, strict=True)
)
sys.exit(0 if same else "the behaviour has changed")
PY
