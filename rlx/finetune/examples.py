"""Examples: records as token ids, and which of them count in the loss."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import DataError, DTypeError, RlxError
from rlx.finetune.data import Broken, LeftOut, Record, read
from rlx.formats.files import shown
from rlx.formats.tokenizer.chat import ChatTemplate
from rlx.formats.tokenizer.language import LanguageTokenizer

Ids = npt.NDArray[np.int32]
COLUMNS = (("messages",), ("prompt", "completion"), ("text",))


class Example(NamedTuple):
    """The token ids of a record, and which of them count in the loss: those that the model is to generate."""

    line: int
    ids: Ids
    counted: npt.NDArray[np.bool_]


class Unfit(Exception):
    """A record that cannot be made into an example, and why."""


def examples_of(
    path: str | os.PathLike[str], tokenizer: LanguageTokenizer, length: int, left: LeftOut
) -> list[Example]:
    """The examples of a data file: of its columns `messages`, `prompt` and `completion`, or `text`.

    The loss counts the model's answers in messages, the completion after a prompt, and all tokens of a text.
    Examples of more than `length` tokens are left out. Raises: DataError for a file without any of these columns, or
    whose examples are all left out; as `read`."""
    columns: tuple[str, ...] | None = None
    make: Callable[[Mapping[str, Any]], Example] | None = None
    result = []
    for record in read(path):
        if isinstance(record, Broken):
            left.broken(record.line, record.reason)
            continue
        if columns is None:
            columns = _columns(path, record)
            make = _maker(columns, tokenizer)
        try:
            assert make is not None
            example = make(record.fields)._replace(line=record.line)
        except Unfit as error:
            left.broken(record.line, str(error))
            continue
        if len(example.ids) > length:
            left.add(record.line, f"longer than {length:,} tokens", f"{len(example.ids):,}")
        elif not example.counted[1:].any():
            left.add(record.line, "without a token to learn", "an empty answer or text")
        else:
            result.append(example)
    if not result:
        why = f": {left}" if left.count else "; it has no records"
        raise DataError(f"{path}: no example is left to train on{why}")
    return result


def _columns(path: object, first: Record) -> tuple[str, ...]:
    for columns in COLUMNS:
        if all(name in first.fields for name in columns):
            return columns
    there = shown(sorted(map(str, first.fields)))
    raise DataError(
        f"{path}, line {first.line}: has the columns {there}; expected messages, prompt and completion, or text"
    )


def _maker(columns: tuple[str, ...], tokenizer: LanguageTokenizer) -> Callable[[Mapping[str, Any]], Example]:
    if columns == ("text",):
        return lambda fields: _of_text(tokenizer, _text(fields, "text"))
    if columns == ("messages",):
        chat = Chat(tokenizer)
        return lambda fields: chat.example(_without_tools(fields, "messages"))
    chats: list[Chat] = []

    def pair(fields: Mapping[str, Any]) -> Example:
        if isinstance(fields.get("prompt"), list | tuple):
            if not chats:
                chats.append(Chat(tokenizer))
            before = _without_tools(fields, "prompt")
            return chats[0].example([*before, *_messages(fields, "completion")], len(before))
        return _of_pair(tokenizer, _text(fields, "prompt"), _text(fields, "completion"))

    return pair


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise Unfit(f"{name} is {shown(value, 40)}; expected a text")
    return value


def _messages(fields: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = fields.get(name)
    if isinstance(value, str) and name == "messages":  # a CSV column has them as JSON text
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            raise Unfit(f"{name} is no JSON: {shown(value, 40)}") from None
    if not isinstance(value, list | tuple) or not value:
        raise Unfit(f"{name} is {shown(value, 40)}; expected a list of messages")
    return [_message(one) for one in value]


def _message(message: Any) -> Mapping[str, Any]:
    """A message whose content is a text, as most templates take it: parts of text are joined. Raises: Unfit."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise Unfit(f"a message is {shown(message, 60)}; expected an object with role and content")
    content = message.get("content")
    if isinstance(content, list | tuple):
        for part in content:
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                raise Unfit(f"a part of a message's content is {shown(part, 60)}; expected parts of text")
        content = "".join(part["text"] for part in content)
    if content is None and message["role"] == "assistant" and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise Unfit(f"the content of a message is {shown(content, 40)}; expected a text, or a list of parts of text")
    return {**message, "content": content}


def _without_tools(fields: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """The messages of a record. Raises Unfit for records with tools: they would be learned as if there were none."""
    for more in ("tools", "documents"):
        if fields.get(more):
            raise Unfit(f"has {more} beside its messages, which finetune does not give to the chat template")
    return _messages(fields, name)


def _encoded(tokenizer: LanguageTokenizer, text: str, special: bool, parse: bool = False) -> list[int]:
    try:
        return tokenizer.encode(text, special=special, parse_special=parse)
    except DTypeError as error:
        raise Unfit(str(error)) from None


def _ended(tokenizer: LanguageTokenizer, ids: list[int]) -> list[int]:
    """The ids followed by the end-of-text token, so that the model learns to end its texts."""
    eos = tokenizer.special.eos
    return ids if eos is None or ids[-1:] == [eos] else [*ids, eos]


def _example(ids: list[int], begins: list[tuple[int, int]]) -> Example:
    counted = np.zeros(len(ids), np.bool_)
    for start, stop in begins:
        counted[start:stop] = True
    return Example(0, np.asarray(ids, np.int32), counted)


def _of_text(tokenizer: LanguageTokenizer, text: str) -> Example:
    ids = _ended(tokenizer, _encoded(tokenizer, text, True))
    return _example(ids, [(0, len(ids))])


def _of_pair(tokenizer: LanguageTokenizer, prompt: str, completion: str) -> Example:
    """An example of a prompt and its completion. It counts from the first token that differs from the prompt's own
    tokens: that token may also contain the end of the prompt."""
    if not completion:
        raise Unfit("the completion is empty")
    ids = _ended(tokenizer, _encoded(tokenizer, prompt + completion, True))
    return _example(ids, [(_common(ids, _encoded(tokenizer, prompt, True)), len(ids))])


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two sequences of ids."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Chat:
    """Messages as examples, by the model's own template. Raises: RlxError for a model without one."""

    def __init__(self, tokenizer: LanguageTokenizer) -> None:
        self._tokenizer, self._template = tokenizer, ChatTemplate.of(tokenizer)

    def example(self, messages: Sequence[Mapping[str, Any]], first: int = 0) -> Example:
        """An example of which the answers count, from message `first` on: the text from the end of the template's
        prompt for an answer to the next message. Raises: Unfit if the template rejects the messages, or if the text
        before an answer differs from the prompt that the model would get; ModelFormatError for a broken template."""
        whole = self._render(messages, False)
        if any(message.get("tool_calls") for message in messages) and self._without_calls(messages) == whole:
            raise Unfit("has tool_calls, which the chat template does not write")
        spans, at = [], 0
        for i, message in enumerate(messages):
            if message["role"] != "assistant" or i < first:
                continue
            before = self._render(messages[:i], True)
            if not whole.startswith(before):
                raise Unfit(
                    f"the chat template writes what stands before message {i + 1} otherwise once an answer follows, so "
                    "that it cannot be told where the answer begins"
                )
            at = len(before)
            spans.append((at, self._end(whole, at, messages, i)))
        if not spans:
            raise Unfit("there is no message of the role assistant, which alone is learned")
        ids = _encoded(self._tokenizer, whole, False, True)
        return _example(ids, [(self._place(ids, whole[:a]), self._place(ids, whole[:b])) for a, b in spans])

    def _without_calls(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """The text of the messages without their tool_calls; None where the template does not take them so."""
        without = [{k: v for k, v in message.items() if k != "tool_calls"} for message in messages]
        try:
            return self._render(without, False)
        except Unfit:
            return None

    def _end(self, whole: str, at: int, messages: Sequence[Mapping[str, Any]], i: int) -> int:
        """Where the answer's text ends. Templates write only the last answer's thoughts, so its text may change."""
        if i + 1 == len(messages):
            return len(whole)
        alone = self._render(messages[: i + 1], False)
        if whole.startswith(alone):
            return len(alone)
        content = messages[i].get("content")
        if isinstance(content, str) and content.strip():
            text = content.strip()
            place, behind = whole.find(text, at), alone[alone.rfind(text) + len(text) :]
            if place >= 0 and whole.startswith(behind, place + len(text)):
                return place + len(text) + len(behind)
        raise Unfit(f"the chat template writes message {i + 1} otherwise once others follow")

    def _place(self, ids: list[int], text: str) -> int:
        return _common(ids, _encoded(self._tokenizer, text, False, True))

    def _render(self, messages: Sequence[Mapping[str, Any]], answer: bool) -> str:
        try:
            return self._template.render(messages, add_generation_prompt=answer)
        except DTypeError as error:
            raise Unfit(str(error)) from None
        except RlxError as error:
            if type(error) is RlxError and "does not take these messages" in str(error):
                raise Unfit(str(error).removeprefix(f"{self._tokenizer.file}: ")) from None
            raise


def shown_example(example: Example, tokenizer: LanguageTokenizer) -> Iterator[str]:
    """An example as lines of text that show which parts the model reads and which it learns to write."""
    yield f"line {example.line}: {len(example.ids)} tokens, {int(example.counted[1:].sum())} count"
    changes = np.flatnonzero(np.diff(example.counted)) + 1
    for part in np.split(np.arange(len(example.ids)), changes):
        what = "learned" if example.counted[part[0]] else "read"
        text = tokenizer.decode(example.ids[part].tolist(), special=True)
        yield f"  {what:8}{json.dumps(text, ensure_ascii=False)}"
