"""`python benchmarks/networks/saved.py --device cuda`: the time from a saved program to its first result, in a fresh
process.

MiniLM (six layers, 1 x 16 tokens) and ResNet-50 (one picture), with random weights. Of each: compiled from its graph
with kernels that are in the cache; loaded with these; loaded as trusted with the cache off, so that machine code comes
from the file; `fresh`: loaded where `load_program` opens the device too, of which `ready` and `first` are the times
then. `import` is outside of the times, opening the device is given apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.models.bert import BertConfig, encoder_graph

Made = tuple[rlx.Graph, dict[str, Any], dict[str, Any]]


def minilm(batch: int = 1, length: int = 16) -> Made:
    """A sentence encoder of MiniLM's sizes, its weights and inputs."""
    config = BertConfig.from_dict(
        {"model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
         "num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": 512, "type_vocab_size": 2,
         "hidden_act": "gelu", "layer_norm_eps": 1e-12},
        "MiniLM",
    )  # fmt: skip
    graph, rng = encoder_graph(config, batch, length), np.random.default_rng(0)
    weights = {n: rng.standard_normal(t.shape, np.float32) * np.float32(0.05) for n, t in graph.params.items()}
    return graph, weights, {n: np.ones(t.shape, t.dtype.np) for n, t in graph.inputs.items()}


def resnet50(batch: int = 1, size: int = 224) -> Made:
    """ResNet-50 as its authors describe it (arXiv:1512.03385), its weights and a picture."""
    graph, rng = rlx.Graph("resnet50"), np.random.default_rng(0)
    weights: dict[str, Any] = {}

    def param(name: str, array: Any) -> rlx.Tensor:
        weights[name] = array.astype(np.float32)
        return graph.param(name, array.shape)

    def conv(x: rlx.Tensor, name: str, width: int, kernel: int, stride: int = 1) -> rlx.Tensor:
        inputs = x.shape[1] * kernel * kernel
        w = rng.standard_normal((width, x.shape[1], kernel, kernel)) * (2 / inputs) ** 0.5
        y = rlx.conv(x, param(f"{name}.w", w), strides=stride, pads=kernel // 2)
        start = {"gamma": np.ones, "beta": np.zeros, "mean": np.zeros, "var": np.ones}
        return rlx.batch_norm(y, *(param(f"{name}.{n}", make(width)) for n, make in start.items()))

    x = graph.input("x", (batch, 3, size, size))
    y = rlx.max_pool(rlx.relu(conv(x, "stem", 64, 7, 2)), 3, strides=2, pads=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride, name = 2 if stage and not block else 1, f"{stage}.{block}"
            z = rlx.relu(conv(y, f"{name}.a", width, 1))
            z = rlx.relu(conv(z, f"{name}.b", width, 3, stride))
            z = conv(z, f"{name}.c", 4 * width, 1)
            y = rlx.relu(z + (y if block else conv(y, f"{name}.d", 4 * width, 1, stride)))
    y = rlx.mean(y, (2, 3)) @ param("fc.w", rng.standard_normal((2048, 1000)) * 0.02)
    graph.output("y", y + param("fc.b", np.zeros(1000)))
    return graph, weights, {"x": rng.standard_normal(x.shape).astype(np.float32)}


HOWS = ("compile", "load", "trusted", "fresh")
MODELS = {"minilm": minilm, "resnet50": resnet50}


def write(device: str, model: str, folder: Path) -> None:
    """Compiles, runs and saves a model; its inputs and results go beside it."""
    graph, weights, feeds = MODELS[model]()
    with rlx.Session(device).compile(graph) as program:
        program.set_params(weights)
        results = program.run(feeds)
        program.save(folder / f"{model}.rlx")
    np.savez(folder / f"{model}.npz", **feeds)
    np.savez(folder / f"{model}.out.npz", **results)


def once(device: str, model: str, folder: Path, how: str) -> dict[str, float]:
    """Seconds to open the device, to have the program ready, and to its first result."""
    feeds, wanted = dict(np.load(folder / f"{model}.npz")), np.load(folder / f"{model}.out.npz")
    made = MODELS[model]() if how == "compile" else None
    start = time.perf_counter()
    session = None
    if how != "fresh":
        session = rlx.Session(device)
        session.device.free_bytes()
    opened = time.perf_counter()
    if made is not None and session is not None:
        program = session.compile(made[0])
        program.set_params(made[1])
        program.prepare()
    else:
        program = rlx.load_program(folder / f"{model}.rlx", session, trusted=how == "trusted")
    ready = time.perf_counter()
    results = program.run(feeds)
    end = time.perf_counter()
    same = all(np.array_equal(results[name], wanted[name]) for name in wanted)
    program.run(feeds)
    second = time.perf_counter()
    compiled = getattr(getattr(program.device, "kernels", None), "compiled", 0)  # by NVRTC, in this process
    return {"open": opened - start, "ready": ready - opened, "first": end - opened, "second": second - end,
            "same": same, "compiled": compiled}  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--once", choices=("write", *HOWS), help="one step, here")
    parser.add_argument("--how", choices=HOWS, action="append", help="only these")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.once == "write":
        write(given.device, given.model, given.folder)
        return
    if given.once:
        print(json.dumps(once(given.device, given.model, given.folder, given.once)))
        return

    def step(how: str, model: str, folder: str, **env: str) -> str:
        command = [sys.executable, __file__, "--device", given.device, "--once", how, "--model", model]
        command += ["--folder", folder]
        return subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout

    times = f"{'open':>8}{'ready':>8}{'first result':>14}{'second':>9}"
    print(f"{'model':10}{'how':10}{times}  same bits, kernels compiled (medians, s)")
    for model in [given.model] if given.model else list(MODELS):
        with tempfile.TemporaryDirectory() as folder:
            step("write", model, folder)
            for how in given.how or HOWS:
                env = {"RLX_CACHE_DIR": "off", "RLX_CUDA_PTX_CACHE": "off"} if how == "trusted" else {}
                runs = [json.loads(step(how, model, folder, **env)) for _ in range(given.repeat)]
                mid = {key: sorted(r[key] for r in runs)[len(runs) // 2] for key in runs[0]}
                print(f"{model:10}{how:10}{mid['open']:8.3f}{mid['ready']:8.3f}{mid['first']:14.3f}{mid['second']:9.4f}"
                      f"  {all(r['same'] for r in runs)} {mid['compiled']}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
