"""Fine-tuning beside PEFT and torch, whose losses and logits peft_course.json has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlx.finetune import finetune
from rlx.finetune.adapter_files import read_peft, write_peft
from rlx.finetune.model import to_train
from rlx.models import load
from tests.finetune.peft_course import CASES, EVERY, FILE, moved, prepared, settings_of, tiny_tokens

FROZEN = json.loads(FILE.read_text())["cases"]


@pytest.mark.late(case=["rslora", "dora"])
@pytest.mark.parametrize("case", CASES)
def test_fifty_losses_are_those_of_peft_and_torch(case: str, tmp_path: Path) -> None:
    prepared(tmp_path)
    settings = settings_of(case, tmp_path)
    lines: list[str] = []
    finetune(settings, lines.append)
    course = (settings.out / "training" / "metrics.jsonl").read_text().splitlines()
    losses = [found["loss"] for found in map(json.loads, course) if "loss" in found]
    np.testing.assert_allclose(losses, FROZEN[case]["losses"], rtol=2e-4)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("case", CASES)
def test_an_adapters_logits_are_those_of_peft(case: str, tmp_path: Path) -> None:
    prepared(tmp_path)
    made = to_train(replace(settings_of(case, tmp_path), dtype="f64"))
    assert made.adapted is not None
    adapter, wanted = moved(made), np.array(FROZEN[case]["logits"])
    found = made.adapted(adapter, made.frozen, tiny_tokens()[None])[0, ::EVERY]
    assert np.abs(found - wanted).max() <= 1e-8 * np.abs(wanted).max()
    write_peft(tmp_path / "adapter", adapter, made.adapted.lora, base=None, model_type="llama", task=None)
    again = read_peft(tmp_path / "adapter")
    assert {m: {n: v.tobytes() for n, v in own.items()} for m, own in again.items()} == {
        m: {n: v.tobytes() for n, v in own.items()} for m, own in adapter.items()
    }
    with load(tmp_path / "base", "cpu", context=64) as model:
        model.load_adapter("own", tmp_path / "adapter")
        logits = model.logits(tiny_tokens(), adapter="own")[::EVERY]
    assert np.abs(logits - wanted).max() <= 1e-5 * np.abs(wanted).max()
