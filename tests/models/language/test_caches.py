"""Caches of language models: rings for layers with windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError, GraphError
from rlx.models import load
from rlx.models.language import caches
from rlx.models.language.caches import ring_rows
from rlx.models.language.decoder import Sampling
from tests.models.language import tiny

MISTRAL: dict[str, Any] = {**tiny.LLAMA, "model_type": "mistral", "sliding_window": 9, "max_position_embeddings": 4096}
GEMMA: dict[str, Any] = {**tiny.GEMMA, "max_position_embeddings": 4096}
PROMPT = np.random.default_rng(3).integers(0, 60, 300).astype(np.int32)


@pytest.fixture
def short_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings of 64 rows, for runs of up to 32 tokens."""
    from rlx.models.language import decoder

    monkeypatch.setattr(caches, "LONGEST", 32)
    monkeypatch.setattr(decoder, "CHUNKS", (16, 32))


def test_a_ring_has_the_window_and_a_run() -> None:
    assert ring_rows(None, 4096) == 4096 and ring_rows(4095, 4096) == 4096 and ring_rows(511, 32768) == 1024
    assert ring_rows(127, 100) == 100 and ring_rows(4096, 32768) == 4608


@pytest.mark.late("vulkan")
@pytest.mark.sample(vulkan=1)
@pytest.mark.parametrize("config", [GEMMA, MISTRAL], ids=lambda c: c["model_type"])
def test_rings_give_the_tokens_of_whole_caches(
    device: str, config: dict[str, Any], tmp_path: Path, short_rings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt longer than the ring, in chunks, then tokens around it more than once; and logits from a part on."""
    tiny.write_language_model(tmp_path / "m", config)
    with load(tmp_path / "m", device, context=512) as model:
        rings = {name: t.shape[1] for name, t in model.decoder.graph(1).states.items()}
        small = model.decoder.cache_bytes
        got, logits = list(model.tokens(PROMPT, 100)), model.logits(PROMPT)
        held = model.batch(2, 400)
        number = held.add(PROMPT, 40)
        held.add(PROMPT[:7], 5)
        batched = [made.token for _ in range(40) for made in held.step() if made.sequence == number]
        held.close()
    monkeypatch.setattr(caches, "LONGEST", 4096)
    with load(tmp_path / "m", device, context=512) as model:
        assert {t.shape[1] for t in model.decoder.graph(1).states.values()} == {512}
        assert got == list(model.tokens(PROMPT, 100)) and batched == got[:40]
        np.testing.assert_allclose(logits, model.logits(PROMPT), rtol=1e-4, atol=1e-4)
        whole = model.decoder.cache_bytes
    layers = {"gemma2": {"keys.0": 64, "values.0": 64, "keys.1": 512, "values.1": 512}}
    assert rings == layers.get(config["model_type"], dict.fromkeys(rings, 64))
    assert small == whole * sum(rings.values()) // (512 * len(rings))


def test_what_a_ring_has_lost_is_computed_again(tmp_path: Path, short_rings: None) -> None:
    tiny.write_language_model(tmp_path / "m", MISTRAL)
    with load(tmp_path / "m", "cpu", context=512) as model:
        whole = [*PROMPT.tolist(), *model.tokens(PROMPT, 20)]
        assert list(model.tokens(whole[:310], 10)) == whole[310:] and model.stats.reused > 200
        assert list(model.tokens(whole[:200], 5)) and model.stats.reused == 0
        model.decoder.prefill(PROMPT, Sampling())
        with pytest.raises(GraphError, match="have lost the keys before token 100"):
            model.decoder.reset(100)


WIDE: dict[str, Any] = {**MISTRAL, "head_dim": 32, "num_hidden_layers": 2}


@pytest.mark.late("vulkan")
@pytest.mark.parametrize("windows", [False, True])
def test_caches_of_eight_bits(device: str, windows: bool, tmp_path: Path, short_rings: None) -> None:
    """Rows of q8_0 blocks: half the bytes of f16 and a sixteenth more, logits near those of f32, the same tokens from
    a prompt in chunks, token by token, and in a batch."""
    config = {**WIDE, "sliding_window": 9 if windows else None}
    tiny.write_language_model(tmp_path / "m", config)
    with load(tmp_path / "m", device, context=256, cache="q8_0") as model:
        d = model.decoder
        rows = 64 if windows else 256
        kinds = {name: (t.shape, t.dtype.name) for name, t in d.graph(1).states.items()}
        assert kinds["keys.0"] == ((1, rows, 2, 32), "i8") and kinds["keys.0.scales"] == ((1, rows, 2, 1), "f16")
        assert d.cache_bytes == 2 * 2 * rows * 2 * 34
        got = model.logits(PROMPT[:100])
        steps = [*model.tokens(PROMPT[:100], 8)]
        d.reset()
        alone = np.concatenate([d.logits(PROMPT[i : i + 1]) for i in range(40)])
        np.testing.assert_allclose(alone, got[:40], rtol=2e-3, atol=2e-3)
        with model.batch(2) as batch:
            batch.add(PROMPT[:100], 8)
            assert [made.token for _ in range(8) for made in batch.step()] == steps
    with load(tmp_path / "m", device, context=256) as model:
        want = model.logits(PROMPT[:100])
    error = ((got - want) ** 2).sum() / (want**2).sum()
    assert 1e-8 < error < 1e-3


def test_what_q8_0_cannot_keep_is_refused(tmp_path: Path) -> None:
    tiny.write_language_model(tmp_path / "m")
    with pytest.raises(DTypeError, match="8 elements, which are no blocks of 32"):
        load(tmp_path / "m", "cpu", cache="q8_0")
    with pytest.raises(DTypeError, match="expected one of f32, f16, bf16, q8_0"):
        load(tmp_path / "m", "cpu", cache="q4_0")
    (tmp_path / "r").mkdir()
    with pytest.raises(DTypeError, match="is recurrent, without keys and values"):
        load(tiny.write_mamba(tmp_path / "r"), "cpu", cache="q8_0")
