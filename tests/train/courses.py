"""The first 20 losses of examples/train_digits.py beside torch's, in f32 and float64: a command.

    python -m tests.train.courses [--device cpu] [--write]

It prints a table, and its exit status is 1 where a course by SGD is more than 1e-5 relative from torch's in f32 or from
float64's, or one by Adam is farther from float64's than twice torch's f32.
`--write` computes torch's courses anew, with torch, into courses.json; without it they are read from there.
digits.npz holds the pictures of scikit-learn 1.7.2 (the UCI data set of Alpaydin and Kaynak, CC BY 4.0)."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from examples import train_digits
from rlx import optim

HERE = Path(__file__).parent
STEPS = 20
RATES = {"sgd": 0.1, "adam": 1e-3}


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The pictures and labels of the example, from a file."""
    found = np.load(HERE / "digits.npz")
    return found["images"].astype(np.float64), found["target"].astype(np.int64)


def batches() -> list[dict[str, np.ndarray]]:
    learned, _ = train_digits.parts(*digits())
    return list(itertools.islice(train_digits.batches(learned, 0), STEPS))


def start() -> Any:
    return rlx.tree.map(np.asarray, train_digits.init(rlx.random.key(0)))


def course(name: str, device: str) -> list[float]:
    """The losses by rlx in f32."""
    optimizer = {"sgd": optim.sgd, "adam": optim.adam}[name](RATES[name])
    with rlx.training(train_digits.loss, start(), optimizer, device=device) as run:
        return [metrics["loss"] for metrics in run.over(batches())]


def course_of_torch(name: str, wide: bool) -> list[float]:
    """The losses by torch, in f32 or float64, from the same parameters over the same batches."""
    import torch

    torch.set_num_threads(1)
    dtype = torch.float64 if wide else torch.float32
    p = rlx.tree.map(lambda a: torch.tensor(a, dtype=dtype, requires_grad=True), start())
    leaves = rlx.tree.leaves(p, is_leaf=lambda x: isinstance(x, torch.Tensor))
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](leaves, lr=RATES[name])
    losses = []
    for batch in batches():
        h = torch.relu(torch.conv2d(torch.tensor(batch["x"], dtype=dtype), p["first"]["weight"], p["first"]["bias"],
                                    padding="same"))  # fmt: skip
        h = torch.relu(torch.conv2d(h, p["second"]["weight"], p["second"]["bias"], padding="same"))
        scores = torch.max_pool2d(h, 2).reshape(len(h), -1) @ p["out"]["weight"].T + p["out"]["bias"]
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(batch["label"], dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(losses: list[float], others: list[float]) -> float:
    """The largest relative difference."""
    return float(np.max(np.abs(np.array(losses) - others) / np.abs(others)))


def judged(name: str, losses: list[float]) -> tuple[float, float, float, bool]:
    """Of a course by rlx: its distance from torch's in f32 and from float64's, the distance of those two, and whether
    it is near enough."""
    kept = json.loads((HERE / "courses.json").read_text())[name]
    near, far = (distance(losses, kept[dtype]) for dtype in ("f32", "f64"))
    theirs = distance(kept["f32"], kept["f64"])
    return near, far, theirs, near <= 1e-5 and far <= 1e-5 if name == "sgd" else far <= 2 * theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        import torch

        made = {n: {"f32": course_of_torch(n, False), "f64": course_of_torch(n, True)} for n in RATES}
        (HERE / "courses.json").write_text(json.dumps({"torch": torch.__version__} | made, indent=1) + "\n")
    right = True
    for name in RATES:
        near, far, theirs, fine = judged(name, course(name, args.device))
        right &= fine
        print(f"{args.device} {name}: {near:.1e} from torch's f32, {far:.1e} from float64; torch's f32 {theirs:.1e}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
