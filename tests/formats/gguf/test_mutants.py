"""Damaged GGUF files: some of what `python -m tests.formats.mutants --format gguf` works on by the thousand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.formats import mutants


def test_files_that_say_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # mutants are not to be kept
    folder = tmp_path / "model"
    mutants.lay(folder, "gguf")
    originals = {name: (folder / name).read_bytes() for name in mutants.FILES["gguf"]}
    for seed in (0, 1):
        mutants.use(folder, "gguf", seed)
    found = [mutants.attempt("gguf", seed, folder, originals) for seed in range(300)]
    assert [e for e in found if mutants.wrong(e)] == []
    assert {e["outcome"] for e in found} == {"loaded", "ModelFormatError"}
