"""Settings of GGUF files, beside what llama.cpp makes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.cli.app import app
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats import gguf
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.tokenizer import read_tokenizer
from rlx.models.language.perplexity import perplexities
from tests.formats.gguf.llamacpp import BEGINNINGS, FLAGS, FROZEN, IDS, LONG, ROPES, TEXTS, flags, rope, write

HELD = json.loads(FROZEN.read_text())


@pytest.mark.parametrize("name", ROPES)
def test_how_a_rotary_embedding_is_scaled(name: str, tmp_path: Path) -> None:
    """llama.cpp rounds its cache to halves; what it follows changes these logits by 1 to 8."""
    path = write(tmp_path / "x.gguf", rope(name))
    with rlx.models.load(path, "cpu", context=64, engine="numpy") as model:
        assert np.abs(model.logits(IDS)[-1] - HELD["ropes"][name]).max() < 0.03


@pytest.mark.parametrize("at", [0, 1], ids=["plain", "a mark before"])
def test_the_perplexity_of_a_text(at: int, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", {**rope("plain"), **BEGINNINGS[at]})
    with rlx.models.load(path, "cpu", context=16, engine="numpy") as model:
        *_, last = perplexities(model, LONG, 16)
        assert last.value == pytest.approx(HELD["perplexities"][at], rel=5e-3)
        assert (last.tokens, last.chunk, last.chunks) == (42, 6, 6)
        assert next(perplexities(model, LONG, 16, 1)).chunks == 1
        with pytest.raises(ShapeError, match="the text has 3 tokens; expected 32 or more, two chunks of 16"):
            next(perplexities(model, "a b" if not at else "a", 16))
        with pytest.raises(ShapeError, match="expected from 4 to the context of 16"):
            next(perplexities(model, LONG, 32))


def test_the_command_of_perplexity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.gguf", rope("plain"))
    (tmp_path / "t.txt").write_text(LONG + "\n")
    for arguments in ([path, "-f", tmp_path / "t.txt"], ["-m", path, tmp_path / "t.txt"]):
        with pytest.raises(SystemExit) as end:
            app(["perplexity", *map(str, arguments), "-c", "16", "--device", "cpu", "--engine", "numpy"])
        assert not end.value.code
        found = re.match(r"perplexity: (\S+) ± \S+, of 42 tokens, the second halves of 6 chunks of 16, on cpu\n",
                         capsys.readouterr().out)  # fmt: skip
        assert found and float(found[1]) == pytest.approx(HELD["perplexities"][0], rel=5e-3)


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
