"""The folders of sentence-transformers beside the vectors that its version 6.2.0 gives."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError, ModelWarning, RlxError
from tests.models.sentence_folders import FOLDERS, FROZEN, texts, write


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    return dict(json.loads(FROZEN.read_text()))


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.sample(2, vulkan=2)
def test_vectors(name: str, device: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    exact = np.array(frozen[name])
    engine: Any = "numpy" if device == "cpu" and "prompt" not in name else None
    told = FOLDERS[name].get("warns")
    with pytest.warns(ModelWarning, match=told) if told else nullcontext():
        encoder = rlx.models.load(write(tmp_path, name), device, engine=engine)
    with encoder:
        got = encoder.encode(texts(name), prompt_name=FOLDERS[name].get("name"))
        assert encoder.width == exact.shape[1]
    assert np.max(np.abs(got - exact)) <= 2e-6 * max(1.0, np.max(np.abs(exact)))


def test_prompts_by_name(frozen: dict[str, Any], tmp_path: Path) -> None:
    with rlx.models.load(write(tmp_path, "prompt left out"), "cpu", engine="numpy") as encoder:
        assert encoder.default_prompt == "query" and encoder.prompts["passage"] == "bread stone "
        by_default = encoder.encode(["dog"])
        assert (encoder.encode(["dog"], prompt_name="query") == by_default).all()
        assert (encoder.encode(["dog"], prompt="the dog: ") == by_default).all()
        assert (encoder.encode(["dog"], prompt="") == encoder.encode(["dog"], prompt_name="document")).all()
        assert np.abs(encoder.encode(["dog"], prompt="") - by_default).max() > 0.1
        assert (encoder.embed("dog", prompt_name="passage") == encoder.encode(["dog"], prompt_name="passage")[0]).all()
        with pytest.raises(RlxError, match="no prompt has the name 'pasage'; it has document, long, passage, query"):
            encoder.encode(["dog"], prompt_name="pasage")
        with pytest.raises(RlxError, match="give one of them"):
            encoder.encode(["dog"], prompt_name="query", prompt="the ")


@pytest.mark.parametrize("kept", [0, -1, 2.0, "8", True])
def test_a_wrong_truncate_dim(kept: Any, tmp_path: Path) -> None:
    file = write(tmp_path, "truncated") / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncate_dim": kept}))
    with pytest.raises(ModelFormatError, match=r"truncate_dim is .*, expected a number of elements from 1"):
        rlx.models.load(tmp_path, "cpu")


@pytest.mark.parametrize(
    ("given", "says"),
    [({"truncation_side": "middle"}, "truncation_side is 'middle', expected 'left' or 'right'"),
     ({"do_lower_case": "no"}, "do_lower_case is 'no', expected true or false"),
     ({"strip_accents": 1}, "strip_accents is 1, expected true or false")],
)  # fmt: skip
def test_wrong_settings_of_a_tokenizer(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = write(tmp_path, "mean") / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | given))
    with pytest.raises(ModelFormatError, match=says):
        rlx.models.load(tmp_path, "cpu")


def test_the_weights_of_a_dense_module(tmp_path: Path) -> None:
    write(tmp_path, "dense")
    (tmp_path / "2_Dense/model.safetensors").rename(tmp_path / "2_Dense/pytorch_model.bin")
    with pytest.raises(ModelFormatError, match=r"2_Dense.*neither model\.safetensors"):
        rlx.models.load(tmp_path, "cpu")
    write(tmp_path, "dense after normalize")
    config = tmp_path / "3_Dense/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bias": True}))
    with pytest.raises(ModelFormatError, match=r"missing '3_Dense.linear.bias' \(20,\)"):
        rlx.models.load(tmp_path, "cpu")
