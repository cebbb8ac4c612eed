"""Settings that do not mean what they say: embeddings said to be the output matrix, rotary embeddings, caps, types."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlx.cli.app import app
from rlx.errors import ModelFormatError, ModelWarning
from rlx.formats import gguf, safetensors
from rlx.formats.gguf import convert, to_folder
from rlx.formats.huggingface import ModelFolder
from rlx.models import load
from rlx.models.language.architectures import architecture_of
from rlx.models.language.config import Attention, Fields
from rlx.models.speech.audio import LogMel
from rlx.ops.rope.scaling import (
    DynamicScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)
from tests.models.language import families, settings_sweep, tiny
from tests.models.language.tiny import nmse
from tests.models.speech import tiny as speech

TIED = {**tiny.LLAMA, "tie_word_embeddings": True}
FAMILIES = {"llama": TIED, "gemma2": tiny.GEMMA}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
OSS = {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, "head_dim": 8}
ORIGINAL = "original_max_position_embeddings"


def attention(config: dict[str, Any]) -> Attention:
    fields = Fields({**tiny.LLAMA, **config}, "config.json")
    found = architecture_of(fields).read(fields).attention
    assert found is not None
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("held", ["beside", "alone", "twice", "rounded"])
def test_an_output_matrix_beside_tied_embeddings(family: str, held: str, tmp_path: Path) -> None:
    """Other numbers are used as they are, with a warning; alone they are the embeddings too."""
    config = FAMILIES[family]
    untied = {**config, "tie_word_embeddings": False}
    folder, arrays = tiny.write_language_model(tmp_path, config), tiny.weights(untied)
    want = tiny.logits(untied, given=arrays)
    if held == "alone":
        arrays["model.embed_tokens.weight"] = arrays["lm_head.weight"]
        want = tiny.logits(untied, given=arrays)
        del arrays["model.embed_tokens.weight"]
    elif held == "twice":
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
        want = tiny.logits(config)
    elif held == "rounded":  # in another dtype the numbers count, not the bytes
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].astype(np.float16)
        want = tiny.logits(untied, given=arrays)
    safetensors.save(folder / "model.safetensors", arrays)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with load(folder, "cpu", context=24, engine="numpy") as model:
            assert nmse(model.logits(tiny.TOKENS), want) <= 1e-11
            assert model.config.tied == (held in ("alone", "twice"))
    told = [str(w.message) for w in said if issubclass(w.category, ModelWarning)]
    assert len(told) == (held not in ("alone", "twice"))
    assert all("'lm_head.weight' holds other numbers than 'model.embed_tokens.weight'" in text for text in told)


def test_the_output_matrix_of_whisper(tmp_path: Path) -> None:
    speech.write_model(tmp_path)
    held = {name: np.array(array) for name, array in safetensors.load(tmp_path).items()}
    table = next(array for name, array in held.items() if name.endswith("decoder.embed_tokens.weight"))
    features, tokens = LogMel(speech.BANDS, samples=16000).of(speech.sound(0.1)), [speech.START, 2]
    for times in (1, 2):
        safetensors.save(tmp_path / "model.safetensors", {**held, "proj_out.weight": times * table})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with load(tmp_path, "cpu", engine="numpy") as model:
                assert nmse(model.logits(features, tokens), times * speech.logits(features, tokens)) <= 1e-11
        assert len(said) == times - 1


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({"rope_scaling": {**LLAMA3, ORIGINAL: 8}, ORIGINAL: 16}, Llama3Scaling(8.0, 1.0, 4.0, 16)),
        ({"rope_parameters": {**LLAMA3, ORIGINAL: 8}}, Llama3Scaling(8.0, 1.0, 4.0, 8)),
        ({"rope_scaling": LLAMA3}, Llama3Scaling(8.0, 1.0, 4.0, 64)),
        ({"rope_scaling": {**YARN, ORIGINAL: 8}, ORIGINAL: 16}, YarnScaling(4.0, 16)),
        ({"rope_scaling": {**YARN, "factor": None}, ORIGINAL: 16}, YarnScaling(4.0, 16)),
        ({"rope_scaling": {**LONG, ORIGINAL: 8}, ORIGINAL: 16}, LongRopeScaling(4.0, 16, (1.0,) * 4, (2.0,) * 4)),
        ({"rope_scaling": LONG}, LongRopeScaling(1.0, 64, (1.0,) * 4, (2.0,) * 4)),
        ({"model_type": "phi3", "rope_scaling": {**LONG, ORIGINAL: 8}, "max_position_embeddings": 8192},
         LongRopeScaling(2.0, 4096, (1.0,) * 4, (2.0,) * 4)),
        ({"model_type": "phi3", "rope_scaling": {**LONG, "rope_type": "yarn"}, ORIGINAL: 32},
         LongRopeScaling(2.0, 32, (1.0,) * 4, (2.0,) * 4)),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, ORIGINAL: 16}, DynamicScaling(2.0, 64)),
        ({"rope_scaling": {"type": "proportional"}, "partial_rotary_factor": 0.25}, ProportionalScaling(0.25)),
        ({"model_type": "gemma3_text", "rope_scaling": {**YARN, ORIGINAL: 8}, ORIGINAL: 16, "sliding_window": 5},
         YarnScaling(4.0, 8)),
        (OSS, YarnScaling(32.0, 4096, truncate=False)),
        ({**OSS, "rope_scaling": None, "rope_theta": 500.0}, YarnScaling(32.0, 4096, truncate=False)),
        ({**OSS, "rope_scaling": {}, "rope_parameters": None}, YarnScaling(32.0, 4096, truncate=False)),
        ({**OSS, "rope_parameters": {}}, None),
        ({**OSS, "rope_scaling": {**YARN, ORIGINAL: 8}}, YarnScaling(4.0, 8)),
    ],
)  # fmt: skip
def test_scalings_as_transformers_takes_them(config: dict[str, Any], scaling: Scaling | None) -> None:
    rope = attention({"num_hidden_layers": 6, **config}).ropes[-1]
    assert rope is not None and rope.scaling == scaling and rope.width == 8


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3_text"])
def test_settings_that_a_class_passes_over_are_left_out_with_a_warning(kind: str) -> None:
    base = {"model_type": kind, "sliding_window": 5}
    for part in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        kinds = ("full_attention", "sliding_attention")
        by_kind = {"rope_parameters": dict.fromkeys(kinds, part.get("rope_parameters"))}
        given = by_kind if kind == "gemma3_text" and "rope_parameters" in part else part
        with pytest.warns(ModelWarning, match=f"partial_rotary_factor is 0.5, which has no effect: {kind} turns whole"):
            assert {r.width for r in attention(base | given).ropes if r is not None} == {8}
    with pytest.raises(ModelFormatError, match=r"partial_rotary_factor is 0\.5 beside .* of kind 'linear'"):
        attention({**base, "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})


@pytest.mark.parametrize(
    ("settings", "name", "scaling"),
    [
        ({"type": "linear", "factor": 4.0}, "type is 'linear'", None),
        ({"type": "yarn", "rope_type": "default", "factor": 4.0}, "type is 'yarn'", None),
        ({**YARN, ORIGINAL: 8, "truncate": False}, "truncate is False", YarnScaling(4.0, 8)),
    ],
)
def test_settings_of_kinds_of_layers_that_are_passed_over(
    settings: dict[str, Any], name: str, scaling: Scaling | None
) -> None:
    base = {"model_type": "gemma3_text", "sliding_window": 5, "num_hidden_layers": 6}
    with pytest.warns(ModelWarning, match=f"{name}, which has no effect"):
        rope = attention({**base, "rope_scaling": settings}).ropes[-1]
    assert rope is not None and rope.scaling == scaling


def test_a_part_is_turned_where_the_class_says_so() -> None:
    found = attention({"model_type": "phi3", "partial_rotary_factor": 0.5, "head_dim": 8})
    assert found.ropes[0] is not None and found.ropes[0].width == 4


def test_caps_are_those_of_gemma_2_alone() -> None:
    cap = {"attn_logit_softcapping": 4.0, "sliding_window": 5}
    assert attention({**cap, "model_type": "gemma2"}).softcap == 4.0
    with pytest.warns(ModelWarning, match=r"attn_logit_softcapping is 4\.0, which has no effect"):
        assert attention({**cap, "model_type": "gemma3_text"}).softcap is None


def test_a_part_that_gguf_says_is_turned(tmp_path: Path) -> None:
    """Whatever the class of the folder is, which could not say it."""
    folder = tiny.write_language_model(tmp_path / "a")
    convert.folder_to_gguf(folder, tmp_path / "whole.gguf")
    with gguf.read(tmp_path / "whole.gguf") as file:
        tensors = {name: tensor.read() for name, tensor in file.tensors.items()}
        gguf.write(tmp_path / "part.gguf", {**file.metadata, "llama.rope.dimension_count": 4}, tensors)
    with load(tmp_path / "part.gguf", "cpu", context=8, engine="numpy") as model:
        assert model.config.attention is not None and {r.width for r in model.config.attention.ropes} == {4}
    with gguf.read(tmp_path / "part.gguf") as file, pytest.raises(ModelFormatError, match="a folder cannot say it"):
        to_folder.gguf_to_folder(file, tmp_path / "b", "f32")


def test_an_unknown_type_is_named_before_weights_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlnet"}))
    with pytest.raises(ModelFormatError, match=r"model_type is 'xlnet'; rlx knows .*bert, .*llama, .*whisper"):
        load(tmp_path)
    got = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert "model_type is 'xlnet'" in str(got.exception)
    sees = {"model_type": "paligemma", "text_config": {"model_type": "gemma"}}
    (tmp_path / "config.json").write_text(json.dumps(sees))
    with pytest.raises(ModelFormatError, match="'paligemma', of which rlx has the text model alone, 'gemma'"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny.LLAMA))
    with pytest.raises(ModelFormatError, match=r"holds neither model\.safetensors"):
        load(tmp_path)


@pytest.mark.judged
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "qwen3_5"])
@pytest.mark.late
def test_the_table_of_settings_beside_transformers(name: str) -> None:
    """A few of those that settings_sweep.py tries."""
    table: dict[str, str] = json.loads(settings_sweep.FILE.read_text(encoding="utf-8"))[name]
    kept = ("head beside", "yarn, both", "longrope, outer", "dynamic", "proportional", "part", "softcap")
    found = settings_sweep.each(name, lambda case: case in kept)
    assert found == {case: table[case] for case in kept}


def test_limits_of_mamba_2_are_read_as_transformers_4_wrote_them(tmp_path: Path) -> None:
    """`json.dump` writes an infinity as the word Infinity; no other number of a config.json may be one."""
    fields = {"model_type": "mamba2", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 4,
              "head_dim": 4, "n_groups": 2, "time_step_limit": [0.0, float("inf")]}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    folder = ModelFolder(tmp_path)
    assert architecture_of(Fields(folder.config, "config.json")).read(Fields(folder.config, "config.json")).recurrence
    for name in ("layer_norm_epsilon", "hidden_size", "expand"):
        (tmp_path / "config.json").write_text(json.dumps({**fields, name: float("inf")}))
        wrong = Fields(ModelFolder(tmp_path).config, "config.json")
        with pytest.raises(ModelFormatError, match=f"{name} is inf"):
            architecture_of(wrong).read(wrong)


@pytest.mark.parametrize("limit", [1.5, True, "x", {"a": 1}, [0.0], [0.0, 1.0]])
def test_other_limits_of_mamba_2_are_refused(limit: Any) -> None:
    fields = Fields({"model_type": "bamba", **families.FAMILIES["bamba"][0], "time_step_limit": limit}, "c")
    with pytest.raises(ModelFormatError, match=r"time_step_limit is .*expected 0 and infinity"):
        architecture_of(fields).read(fields)


@pytest.mark.parametrize(("said", "inner"), [({}, 16), ({"expand": 1}, 8), ({"expand": 3}, 24)])
def test_the_width_within_mamba_follows_its_expand(said: dict[str, Any], inner: int) -> None:
    fields = Fields({"model_type": "mamba", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, **said}, "c")
    found = architecture_of(fields).read(fields).recurrence
    assert found is not None and found.inner == inner
