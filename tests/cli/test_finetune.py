"""`rlx finetune`: from a model's folder and a data file to an adapter that `rlx generate` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Rlx
from tests.finetune.tiny import talks, write_base, write_lines


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def test_an_example_is_shown_trained_on_and_used(rlx: Rlx, base: Path, tmp_path: Path) -> None:
    data, out = write_lines(tmp_path / "a.jsonl", talks(6)), tmp_path / "out"
    ran = rlx("finetune", base, data, "--show-example")
    assert ran.status == 0 and ran.out.splitlines()[2] == '  learned "abc</s>"'
    options = ("--out", out, "--steps", 2, "--batch", 2, "--rank", 2, "--target", "q_proj", "--device", "cpu")
    ran = rlx("finetune", base, data, *options, "--merge", tmp_path / "merged.gguf")
    assert ran.status == 0, ran.err
    assert "trained: 224 parameters; 2 steps of 2 rows" in ran.out and "memory: " in ran.out
    assert (tmp_path / "merged.gguf").exists() and (out / "adapter.gguf").exists()
    assert rlx("generate", base, "-p", "say", "-n", 2, "--adapter", out, "--device", "cpu").status == 0
    ran = rlx("finetune", base, data, *options)
    assert ran.status == 2 and ran.err.startswith(f"rlx: {out} holds a run already; --resume goes on with it")
    assert rlx("finetune", base, data, *options, "--resume").status == 0
    ran = rlx("finetune", base, data, *options, "--resume", "--rank", 3)
    assert ran.status == 2 and "the adapter is" in ran.err
    ran = rlx("finetune", base, data, "--out", tmp_path / "all", "--full", "--dora", "--rank", 3)
    assert ran.status == 2 and "which --rank, --dora would shape" in ran.err


def test_what_is_wrong_is_one_line(rlx: Rlx, base: Path, tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "a"}\n{"text": \n')
    ran = rlx("finetune", base, data, "--out", tmp_path / "out")
    assert ran.status == 2 and ran.err.startswith(f"rlx: {data}, line 2: is no JSON: Expecting value at character ")
    assert not (tmp_path / "out").exists()
    ran = rlx("finetune", base, data)
    assert ran.status == 2 and "--out names the folder" in ran.err
    ran = rlx("finetune", base, data, "--show-example", "--skip-broken")
    assert ran.status == 0 and "left out: 1 broken (line 2: is no JSON" in ran.out
