"""The arena of a training step of GPT-2 small, before and after the planner chooses what is computed again.

    python benchmarks/networks/recompute.py [--batch 8] [--tokens 1024] [--layers 12] [--parts 0.75 0.5] [--run DEVICE]

With `--run DEVICE` the step and that with each budget run in turns instead, and are compared bit by bit.

Without it nothing runs and no arena is acquired: the step (f32, AdamW, parameters and states donated) is traced,
optimized for the CPU and planned. The last column is the estimated time of what is computed again, relative to the
step's.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np

import rlx
from rlx import nn, optim
from rlx.driver.memory.plan import MemoryPlan, Slot
from rlx.driver.memory.planner import plan
from rlx.driver.memory.planner.recompute import fit
from rlx.driver.memory.planner.spare import spared
from rlx.errors import ByteLimitExceeded
from rlx.ir import Graph
from rlx.runtime.donation import donated
from rlx.runtime.prepare import prepare


def gpt2(vocabulary: int, tokens: int, width: int, layers: int) -> dict[str, Any]:
    """Parameters of GPT-2's shapes; nobody reads their values."""
    zeros = partial(np.zeros, dtype=np.float32)

    def dense(n: int, m: int) -> dict[str, Any]:
        return {"weight": zeros((m, n)), "bias": zeros(m)}

    def norm() -> dict[str, Any]:
        return {"weight": zeros(width), "bias": zeros(width)}

    block = {"norm": norm(), "qkv": dense(width, 3 * width), "out": dense(width, width), "norm2": norm(),
             "up": dense(width, 4 * width), "down": dense(4 * width, width)}  # fmt: skip
    return {"words": zeros((vocabulary, width)), "places": zeros((tokens, width)), "norm": norm(),
            "blocks": [rlx.tree.map(np.copy, block) for _ in range(layers)]}  # fmt: skip


def loss(params: Any, ids: Any, following: Any, heads: int) -> Any:
    """The mean cross entropy of the next tokens."""
    x = rlx.embedding(params["words"], ids) + params["places"]
    for p in params["blocks"]:
        q, k, v = (nn.heads(t, heads) for t in rlx.split(nn.linear(p["qkv"], nn.layer_norm(p["norm"], x)), 3, -1))
        x = x + nn.linear(p["out"], nn.joined(rlx.attention(q, k, v, causal=True)))
        x = x + nn.linear(p["down"], rlx.gelu(nn.linear(p["up"], nn.layer_norm(p["norm2"], x)), approximate="tanh"))
    logits = nn.layer_norm(params["norm"], x) @ params["words"].T
    return rlx.mean(rlx.cross_entropy(logits.reshape((-1, logits.shape[-1])), following.reshape((-1,))))


OPTIMIZER = optim.adamw(1e-3)


def step(params: Any, state: Any, ids: Any, following: Any, heads: int) -> Any:
    """A step of AdamW: (the loss, new parameters, new state)."""
    value, gradient = rlx.value_and_grad(loss)(params, ids, following, heads)
    updates, state = OPTIMIZER.update(gradient, state, params)
    return value, optim.apply_updates(params, updates), state


def step_graph(params: Any, batch: int, tokens: int, heads: int) -> Graph:
    """The step's program, with parameters and state donated."""
    ids = np.zeros((batch, tokens), np.int32)
    graph = rlx.jit(partial(step, heads=heads)).graph(params, OPTIMIZER.init(params), ids, ids)
    return donated(graph, [n for n in graph.inputs if n.split(".")[0] in ("params", "state")])[0]


def planned(graph: Graph) -> MemoryPlan:
    """The plan of a graph whose states lie in stores."""
    return plan(graph, state_slots={n: Slot("store", 0, t.type.nbytes, t.dtype) for n, t in graph.states.items()})


def compare(params: Any, batch: int, tokens: int, heads: int, parts: list[float], device: str) -> None:
    """Runs the steps in turns, from the same parameters: bits of all results, and the best time of each."""
    rng = np.random.default_rng(0)
    params = rlx.tree.map(lambda p: (rng.standard_normal(p.shape) * 0.02).astype(np.float32), params)
    ids = rng.integers(0, params["words"].shape[0], (2, batch, tokens)).astype(np.int32)
    session = rlx.Session(device)
    options: dict[str, Any] = {"device": session, "donate": ("params", "state"), "out": "device", "static_argnums": 4}
    steps: dict[str, Any] = {}

    def results(name: str, function: Any) -> tuple[list[Any], int]:
        steps[name] = rlx.jit(function, **options)
        returned = steps[name](params, OPTIMIZER.init(params), ids[0], ids[1], heads)
        return [np.asarray(x) for x in rlx.tree.leaves(returned)], steps[name].report()[-1].plan.arena_bytes

    want, arena = results("the step", step)
    print(f"{session.info.id}: arena {arena:,} bytes")
    for part in parts:
        spared = rlx.checkpoint(step, policy="auto", budget=int(part * arena), static_argnums=4)
        bits, size = results(f"budget {part:.0%}", spared)
        same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(want, bits, strict=True))
        print(f"budget {part:.0%}: arena {size:,} bytes, {'the same bits' if same else 'OTHER BITS'}")
    best: dict[str, float] = {}
    for _ in range(3):
        for name, run in steps.items():
            value, held, state = run(params, OPTIMIZER.init(params), ids[0], ids[1], heads)
            begun = time.perf_counter()
            for _ in range(5):
                value, held, state = run(held, state, ids[0], ids[1], heads)
            float(np.asarray(value))
            best[name] = min(best.get(name, np.inf), (time.perf_counter() - begun) / 5)
    for name, seconds in best.items():
        print(f"{name}: {seconds * 1e3:.1f} ms, {seconds / best['the step']:.3f} times the step's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("batch", 8), ("tokens", 1024), ("layers", 12), ("width", 768), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--parts", type=float, nargs="+", default=[0.75, 0.5])
    parser.add_argument("--run", metavar="DEVICE")
    options = parser.parse_args()
    params = gpt2(options.vocabulary, options.tokens, options.width, options.layers)
    heads = max(1, options.width // 64)
    if options.run:
        compare(params, options.batch, options.tokens, heads, options.parts, options.run)
        return
    graph = step_graph(params, options.batch, options.tokens, heads)
    device = rlx.Session("cpu").device
    ready = prepare(graph, support=device.support, param_dtypes={}, storage="typed", packed=False, optimize=True,
                    fallback="host", launches=False).graph  # fmt: skip
    whole = planned(ready)
    arena = whole.arena_bytes
    print(f"{len(ready.nodes):,} nodes; arena {arena:,} bytes")
    smaller = spared(ready, whole, planned)
    print(f"as compiled: {planned(smaller).arena_bytes:,} bytes, {len(smaller.nodes) - len(ready.nodes)} nodes again")
    for part in options.parts:
        begun = time.perf_counter()
        try:
            fitted = fit(ready, int(part * arena), planned)
            fitting = planned(fitted.graph).arena_bytes
            print(f"budget {part:.0%}: {fitting:,} bytes ({fitting / arena:.1%}), {fitted.nodes} nodes again, "
                  f"{fitted.work:+.1%} of the work, planned in {time.perf_counter() - begun:.1f} s")  # fmt: skip
        except ByteLimitExceeded as error:
            print(f"budget {part:.0%}: {error}")


if __name__ == "__main__":
    main()
