"""Heads of text encoders beside what transformers 5.24.0 gives for them in float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from tests.models.family_heads import FROZEN, TYPES, ours, write

CASES = json.loads(FROZEN.read_text())


@pytest.mark.parametrize("kind", TYPES)
def test_logits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", "numpy")
    for task in ("sparse", "scores", "labels"):
        case = CASES[f"{kind} {task}"]
        (tmp_path / task).mkdir()
        found = ours(write(tmp_path / task, task, case["config"], case["shapes"]))[0]
        # ModernBERT's class makes its tables of rotary embeddings in f32.
        assert np.abs(found - case["exact"]).max() <= (2e-7 if kind == "modernbert" else 1e-11), task


def test_heads_that_are_not_there(tmp_path: Path) -> None:
    case = CASES["roberta sparse"]
    write(tmp_path, "sparse", {**case["config"], "model_type": "rembert", "input_embedding_size": 20}, case["shapes"])
    with pytest.raises(ModelFormatError, match="sparse vectors of 'rembert' are not there; rlx has those of bert, "):
        rlx.models.trainable(tmp_path)
