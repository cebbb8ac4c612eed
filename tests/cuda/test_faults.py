"""Each CUDA call of a program's life fails in turn: typed, nothing left, others unharmed, the next life well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import device_here

MEMORY = {"malloc", "free", "memsetAsync", "memcpyAsync", "hostAlloc", "eventRecord", "streamSynchronize"}
RECORDING = {
    "streamBeginCapture",
    "streamEndCapture",
    "graphInstantiate",
    "graphUpload",
    "graphLaunch",
    "launchKernel",
}
LIBRARIES = {"cublasCreate_v2", "cublasLtMatmul", "nvrtcCreateProgram", "nvrtcCompileProgram"}


def failed_in_turn(kind: str, part: str, repo: Path, env: dict[str, str]) -> set[str]:
    """The functions of which a failure was told."""
    said = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.cuda.faults", kind, part],
        env={**env, "PYTHONPATH": str(repo)}, cwd=repo, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, ""), said
    return {line.split()[0] for line in json.loads(said.stdout) if line.endswith(": told")}


@pytest.mark.parametrize(
    "part, functions",
    [
        ("whole", MEMORY | RECORDING | LIBRARIES),
        ("beside", RECORDING | {"malloc", "memcpyAsync"}),
        ("lost", RECORDING),
    ],
)
@pytest.mark.full(part="beside")
@pytest.mark.late
def test_each_call_fails_in_turn_without_a_gpu(
    part: str, functions: set[str], repo: Path, clean_env: dict[str, str]
) -> None:
    assert failed_in_turn("fake", part, repo, clean_env) >= functions


@pytest.mark.cuda
@pytest.mark.parametrize("part", ["whole", "beside"])
def test_each_call_fails_in_turn(part: str, repo: Path, clean_env: dict[str, str]) -> None:
    device_here("cuda")
    assert failed_in_turn("real", part, repo, clean_env) >= {"malloc", "graphLaunch"}
