"""Models that see beside reading: the text model of tiny folders beside what transformers computes of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import ModelFormatError, ModelWarning
from rlx.formats import safetensors
from rlx.models import load
from rlx.models.language.architectures import ARCHITECTURES
from rlx.models.language.architectures.seeing import text_fields
from rlx.models.language.config import Fields
from tests.models.language.families import FROZEN as LANGUAGE
from tests.models.language.families import (
    IDS_ASKED,
    PAGE,
    SEEING,
    error,
    right,
    unpacked_names,
    write_formula,
)
from tests.models.language.seeing import FOLDERS, FOUND, FROZEN, part_of_page, some_of, within

CASES: dict[str, Any] = json.loads(FROZEN.read_text())["cases"]


def folder_of(case: str, folder: Path, **changed: Any) -> Path:
    settings = {**CASES[case]["config"], **changed}
    write_formula(folder, case.rpartition("-")[0], settings, unpacked_names(CASES[case]["tensors"]))
    return folder


def test_every_type_has_cases() -> None:
    held = json.loads(FOUND.read_text())["families"]
    assert {case.rpartition("-")[0] for case in CASES} == set(SEEING) == set(FOLDERS) == set(held)
    assert {kind: len(cases) for kind, cases in held.items()} == {kind: len(cases) for kind, cases in FOLDERS.items()}
    assert all(right(case) for cases in held.values() for case in cases)
    assert all(held[name[:-2]][int(name[-1])]["vulkan"] <= within(case) for name, case in CASES.items())
    assert part_of_page() in PAGE.read_text(encoding="utf-8")


@pytest.mark.late(case=tuple(case for i, case in enumerate(CASES) if i % 5))
@pytest.mark.parametrize("case", CASES)
def test_logits_as_transformers_has_them(case: str, tmp_path: Path) -> None:
    with load(folder_of(case, tmp_path), "cpu", context=64, engine="numpy") as model:
        got = model.logits(IDS_ASKED)
    assert error(some_of(got), np.asarray(CASES[case]["logits"])) <= within(CASES[case])
    assert got.argmax(1).tolist() == CASES[case]["likeliest"]


def test_names_of_published_files_and_what_is_left_aside(tmp_path: Path) -> None:
    """Older files have the text model's names behind "language_model.", newer ones "model.language_model."; others are
    refused by name, but those of vision towers, which a warning names."""
    folder = folder_of("llava-0", tmp_path)
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    bare = {name.replace("model.language_model.", "").replace("language_model.model.", "").replace(
        "language_model.lm_head", "lm_head"): array for name, array in held.items()}  # fmt: skip
    eyes = {"vision_tower.layers.0.weight": np.ones((2, 2), np.float32), "model.image_newline": np.ones(2, np.float32)}
    for before, head in (("language_model.model.", "language_model."), ("model.language_model.", "")):
        renamed = {f"{head if name.startswith('lm_head') else before}{name}": a for name, a in bare.items()}
        safetensors.save(folder / "model.safetensors", renamed | eyes)
        with pytest.warns(ModelWarning, match="2 tensors of image_newline, vision_tower are left aside"):
            model = load(folder, "cpu", context=64, engine="numpy")
        with model:
            assert model.logits(IDS_ASKED).argmax(1).tolist() == CASES["llava-0"]["likeliest"]
        safetensors.save(folder / "model.safetensors", renamed | {f"{before}norm.bias": eyes["model.image_newline"]})
        with pytest.raises(ModelFormatError, match=r"extra '.*norm\.bias'"):
            load(folder, "cpu")


def test_settings_of_the_text_that_stand_outside() -> None:
    """As in the published files of Qwen2-VL, whose ropes have a name of their own."""
    rope = {"rope_theta": 500.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    inner = {k: v for k, v in FOLDERS["qwen2_vl"][0]["text_config"].items() if k != "rope_parameters"}
    flat = Fields({**inner, **rope, "model_type": "qwen2_vl", "vision_config": {}}, "config.json")
    nested = Fields({"model_type": "qwen2_vl", "text_config": {**inner, **rope}}, "config.json")
    assert ARCHITECTURES["qwen2_vl"].read(flat) == ARCHITECTURES["qwen2_vl"].read(nested)


def test_defaults_of_the_text_models_class() -> None:
    """Published files of LLaVA say of a Llama what differs from its class alone."""
    text = text_fields(Fields({"model_type": "llava", "text_config": {"vocab_size": 32064}}, "config.json")).content
    assert (text["model_type"], text["hidden_size"], text["num_hidden_layers"]) == ("llama", 4096, 32)


def test_weights_of_experts_sum_to_1_in_qwen3_vl_moe() -> None:
    """Its class has them so whatever the settings say, or leave out."""
    inner = FOLDERS["qwen3_vl_moe"][0]["text_config"]
    for said in ({}, {"norm_topk_prob": None}, {"norm_topk_prob": True}):
        f = Fields({"model_type": "qwen3_vl_moe", "text_config": {**inner, **said}}, "config.json")
        experts = ARCHITECTURES["qwen3_vl_moe"].read(f).experts
        assert experts is not None and experts.renormalize


@pytest.mark.parametrize(
    ("kind", "changed", "told"),
    [
        ("llava", {"model_type": "gpt2"}, "model_type is 'gpt2'; of llava rlx has the text models llama, mistral"),
        ("gemma3", {"final_logit_softcapping": 3.0}, "final_logit_softcapping is 3.0, expected None"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True, expected False"),
        ("qwen2_vl", {"head_dim": 12}, "head_dim is 12, expected none, or hidden_size over the 4 heads"),
        ("glm4v", {"head_dim": {}}, "head_dim is {}, expected an integer"),
        ("qwen3_vl_moe", {"norm_topk_prob": False}, "norm_topk_prob is False, expected True"),
        ("mistral3", {"sliding_window": ...}, "sliding_window is None, expected a number, or null written out"),
    ],
)
def test_texts_that_are_not_the_model_alone(kind: str, changed: dict[str, Any], told: str) -> None:
    """Settings that transformers' class for images and texts takes otherwise than that of the text model."""
    inner = {**FOLDERS[kind][0]["text_config"], **changed}
    content = {"model_type": kind, "text_config": {k: v for k, v in inner.items() if v is not ...}}
    with pytest.raises(ModelFormatError, match=told):
        ARCHITECTURES[kind].read(Fields(content, "config.json"))


@pytest.mark.parametrize("kind", ["qwen3_vl_moe", "qwen3_5"])
def test_the_file_decides_without_a_word_where_settings_differ(kind: str, tmp_path: Path) -> None:
    """The class of the whole model goes by the outer setting and has an output matrix of its own; text models that
    were saved by their inner setting have none."""
    case = CASES[f"{kind}-0"] if kind in FOLDERS else json.loads(LANGUAGE.read_text())["cases"][f"{kind}_text-0"]
    inner = {"model_type": f"{kind}_text", **case["config"].get("text_config", case["config"])}
    settings = {"text_config": {**inner, "tie_word_embeddings": True}, "tie_word_embeddings": False}
    shapes = unpacked_names(case["tensors"])
    head = {"lm_head.weight": (96, 32)}
    for more in (head, {}):
        write_formula(tmp_path, kind, settings, {n: s for n, s in shapes.items() if n not in head} | more)
        with load(tmp_path, "cpu", context=64, engine="numpy") as model:
            assert model.config.tied != bool(more)
    write_formula(tmp_path, kind, {**settings, "tie_word_embeddings": True}, {**shapes, **head})
    with pytest.warns(ModelWarning, match="tie_word_embeddings is true, but 'lm_head.weight' holds other numbers"):
        load(tmp_path, "cpu", context=64, engine="numpy").close()
