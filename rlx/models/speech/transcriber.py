"""Transcriber: sound to text by Whisper, on one device."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.dtypes import DType, DTypeLike, f32
from rlx.errors import DTypeError, GraphError, ModelFormatError, OutOfDeviceMemory, RlxError, ShapeError
from rlx.formats.files import read_json, shown
from rlx.formats.huggingface import ModelFolder
from rlx.formats.tokenizer.language import LanguageTokenizer, from_folder
from rlx.host.locks import renewed
from rlx.ir import Graph
from rlx.models.language.caches import Size
from rlx.models.language.config import Fields
from rlx.models.language.model import half_or_full
from rlx.models.language.weights import Arrays, ModelWeights
from rlx.models.speech.audio import HOP_SAMPLES, RATES_HZ, LogMel, read_wav, resampled
from rlx.models.speech.prompts import TIMESTAMP_SECONDS, Prompts, read_prompts, words_of
from rlx.models.speech.whisper import (
    ARCHITECTURE,
    Head,
    WhisperConfig,
    decoder_graph,
    encoder_graph,
    read_config,
)
from rlx.records import Record, replace
from rlx.runtime import CompiledGraph, Session, State, Weights
from rlx.runtime.keywords import keywords

SHORTEST_SECONDS = 0.1  # a shorter remainder after the last chunk of a sound is ignored: it holds no word
F32 = npt.NDArray[np.float32]
Sound = str | os.PathLike[str] | tuple[npt.NDArray[Any], int]


class Segment(Record):
    """A part of a transcript: its start and end in seconds, and its text."""

    start: float
    end: float
    text: str


class Transcript(Record):
    """What is said in a sound: the text, its language's code (None for a model of English alone), and its segments, one
    for each chunk of 30 s where no timestamps were asked for."""

    text: str
    language: str | None
    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        return self.text


class Transcriber(Closing):
    """A Whisper model on one device, made by `rlx.models.load`. A `with` block closes it; calls of several threads take
    turns."""

    def __init__(
        self, config: WhisperConfig, weights: ModelWeights, prompts: Prompts, mel: LogMel, session: Session,
        tokenizer: LanguageTokenizer | None, *, activations: DType = f32, cache: DType = f32,
    ) -> None:  # fmt: skip
        self.config, self.prompts, self.mel, self.session = config, prompts, mel, session
        self.source = weights
        self.where = weights.source.where
        self._tokenizer = tokenizer
        self._kinds = activations, cache
        self._programs: dict[tuple[Head | None, int], CompiledGraph] = {}
        self._lock = renewed(self, "_lock", threading.RLock)
        self._closed = False
        self.language: str | None = None  # the code of the last sound's
        graphs = self.graph(None), self.graph("token")
        weights.check()
        self._check_room(cache)
        self.weights, self.state = Weights(session.device), State(session.device)
        try:
            types = {name: t.type for g in graphs for name, t in g.params.items()}
            self.weights.declare(types)
            weights.load({name: [self.weights] for name in types})
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        d = self.config.decoder
        size = f"{self.config.layers} + {d.layers} layers of {d.width}"
        return f"Transcriber(whisper {self.where!r} on {self.session.info.id}, {size})"

    def graph(self, head: Head | None, chunk: int = 1) -> Graph:
        """The decoder's graph for a head, or the encoder's for None."""
        size = Size(1, chunk, self.config.decoder.positions, *self._kinds)
        if head is None:
            return encoder_graph(self.config, size, self.source)
        return decoder_graph(self.config, size, self.source, head, self.prompts.times)

    def _program(self, head: Head | None, chunk: int = 1) -> CompiledGraph:
        if self._closed:
            raise GraphError("the model is closed; load it again")
        result = self._programs.get((head, chunk))
        if result is None:
            graph = self.graph(head, chunk)
            result = self.session.compile(graph, weights=self.weights, state=self.state)
            self._programs[head, chunk] = result
        return result

    def _check_room(self, cache: DType) -> None:
        c = self.config.decoder
        rows = 2 * c.layers * c.width * (c.positions + self.config.frames)
        need, free = self.source.nbytes + math.ceil(rows * cache.itemsize), self.session.device.free_bytes()
        if need > free:
            raise OutOfDeviceMemory(
                f"{self.where} needs {need:,} bytes for its weights and caches; {self.session.info.id} has {free:,} "
                'free: dtype="bf16" halves them, and a smaller model would fit'
            )

    @property
    def tokenizer(self) -> LanguageTokenizer:
        """The tokenizer. Raises: RlxError where the folder has none."""
        if self._tokenizer is None:
            raise RlxError(f"{self.where} has no tokenizer.json, which text needs; logits() needs none")
        return self._tokenizer

    # -- what a caller uses

    def logits(self, features: F32, tokens: Sequence[int]) -> F32:
        """The logits after each of the tokens, f32 (tokens, vocabulary), about a spectrogram, f32 (bands, frames).

        Raises: ShapeError, DTypeError."""
        ids = np.asarray(tokens)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise DTypeError("logits: expected one row of token ids")
        if not 0 <= ids.min() <= ids.max() < self.prompts.vocabulary or len(ids) > self.config.decoder.positions:
            raise ShapeError(f"logits: expected up to {self.config.decoder.positions} tokens of the vocabulary's "
                             f"{self.prompts.vocabulary}")  # fmt: skip
        with self._lock:
            self._listen(features)
            program = self._program("logits", len(ids))
            result: F32 = program.run({"ids": ids.astype(np.int32)[None], "at": np.zeros(1, np.int32)})["logits"][0]
        return result

    @keywords
    def transcribe(
        self, sound: Sound, *, language: str | None = None, task: str = "transcribe", timestamps: bool = False
    ) -> Transcript:
        """The transcript of a WAV file, or of (samples within ±1, samples per second).

        `language` is a code such as "en"; without one the model detects it from the first 30 s. `task` "translate"
        translates into English. Chunks of 30 s are transcribed one after the other, always with the likeliest token;
        with `timestamps` a chunk begins where the last complete segment ended. Raises: as `segments`."""
        heard: list[str | None] = [None]
        chunks = self.hear(sound, heard, language=language, task=task, timestamps=timestamps)
        parts = tuple(part for chunk in chunks for part in chunk)
        return Transcript("".join(part.text for part in parts).strip(), heard[-1], parts)

    @keywords
    def segments(
        self, sound: Sound, *, language: str | None = None, task: str = "transcribe", timestamps: bool = False
    ) -> Iterator[Segment]:
        """The segments of `transcribe`, as they are made.

        Raises, all at once: ModelFormatError for a file that cannot be read, is no WAV of integers or damaged,
        DTypeError and ShapeError for odd samples, RlxError for an unknown language or task."""
        chunks = self.hear(sound, [], language=language, task=task, timestamps=timestamps)
        return (part for chunk in chunks for part in chunk)

    # -- the parts of it

    def hear(
        self, sound: Sound, heard: list[str | None], *, language: str | None, task: str, timestamps: bool
    ) -> Iterator[list[Segment]]:
        """For each chunk its segments, perhaps none; the language's code is appended to `heard`. Raises: as `segments`.
        """
        samples = self._samples(sound)
        asked = None if language is None else self.prompts.language(language)
        self.prompts.prompt(asked if asked is not None else 0, task, timestamps)
        self.tokenizer.encode("")
        return self._chunks(samples, asked, task, timestamps, heard)

    def _samples(self, sound: Sound) -> F32:
        if isinstance(sound, str | os.PathLike):
            return read_wav(sound, self.mel.rate)
        if not isinstance(sound, tuple) or len(sound) != 2 or type(sound[1]) is not int:
            raise DTypeError(f"transcribe: {type(sound).__name__} is no sound; give a WAV file, or (samples, rate)")
        if not RATES_HZ[0] <= sound[1] <= RATES_HZ[1]:
            raise ShapeError(f"transcribe: {sound[1]:,} samples a second; expected {RATES_HZ[0]:,} to {RATES_HZ[1]:,}")
        samples = np.asarray(sound[0])
        if samples.ndim != 1 or not samples.size or samples.dtype.kind != "f" or not np.isfinite(samples).all():
            raise ShapeError(f"transcribe: the samples are {samples.dtype} {samples.shape}; expected one row of finite "
                             "floats")  # fmt: skip
        return resampled(samples, sound[1], self.mel.rate)

    def _listen(self, features: F32) -> None:
        self._program(None).run({"mel": np.asarray(features, np.float32)[None]})

    def _next(self, token: int, at: int, allowed: npt.NDArray[np.bool_], head: Head = "token") -> int:
        inputs = {"ids": np.array([[token]], np.int32), "at": np.array([at], np.int32), "mask": words_of(allowed)}
        return int(self._program(head).run(inputs)["token"][0, 0])

    def detect(self, sound: Sound) -> str | None:
        """The code of the language of a sound's first 30 s; None for a model of English alone. Raises: as
        `segments`."""
        with self._lock:
            if not self.prompts.languages:
                return None
            self._listen(self.mel.of(self._samples(sound)[: self.mel.samples]))
            number = self._detect()
        return self._code(number)

    def _detect(self) -> int:
        languages = self.prompts.only(list(self.prompts.languages.values()))
        return self._next(self.prompts.start, 0, languages)

    def _code(self, token: int | None) -> str | None:
        return next((code for code, number in self.prompts.languages.items() if number == token), None)

    def tokens(self, language: int | None, task: str = "transcribe", timestamps: bool = False) -> list[int]:
        """The tokens of the transcript of the chunk that was encoded last, without the prompt and the end token."""
        p, result = self.prompts, list[int]()
        prompt = p.prompt(language, task, timestamps)
        head: Head = "timed" if timestamps else "token"
        anything = np.ones(p.vocabulary, np.bool_)
        for at, token in enumerate(prompt[:-1]):
            self._next(token, at, anything)
        token = prompt[-1]
        while len(prompt) + len(result) < p.most:
            token = self._next(token, len(prompt) + len(result) - 1, p.allowed(result, timestamps), head)
            if token < 0:
                raise RlxError(f'{self.where}: the logits are NaN; try activations="f32", or the file is damaged')
            if token == p.end:
                break
            result.append(token)
        return result

    def _chunks(
        self, samples: F32, language: int | None, task: str, timestamps: bool, heard: list[str | None]
    ) -> Iterator[list[Segment]]:
        at, rate = 0, self.mel.rate
        self.language = self._code(language)
        heard.append(self.language)
        while at == 0 or len(samples) - at >= SHORTEST_SECONDS * rate:
            part = samples[at : at + self.mel.samples]
            with self._lock:
                self._listen(self.mel.of(part))
                if language is None and self.prompts.languages:
                    language = self._detect()
                    self.language = self._code(language)
                    heard.append(self.language)
                answer = self.tokens(language, task, timestamps)
            segments = []
            cuts, used = _cut(answer, self.prompts.times, len(part) / rate) if timestamps else ([answer], None)
            for tokens in cuts:
                start, end = _times(tokens if timestamps else [], self.prompts.times, len(part) / rate)
                text = self.tokenizer.decode(t for t in tokens if t < self.prompts.times)
                if text.strip():
                    segments.append(Segment(round(at / rate + start, 2), round(at / rate + end, 2), text))
            yield segments
            at += len(part) if used is None else max(1, round(used * rate))

    def close(self) -> None:
        """Frees programs, caches and weights. Idempotent."""
        with self._lock:
            self._closed = True
            for program in self._programs.values():
                program.close()
            self._programs.clear()
            self.state.close()
            self.weights.close()


def _times(tokens: list[int], times: int, seconds: float) -> tuple[float, float]:
    """A segment's start and end. A chunk shorter than 30 s is padded with silence, where Whisper may put timestamps:
    times are limited to the sound's end. A segment without a second timestamp ends there."""
    stamps = [min((t - times) * TIMESTAMP_SECONDS, seconds) for t in tokens if t >= times]
    return stamps[0] if stamps else 0.0, stamps[-1] if stamps[1:] else seconds


def _cut(tokens: list[int], times: int, seconds: float) -> tuple[list[list[int]], float | None]:
    """A chunk's tokens split into segments, each with its two timestamps, and the seconds that they cover; None for the
    whole chunk. Tokens after the last pair of timestamps belong to the next chunk."""
    timed = [t >= times for t in tokens]
    ends = [i + 1 for i in range(len(tokens) - 1) if timed[i] and timed[i + 1]]
    whole = timed[-2:] == [False, True]
    if not ends:
        return [tokens], None
    if whole:
        ends.append(len(tokens))
    parts = [tokens[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    used = (tokens[ends[-1] - 1] - times) * TIMESTAMP_SECONDS
    return parts, None if whole or not 0 < used < seconds else used


def load_folder(
    folder: ModelFolder, session: Session, *, dtype: DTypeLike | None = None, activations: DTypeLike | None = None,
    cache: DTypeLike | None = None,
) -> Transcriber:  # fmt: skip
    """The Whisper model of a Hugging Face folder. Raises: as `rlx.models.load`."""
    fields = Fields(folder.config, str(folder.path / "config.json"))
    config = read_config(fields)
    d = config.decoder
    work = half_or_full("activations", activations or f32)
    kept = half_or_full("cache", cache or work)
    matrices = None if dtype is None else half_or_full("dtype", dtype)
    source = Arrays(folder.tensors(), str(folder.path))
    weights = ModelWeights(source, ARCHITECTURE, d, d.positions, matrices)
    config = replace(config, decoder=weights.config)
    prompts = read_prompts(folder.path, folder.config, d.vocabulary, d.positions)
    tokenizer = from_folder(folder.path) if (folder.path / "tokenizer.json").is_file() else None
    mel = _mel(folder, config)
    return Transcriber(config, weights, prompts, mel, session, tokenizer, activations=work, cache=kept)


def _mel(folder: ModelFolder, config: WhisperConfig) -> LogMel:
    """The spectrogram that preprocessor_config.json says. Raises: ModelFormatError for one that the model does not
    take."""
    file = folder.path / "preprocessor_config.json"
    content = read_json(file) if file.is_file() else {}
    usual = {"sampling_rate": 16000, "n_fft": 400, "hop_length": 160, "feature_size": config.bands, "dither": 0.0}
    for name, value in usual.items():
        if content.get(name, value) != value:
            raise ModelFormatError(f"{file}: {name} is {shown(content[name])}, expected {value}")
    if content.get("do_normalize"):
        raise ModelFormatError(f"{file}: do_normalize is true, which rlx has no code for")
    return LogMel(config.bands, samples=2 * config.frames * HOP_SAMPLES)
