#!/usr/bin/env bash
# Claim: NumPy 2.4.6 does not sort arrays of ml_dtypes 0.6's bfloat16 and floats of 8 bits that hold a NaN: np.sort of
#   [3, nan, 2, 1] is [3, nan, 1, 2], np.unique keeps equal numbers apart, and np.median may be the least number.
# A good guess says: NaNs come last and the numbers before them are in order, as for float16 and float32; at worst the NaN
#   is in a wrong place, or the result is NaN.
# What is so: the sort compares by <, for which a NaN is equal to everything, so each NaN is a wall: the numbers on its two
#   sides are sorted by themselves (or less than that in long arrays). searchsorted and unique take that for sorted.
#   max, min and argmax know NaN and are right.
# Why it matters to a tensor runtime: quantiles, top-k, unique and histograms of bfloat16 tensors that come as NumPy
#   arrays are finite and wrong after one NaN; NumPy cannot judge them in these types, only after a cast to float32.
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
same = True
for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
    dtype = np.float16 if name == "float16" else getattr(ml_dtypes, name)
    x = np.array([3, np.nan, 2, 1], np.float32).astype(dtype)
    y = np.array([1, np.nan, 2, np.nan, 1], np.float32).astype(dtype)
    z = np.array([9, np.nan, 1, 2, 3], np.float32).astype(dtype)
    got = [np.sort(x), np.unique(y), np.median(z), np.max(x)]
    got = [np.asarray(a, np.float64).tolist() for a in got]
    print(f"{name}: sort of 3 nan 2 1 {got[0]}, unique of 1 nan 2 nan 1 {got[1]}, median of 9 nan 1 2 3 {got[2]}")
    nan = np.nan
    want = [[1, 2, 3, nan], [1, 2, nan], nan, nan] if name == "float16" else [[3, nan, 1, 2], [1, nan, 2, nan, 1], 1, nan]
    same &= all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, want, strict=True))
sys.exit(0 if same else "the behaviour has changed")
PY
