"""`python -m tests.ops.fft_sweep --device D`: Fourier transforms of every length against scipy.fft in float64.

By default all lengths from 1 to 4,096, of two lines each, in f32 and f64, by fft, rfft and irfft. The relative error of
a whole line may be a unit in the last place for each binary digit of the length. Exit status 1 where one is larger.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.fft

import rlx
from rlx.dtypes import DType, f32, f64

LIMITS = {"f32": 1.2e-7, "f64": 2.3e-16}
_TOGETHER = 32  # lengths in one graph


def errors(
    session: rlx.Session, name: str, dtype: DType, lengths: Sequence[int], seed: int
) -> dict[int, float]:
    """The relative error of each length over what is allowed."""
    rng, graph, feeds, want = np.random.default_rng(seed), rlx.Graph(name), {}, {}
    for n in lengths:
        shape = (2, n) if name == "rfft" else (2, n // 2 + 1 if name == "irfft" else n, 2)
        feeds[f"x{n}"] = x = rng.standard_normal(shape).astype(dtype.np)
        wide: Any = x.astype(np.float64)
        given = wide if name == "rfft" else wide[..., 0] + 1j * wide[..., 1]
        made = getattr(scipy.fft, name)(given, n)
        want[n] = np.stack([made.real, made.imag], -1) if np.iscomplexobj(made) else made
        pairs = {} if name == "rfft" else {"pairs": True}
        graph.output(f"y{n}", getattr(rlx.fft, name)(graph.input(f"x{n}", shape, dtype), n, **pairs))
    with session.compile(graph) as compiled:
        got = compiled.run(feeds)
    return {
        n: float(np.linalg.norm(got[f"y{n}"] - want[n]) / np.linalg.norm(want[n]))
        / (LIMITS[dtype.name] * (1 + np.log2(n)))
        for n in lengths
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=4096)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--more", type=int, nargs="*", default=[1 << 16, 65537, 1 << 20])
    asked = parser.parse_args()
    session = rlx.Session(asked.device, fallback="error")
    lengths = [*range(asked.first, asked.last + 1, asked.step), *asked.more]
    wrong = 0
    for name in ("fft", "rfft", "irfft"):
        for dtype in (f32, f64):
            found: dict[int, float] = {}
            for start in range(0, len(lengths), _TOGETHER):
                found |= errors(session, name, dtype, lengths[start : start + _TOGETHER], start)
            n = max(found, key=lambda k: found[k])
            bad = [k for k, error in found.items() if not error <= 1]
            wrong += len(bad)
            print(
                f"{asked.device} {name} {dtype}: {len(found)} lengths, largest error {found[n]:.2f} of the limit at {n}"
            )
            if bad:
                print(f"  beyond it: {bad[:20]}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
