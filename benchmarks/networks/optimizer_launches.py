"""How many launches a step of each optimizer takes over the parameters of GPT-2 small, by the report of its program.

    python benchmarks/networks/optimizer_launches.py [--device vulkan] [--layers 12] [--width 48]

There are as many parameters as the model has, in as many sizes; `--width 768 --vocabulary 50257` makes them its own,
which takes 3 GB. Beside the launches stand the bytes of the arena, which are those of the gradients where parameters
and state are written in place.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from recompute import gpt2

import rlx
from rlx import optim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="vulkan")
    for name, value in (("tokens", 64), ("layers", 12), ("width", 48), ("vocabulary", 500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    params = gpt2(options.vocabulary, options.tokens, options.width, options.layers)
    optimizers = {
        "sgd": optim.sgd(0.1, 0.9), "adamw": optim.adamw(1e-3), "lion": optim.lion(1e-3),
        "adamw, matrices decay": optim.adamw(1e-3, mask=lambda p: rlx.tree.map(lambda x: x.ndim > 1, p)),
        "adamw, clipped": optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3)),
        "adamw of 4 gradients": optim.accumulate(optim.adamw(1e-3), 4), "adamw, 8 bits": optim.adamw_8bit(1e-3),
        "adafactor": optim.adafactor(1e-3), "muon": optim.muon(1e-3),
    }  # fmt: skip
    print(f"{len(rlx.tree.leaves(params))} parameters, {sum(np.size(p) for p in rlx.tree.leaves(params)):,} elements")
    for name, optimizer in optimizers.items():

        def step(params: Any, state: Any, gradients: Any, optimizer: optim.Optimizer = optimizer) -> Any:
            updates, state = optimizer.update(gradients, state, params)
            return optim.apply_updates(params, updates), state

        jitted = rlx.jit(step, device=options.device, donate=("params", "state"), out="device")
        jitted(params, optimizer.init(params), params)
        report: Any = jitted.report()
        launches = sum(len(d.steps) for d in report[-1])
        print(f"{name:22} {launches:5} launches, arena {report[-1].plan.arena_bytes:,} bytes")


if __name__ == "__main__":
    main()
