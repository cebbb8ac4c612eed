"""What families can be used for: what the command found, and which modules adapters are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import ModelFormatError
from rlx.finetune import Settings, finetune
from rlx.models import Lora, load, trainable
from tests.finetune.tiny import write_lines
from tests.models.language import test_adapters, tiny, uses
from tests.models.language.families import EVERY, PAGE
from tests.models.language.test_families import folder_of


def test_what_the_command_found() -> None:
    held: dict[str, dict[str, str]] = json.loads(uses.FOUND.read_text())["families"]
    assert set(held) == set(EVERY) and all(set(found) == set(uses.USES) for found in held.values())
    told = {text.partition(":")[0] for found in held.values() for text in found.values()}
    assert told == {"right", "refused", "passed over by PEFT"}
    assert uses.part_of_page() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("case", "left", "names"),
    [
        ("jamba-0", ("router", "dt_proj", "out_proj"), {"in_proj", "x_proj", "q_proj", "o_proj", "down_proj"}),
        ("lfm2_moe-0", (".gate",), {"in_proj", "out_proj", "k_proj"}),
        ("granitemoe_swa-0", ("router",), {"input_linear", "output_linear", "v_proj"}),
        ("exaone-0", ("transformer", "c_fc", "c_proj"), {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("nemotron_h-0", ("backbone",), {"in_proj", "q_proj", "up_proj"}),
    ],
)
def test_modules_of_all_linear(case: str, left: tuple[str, ...], names: set[str], tmp_path: Path) -> None:
    """Those that transformers' class has as linear modules, under its names."""
    function, weights = trainable(folder_of(case, tmp_path))
    modules = function.adapted(Lora(1), weights)[1]
    assert names <= {module.rpartition(".")[2] for module in modules}
    assert not [m for m in modules for part in left if part in m]
    assert all(module.startswith("model.layers.") for module in modules)


def test_a_correction_of_a_weight_that_is_taken_apart(tmp_path: Path) -> None:
    folder = folder_of("deepseek_v3-0", tmp_path / "base")
    name = "base_model.model.model.layers.1.self_attn.kv_b_proj"
    arrays: dict[str, Any] = {}
    with load(folder, "cpu", context=32, engine="numpy") as model:
        a = model.config.attention
        assert a is not None and a.latent is not None
        rows = a.heads * (a.latent.plain + a.latent.value)
        arrays[f"{name}.lora_A.weight"] = np.ones((3, a.latent.rank), np.float32)
        arrays[f"{name}.lora_B.weight"] = np.ones((rows, 3), np.float32)
        adapter = test_adapters.write(tmp_path / "a", arrays, ("kv_b_proj",))
        told = r"corrects 'model\.layers\.1\.self_attn\.kv_b_proj', whose weight rlx uses otherwise.*merge the adapter"
        with pytest.raises(ModelFormatError, match=told):
            model.load_adapter("a", adapter)


@pytest.mark.late
def test_what_peft_passes_over_is_told(tmp_path: Path) -> None:
    folder = folder_of("deepseek_v3-0", tmp_path / "base")
    (folder / "tokenizer.json").write_text(json.dumps(tiny._bytes_tokenizer(96)))
    data = write_lines(tmp_path / "data.jsonl", [{"text": "abc"}] * 4)
    told: list[str] = []
    settings = {"steps": 1, "batch": 1, "length": 16, "device": "cpu"}
    finetune(Settings(model=folder, data=data, out=tmp_path / "out", lora=Lora(1, 2), **settings), told.append)
    assert any("PEFT 0.21 may take gate_proj" in line for line in told)
    told.clear()
    lora = Lora(1, 2, targets=("o_proj",))
    finetune(Settings(model=folder, data=data, out=tmp_path / "other", lora=lora, **settings), told.append)
    assert not any("gate_proj" in line for line in told)
