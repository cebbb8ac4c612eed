"""Gaussian splatting on the GPUs of this machine: a picture, and a picture with the gradients of all its splats.

    python benchmarks/kernels/splats.py [--device NAME …] [--count N …] [--size WIDTHxHEIGHT] [--steps]

Splats lie at random in front of the camera, with colours of degree 3, in sizes such that their number leaves the
average pixel about as much to blend as a captured scene does. Times are the device's own, the least of 9 runs after 0.3
s of warm-up; `--steps` lists the steps that take longest.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from benchmarks.kernels.gpu import per_run, step_times
from rlx.errors import DeviceUnavailable

PAIRS = 16  # of a splat, for which the program has room
Arrays = dict[str, np.ndarray[Any, Any]]


def scene(count: int) -> Arrays:
    """Splats between 2 and 10 in front of the camera, whose deviations are about 1.5 / √(count / 10⁶) of 1,920 px."""
    rng = np.random.default_rng(0)
    z = rng.uniform(2, 10, count)
    x, y = (rng.uniform(-a, a, count) * z for a in (0.5, 0.3))
    size = 1.5 / np.sqrt(count / 1e6) / 1920 * z
    made = {
        "means": np.stack([x, y, z], 1),
        "scales": size[:, None] * np.exp(rng.normal(0, 0.5, (count, 3))),
        "rotations": rng.normal(size=(count, 4)),
        "opacities": rng.uniform(0.1, 1, count),
        "colors": rng.normal(0, 0.2, (count, 16, 3)),
        "view": np.eye(4),
    }
    return {name: a.astype(np.float32) for name, a in made.items()}


def graph_of(arrays: Arrays, width: int, height: int, gradients: bool) -> rlx.Graph:
    g = rlx.Graph("splats")
    given = {name: g.input(name, a.shape) for name, a in arrays.items()}
    camera = {"fx": float(width), "fy": float(width), "cx": width / 2, "cy": height / 2}
    room = PAIRS * len(arrays["means"])
    made = rlx.splats.render(**given, **camera, width=width, height=height, max_pairs=room)
    g.output("image", made.image)
    g.output("pairs", made.pairs)
    if gradients:
        d = g.input("d", made.image.shape)
        wrt = [t for name, t in given.items() if name != "view"]
        for t, slope in zip(wrt, rlx.gradients(made.image, wrt, d), strict=True):
            g.output(f"d {t.node.name}", slope)
    return g


def measured(
    session: rlx.Session, arrays: Arrays, width: int, height: int, gradients: bool
) -> tuple[Any, int]:
    with session.compile(graph_of(arrays, width, height, gradients)) as exe:
        exe.prepare()
        feeds = arrays | ({"d": np.ones((height, width, 3), np.float32)} if gradients else {})
        pairs = int(exe.run(feeds)["pairs"])
        rlx.splats.check_pairs(pairs, PAIRS * len(arrays["means"]))
        per_run(exe.executable.run, lambda: None, 0.3)  # raises the GPU's clocks
        return min((step_times(exe) for _ in range(9)), key=lambda steps: sum(us for _, us in steps)), pairs


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", help="cuda or vulkan; default both")
    parser.add_argument("--count", action="append", type=int, help="splats; default 100,000 and 1,000,000")
    parser.add_argument("--size", default="1920x1080", help="pixels of the picture")
    parser.add_argument("--steps", action="store_true", help="list the steps that take longest")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    print(f"{'device':8} {'splats':>9} {'pairs':>10} {'':>9} {'ms':>8} {'M splats/s':>11}")
    for device in args.device or ("cuda", "vulkan"):
        try:
            session = rlx.Session(device, timings=True)
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
            continue
        for count in args.count or (100_000, 1_000_000):
            for gradients in (False, True):
                steps, pairs = measured(session, scene(count), width, height, gradients)
                ms = sum(us for _, us in steps) / 1e3
                what = "gradients" if gradients else "picture"
                print(
                    f"{device:8} {count:9,} {pairs:10,} {what:>9} {ms:8.3f} {count / ms / 1e3:11.1f}",
                    flush=True,
                )
                if args.steps:
                    times: Counter[str] = Counter()
                    for name, us in steps:
                        times[name] += us
                    for name, us in times.most_common(12):
                        print(f"    {us:9.1f} µs  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
