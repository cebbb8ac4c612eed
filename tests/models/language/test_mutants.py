"""A sample of `python -m tests.models.language.mutants`, and what that command has shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import ModelWarning
from rlx.models.language.architectures import ARCHITECTURES
from rlx.models.language.architectures.base import CLASSES
from rlx.models.language.config import Fields
from tests.models.language import mutants
from tests.models.language.families import FAMILIES
from tests.outside import outside

MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96}


@pytest.mark.judged
@pytest.mark.parametrize("kind", ["bloom", "mamba2"])
def test_no_difference_without_a_word(kind: str) -> None:
    outside("transformers").logging.set_verbosity_error()
    found = list(mutants.run([kind], 5, 34))
    assert len(found) == 5 and not [line for line in found if line[1] in ("silent", "untyped")]
    assert any(line[1] == "equal" for line in found)


@pytest.mark.judged
@pytest.mark.parametrize("kind", ["gpt_neo", "deepseek_v3"])
def test_every_tensor_is_used_or_named(kind: str, tmp_path: Path) -> None:
    ((_, folder), *_) = mutants.folders(tmp_path, [kind])
    assert mutants.unused(folder) == []


@pytest.mark.parametrize("kind", ["gpt2", "bloom", "codegen", "gptj", "openai-gpt", "gpt_neo", "mpt"])
def test_the_general_name_of_a_setting_wins(kind: str) -> None:
    """As in transformers; alone it serves as well."""
    families = json.loads(CLASSES.read_text())["families"]
    own = families[kind]["names"]["num_hidden_layers"] if kind in families else "n_layer"
    settings: dict[str, Any] = dict(FAMILIES[kind][-1]) if kind in FAMILIES else {
        "vocab_size": 96, "n_embd": 32, "n_head": 4, "n_positions": 64,
    }  # fmt: skip
    settings.pop("attention_types", None)
    for content in ({own: 3, "num_hidden_layers": 2}, {"num_hidden_layers": 2}):
        rest = {name: value for name, value in settings.items() if name != own}
        read = ARCHITECTURES[kind].read(Fields({"model_type": kind, **rest, **content, **_LAYERS.get(kind, {})}, "x"))
        assert read.layers == 2


_LAYERS = {"gpt_neo": {"attention_types": [[["global", "local"], 1]]}}


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_a_setting_of_new_weights_is_warned_of(kind: str) -> None:
    more = {"num_heads": 1, "n_groups": 1} if kind == "mamba2" else {}
    settings = Fields({"model_type": kind, **MAMBA, **more, "rescale_prenorm_residual": True}, "x")
    with pytest.warns(ModelWarning, match="rescale_prenorm_residual is True, which has no effect: it is about new"):
        ARCHITECTURES[kind].read(settings)
