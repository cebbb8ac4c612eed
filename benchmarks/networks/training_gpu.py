"""A training step on a GPU: rlx beside torch, in turns, in one run.

    python benchmarks/networks/training_gpu.py [--device cuda vulkan] [--rounds 5] [--width 384] [--layers 6]

The network is a GPT without dropout: learned positions, layer norms before attention and MLP, gelu, an output matrix
of its own, 1024 letters, a batch of 32 x 128 tokens; AdamW in f32. rlx runs it by `rlx.training`, torch by
torch.compile (reduce-overhead) with fused AdamW, TF32 off. Both read the loss every ten steps. The table has the
milliseconds of a step, and the losses after the first ten steps and after the last, of the same weights and data.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, options, version
from rlx import nn, optim

LETTERS, BATCH, LENGTH, HEAD, STEPS = 1024, 32, 128, 64, 10
Tree = dict[str, Any]


def init(width: int, layers: int) -> Tree:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return (0.02 * rng.standard_normal(shape)).astype(np.float32)

    def linear(n_in: int, n_out: int) -> Tree:
        return {"weight": drawn(n_out, n_in), "bias": np.zeros(n_out, np.float32)}

    def norm() -> Tree:
        return {"weight": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    return {
        "letters": drawn(LETTERS, width), "places": drawn(LENGTH, width),
        "layers": [
            {"before": norm(), "q": linear(width, width), "k": linear(width, width), "v": linear(width, width),
             "out": linear(width, width), "between": norm(), "up": linear(width, 4 * width),
             "down": linear(4 * width, width)}
            for _ in range(layers)
        ],
        "last": norm(), "head": linear(width, LETTERS),
    }  # fmt: skip


def loss(p: Tree, rows: Any) -> Any:
    ids = rows[:, :-1]
    x = nn.embedding({"weight": p["letters"]}, ids) + p["places"]
    heads = p["places"].shape[1] // HEAD
    for layer in p["layers"]:
        x = x + nn.attention(layer, nn.layer_norm(layer["before"], x), heads, causal=True)
        x = x + nn.linear(layer["down"], rlx.gelu(nn.linear(layer["up"], nn.layer_norm(layer["between"], x))))
    scores = nn.linear(p["head"], nn.layer_norm(p["last"], x))
    return rlx.mean(rlx.cross_entropy(scores, rows[:, 1:]))


def batches() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [(rng.integers(0, LETTERS, (BATCH, LENGTH + 1)) ** 2 % LETTERS).astype(np.int32) for _ in range(4)]


def of_rlx(device: str, p: Tree, data: list[Any]) -> Callable[[], float]:
    run = rlx.training(loss, p, optim.adamw(1e-3), device=device, progress=False)

    def steps() -> float:
        for i in range(STEPS):
            metrics = run.step(data[i % len(data)])
        return metrics["loss"]

    return steps


def turn_of_torch(optimizer: Any, loss_of: Callable[[int], Any], steps: int) -> Callable[[], float]:
    """The steps of a turn by torch, where step i is of the loss `loss_of(i)`; the loss is read at the end."""

    def turn() -> float:
        for i in range(steps):
            optimizer.zero_grad(set_to_none=True)
            value = loss_of(i)
            value.backward()
            optimizer.step()
        return float(value)

    return turn


def of_torch(p: Tree, data: list[Any]) -> Callable[[], float]:
    import torch
    from torch.nn import functional as f

    torch.backends.cuda.matmul.allow_tf32 = False
    flat: list[Any] = []

    def held(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: held(part) for name, part in tree.items()}
        if isinstance(tree, list):
            return [held(part) for part in tree]
        flat.append(torch.tensor(tree, device="cuda", requires_grad=True))
        return flat[-1]

    weights = held(p)
    width = p["places"].shape[1]

    def forward(rows: Any) -> Any:
        def linear(part: Any, x: Any) -> Any:
            return f.linear(x, part["weight"], part["bias"])

        def norm(part: Any, x: Any) -> Any:
            return f.layer_norm(x, (width,), part["weight"], part["bias"])

        def split(x: Any) -> Any:
            return x.view(BATCH, LENGTH, -1, HEAD).transpose(1, 2)

        x = f.embedding(rows[:, :-1], weights["letters"]) + weights["places"]
        for layer in weights["layers"]:
            y = norm(layer["before"], x)
            q, k, v = (split(linear(layer[name], y)) for name in "qkv")
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + linear(layer["out"], mixed)
            x = x + linear(layer["down"], f.gelu(linear(layer["up"], norm(layer["between"], x))))
        scores = linear(weights["head"], norm(weights["last"], x))
        return f.cross_entropy(scores.reshape(-1, LETTERS), rows[:, 1:].reshape(-1))

    compiled = torch.compile(forward, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(flat, lr=1e-3, weight_decay=1e-4, fused=True)
    rows = [torch.tensor(batch, device="cuda", dtype=torch.int64) for batch in data]
    return turn_of_torch(optimizer, lambda i: compiled(rows[i % len(rows)]), STEPS)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", nargs="+", default=["cuda", "vulkan"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    p, data = init(args.width, args.layers), batches()
    calls = {f"rlx {device}": of_rlx(device, p, data) for device in args.device}
    if version("torch") and args.device != ["cpu"]:
        calls[f"torch {version('torch')}"] = of_torch(p, data)
    times: dict[str, list[float]] = {name: [] for name in calls}
    losses: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(args.rounds + 2):
        for name, call in calls.items():
            begin = time.perf_counter()
            losses[name].append(call())
            if turn > 1:  # two rounds warm up
                times[name].append((time.perf_counter() - begin) / STEPS * 1e3)
    table = Table({"": "14", "ms a step": "9.2f", "least": "7.2f", "first losses": "12.6f", "last": "10.6f"})
    table.head()
    for name, kept in times.items():
        table.row(name, statistics.median(kept), min(kept), losses[name][0], losses[name][-1])


if __name__ == "__main__":
    main()
