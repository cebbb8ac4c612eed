"""Ranks that are processes, by mpi4py: their results beside MPI's own, and how they end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outside import outside

ROOT = Path(__file__).resolve().parents[2]


def _mpiexec(n: int, *command: str) -> subprocess.CompletedProcess[str]:
    outside("mpi4py")
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert program is not None, "mpi4py without mpiexec; `make judges` installs mpich"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RLX_DEVICE": "cpu"}
    done = [program, "-n", str(n), sys.executable, "-m", *command]
    return subprocess.run(done, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.judged
def test_collectives_beside_those_of_mpi() -> None:
    done = _mpiexec(2, "tests.ranks.collectives")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"(\d+) of (\d+) right", done.stdout)
    assert len(counts) == 2 and all(right == count for right, count in counts) and int(counts[0][0]) > 1000


@pytest.mark.judged
@pytest.mark.parametrize(
    "how, said",
    [
        ("raise", "RankLost: rank 1 ended: ValueError: bad data"),
        ("stop", "RankLost: rank 1 did not come to all_reduce of f32[3]"),
        ("exit", "RankLost: rank 1 ended before all_reduce of f32[3]"),
        ("constant", "rank 0 has '%1: f32[] = constant() {value=2.0}', rank 1"),
        ("kill", "Killed"),  # by mpiexec: it ends the others at once
    ],
)  # fmt: skip
def test_a_rank_that_goes_apart_is_named_and_all_end(how: str, said: str) -> None:
    done = _mpiexec(2, "tests.ranks.apart", how)
    assert done.returncode != 0
    assert said in done.stderr + done.stdout, done.stderr + done.stdout
    assert "done" not in done.stdout


@pytest.mark.judged
def test_processes_train_bit_for_bit_as_threads_do() -> None:
    from tests.ranks.test_training import CLIPPED, course, threads

    done = _mpiexec(2, "tests.ranks.apart", "train")
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank \d (\S+) ([0-9a-f]{64})", done.stdout)
    assert len(said) == 2 and said[0] == said[1]
    mesh = threads(2)
    losses, _, _ = mesh.run(lambda: course(mesh, CLIPPED, 7))[0]
    assert said[0][0] == repr(losses[-1])
