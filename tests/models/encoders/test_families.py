"""Families of text encoders: tiny folders of each beside what transformers computes in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats import safetensors
from rlx.formats.huggingface import ModelFolder
from rlx.models.encoders import ARCHITECTURES
from rlx.models.encoders.config import CLASSES
from rlx.models.sentence import read_folder
from tests.devices import device_here
from tests.models.encoders.families import (
    EVERY,
    FAMILIES,
    FOUND,
    FROZEN,
    KEYS,
    LIMIT,
    PAGE,
    TEXTS,
    case_folder,
    class_facts,
    error,
    judge,
    judged_states,
    kept,
    part_of_page,
    random_model,
    read_keys,
    states,
)
from tests.models.language.test_families import seldom
from tests.models.tiny import write_tokenizer

CASES: dict[str, Any] = json.loads(FROZEN.read_text())["cases"]


def folder_of(case: str, folder: Path, **changed: Any) -> Path:
    return case_folder(case, folder, CASES, **changed)


def test_every_family_has_cases() -> None:
    assert {case.rpartition("-")[0] for case in CASES} == set(EVERY)
    assert set(FAMILIES) == set(ARCHITECTURES) == set(json.loads(KEYS.read_text())["families"])


@pytest.mark.late(case=seldom(CASES, 4))
@pytest.mark.parametrize("case", CASES)
def test_states_as_transformers_has_them(case: str, tmp_path: Path) -> None:
    """Texts of several lengths side by side, each as transformers has it alone. config.json says what differs from the
    class; the names of tensors are those of published folders."""
    files = read_folder(ModelFolder(folder_of(case, tmp_path)), text=False)
    got = kept(states(files, TEXTS, engine="numpy"))
    assert error(np.array(got), np.array(CASES[case]["states"])) <= LIMIT


BLOCKS = ("roberta-2", "mpnet-0", "modernbert-1", "roformer-0", "deberta-v2-2", "fnet-0", "convbert-0", "mobilebert-0",
          "nystromformer-0", "gemma3_text-0")  # fmt: skip


@pytest.mark.late(case=tuple(case for case in CASES if case not in BLOCKS))
@pytest.mark.parametrize("case", CASES)
def test_states_of_texts_that_share_a_row(case: str, tmp_path: Path) -> None:
    """Each text's as transformers has it alone."""
    files = read_folder(ModelFolder(folder_of(case, tmp_path)), text=False)
    got = kept(states(files, TEXTS, engine="numpy", share=True))
    assert error(np.array(got), np.array(CASES[case]["states"])) <= LIMIT


@pytest.mark.late(case=("modernbert-1", "roformer-0", "deberta-v2-0", "fnet-0", "convbert-0", "gemma3_text-0"))
@pytest.mark.parametrize(
    "case", ["mpnet-0", "modernbert-1", "roformer-0", "deberta-v2-0", "fnet-0", "convbert-0", "gemma3_text-0"]
)
def test_states_on_vulkan(case: str, tmp_path: Path) -> None:
    """One of each block."""
    device_here("vulkan")
    files = read_folder(ModelFolder(folder_of(case, tmp_path)), text=False)
    for share in (False, True):
        got = kept(states(files, TEXTS, "vulkan", share=share))
        assert error(np.concatenate(got), np.concatenate(CASES[case]["states"])) <= LIMIT


@pytest.mark.parametrize("case", ["roberta-2", "t5-0", "gte-0"])
def test_embeddings_and_the_function_of_weights(case: str, tmp_path: Path) -> None:
    """The mean of a text's states, by `encode_ids` and by `trainable`, whose weights have the files' names."""
    folder = folder_of(case, tmp_path)
    write_tokenizer(folder / "tokenizer.json")
    files = read_folder(ModelFolder(folder), text=False)
    want = np.stack([text.mean(0) for text in states(files, TEXTS, engine="numpy")])
    with rlx.models.load(folder, "cpu", engine="numpy") as model:
        got = model.encode_ids([np.asarray(text, np.int32) for text in TEXTS])
        assert model.encode(["the dog", "cat"]).shape == (2, model.width)
    assert error(got, want) <= LIMIT
    function, weights = rlx.models.trainable(folder)
    assert set(weights) == set(safetensors.load(folder)) - {n for n in safetensors.load(folder) if "pooler" in n}
    ids, mask = np.zeros((2, 12), np.int32), np.zeros((2, 12), bool)
    ids[0, :9], ids[1, :1], mask[0, :9], mask[1, :1] = TEXTS[2], TEXTS[0], True, True
    assert error(function(weights, ids, mask), want[[2, 0]]) <= LIMIT
    grads = rlx.grad(lambda w: rlx.sum(function(w, ids, mask) ** 2))(weights)
    assert all(np.isfinite(g).all() for g in grads.values())


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_settings_that_are_read(kind: str) -> None:
    """Those of the list, which a command writes with what the others change in transformers: nothing."""
    known, held = json.loads(CLASSES.read_text())["families"][kind], json.loads(KEYS.read_text())["families"][kind]
    assert sorted(read_keys(kind) & set(known["usual"])) == held["read"]
    assert set(known["usual"]) - {"use_cache"} == {*held["read"], *held["idle"]} - {"use_cache"}


@pytest.mark.judged
@pytest.mark.late
def test_what_the_classes_take_for_granted() -> None:
    assert class_facts() == json.loads(CLASSES.read_text())


@pytest.mark.judged
@pytest.mark.late(kind=seldom(FAMILIES, 9))
@pytest.mark.parametrize("kind", FAMILIES)
def test_random_folders_beside_transformers(kind: str, tmp_path: Path) -> None:
    """With all settings written out, as transformers saves them."""
    random_model(tmp_path, kind, FAMILIES[kind][-1])
    want = judged_states(judge(tmp_path, kind), TEXTS[2])
    got = states(read_folder(ModelFolder(tmp_path), text=False), [TEXTS[2]], engine="numpy")[0]
    assert error(got, want) <= LIMIT


def test_both_ways_of_writing_a_family(tmp_path: Path) -> None:
    """GTE's folders have q, k and v in one tensor, or apart under the names of transformers' class."""
    folder = folder_of("gte-0", tmp_path)
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    apart = {}
    for name, array in held.items():
        name = name.removeprefix("new.").replace("encoder.layer.", "layers.").replace("attention.o_", "self_attn.o_")
        name = name.replace("attn_ln", "post_attention_layernorm").replace("mlp_ln", "post_mlp_layernorm")
        if "qkv_proj" in name:
            for part, one in zip("qkv", np.split(array, 3), strict=True):
                apart[name.replace("attention.qkv_", f"self_attn.{part}_")] = one
        elif "up_gate_proj" in name:
            for part, one in zip(("up", "gate"), np.split(array, 2), strict=True):
                apart[name.replace("up_gate_", f"{part}_")] = one
        else:
            apart[name] = array
    safetensors.save(folder / "model.safetensors", apart)
    got = kept(states(read_folder(ModelFolder(folder), text=False), TEXTS, engine="numpy"))
    assert error(np.concatenate(got), np.concatenate(CASES["gte-0"]["states"])) <= LIMIT


def test_what_a_t5_says_twice(tmp_path: Path) -> None:
    """The class takes its MLP from `feed_forward_proj`, unless the file has the two settings that this stands for."""
    folder = folder_of("t5-0", tmp_path / "a", feed_forward_proj="relu", is_gated_act=True, dense_act_fn="gelu_new")
    got = kept(states(read_folder(ModelFolder(folder), text=False), TEXTS, engine="numpy"))
    assert error(np.concatenate(got), np.concatenate(CASES["t5-0"]["states"])) <= LIMIT
    with pytest.raises(ModelFormatError, match=r"extra 'encoder\.block\.0\.layer\.1\.DenseReluDense\.wi_0"):
        rlx.models.trainable(folder_of("t5-0", tmp_path / "b", is_gated_act=False))


def test_longest_texts(tmp_path: Path) -> None:
    """RoBERTa's places begin behind the padding token's, so a table of 40 rows is for 38 tokens."""
    function, weights = rlx.models.trainable(folder_of("roberta-0", tmp_path))
    ids = np.full((1, 38), 5, np.int32)
    assert function(weights, ids, ids > 0).shape == (1, 32)
    with pytest.raises(ShapeError, match="of 1 to 38 ids"):
        function(weights, np.full((1, 39), 5, np.int32), np.ones((1, 39), bool))


@pytest.mark.parametrize(
    ("case", "changed", "told"),
    [
        ("roberta-0", {"is_decoder": True}, "is_decoder is True, expected False"),
        ("roberta-0", {"hidden_act": "snake"}, "hidden_act is 'snake', expected one of silu"),
        ("roberta-0", {"pad_token_id": 39}, "pad_token_id is 39, expected an integer from 0 to 38"),
        ("electra-0", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("mpnet-0", {"relative_attention_num_buckets": 16}, "32 or more, of which the model reads 32"),
        ("modernbert-1", {"layer_types": ["full_attention"] * 4}, "layer_types is .*, expected a list of 5 texts"),
        ("albert-0", {"num_hidden_groups": 4}, "num_hidden_groups is 4, expected at most the 3 layers"),
    ],
)
def test_wrong_settings(case: str, changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=told):
        rlx.models.trainable(folder_of(case, tmp_path, **changed))


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    folder = folder_of("roberta-0", tmp_path)
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    held["encoder.layer.0.output.scale"] = held.pop("encoder.layer.1.output.dense.bias")
    safetensors.save(folder / "model.safetensors", held)
    with pytest.raises(ModelFormatError, match=r"extra 'encoder\.layer\.0\.output\.scale'; missing 'encoder\.layer\.1"):
        rlx.models.trainable(folder)


def test_what_the_command_found_is_right() -> None:
    held = json.loads(FOUND.read_text())["families"]
    assert {k: len(v["cpu"]) for k, v in held.items()} == {k: len(v) for k, v in EVERY.items()}
    assert all(max(case.values()) <= LIMIT for found in held.values() for cases in found.values() for case in cases)
    assert all(set(found) == {"cpu", "vulkan"} for found in held.values())
    assert part_of_page() in PAGE.read_text(encoding="utf-8")


def test_an_unknown_family_is_refused_with_the_nearest(tmp_path: Path) -> None:
    for kind, told in (("ibert", "the nearest is roberta, which lacks integers between layers"),
                       ("debertta", "the nearest name is deberta")):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ModelFormatError, match=f"model_type is '{kind}'; rlx knows .*; {told}"):
            rlx.models.load(tmp_path, "cpu")
