"""Families of language models: tiny folders of each beside what transformers computes in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import ModelFormatError
from rlx.models import load
from rlx.models.language.architectures import ARCHITECTURES
from rlx.models.language.architectures.base import CLASSES
from tests.models.language.families import (
    FAMILIES,
    FROZEN,
    IDS_ASKED,
    KEYS,
    LIMIT,
    class_facts,
    error,
    judge,
    judged,
    random_model,
    read_keys,
    unpacked_names,
    write_formula,
)
from tests.outside import outside

CASES: dict[str, Any] = json.loads(FROZEN.read_text())["cases"]


def folder_of(case: str, folder: Path, **changed: Any) -> Path:
    kind, _, i = case.rpartition("-")
    settings = {**FAMILIES[kind][int(i)], **changed}
    write_formula(folder, kind, settings, unpacked_names(CASES[case]["tensors"]))
    return folder


def test_every_family_has_cases() -> None:
    assert {case.rpartition("-")[0] for case in CASES} == set(FAMILIES) == set(json.loads(KEYS.read_text())["families"])
    assert set(FAMILIES) <= set(ARCHITECTURES)


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES)
def test_logits_as_transformers_has_them(case: str, tmp_path: Path) -> None:
    """config.json says what differs from the class alone; the names of tensors are those of the published folders."""
    with load(folder_of(case, tmp_path), "cpu", context=64, engine="numpy") as model:
        got = model.logits(IDS_ASKED)
    assert error(got[-1, :16], np.asarray(CASES[case]["logits"])) <= LIMIT
    assert got.argmax(1).tolist() == CASES[case]["likeliest"]


# One of each block that a step or a row of a batch computes otherwise than a run over the whole text.
BLOCKS = {
    "deepseek_v3-0": "latent attention", "bloom-0": "ALiBi", "falcon-1": "ALiBi, rounded", "ministral3-0": "warm queries",
    "hunyuan_v1_dense-0": "norms behind ropes", "falcon_h1-0": "both side by side", "lfm2-0": "short convolutions",
    "jamba-0": "Mamba with norms", "cohere2-0": "layers without ropes",
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCKS)
def test_parts_steps_and_batches(case: str, tmp_path: Path) -> None:
    """Beside one run over the whole text."""
    folder = folder_of(case, tmp_path)
    ids = np.asarray(IDS_ASKED, np.int32)
    with load(folder, "cpu", context=64, engine="numpy") as model:
        want = model.logits(ids)
    found = judged(folder, want, ids)
    assert max(found[k] for k in ("error", "steps", "parts")) <= LIMIT, BLOCKS[case]
    assert not any(found.get(k) for k in ("argmax", "batch", "pages"))


def test_caches_of_latent_attention_hold_one_row_a_token(tmp_path: Path) -> None:
    with load(folder_of("deepseek_v3-0", tmp_path), "cpu", context=64, engine="numpy") as model:
        assert model.decoder.cache_bytes == 3 * 64 * (16 + 8) * 4
        want = list(model.tokens(IDS_ASKED[:9], 8))
    rows = {"kv_lora_rank": 24, "q_lora_rank": 20}
    assert rows  # a rank whose rows are whole blocks of q8_0
    with load(tmp_path, "cpu", context=64, engine="numpy", cache="bf16") as model:
        assert model.decoder.cache_bytes == 3 * 64 * (16 + 8) * 2
        assert len(list(model.tokens(IDS_ASKED[:9], 8))) == len(want)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_settings_that_are_read(kind: str) -> None:
    """Those of the list, which a command writes with what the others change in transformers: nothing."""
    known, held = json.loads(CLASSES.read_text())["families"][kind], json.loads(KEYS.read_text())["families"][kind]
    assert sorted(read_keys(kind) & set(known["usual"])) == held["read"]
    assert not set(held["read"]) & set(held["idle"])
    assert set(known["usual"]) - {"use_cache", "vocab_size"} <= {*held["read"], *held["idle"]}


@pytest.mark.judged
def test_what_the_classes_take_for_granted() -> None:
    assert class_facts() == json.loads(CLASSES.read_text())


@pytest.mark.judged
@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", FAMILIES)
def test_random_folders_beside_transformers(kind: str, tmp_path: Path) -> None:
    """With all settings written out, as transformers saves them."""
    torch = outside("torch")
    random_model(tmp_path, kind, FAMILIES[kind][0])
    tokens = torch.randint(3, 96, (30,))
    with torch.no_grad():
        want = judge(tmp_path, kind)(tokens[None]).logits[0].numpy()
    with load(tmp_path, "cpu", context=64, engine="numpy") as model:
        got = model.logits(tokens.numpy())
    assert error(got, want) <= LIMIT and (got.argmax(1) == want.argmax(1)).all()


def test_an_unknown_family_is_refused_with_the_nearest(tmp_path: Path) -> None:
    for kind, told in (("deepseek_v32", "deepseek_v3"), ("mixtrall", "mixtral"), ("gemma3n_text", "gemma3_text")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ModelFormatError, match=f"model_type is '{kind}'; the nearest that rlx knows is {told}"):
            load(tmp_path, "cpu")
