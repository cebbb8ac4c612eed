"""Training by two GPUs in two trees of rlx, in turns: threads, processes of MPI, and NCCL with fewer channels.

    python benchmarks/networks/ranks_turns.py OTHER_TREE [--rounds 4]

Each run is `ranks.py --only training` of a tree. Before them one card alone is timed beside both at once, each alone,
which says how much of the loss is not due to what ranks send.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx

HERE = Path(__file__).resolve().parents[2]
ALONE = """
import sys
sys.path[:0] = ['.']
from argparse import Namespace
from benchmarks.networks.ranks import begun, tokens
a = Namespace(vocabulary=50257, length=1024, width=768, layers=12, batch=8, half=True, zero=0)
run = begun(None, 'cuda:0', a, 1)
print(max(tokens(run, 40, 5)[0] for _ in range(8)))
"""


def alone(cards: list[int]) -> list[str]:
    """The tokens a second of each of these cards, which work at once and know nothing of each other."""
    runs = [
        subprocess.Popen([sys.executable, "-c", ALONE], cwd=HERE, stdout=subprocess.PIPE, text=True,
                         env=os.environ | {"CUDA_VISIBLE_DEVICES": str(card)})
        for card in cards
    ]  # fmt: skip
    return [f"{float(run.communicate()[0] or 'nan'):,.0f}" for run in runs]


def prompts(devices: tuple[str, str], shape: tuple[int, int], links: int = 16) -> str:
    """The microseconds of a sum of bf16 and the addition of a residual: by all_reduce, by a gather and one addition,
    and without the other rank; whether both give the same bits."""
    mesh = rlx.Mesh({"data": 2}, devices=devices, timeout=60)

    def reduced(x: Any) -> Any:
        return rlx.all_reduce(x * 0.5, "data") + x

    def gathered(x: Any) -> Any:
        both = rlx.cast(rlx.all_gather(x * 0.5, "data"), "f32")
        return rlx.cast(both[: shape[0]] + both[shape[0] :], "bf16") + x

    def alone(x: Any) -> Any:
        return x * 0.5 + x

    def timed() -> tuple[list[float], list[Any]]:
        x = np.random.default_rng(mesh.rank).standard_normal(shape).astype(rlx.dtypes.bf16.np)
        best, results = [], []
        for link in (reduced, gathered, alone):
            graph = rlx.Graph("links")
            y = graph.input("x", shape, "bf16")
            for _ in range(links):
                y = link(y)
            graph.output("y", y)
            program = rlx.Session(devices[mesh.rank]).compile(graph)
            results.append(program.run({"x": x})["y"].tobytes())
            bound, times = program.bind(), []
            for _ in range(12):
                begin = time.perf_counter()
                bound.run()
                times.append((time.perf_counter() - begin) / links * 1e6)
            best.append(min(times))
        return best, results

    times, results = mesh.run(timed)[0]
    names = "all_reduce", "gather and addition", "no sum"
    said = ", ".join(f"{name} {us:.1f}" for name, us in zip(names, times, strict=True))
    return f"us of a link, {shape} bf16: {said}; the same bits: {results[0] == results[1]}"


def trained(tree: Path, mpi: bool, rounds: int, settings: dict[str, str]) -> str:
    """What `ranks.py` of a tree says of two ranks."""
    command = [sys.executable, "benchmarks/networks/ranks.py", "--device", "cuda", "--only", "training"]
    command += ["--accumulate", "1", "--rounds", str(rounds), "--warm", "4"]
    environment = os.environ | {"NCCL_NVLS_ENABLE": "0"} | settings
    if mpi:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment, command = environment | root, ["mpiexec", "-n", "2", *command]
    else:
        command += ["--ranks", "2"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100)
    line = re.search(r"one rank .*times", done.stdout)
    return line[0] if line else f"failed ({done.returncode}): {(done.stdout + done.stderr)[-300:]}"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    print(
        "card 0, card 1, each by itself:",
        *alone([0]),
        *alone([1]),
        " both at once:",
        *alone([0, 1]),
        flush=True,
    )
    print(prompts(("cuda:0", "cuda:1"), (2048, 4096)), flush=True)
    few = {"NCCL_MAX_NCHANNELS": "8"}
    plans = [(mpi, settings) for settings in ({}, few) for mpi in (False, True)] + [(False, {})]
    for mpi, settings in plans:
        for name, tree in (("other", args.other), ("this", HERE)):
            words = (
                f"{'processes' if mpi else 'threads':9} {' '.join(f'{k}={v}' for k, v in settings.items())}"
            )
            print(f"{name:5} {words}: {trained(tree.resolve(), mpi, args.rounds, settings)}", flush=True)


if __name__ == "__main__":
    main()
