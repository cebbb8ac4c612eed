"""A run of training that is killed at random moments and resumed gives the bits of one that was not: a command.

    python -m tests.train.kills [--kills 20] [--device cpu] [--seed 0] [--finetune]

A process trains a small network with dropout and Adam, and saves a checkpoint every few steps. SIGKILL ends it at
random moments, also while it compiles, writes a checkpoint or a line; then it is started again, until it was killed so
often, and then to its end. The last checkpoint, byte for byte, and all lines of metrics.jsonl but their seconds are
those of a run that nobody ended. With `--finetune` the process is `rlx finetune` of a tiny Llama, with evaluations; the
adapter's files are compared too."""

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
TUNED = 4000  # steps of `rlx finetune`


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


def train(folder: Path, device: str, steps: int) -> None:
    """The run, which goes on with what its folder holds."""
    rng = np.random.default_rng(1)
    start = {
        "w": rng.standard_normal((8, 32)).astype(np.float32),
        "b": np.zeros(32, np.float32),
        "v": rng.standard_normal((32, 2)).astype(np.float32),
    }
    run = rlx.training(loss, start, optim.adam(1e-2), key=5, device=device, folder=folder, resume=True, picture=False)
    for _ in run.over(batches, steps=steps, save_every=EVERY):
        pass
    run.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The record without its seconds."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def last(folder: Path) -> tuple[str, bytes]:
    path = max(folder.glob("step-*.safetensors"))
    return path.name, path.read_bytes()


def child(folder: Path, device: str, steps: int) -> list[str]:
    """The command of a process that trains the network."""
    return [sys.executable, "-m", "tests.train.kills", "--child", str(folder), "--device", device,
            "--steps", str(steps)]  # fmt: skip


def finetune(folder: Path, device: str, steps: int) -> list[str]:
    """The command of `rlx finetune`, whose model and data are written beside its folder, where they are not there."""
    from tests.finetune import tiny

    base, data = folder.parent / "base", folder.parent / "talks.jsonl"
    if not base.exists():
        tiny.write_base(base, hidden_size=32, intermediate_size=64)
        tiny.write_lines(data, tiny.talks(24))
    options = {"rank": 2, "rate": 1e-3, "batch": 3, "length": 64, "eval": 0.25, "eval-every": 40, "save-every": EVERY,
               "steps": steps, "device": device, "out": folder}  # fmt: skip
    return [sys.executable, "-m", "rlx.cli", "finetune", str(base), str(data), "--resume",
            *(f"--{name}={value}" for name, value in options.items())]  # fmt: skip


def killed(command: list[str], folder: Path, kills: int, seed: int, log: Any = print) -> int:
    """Runs a training in processes that are killed so often, then to its end. Returns how many were killed. `folder`
    is that of its checkpoints."""
    rng, count = random.Random(seed), 0

    def there() -> set[Path]:
        return set(folder.glob("step-*.safetensors"))

    def ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.poll() is not None

    while True:
        before = there()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if count < kills:
            if rng.random() < 0.8:  # else it dies while it begins
                while there() <= before and not ended(process, 0.01):
                    pass
            if not ended(process, rng.uniform(0.0, 0.6)):
                process.send_signal(signal.SIGKILL)
        code = process.wait()
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
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--finetune", action="store_true", help="kill `rlx finetune`")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    steps = args.steps or (TUNED if args.finetune else STEPS)
    if args.child:
        train(args.child, args.device, steps)
        return 0
    make, where = (finetune, "training") if args.finetune else (child, ".")
    with tempfile.TemporaryDirectory() as name:
        whole, parts = Path(name, "whole"), Path(name, "parts")
        subprocess.run(make(whole, args.device, steps), check=True, stdout=subprocess.DEVNULL)
        count = killed(make(parts, args.device, steps), parts / where, args.kills, args.seed)
        same = {"checkpoint": last(whole / where) == last(parts / where),
                "record": lines(whole / where) == lines(parts / where)}  # fmt: skip
        for file in sorted(whole.glob("adapter*")):
            same[file.name] = file.read_bytes() == (parts / file.name).read_bytes()
    compared = ", ".join(f"{what} {'the same' if equal else 'ANOTHER'}" for what, equal in same.items())
    print(f"{steps} steps on {args.device}, killed {count} times: {compared}")
    return 0 if all(same.values()) and count == args.kills else 1


if __name__ == "__main__":
    sys.exit(main())
