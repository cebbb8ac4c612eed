"""A power spectrum by Welch's method on every device, drawn beside SciPy's, with its largest peaks.

    python examples/welch.py [SPECTRUM.svg]

The signal is synthesized: four tones, a chirp that sweeps from 9 to 12 kHz, and noise, 12 seconds at 48 kHz. SciPy
computes its spectrum in float64 (pip install scipy); each device computes it in float32, and finds its largest peaks,
in one program. The picture has a panel for each: power over frequency, the peaks marked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import rlx

try:
    from scipy import signal as scipy_signal
except ImportError:
    sys.exit("welch.py: SciPy, which judges the spectra, is not installed: pip install scipy")

RATE, SECONDS, SEGMENT, PEAKS = 48_000, 12, 2048, 4
TONES = {1_000.0: 1.0, 2_700.0: 0.3, 5_125.0: 0.05, 18_000.0: 0.4}  # frequency: amplitude
WIDTH, HEIGHT, LEFT, TOP, FLOOR = 460, 240, 52, 40, -100  # a panel, its margins, and the lowest power drawn, in dB


def synthesized() -> np.ndarray:
    t = np.arange(RATE * SECONDS) / RATE
    tones = sum(a * np.sin(2 * np.pi * f * t + f) for f, a in TONES.items())
    sweep = 9_000 * t + (12_000 - 9_000) / (2 * SECONDS) * t**2  # the integral of the frequency
    return (tones + 0.2 * np.sin(2 * np.pi * sweep) + np.random.default_rng(0).normal(0, 0.02, len(t))).astype(
        np.float32
    )


def spectrum(x):
    f, p = rlx.signal.welch(x, RATE, nperseg=SEGMENT)
    return p, *rlx.signal.largest_peaks(f, p, PEAKS)


def judged(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What SciPy says: the spectrum, and the frequencies and power of its largest peaks."""
    f, p = scipy_signal.welch(x.astype(np.float64), RATE, nperseg=SEGMENT)
    found = scipy_signal.find_peaks(p)[0]
    largest = found[np.argsort(-p[found], kind="stable")][:PEAKS]
    return p, f[largest], p[largest]


def panel(title: str, number: int, p: np.ndarray, peak_f: np.ndarray, peak_p: np.ndarray) -> str:
    """One spectrum in decibels, as SVG."""

    def place(f, power):
        decibels = np.maximum(10 * np.log10(np.maximum(power, 1e-30)), FLOOR)
        return LEFT + f / (RATE / 2) * WIDTH, TOP + decibels / FLOOR * HEIGHT

    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(*place(np.linspace(0, RATE / 2, len(p)), p), strict=True))
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="#c0392b" stroke-width="1.5"/>'
        f'<text x="{x + 6:.1f}" y="{y - 4:.1f}" fill="#c0392b">{f:,.0f} Hz</text>'
        for x, y, f in zip(*place(peak_f, peak_p), peak_f, strict=True)
    )
    lines = "".join(
        f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#ddd"/>'
        f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{db} dB</text>'
        for db in range(0, FLOOR - 1, -20) for y in [TOP + db / FLOOR * HEIGHT]
    ) + "".join(
        f'<text x="{LEFT + f / (RATE / 2) * WIDTH}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{f // 1000} kHz</text>'
        for f in range(0, RATE // 2 + 1, 6_000)
    )  # fmt: skip
    at = f"{number % 2 * (WIDTH + 90)} {number // 2 * (HEIGHT + 80)}"
    return (
        f'<g transform="translate({at})"><text x="{LEFT}" y="20" font-size="14">{title}</text>{lines}'
        f'<polyline points="{curve}" fill="none" stroke="#2c6fbb" stroke-width="1"/>{marks}</g>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, nargs="?", default=Path("welch.svg"), help="default: welch.svg")
    target = parser.parse_args().target
    x = synthesized()
    want, want_f, want_p = judged(x)
    print(f"{'SciPy':>9}: " + ", ".join(f"{f:8,.1f} Hz {p:.6f}" for f, p in zip(want_f, want_p, strict=True)))
    panels = [panel("SciPy, float64", 0, want, want_f, want_p)]
    worst = 0.0
    for info in rlx.devices():
        p, peak_f, peak_p = rlx.jit(spectrum, device=info.id)(x)
        apart = float(np.abs(p - want).max() / want.max())
        same = np.array_equal(peak_f, want_f.astype(np.float32))
        peaks_apart = float(np.abs(peak_p / want_p - 1).max()) if same else np.inf
        worst = max(worst, apart, peaks_apart)
        print(f"{info.id:>9}: " + ", ".join(f"{f:8,.1f} Hz {v:.6f}" for f, v in zip(peak_f, peak_p, strict=True)))
        print(f"{'':>11}{apart:.1e} of the largest power from SciPy; its peaks {peaks_apart:.1e}")
        panels.append(panel(f"rlx on {info.id}, float32", len(panels), p, peak_f, peak_p))
    rows = -(-len(panels) // 2)
    size = f"0 0 {2 * (WIDTH + 90)} {rows * (HEIGHT + 80)}"
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n', "utf-8"
    )  # fmt: skip
    print(f"drawn in {target}")
    if worst > 1e-5:
        sys.exit("FAIL: a device differs from SciPy by more than 1e-5")


if __name__ == "__main__":
    main()
