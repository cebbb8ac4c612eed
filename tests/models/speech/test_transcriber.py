"""Whisper: logits and tokens beside NumPy's float64, sounds in and texts out, and what is refused."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

import rlx
from rlx.cli.app import app
from rlx.errors import DTypeError, ModelFormatError, RlxError, ShapeError
from rlx.models.speech.audio import LogMel, read_wav, resampled
from rlx.models.speech.transcriber import _cut, _times
from tests.models.speech import tiny

MEL = LogMel(tiny.BANDS, samples=16000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("whisper"))


def _greedy(features: Any, prompt: list[int]) -> list[int]:
    """The likeliest tokens that are not suppressed, in float64."""
    made: list[int] = []
    while len(prompt) + len(made) < tiny.GENERATION["max_length"]:
        scores = tiny.logits(features, prompt + made)[-1]
        scores[tiny.GENERATION["suppress_tokens"]] = -np.inf
        if not made:
            scores[tiny.GENERATION["begin_suppress_tokens"]] = -np.inf
        made.append(int(scores.argmax()))
        if made[-1] == tiny.END:
            return made[:-1]
    return made


@pytest.mark.late("vulkan")
def test_logits_and_tokens_are_those_of_float64(device: str, folder: Path) -> None:
    features = MEL.of(tiny.sound(0.8))
    prompt = [tiny.START, tiny.FRENCH, 65, tiny.UNTIMED]
    tokens = [*prompt, 3, 17, 41, 90]
    with rlx.models.load(folder, device) as model:
        got, want = model.logits(features, tokens), tiny.logits(features, tokens)
        assert float(((got - want) ** 2).sum() / (want**2).sum()) <= 1e-11
        made = _greedy(features, prompt)
        assert len(made) > 3
        assert model.tokens(tiny.FRENCH) == made
        text = model.transcribe((tiny.sound(0.8), 16000), language="fr")
        assert text.text == model.tokenizer.decode(t for t in made if t < 68).strip() and text.language == "fr"
        likelier = tiny.logits(features, [tiny.START])[0, [tiny.ENGLISH, tiny.FRENCH]].argmax()
        assert model.detect((tiny.sound(0.8), 16000)) == ["en", "fr"][likelier]


def test_a_file_of_several_chunks_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    wav = tiny.write_wav(tmp_path / "x.wav", tiny.sound(2.5))
    with rlx.models.load(folder, "cpu") as model:
        whole = model.transcribe(wav, language="en")
        assert {part.start for part in whole.segments} <= {0.0, 1.0, 2.0} and whole.text
        timed = model.transcribe(wav, language="en", timestamps=True, task="translate")
        assert all(a.end <= b.start + 1e-9 for a, b in zip(timed.segments, timed.segments[1:], strict=False))
    ran = CliRunner().invoke(app, ["transcribe", str(folder), str(wav), "--device", "cpu", "--language", "en"])
    assert ran.exit_code == 0 and ran.stdout == "".join(part.text for part in whole.segments) + "\n"
    line = ["transcribe", str(folder), str(wav), "--device", "cpu", "--timestamps", "--language", "en"]
    ran = CliRunner().invoke(app, line)
    assert ran.exit_code == 0 and all(row.startswith("[00:0") for row in ran.stdout.splitlines())


def test_another_command_names_the_right_one(folder: Path) -> None:
    ran = CliRunner().invoke(app, ["generate", str(folder), "--device", "cpu", "-p", "a"])
    assert isinstance(ran.exception, RlxError) and "`rlx transcribe` takes it" in str(ran.exception)


def test_half_precision(folder: Path) -> None:
    features, tokens = MEL.of(tiny.sound(0.8)), [tiny.START, tiny.ENGLISH, 65, 3]
    with rlx.models.load(folder, "cpu", dtype="bf16", activations="bf16") as model:
        got, want = model.logits(features, tokens), tiny.logits(features, tokens)
    assert float(((got - want) ** 2).sum() / (want**2).sum()) <= 1e-3


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_a_wav_file(width: int, tmp_path: Path) -> None:
    exact = tiny.sound(0.05)
    read = read_wav(tiny.write_wav(tmp_path / "x.wav", exact, width=width), 16000)
    assert read.dtype == np.float32 and np.abs(read - exact).max() <= 0.5001 / (1 << (8 * width - 1)) + 1e-7
    both = np.stack([exact, -0.5 * exact], 1).reshape(-1)
    mixed = read_wav(tiny.write_wav(tmp_path / "y.wav", both, width=width, channels=2), 16000)
    assert np.abs(mixed - 0.25 * exact).max() <= 1.0 / (1 << (8 * width - 1)) + 1e-7


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_sounds_of_other_rates(rate: int) -> None:
    """What both rates can hold stays; what the lower one cannot is gone."""
    seconds, t = 0.5, np.arange(8000) / 16000
    got = resampled(np.sin(2 * np.pi * 1000 * np.arange(round(rate * seconds)) / rate), rate, 16000)
    assert len(got) == 8000
    assert np.abs(got - np.sin(2 * np.pi * 1000 * t))[400:-400].max() <= 2e-4
    if rate > 16000:
        high = resampled(np.sin(2 * np.pi * 9000 * np.arange(round(rate * seconds)) / rate), rate, 16000)
        assert np.abs(high)[400:-400].max() <= 2e-4


def test_segments_end_with_their_timestamps() -> None:
    assert _cut([70, 1, 2, 80], 68, 30.0) == ([[70, 1, 2, 80]], None)
    assert _cut([70, 1, 80, 80, 2, 90], 68, 30.0) == ([[70, 1, 80], [80, 2, 90]], None)
    parts, used = _cut([70, 1, 80, 82, 2, 3], 68, 30.0)  # what follows 82 is of the next chunk
    assert parts == [[70, 1, 80]] and used == pytest.approx(12 * 0.02)
    assert _cut([1, 2], 68, 30.0) == ([[1, 2]], None)


def test_times_lie_within_the_sound() -> None:
    assert _times([70, 1, 80], 68, 30.0) == pytest.approx((0.04, 0.24))
    assert _times([70, 1, 80], 68, 0.1) == pytest.approx((0.04, 0.1))
    assert _times([90, 1, 100], 68, 0.1) == (0.1, 0.1)
    assert _times([70, 1], 68, 0.5) == pytest.approx((0.04, 0.5)) and _times([1], 68, 0.5) == (0.0, 0.5)


@pytest.mark.parametrize("seconds", [1e-4, 0.1, 0.33, 1.05])
def test_short_sounds_with_timestamps(seconds: float, folder: Path) -> None:
    sound = tiny.sound(2)[: max(1, round(16000 * seconds))]
    with rlx.models.load(folder, "cpu") as model:
        parts = model.transcribe((sound, 16000), language="en", timestamps=True).segments
        assert parts and parts[-1].end <= round(seconds, 2)
        assert all(0 <= part.start <= part.end for part in parts)
        whole = model.transcribe((sound, 16000), language="en").segments
        assert len(whole) == 1, "the 0.05 s behind a chunk are no chunk"


def test_odd_sounds_are_refused(folder: Path, tmp_path: Path) -> None:
    good = tiny.write_wav(tmp_path / "good.wav", tiny.sound(0.1)).read_bytes()
    (tmp_path / "text.wav").write_bytes(b"no sound at all, but a text of some length")
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "cut.wav").write_bytes(good[:1000])
    (tmp_path / "odd.wav").write_bytes(good[:16] + b"\xff\xff\xff\x7f" + good[20:])
    (tmp_path / "float.wav").write_bytes(good[:20] + b"\x03\x00" + good[22:])
    tiny.write_wav(tmp_path / "none.wav", np.zeros(0))
    tiny.write_wav(tmp_path / "slow.wav", tiny.sound(0.1), rate=100)
    with rlx.models.load(folder, "cpu") as model:
        with pytest.raises(ModelFormatError, match=r"cannot be read: No such file or directory; give a WAV file"):
            model.transcribe(tmp_path / "nothing.wav")
        with pytest.raises(TypeError, match=r"no argument 'lang' \(did you mean 'language'\?\)"):
            model.transcribe(tmp_path / "good.wav", lang="en")
        for name in ("text", "empty", "odd", "float"):
            with pytest.raises(ModelFormatError, match="no WAV file"):
                model.transcribe(tmp_path / f"{name}.wav")
        for name, message in (("cut", "cut off"), ("none", "no samples"), ("slow", "100 a second")):
            with pytest.raises(ModelFormatError, match=message):
                model.transcribe(tmp_path / f"{name}.wav")
        for sound, error in (((np.ones((2, 3)), 16000), ShapeError), ((np.array([np.nan]), 16000), ShapeError),
                             ((np.ones(9), 10**9 + 7), ShapeError), (3, DTypeError),
                             ((np.ones(3, np.float32), "16k"), DTypeError)):  # fmt: skip
            with pytest.raises(error):
                model.transcribe(sound)
        with pytest.raises(RlxError, match="no language 'xx'; the model knows en, fr"):
            model.transcribe((tiny.sound(0.1), 16000), language="xx")
        with pytest.raises(RlxError, match="task 'sing' is none of transcribe, translate"):
            model.transcribe((tiny.sound(0.1), 16000), task="sing")
        with pytest.raises(ShapeError):
            model.logits(MEL.of(tiny.sound(0.1)), [999])


@pytest.mark.parametrize(
    ("part", "changed", "message"),
    [
        ("config", {"d_model": 25}, "d_model is 25, expected a multiple of the 3 and 3 attention heads"),
        ("config", {"vocab_size": 0}, "vocab_size is 0"),
        ("config", {"decoder_layers": 3}, "missing"),
        ("config", {"tie_word_embeddings": False}, "missing 'proj_out.weight'"),
        ("generation", {"no_timestamps_token_id": 500}, "no_timestamps_token_id is 500"),
        ("generation", {"eos_token_id": None}, "eos_token_id"),
        ("generation", {"suppress_tokens": [-1]}, "suppress_tokens"),
        ("generation", {"lang_to_id": {"<|en|>": "a"}}, "lang_to_id"),
        ("generation", {"lang_to_id": None}, "lang_to_id is null|lang_to_id is None"),
        ("generation", {"task_to_id": {}}, "task_to_id"),
    ],
)
def test_folders_that_are_refused(part: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    if part == "config":
        tiny.write_model(tmp_path, **changed)
    else:
        tiny.write_model(tmp_path, {**tiny.GENERATION, **changed})
    with pytest.raises(ModelFormatError, match=message):
        rlx.models.load(tmp_path, "cpu")


def test_other_spectrograms_are_refused(folder: Path, tmp_path: Path) -> None:
    tiny.write_model(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"n_fft": 512}))
    with pytest.raises(ModelFormatError, match="n_fft is 512, expected 400"):
        rlx.models.load(tmp_path, "cpu")


def test_a_transcript_has_its_own_language(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's call ends between a chunk and the end of this one."""
    sound = (tiny.sound(0.1), 16000)
    with rlx.models.load(folder, "cpu") as model:
        whole = model._chunks

        def between(*given: Any) -> Any:
            yield from whole(*given)
            model.language = "other"

        monkeypatch.setattr(model, "_chunks", between)
        assert model.transcribe(sound, language="fr").language == "fr"


def test_a_file_that_cannot_be_read_is_an_error_of_one_line(folder: Path, tmp_path: Path) -> None:
    path = tiny.write_wav(tmp_path / "x.wav", tiny.sound(0.1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wave, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
        made = CliRunner().invoke(app, ["transcribe", str(folder), str(path), "--device", "cpu"])
    assert isinstance(made.exception, RlxError) and "x.wav: cannot be read: Permission denied" in str(made.exception)
