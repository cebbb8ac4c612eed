"""Mamba on selective copying: a few symbols stand among blanks, and are to be said again at the end, in order.

    python examples/train_copying.py [--steps 1500] [--folder copying] [--device auto]

What a symbol is worth must be decided by looking at it, which a recurrence whose step depends on its input can do (Gu
and Dao, 2023). A batch is new in each step. The folder gets checkpoints, metrics.jsonl and course.svg; where it has a
checkpoint, the run goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import rlx
from rlx import nn, optim

BATCH, LENGTH, SYMBOLS, KINDS = 32, 24, 4, 8  # four symbols of eight kinds among the first 24 places
BLANK, ASKED, TOKENS = KINDS, KINDS + 1, KINDS + 2
WIDTH, INNER, STATES, RANK, LAYERS = 32, 64, 16, 4, 2


def batches(start: int) -> Iterator[dict[str, np.ndarray]]:
    for number in itertools.count(start):
        rng = np.random.default_rng(number)
        said = rng.integers(0, KINDS, (BATCH, SYMBOLS)).astype(np.int32)
        places = np.sort(rng.permuted(np.tile(np.arange(LENGTH), (BATCH, 1)), axis=1)[:, :SYMBOLS], axis=1)
        seen = np.full((BATCH, LENGTH + SYMBOLS), BLANK, np.int32)
        np.put_along_axis(seen, places, said, axis=1)
        seen[:, LENGTH:] = ASKED
        yield {"seen": seen, "said": said}


def init(key: Any) -> dict[str, Any]:
    keys = iter(rlx.random.split(key, 2 + 5 * LAYERS))
    layer = lambda: {  # noqa: E731 one for each layer
        "norm": np.ones(WIDTH, np.float32),
        "in": nn.linear_init(next(keys), WIDTH, 2 * INNER, bias=False),
        "conv": nn.normal(0.3)(next(keys), (INNER, 4)),
        "what": nn.linear_init(next(keys), INNER, RANK + 2 * STATES, bias=False),
        "step": nn.linear_init(next(keys), RANK, INNER),
        "decay": np.log(np.tile(np.arange(1.0, STATES + 1, dtype=np.float32), (INNER, 1))),
        "skip": np.ones(INNER, np.float32),
        "out": nn.linear_init(next(keys), INNER, WIDTH, bias=False),
    }
    return {
        "tokens": nn.embedding_init(next(keys), TOKENS, WIDTH),
        "layers": [layer() for _ in range(LAYERS)],
        "out": nn.linear_init(next(keys), WIDTH, KINDS),
    }


def mamba(p: dict[str, Any], x: Any) -> Any:
    """A block: (batch, length, width) gives the same."""
    both = nn.linear(p["in"], rlx.rms_norm(x, p["norm"]))
    u, _ = rlx.causal_conv(both[..., :INNER], p["conv"], activation="silu")
    mixed = nn.linear(p["what"], u)
    step = rlx.softplus(nn.linear(p["step"], mixed[..., :RANK]))
    into, out = mixed[..., RANK : RANK + STATES], mixed[..., RANK + STATES :]
    y, _ = rlx.selective_scan(u, step, -rlx.exp(p["decay"]), into, out, p["skip"], both[..., INNER:])
    return x + nn.linear(p["out"], y)


def loss(p: dict[str, Any], batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    x = nn.embedding(p["tokens"], batch["seen"])
    for layer in p["layers"]:
        x = mamba(layer, x)
    scores = nn.linear(p["out"], x[:, LENGTH:])
    right = rlx.mean(rlx.argmax(scores, axis=-1) == batch["said"])
    return rlx.mean(rlx.cross_entropy(scores, batch["said"])), {"right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--folder", default="copying")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0), optim.adam(optim.cosine_decay_schedule(5e-3, args.steps))
    )
    run = rlx.training(
        loss, init(rlx.random.key(0)), optimizer, folder=args.folder, resume=True, device=args.device
    )
    for metrics in run.over(batches, steps=args.steps, save_every=500):
        if metrics.step % 100 == 0:
            print(f"step {metrics.step}: loss {metrics['loss']:.4f}, {metrics['right']:.1%} right")
    fresh = itertools.islice(batches(1_000_000), 10)
    print(f"{run.evaluate(fresh)['right']:.2%} of the symbols of new rows are right")


if __name__ == "__main__":
    main()
