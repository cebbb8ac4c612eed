"""A training step on the processor: rlx's compiled engine, rlx on NumPy and torch, in turns, in one run.

    python benchmarks/networks/training_cpu.py [--threads 1] [--rounds 5] [--profile] [--compile]

The step is that of examples/train_language.py, a Llama of some two million weights: loss, gradients and Adam for a
batch of 8 x 64 tokens. torch has the network of transformers with the same weights, and its fused Adam; `--compile`
adds torch.compile. The table has medians and minima of all steps, and the loss of the first. No time is asserted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, in_turns, middle_and_best, options, spent, version
from examples.train_language import BATCH, CONFIG, LENGTH, start
from rlx.formats import safetensors

Weights = dict[str, np.ndarray[Any, Any]]
RATE = 1e-3


def given() -> dict[str, Any]:
    tokens = np.random.default_rng(0).integers(0, CONFIG["vocab_size"], (BATCH, LENGTH + 1))
    return {
        "ids": tokens[:, :-1].astype(np.int32), "following": tokens[:, 1:].reshape(-1).astype(np.int32),
        "rate": np.float32(RATE), "number": np.float32(10),
    }  # fmt: skip


def training(weights: Weights) -> rlx.Graph:
    """A step: the loss of a batch of tokens and of those that follow them, and new weights by Adam."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        safetensors.save(Path(folder) / "model.safetensors", weights)
        function, _ = rlx.models.trainable(folder)
    g = rlx.Graph("train")
    ids, following = g.input("ids", (BATCH, LENGTH), "i32"), g.input("following", (BATCH * LENGTH,), "i32")
    rate, number = g.input("rate", ()), g.input("number", ())
    held = {name: g.state(name, w.shape) for name, w in weights.items()}
    logits = function(held, ids).reshape(BATCH * LENGTH, CONFIG["vocab_size"])
    loss = g.output("loss", rlx.mean(rlx.cross_entropy(logits, following)))
    for (name, w), slope in zip(held.items(), rlx.gradients(loss, list(held.values())), strict=True):
        first, second = g.state(f"first of {name}", w.shape), g.state(f"second of {name}", w.shape)
        mean, square = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope * slope
        ahead = mean / (1 - 0.9**number) / (rlx.sqrt(square / (1 - 0.99**number)) + 1e-8)
        g.update(f"first of {name}", mean)
        g.update(f"second of {name}", square)
        g.update(name, w - rate * ahead)
    return g


def rlx_step(engine: Any, threads: int, graph: rlx.Graph, weights: Weights, timings: bool = False) -> Any:
    step = rlx.Session("cpu", threads=threads, engine=engine, timings=timings).compile(graph)
    for name, w in weights.items():
        step.set_state(name, w)
    return step


def torch_step(threads: int, weights: Weights, compiled: bool) -> Callable[[], float]:
    import torch
    import transformers

    torch.set_num_threads(threads)
    net = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**CONFIG, attention_bias=False, use_cache=False)
    )
    held = {name: torch.from_numpy(w.copy()) for name, w in weights.items()}
    missing, unknown = net.load_state_dict(held, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}, (missing, unknown)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, betas=(0.9, 0.99), fused=True)
    feeds = given()
    ids, following = (torch.from_numpy(feeds[k].astype(np.int64)) for k in ("ids", "following"))

    def loss_of(ids: Any, following: Any) -> Any:
        return torch.nn.functional.cross_entropy(net(input_ids=ids).logits.flatten(0, 1), following)

    call = torch.compile(loss_of) if compiled else loss_of

    def step() -> float:
        optimizer.zero_grad()
        loss = call(ids, following)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--profile", action="store_true", help="what rlx spends, by op")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    args = parser.parse_args()
    weights, feeds = start(), given()
    graph = training(weights)
    calls: dict[str, Callable[[], Any]] = {}
    for engine in ("compiled", "numpy"):
        step = rlx_step(engine, args.threads, graph, weights)
        calls[f"rlx {engine}"] = partial(lambda s: float(s.run(feeds)["loss"]), step)
    calls["torch"] = torch_step(args.threads, weights, compiled=False)
    if args.compile:
        calls["torch.compile"] = torch_step(args.threads, weights, compiled=True)
    print(f"{args.threads} threads each; torch {version('torch')}; load {os.getloadavg()[0]:.1f}")
    first = {name: call() for name, call in calls.items()}
    table = Table({"engine": "14", "median ms": "9.2f", "best ms": "8.2f", "loss": "8.5f"})
    table.head()
    for name, (middle, best) in middle_and_best(in_turns(calls, args.rounds, args.seconds)).items():
        table.row(name, middle, best, first[name])
    if args.profile:
        timed = rlx_step("compiled", args.threads, graph, weights, timings=True)
        for kind, us, nodes in spent(timed, feeds)[:24]:
            print(f"    {kind:40} {us / 1e3:8.2f} ms  {nodes:4} nodes")


if __name__ == "__main__":
    main()
