"""Signals on the GPUs of this machine, and with --torch beside torch's calls on the same device.

    python benchmarks/kernels/signals.py [--torch] [--only WORD …] [--device NAME …] [--samples N]

It measures Welch's spectra, their peaks, short-time transforms, their inverse and convolutions of one long signal, by
the device's own timestamps: the least of 21 runs after 0.3 s of warm-up. The share is that of the time in which the
memory reads the signal once. torch is timed by events.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from benchmarks.kernels.gpu import PEAK, per_run, step_times
from rlx import signal
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

Build = Callable[[rlx.Tensor], tuple[Any, ...]]


def torch_welch(torch: Any, x: Any, n: int) -> Any:
    frames = x.unfold(-1, n, n // 2)
    frames = (frames - frames.mean(-1, keepdim=True)) * torch.hann_window(n, device=x.device)
    return torch.fft.rfft(frames).abs().square().mean(0)


def torch_stft(torch: Any, x: Any, n: int) -> Any:
    return torch.stft(x, n, n // 2, window=torch.hann_window(n, device=x.device), return_complex=True)


def torch_convolution(torch: Any, x: Any, n: int) -> Any:
    size = 1 << (x.shape[-1] + n - 1).bit_length()
    return torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(x[:n], size), size)


def peaks(x: rlx.Tensor, n: int) -> tuple[Any, ...]:
    f, p = signal.welch(x, nperseg=n)
    return signal.largest_peaks(f, p, 8)


def back(x: rlx.Tensor, n: int) -> tuple[Any, ...]:
    return (signal.istft(signal.stft(x, nperseg=n)[2])[1],)


ROWS: list[tuple[str, int, Callable[[rlx.Tensor, int], tuple[Any, ...]], Callable[..., Any] | None]] = [
    *(("welch", n, lambda x, n: (signal.welch(x, nperseg=n)[1],), torch_welch) for n in (256, 512, 1024, 2048, 4096)),
    ("welch, 8 peaks", 1024, peaks, None),
    *(("stft", n, lambda x, n: (signal.stft(x, nperseg=n)[2],), torch_stft) for n in (256, 1024)),
    ("stft, istft", 1024, back, None),
    ("fftconvolve", 1023, lambda x, n: (signal.fftconvolve(x, x[:n]),), torch_convolution),
    ("oaconvolve", 1023, lambda x, n: (signal.oaconvolve(x, x[:n]),), torch_convolution),
]  # fmt: skip


def seconds(session: Session, build: Build, x: np.ndarray[Any, Any]) -> float:
    g = rlx.Graph("bench")
    for i, t in enumerate(build(g.input("x", x.shape))):
        g.output(f"y{i}", t)
    with session.compile(g) as exe:
        exe.prepare()
        exe.arena.write_bytes(exe.program.inputs["x"].id, x)
        per_run(exe.executable.run, lambda: None, 0.3)  # raises the GPU's clocks
        return min(sum(us for _, us in step_times(exe)) for _ in range(21)) / 1e6


def torch_seconds(call: Callable[..., Any], x: np.ndarray[Any, Any], n: int) -> float:
    import torch

    given = torch.from_numpy(x).cuda()
    found = []
    for _ in range(21):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(torch, given, n)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return min(found)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--torch", action="store_true", help="measure torch too")
    parser.add_argument("--only", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument("--device", action="append", help="cuda or vulkan; default both")
    parser.add_argument("--samples", type=int, default=1 << 24)
    args = parser.parse_args()
    sessions = {}
    for device in args.device or ("cuda", "vulkan"):
        try:
            sessions[device] = Session(device, timings=True)
            print(f"{device}: {sessions[device].info.name}, {sessions[device].info.driver}")
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
    x = np.random.default_rng(0).standard_normal(args.samples, dtype=np.float32)
    print(f"µs of a run over {args.samples:,} samples, and the share of {PEAK / 1e12} TB/s")
    for name, n, build, torch in ROWS:
        if args.only and not any(word in name for word in args.only):
            continue
        cells = []
        for session in sessions.values():
            took = seconds(session, lambda t, n=n, build=build: build(t, n), x)
            cells.append(f"{1e6 * took:12.1f} {x.nbytes / took / PEAK:5.1%}")
        if args.torch and torch is not None:
            cells.append(f"{1e6 * torch_seconds(torch, x, n):12.1f}")
        print(f"{name + f', {n}':24}" + "".join(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
