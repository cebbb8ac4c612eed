"""Settings of GGUF files, beside what llama.cpp makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from rlx.formats import gguf
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.tokenizer import read_tokenizer
from tests.formats.gguf.llamacpp import FLAGS, FROZEN, IDS, ROPES, TEXTS, flags, rope, write

HELD = json.loads(FROZEN.read_text())


@pytest.mark.parametrize("name", ROPES)
def test_how_a_rotary_embedding_is_scaled(name: str, tmp_path: Path) -> None:
    """llama.cpp rounds its cache to halves; what it follows changes these logits by 1 to 8."""
    path = write(tmp_path / "x.gguf", rope(name))
    with rlx.models.load(path, "cpu", context=64, engine="numpy") as model:
        assert np.abs(model.logits(IDS)[-1] - HELD["ropes"][name]).max() < 0.03


@pytest.mark.parametrize("at", range(len(FLAGS)), ids=lambda i: str(FLAGS[i]))
def test_the_spaces_of_t5(at: int, tmp_path: Path) -> None:
    with gguf.read(write(tmp_path / "x.gguf", flags(FLAGS[at]))) as file:
        tokenizer = read_tokenizer(file)
    assert [tokenizer.encode(text, special=False) for text in TEXTS] == HELD["ids"][at]


def test_a_factor_beside_a_table_of_factors(tmp_path: Path) -> None:
    table = {"rope_freqs.weight": np.ones(16, np.float32)}
    path = write(tmp_path / "x.gguf", rope("old key"), table)
    message = "factor is 4.0 beside rope_freqs.weight; rlx has no code for both"
    with gguf.read(path) as file, pytest.raises(ModelFormatError, match=message):
        GgufModel(file)
