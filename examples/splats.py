"""Gaussian splatting: splats learn a picture that is drawn here, and are then drawn on every device.

    python examples/splats.py [FOLDER]

Writes target.png, result.png, course.png (the target, then the splats over the steps), devices.png (each device's
picture, and below it how far it is from the learned one, 100,000 times as bright), splats.ply, a file for any viewer
of splats, and splats.html, a page that shows it, into FOLDER, or the folder where it runs. The splats are states of a
graph on the CPU: each run draws them, and moves them down the gradient of the difference, by Adam. It takes some ten
seconds.
"""

from __future__ import annotations

import argparse
import struct
import time
import zlib
from pathlib import Path

import numpy as np

import rlx

WIDTH, HEIGHT, COUNT, STEPS, SHOWN = 96, 72, 250, 120, (0, 10, 30)
CAMERA = rlx.splats.Camera(np.eye(4, dtype=np.float32), 100.0, 100.0, WIDTH / 2, HEIGHT / 2, WIDTH, HEIGHT)
RATES = {"means": 0.006, "sizes": 0.03, "rotations": 0.03, "covers": 0.06, "colors": 0.03}
BRIGHTER = 1e5  # how much of a difference between devices is shown
BACKGROUND = np.array([0.05, 0.05, 0.08], np.float32)


def target() -> np.ndarray:
    """A sun over the sea: a sky and water that fade, a disc, its light on the waves, and an island."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] / HEIGHT
    sky = np.stack([0.95 - 0.5 * y, 0.55 - 0.1 * y, 0.35 + 0.4 * (0.6 - y)], -1)
    sea = np.stack([0.1 + 0 * y, 0.25 + 0.2 * (1 - y), 0.4 + 0.25 * (1 - y)], -1)
    made = np.where((y < 0.6)[..., None], sky, sea)
    made[(x - 0.5) ** 2 + (y - 0.42) ** 2 < 0.14**2] = 1.0, 0.93, 0.55
    glitter = (y > 0.6) & (np.abs(x - 0.5) < 0.16 - 0.1 * np.abs(np.sin(40 * y)))
    made[glitter] = 0.5 * made[glitter] + (0.5, 0.42, 0.2)
    made[(y < 0.6) & (y > 0.6 - 0.2 * np.exp(-(((x - 1.05) / 0.14) ** 2)))] = 0.12, 0.2, 0.16
    return np.clip(made, 0, 1).astype(np.float32)


def start() -> dict[str, np.ndarray]:
    """Splats strewn over the picture, in grey."""
    rng = np.random.default_rng(7)
    z = rng.uniform(1.5, 2.5, COUNT)
    x, y = (rng.uniform(-0.5, 0.5, COUNT) * z * side / 100 for side in (WIDTH, HEIGHT))
    made = {
        "means": np.stack([x, y, z], 1),
        "sizes": np.log(0.06) + rng.normal(0, 0.2, (COUNT, 3)),
        "rotations": rng.normal(size=(COUNT, 4)),
        "covers": np.full(COUNT, 0.5),
        "colors": rng.normal(0, 0.1, (COUNT, 1, 3)),
    }
    return {name: a.astype(np.float32) for name, a in made.items()}


def drawn(p: dict[str, rlx.Tensor]) -> rlx.splats.Rendered:
    scales, opacities = rlx.exp(p["sizes"]), rlx.sigmoid(p["covers"])
    return rlx.splats.render(
        p["means"], scales, p["rotations"], opacities, p["colors"], **CAMERA, background=BACKGROUND
    )


def learning() -> rlx.Graph:
    """A step: the picture of the splats as they are, and what Adam makes of them."""
    g = rlx.Graph("step")
    picture, factor = g.input("picture", (HEIGHT, WIDTH, 3)), g.input("factor", ())
    p = {name: g.state(name, a.shape) for name, a in start().items()}
    made = drawn(p)
    g.output("image", made.image)
    g.output("pairs", made.pairs)
    error = g.output("error", rlx.mean(rlx.square(made.image - picture)))
    for name, slope in zip(p, rlx.gradients(error, list(p.values())), strict=True):
        mean, power = (g.state(f"{word} of {name}", slope.shape) for word in ("mean", "power"))
        mean_now, power_now = 0.9 * mean + 0.1 * slope, 0.99 * power + 0.01 * slope * slope
        g.update(f"mean of {name}", mean_now)
        g.update(f"power of {name}", power_now)
        g.update(name, p[name] - RATES[name] * factor * mean_now / (rlx.sqrt(power_now) + 1e-8))
    return g


def learn(picture: np.ndarray) -> tuple[dict[str, np.ndarray], list[np.ndarray], list[float]]:
    """The splats after all steps, pictures of some steps, and the errors."""
    shots, errors = [], []
    with rlx.Session("cpu").compile(learning()) as step:
        for name, array in start().items():
            step.set_state(name, array)
        began = time.perf_counter()
        for i in range(STEPS + 1):
            # Adam's means begin at 0: the factor corrects both for it, and the last steps are smaller.
            factor = np.sqrt(1 - 0.99 ** (i + 1)) / (1 - 0.9 ** (i + 1)) * (1 if i < STEPS // 2 else 0.4)
            before = {name: step.get_state(name) for name in RATES} if i == STEPS else {}
            made = step.run({"picture": picture, "factor": np.float32(factor)})
            rlx.splats.check_pairs(made["pairs"], rlx.splats.default_pairs(COUNT, WIDTH, HEIGHT))
            errors.append(float(made["error"]))
            if i in (*SHOWN, STEPS):
                shots.append(made["image"].copy())
            if i % 20 == 0:
                left = (time.perf_counter() - began) / (i + 1) * (STEPS - i)
                print(f"step {i:3} of {STEPS}: error {errors[-1]:.5f}, {left:.0f} s left", flush=True)
    return before, shots, errors


def write_png(path: Path, picture: np.ndarray) -> None:
    """Eight bits a channel, colours from 0 to 1."""
    pixels = np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="for the files (default: this one)")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    picture = target()
    p, shots, errors = learn(picture)
    opacities = 1 / (1 + np.exp(-p["covers"]))
    rlx.splats.write_ply(
        folder / "splats.ply", p["means"], np.exp(p["sizes"]), p["rotations"], opacities, p["colors"]
    )
    write_png(folder / "target.png", picture)
    write_png(folder / "result.png", shots[-1])
    write_png(folder / "course.png", np.concatenate([picture, *shots], axis=1))
    print(f"error {errors[0]:.5f}, after {STEPS} steps {errors[-1]:.5f}; pictures, file and page are in {folder}")

    splats = rlx.splats.read_ply(folder / "splats.ply")
    rlx.splats.write_page(
        folder / "splats.html", *splats, camera=CAMERA, background=BACKGROUND, title="Splats that learned a picture"
    )
    apart, pictures = [], []
    for info in rlx.devices():
        show = rlx.jit(lambda s: rlx.splats.render(*s, **CAMERA, background=BACKGROUND).image, device=info.id)
        made = show(splats)
        difference = np.abs(made - shots[-1])
        apart.append(float(difference.max()))
        pictures.append(np.concatenate([made, BRIGHTER * difference], axis=0))
        print(f"{info.id:>9}: {WIDTH} × {HEIGHT}, {apart[-1]:.1e} apart from the picture that was learned", flush=True)
    write_png(folder / "devices.png", np.concatenate(pictures, axis=1))
    return int(max(apart) > 1e-3)


if __name__ == "__main__":
    raise SystemExit(main())
