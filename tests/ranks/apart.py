"""Two ranks of MPI of which the last goes another way: `mpiexec -n 2 python -m tests.ranks.apart HOW [DEVICE]`.

HOW is raise, stop (SIGSTOP), kill (SIGKILL), exit, or shape, constant, op: another program, or model, seed, version: a
training that begins otherwise. The others have to say which rank it was, and all end; train: a training of a few steps,
whose losses and parameters' digest are printed. DEVICE is cpu, or cuda: a GPU for each rank."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from typing import Any

import numpy as np

import rlx
from rlx import optim
from rlx.ranks.place import PLACE
from rlx.runtime.shard_map import device_of
from rlx.train import loop

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"


def program(factor: float = 2.0, n: int = 3, op: Any = rlx.all_reduce) -> Any:
    device = device_of(PLACE.mesh, DEVICE)
    return rlx.jit(lambda x: op(x * factor, "ranks"), device=device)(np.ones(n, np.float32))


def begin(mesh: rlx.Mesh, how: str) -> None:
    """Begins a training, of which the last rank has another parameter, seed or version."""
    other = mesh.rank == mesh.size - 1
    loop.VERSION = "0.0" if other and how == "version" else loop.VERSION
    weight = np.full(3, 1.0 + (other and how == "model"))
    rlx.training(lambda p, x, key: rlx.sum(p * x), weight, optim.sgd(0.1), key=7 + (other and how == "seed"),
                 device=DEVICE, mesh=mesh)  # fmt: skip


def work(mesh: rlx.Mesh, how: str) -> None:
    program()
    if mesh.rank == mesh.size - 1:
        if how == "raise":
            raise ValueError("bad data")
        if how in ("stop", "kill"):
            os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
        if how == "exit":
            sys.exit(3)
        if how == "shape":
            program(n=4)
        if how == "constant":
            program(3.0)
        if how == "op":
            program(op=rlx.all_gather)
    for _ in range(3):
        program()


def train(mesh: rlx.Mesh) -> None:
    from tests.ranks.test_training import CLIPPED, course

    losses, parameters, _ = course(mesh, CLIPPED, 7)
    digest = hashlib.sha256(b"".join(x.tobytes() for x in parameters.values())).hexdigest()
    print(f"rank {mesh.rank} {losses[-1]!r} {digest}", flush=True)


def main() -> None:
    how = sys.argv[1]
    mesh = rlx.Mesh({"ranks": -1}, timeout=1.5 if how == "stop" else 60)
    with mesh:
        if how == "train":
            train(mesh)
        elif how in ("model", "seed", "version"):
            begin(mesh, how)
        else:
            work(mesh, how)
    print("done", flush=True)


if __name__ == "__main__":
    main()
