"""Which tokens begin a transcript, and which may follow: the rules of Whisper's generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError, RlxError, meant
from rlx.formats.files import read_json, shown
from rlx.models.language.graph import mask_words
from rlx.records import Record, field

Allowed = npt.NDArray[np.bool_]
TIMESTAMP_SECONDS = 0.02  # the time between two timestamps


class Prompts(Record, slots=False):
    """The special tokens of a model. `untimed` means that no timestamps follow; timestamps are the ids after it.
    `languages` maps codes such as "en" to tokens, and is empty for an English-only model."""

    vocabulary: int
    start: int
    end: int
    untimed: int
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    suppressed: tuple[int, ...] = ()  # allowed nowhere
    first_suppressed: tuple[int, ...] = ()  # not allowed as the first token
    latest_start: int | None = None  # the first timestamp may be this at most, in steps
    most: int = 448  # tokens of a chunk, its prompt included

    @property
    def times(self) -> int:
        """The id of the timestamp 0."""
        return self.untimed + 1

    def prompt(self, language: int | None, task: str, timestamps: bool) -> list[int]:
        """The tokens before a transcript. Raises: RlxError for a task that the model does not have."""
        if self.languages and task not in self.tasks:
            known = ", ".join(self.tasks)
            raise RlxError(f"transcribe: the task {task!r:.40} is none of {known}{meant(str(task), self.tasks)}")
        if not self.languages and task != "transcribe":
            raise RlxError(f"transcribe: the task {task!r:.40} is for models of many languages; this one transcribes")
        tokens = [self.start]
        if self.languages:
            assert language is not None
            tokens += [language, self.tasks[task]]
        return tokens if timestamps else [*tokens, self.untimed]

    def language(self, code: str) -> int:
        """The mark of a language, by a code such as "en". Raises: RlxError."""
        result = self.languages.get(code) if isinstance(code, str) else None
        if result is None:
            known = ", ".join(sorted(self.languages)) or "none: the model is of English alone"
            raise RlxError(f"transcribe: there is no language {code!r:.40}; the model knows {known}")
        return result

    def only(self, ids: Sequence[int]) -> Allowed:
        result = np.zeros(self.vocabulary, np.bool_)
        result[list(ids)] = True
        return result

    def allowed(self, tokens: Sequence[int], timestamps: bool) -> Allowed:
        """Which tokens may follow those generated after the prompt. Timestamps come in pairs, except before the end,
        never decrease, and the first token is one."""
        result = np.ones(self.vocabulary, np.bool_)
        result[list(self.suppressed)] = False
        if not tokens:
            result[list(self.first_suppressed)] = False
        if not timestamps:
            return result
        result[self.untimed] = False
        times = [t for t in tokens if t >= self.times]
        last = bool(tokens) and tokens[-1] >= self.times
        before = len(tokens) < 2 or tokens[-2] >= self.times
        if last and before:
            result[self.times :] = False
        elif last:
            result[: self.end] = False
        if times:
            result[self.times : times[-1] + (0 if last and not before else 1)] = False
        if not tokens:
            result[: self.times] = False
            if self.latest_start is not None:
                result[self.times + self.latest_start + 1 :] = False
        return result


def words_of(allowed: Allowed) -> npt.NDArray[np.int32]:
    """The tokens that may follow as bits: i32 (1, words)."""
    bits = np.zeros(32 * mask_words(len(allowed)), np.bool_)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32).reshape(1, -1)


def read_prompts(folder: Path, config: Mapping[str, Any], vocabulary: int, positions: int) -> Prompts:
    """The rules of a folder: generation_config.json, and config.json for what that leaves out.

    Raises: ModelFormatError for a mark that is missing or not in the vocabulary."""
    file = folder / "generation_config.json"
    if not file.is_file():
        raise ModelFormatError(f"{folder} has no generation_config.json, which names Whisper's marks")
    content = {**config, **{k: v for k, v in read_json(file).items() if v is not None}}

    def wrong(name: str, expected: str) -> ModelFormatError:
        return ModelFormatError(f"{file}: {name} is {shown(content.get(name))}, expected {expected}")

    def is_id(value: Any) -> bool:
        return type(value) is int and 0 <= value < vocabulary

    def one(name: str) -> int:
        value = content.get(name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not is_id(value):
            raise wrong(name, f"a token from 0 to {vocabulary - 1:,}")
        return cast(int, value)

    def several(name: str) -> tuple[int, ...]:
        value = content.get(name) or []
        if not isinstance(value, list) or not all(map(is_id, value)):
            raise wrong(name, f"a list of tokens from 0 to {vocabulary - 1:,}")
        return tuple(value)

    def named(name: str) -> dict[str, int]:
        value = content.get(name) or {}
        if not isinstance(value, dict) or not all(map(is_id, value.values())):
            raise wrong(name, "an object of texts and tokens")
        return {key.removeprefix("<|").removesuffix("|>"): number for key, number in value.items()}

    most, latest = content.get("max_length", positions), content.get("max_initial_timestamp_index")
    if type(most) is not int or most < 8:
        raise wrong("max_length", "an integer from 8")
    if latest is not None and (type(latest) is not int or latest < 0):
        raise wrong("max_initial_timestamp_index", "an integer from 0")
    result = Prompts(
        vocabulary, one("decoder_start_token_id"), one("eos_token_id"), one("no_timestamps_token_id"),
        named("lang_to_id") if content.get("is_multilingual", True) else {}, named("task_to_id"),
        several("suppress_tokens"), several("begin_suppress_tokens"), latest, min(most, positions),
    )  # fmt: skip
    if not result.languages and content.get("is_multilingual", True):
        raise wrong("lang_to_id", "the marks of languages, or is_multilingual false for a model of English alone")
    if result.languages and not result.tasks:
        raise wrong("task_to_id", "an object of tasks and tokens")
    if result.times >= vocabulary:
        raise wrong("no_timestamps_token_id", "a token before those of the timestamps")
    return result
