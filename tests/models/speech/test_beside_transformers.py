"""Whisper beside `transformers`: spectrograms, logits and greedy tokens, and which tokens may follow."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.models.speech.audio import LogMel
from rlx.models.speech.prompts import Prompts
from tests.models.speech import tiny
from tests.outside import outside

pytestmark = pytest.mark.judged


@pytest.mark.parametrize("bands", [20, 80, 128])
def test_spectrograms(bands: int) -> None:
    transformers = outside("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    for sound in (tiny.sound(3.3), np.zeros(1600, np.float32), np.random.default_rng(0).normal(size=480_000) * 0.1):
        sound = sound.astype(np.float32)
        want = extractor(sound, sampling_rate=16000, return_tensors="np").input_features[0]
        exact = extractor._np_extract_fbank_features([np.pad(sound, (0, 480_000 - len(sound)))], "cpu")[0]
        got = LogMel(bands).of(sound)
        assert got.shape == want.shape == (bands, 3000)
        assert np.abs(got - exact).max() <= 1e-5  # it computes in float64, and torch's form in f32
        assert np.abs(got - want).max() <= 1e-3


def _model(folder: Path) -> Any:
    """A random model in float64, of the folder's weights."""
    torch, transformers = outside("torch"), outside("transformers")
    torch.manual_seed(0)
    settings = {name: value for name, value in tiny.CONFIG.items() if name != "model_type"}
    marks = {"pad_token_id": 61, "bos_token_id": 61, "eos_token_id": 61, "decoder_start_token_id": 62,
             "suppress_tokens": None, "begin_suppress_tokens": None}  # fmt: skip
    made = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**settings, **marks))
    with torch.no_grad():
        for values in made.parameters():
            values.add_(torch.randn_like(values) * 0.3)
    made.save_pretrained(folder)
    tiny.write_model(folder / "marks")
    for name in ("generation_config.json", "tokenizer.json"):
        (folder / name).write_text((folder / "marks" / name).read_text())
    kind = transformers.WhisperForConditionalGeneration
    return kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


@pytest.mark.late("vulkan")
def test_logits_and_greedy_tokens(device: str, tmp_path: Path) -> None:
    torch, transformers = outside("torch"), outside("transformers")
    wide = _model(tmp_path)
    features = LogMel(tiny.BANDS, samples=16000).of(tiny.sound(0.7))
    given = torch.tensor(features, dtype=torch.float64)[None]
    tokens = [62, 63, 65, 67, 3, 17, 41, 90, 2, 2, 55]
    rules = transformers.GenerationConfig(**tiny.GENERATION, do_sample=False, num_beams=1)
    rules.pad_token_id = tiny.END
    with torch.no_grad():
        want = wide(input_features=given, decoder_input_ids=torch.tensor([tokens])).logits[0].numpy()
        follow = wide.generate(given, generation_config=rules, language="fr", task="translate", max_new_tokens=20)
        timed = wide.generate(
            given, generation_config=rules, language="en", task="transcribe", return_timestamps=True, max_new_tokens=20,
            return_dict_in_generate=False, force_unique_generate_call=True,
        )  # fmt: skip
    with rlx.models.load(tmp_path, device) as model:
        got = model.logits(features, tokens)
        assert ((got - want) ** 2).sum() / (want**2).sum() <= 1e-11
        assert (got.argmax(1) == want.argmax(1)).all()
        for found, prompt in ((follow, (tiny.FRENCH, "translate", False)), (timed, (tiny.ENGLISH, "transcribe", True))):
            listed = [t for t in found[0].tolist() if t != tiny.END]
            begin = model.prompts.prompt(*prompt)
            listed = listed[len(begin) :] if listed[: len(begin)] == begin else listed
            made = model.tokens(*prompt)[:20]  # then it goes on with what follows the last timestamp
            assert len(made) > 3 and made == listed[: len(made)]


def test_which_tokens_may_follow_with_timestamps() -> None:
    torch, transformers = outside("torch"), outside("transformers")
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    prompts = Prompts(120, 62, 61, 67, latest_start=10)
    rules = transformers.GenerationConfig(eos_token_id=61, no_timestamps_token_id=67, max_initial_timestamp_index=10)
    judge = WhisperTimeStampLogitsProcessor(rules, begin_index=3)
    rng = random.Random(0)
    for _ in range(300):
        made = [rng.choice([rng.randrange(60), 68 + min(i, 50)]) for i in range(rng.randrange(6))]
        scores = torch.zeros(1, 120)
        scores[:, :68] = 5.0  # so that the rule of their sum takes none away
        want = torch.isfinite(judge(torch.tensor([[62, 63, 65, *made]]), scores))[0].numpy()
        assert (prompts.allowed(made, True) == want).all(), made
