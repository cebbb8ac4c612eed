"""A rank of a model that processes share: `mpiexec -n 2 python -m tests.models.language.processes WHAT`, where WHAT
says in what the last rank differs from the others, or "same"."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from rlx.formats import safetensors
from rlx.models import load
from rlx.ranks.mpi import opened
from tests.models.language import tiny


def main(what: str) -> None:
    world = opened()
    odd = what if world.rank == world.size - 1 else ""
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.write_language_model(Path(folder) / "m")
        if odd == "model":
            held = {name: np.array(value) for name, value in safetensors.load(path).items()}
            held["model.layers.1.mlp.down_proj.weight"] *= 1.5
            safetensors.save(path / "model.safetensors", held, {"format": "pt"})
        with load(path, "cpu", context=41 if odd == "context" else 40, tensor_parallel=world.size) as model:
            if what == "batch":
                model.batch(2)
            if what == "same":
                print(list(model.tokens(tiny.TOKENS[:19], 20)), flush=True)
                return
            list(model.tokens([3, 17, 5 if odd == "prompt" else 17], 2 if odd == "count" else 5))


main(sys.argv[1])
