"""Folders of sentence-transformers around further encoders, beside the vectors that its version 6.2 gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from tests.models.encoders.sentences import FOLDERS, TEXTS, VECTORS, write
from tests.models.language.test_families import seldom

HELD: dict[str, Any] = json.loads(VECTORS.read_text())["vectors"]


@pytest.mark.late(name=seldom(FOLDERS, 2))
@pytest.mark.parametrize("name", FOLDERS)
def test_vectors(name: str, tmp_path: Path) -> None:
    """Texts of several lengths in one call, each as if it were alone."""
    with rlx.models.load(write(tmp_path, name), "cpu", engine="numpy") as model:
        got = model.encode(TEXTS)
        assert model.max_length == 30
    want = np.asarray(HELD[name])
    assert float(((got - want) ** 2).sum() / (want**2).sum()) <= 1e-11


@pytest.mark.parametrize("name", ["gemma", "mpnet"])
def test_halves_and_the_compiled_engine(name: str, tmp_path: Path) -> None:
    want = np.asarray(HELD[name])
    with rlx.models.load(write(tmp_path, name), "cpu", activations="bf16") as model:
        got = model.encode(TEXTS)
    assert 1e-10 < float(((got - want) ** 2).sum() / (want**2).sum()) < 5e-3  # 8 bits a number


def test_a_language_model_without_these_files_generates(tmp_path: Path) -> None:
    folder = write(tmp_path, "qwen")
    (folder / "modules.json").unlink()
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True}))
    with rlx.models.load(folder, "cpu", engine="numpy") as model:
        assert isinstance(model, rlx.models.LanguageModel)


def test_low_rank_corrections_of_a_decoder(tmp_path: Path) -> None:
    """They change nothing before they are trained; modules have the files' names."""
    function, weights = rlx.models.trainable(write(tmp_path, "qwen"))
    adapted, parameters = function.adapted(rlx.models.Lora(rank=2, targets=("q_proj", "down_proj")), weights)
    assert {name.rpartition(".")[2] for name in parameters} == {"q_proj", "down_proj"}
    assert len(parameters) == 6 and all(f"{name}.weight" in weights for name in parameters)
    ids, mask = np.array([[5, 9, 17, 30, 8]], np.int32), np.ones((1, 5), bool)
    assert (np.asarray(adapted(parameters, weights, ids, mask)) == np.asarray(function(weights, ids, mask))).all()
    name = next(name for name in parameters if name.endswith("q_proj"))
    parameters[name]["lora_B"] += 0.5
    moved = np.asarray(adapted(parameters, weights, ids, mask)) - np.asarray(function(weights, ids, mask))
    assert np.abs(moved).max() > 1e-4


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"is_causal": "no"}, "is_causal is 'no', expected true or false"),
        ({"use_bidirectional_attention": True, "num_attention_heads": 3}, "num_key_value_heads is 2"),
    ],
)
def test_wrong_settings(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    file = write(tmp_path, "qwen") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(ModelFormatError, match=told):
        rlx.models.load(tmp_path, "cpu")
