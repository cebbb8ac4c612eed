"""The numbers that the codes of bitsandbytes' types of 4 bits stand for."""

from __future__ import annotations

import numpy as np

# nf4 as the paper lists it (Dettmers et al., "QLoRA", 2023, appendix E).
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip


def _small_float(code: int) -> float:
    """A sign, an exponent of two bits, which counts down, and a bit of mantissa."""
    e, m = code >> 1 & 3, code & 1
    return (2.0 ** (4 - e) * (1 + m / 2) if e else m / 16) * (-1 if code & 8 else 1)


FP4 = (np.array([_small_float(code) for code in range(16)]) / 12).astype(np.float32)  # the largest is 1
