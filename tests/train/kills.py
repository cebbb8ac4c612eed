"""A run of training that is killed at random moments and resumed gives the bits of one that was not: a command.

    python -m tests.train.kills [--kills 20] [--device cpu] [--seed 0]

A process trains a small network with dropout and Adam, and saves a checkpoint every few steps. SIGKILL ends it at
random moments, also while it compiles, writes a checkpoint or a line; then it is started again, until it was killed so
often, and then to its end. The last checkpoint, byte for byte, and all lines of metrics.jsonl but their seconds are
those of a run that nobody ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx import optim

STEPS, EVERY = 20000, 5


def loss(parameters: Any, batch: Any, key: Any) -> Any:
    hidden = rlx.random.dropout(rlx.tanh(batch["x"] @ parameters["w"] + parameters["b"]), 0.1, key)
    scores = hidden @ parameters["v"]
    return rlx.mean(rlx.cross_entropy(scores, batch["y"])), {"size": rlx.mean(scores**2)}


def batches(start: int) -> Any:
    number = start
    while True:
        rng = np.random.default_rng(number)
        x = rng.standard_normal((16, 8)).astype(np.float32)
        yield {"x": x, "y": (x[:, 0] * x[:, 1] > 0).astype(np.int32)}
        number += 1


def train(folder: Path, device: str, steps: int, told: bool = False) -> None:
    """The run, which goes on with what its folder holds; with `told` it prints its first step."""
    rng = np.random.default_rng(1)
    start = {
        "w": rng.standard_normal((8, 32)).astype(np.float32),
        "b": np.zeros(32, np.float32),
        "v": rng.standard_normal((32, 2)).astype(np.float32),
    }
    run = rlx.training(loss, start, optim.adam(1e-2), key=5, device=device, folder=folder, resume=True, picture=False)
    for metrics in run.over(batches, steps=steps, save_every=EVERY):
        if told:
            print(metrics.step, flush=True)
            told = False
    run.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The record without its seconds."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def last(folder: Path) -> tuple[str, bytes]:
    path = max(folder.glob("step-*.safetensors"))
    return path.name, path.read_bytes()


def killed(folder: Path, device: str, steps: int, kills: int, seed: int, log: Any = print) -> int:
    """Runs the training in processes that are killed so often, then to its end. Returns how many were killed."""
    rng, count = random.Random(seed), 0
    command = [sys.executable, "-m", "tests.train.kills", "--child", str(folder), "--device", device]
    while True:
        process = subprocess.Popen([*command, "--steps", str(steps)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        if count < kills:
            if rng.random() < 0.8:  # else it dies while it begins
                process.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.0, 0.6))
            process.send_signal(signal.SIGKILL)
        process.communicate()
        code = process.returncode
        if code == -signal.SIGKILL:
            count += 1
            at = sorted(folder.glob("step-*.safetensors"))
            log(f"kill {count}: the last checkpoint is {at[-1].name if at else 'none'}")
            continue
        if code != 0:
            raise SystemExit(f"the training ended with status {code}")
        return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train(args.child, args.device, args.steps, told=True)
        return 0
    with tempfile.TemporaryDirectory() as name:
        whole, parts = Path(name, "whole"), Path(name, "parts")
        train(whole, args.device, args.steps)
        count = killed(parts, args.device, args.steps, args.kills, args.seed)
        same = last(whole) == last(parts), lines(whole) == lines(parts)
    print(f"{args.steps} steps on {args.device}, killed {count} times: checkpoint the same {same[0]}, record {same[1]}")
    return 0 if all(same) and count == args.kills else 1


if __name__ == "__main__":
    sys.exit(main())
