"""A small diffusion model that draws: it learns where the points of a word lie, and makes new ones out of noise.

    python examples/train_diffusion.py [--steps 3000] [--folder diffusion] [--device auto]

The network sees a point with noise on it, and how much that is, and guesses the noise (Ho et al., 2020); drawing goes
from pure noise to points in 60 steps (Song et al., 2021), in one program. The folder gets drawing.svg, with what was
learned from above and what was drawn below, beside checkpoints, metrics.jsonl and course.svg.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx import nn, optim

WORD = """
......#.......
......#.......
#.##..#..#...#
##....#...#.#.
#.....#....#..
#.....#...#.#.
#.....#..#...#
"""
BATCH, WIDTH, NOISES = 256, 128, 60


def points(rng: np.random.Generator, count: int) -> np.ndarray:
    """(count, 2): places anywhere within the filled squares of the word, of mean 0 and about unit size."""
    rows = WORD.split()
    filled = np.array([(x, -y) for y, row in enumerate(rows) for x, c in enumerate(row) if c == "#"])
    places = filled[rng.integers(0, len(filled), count)] + rng.random((count, 2))
    return ((places - filled.mean(0) - 0.5) / 3).astype(np.float32)


def batches(start: int) -> Iterator[np.ndarray]:
    for number in itertools.count(start):
        yield points(np.random.default_rng(number), BATCH)


def signal(t: Any) -> tuple[Any, Any]:
    """How much of a point is left at time t, from 0 to 1, and how much noise there is."""
    return rlx.cos(t * (math.pi / 2)), rlx.sin(t * (math.pi / 2))


def init(key: Any) -> list[dict[str, Any]]:
    widths = [2 + 2 + 16, WIDTH, WIDTH, WIDTH, 2]
    keys = rlx.random.split(key, len(widths) - 1)
    return [nn.linear_init(keys[i], a, b) for i, (a, b) in enumerate(itertools.pairwise(widths))]


def noise_of(p: list[dict[str, Any]], x: Any, t: Any) -> Any:
    """The noise that the network sees in points (n, 2) at times (n, 1)."""
    waves = np.arange(1, 9, dtype=np.float32) * math.pi
    h = rlx.concat([x, *signal(t), rlx.sin(x[:, :1] * waves), rlx.sin(x[:, 1:] * waves)], axis=1)
    for layer in p[:-1]:
        h = rlx.silu(nn.linear(layer, h))
    return nn.linear(p[-1], h)


def loss(p: list[dict[str, Any]], x: Any, key: Any) -> Any:
    keys = rlx.random.split(key, 2)
    t, noise = rlx.random.uniform(keys[0], (BATCH, 1)), rlx.random.normal(keys[1], (BATCH, 2))
    left, much = signal(t)
    return rlx.mean((noise_of(p, left * x + much * noise, t) - noise) ** 2)


def drawn(p: list[dict[str, Any]], start: Any) -> Any:
    """Points out of noise (n, 2): at each time the noise is guessed, and put on again with what it is a step later."""

    def nearer(i: Any, x: Any) -> Any:
        now, then = (rlx.reshape(0.98 * (NOISES - i - k) / NOISES, (1, 1)) for k in (0, 1))
        noise = noise_of(p, x, rlx.expand(now, (len(x), 1)))
        (left, much), (later, less) = signal(now), signal(then)
        return later * (x - much * noise) / left + less * noise

    return rlx.fori_loop(0, NOISES, nearer, start)


def picture(path: Path, learned: np.ndarray, drawing: np.ndarray) -> None:
    """The points of both as SVG, one above the other."""
    dots = [
        f'<path d="{"".join(f"M{200 + 70 * x:.1f} {middle - 70 * y:.1f}h0" for x, y in places)}" stroke="{colour}"/>'
        for places, middle, colour in ((learned, 110, "#888"), (drawing, 310, "#14517f"))
    ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="400" height="420">'
    head += '<rect width="100%" height="100%" fill="#fff"/><g stroke-width="2.4" stroke-linecap="round">'
    path.write_text("\n".join([head, *dots, "</g></svg>"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--folder", type=Path, default=Path("diffusion"))
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    optimizer = optim.adam(optim.cosine_decay_schedule(3e-3, args.steps))
    run = rlx.training(
        loss, init(rlx.random.key(0)), optimizer, key=1, folder=args.folder, resume=True, device=args.device
    )
    for metrics in run.over(batches, steps=args.steps, save_every=1000):
        if metrics.step % 500 == 0:
            print(f"step {metrics.step}: loss {metrics['loss']:.3f}")
    rng = np.random.default_rng(0)
    start = rng.standard_normal((1500, 2)).astype(np.float32)
    drawing = np.asarray(rlx.jit(drawn, device=args.device)(run.parameters, start))
    picture(args.folder / "drawing.svg", points(rng, 1500), drawing)
    print(f"drawn: {args.folder / 'drawing.svg'}")


if __name__ == "__main__":
    main()
