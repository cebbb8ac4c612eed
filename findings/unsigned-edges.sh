#!/usr/bin/env bash
# Claim: SciPy 1.17's filtfilt, sosfiltfilt and decimate, and stft with boundary="odd", of a signal of 8 bits without a
#   sign, as sound and pictures come in, are wrong at both ends by as much as the signal itself, though they give floats.
# A good guess says: a filter with coefficients in floats gives of integers what it gives of the same numbers in floats,
#   as lfilter, sosfilt, resample_poly, savgol_filter, detrend and hilbert do; at most it refuses integers, as it does
#   not.
# What is so: the samples that are put beside the ends, 2 x[0] - x[i], are computed in the signal's dtype and wrap modulo
#   256; the filter then runs over these in float64.
# Why it matters to a tensor runtime: results for integers cannot be judged by SciPy unless they are cast to floats
#   first, and whoever ports such code from SciPy to floats gets other numbers at the ends: the right ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import scipy
from scipy import signal

print("scipy", scipy.__version__)
x = np.array([3, 250, 7, 200, 90, 10] * 8, np.uint8)
b, a = signal.butter(2, 0.3)
sos = signal.butter(3, 0.3, output="sos")
wrap = {
    "filtfilt": lambda x: signal.filtfilt(b, a, x),
    "sosfiltfilt": lambda x: signal.sosfiltfilt(sos, x),
    "decimate": lambda x: signal.decimate(x, 2),
    "stft, boundary odd": lambda x: signal.stft(x, nperseg=8, boundary="odd")[2],
}
right = {
    "lfilter": lambda x: signal.lfilter(b, a, x),
    "sosfilt": lambda x: signal.sosfilt(sos, x),
    "savgol_filter": lambda x: signal.savgol_filter(x, 5, 2),
    "detrend": signal.detrend,
    "resample_poly": lambda x: signal.resample_poly(x, 3, 2, padtype="mean"),
    "hilbert": signal.hilbert,
}
same = True
for expected, calls in ((True, wrap), (False, right)):
    for name, call in calls.items():
        integers, floats = call(x), call(x.astype(np.float64))
        away = np.abs(integers - floats)
        print(f"{name}: {integers.dtype}, off by at most {away.max():.3g}, in the middle by {away[..., away.shape[-1] // 2].max():.1g}")
        same &= (away.max() > 30) == expected
print("filtfilt of uint8:  ", np.round(signal.filtfilt(b, a, x)[:4], 2))
print("filtfilt of float64:", np.round(signal.filtfilt(b, a, x.astype(np.float64))[:4], 2))
sys.exit(0 if same else "the behaviour has changed")
PY
