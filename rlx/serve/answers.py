"""Answers: the tokens of a request's sequences as text, in the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from rlx.models.language.batch import Scores, Token
from rlx.models.language.text import StopTexts
from rlx.records import Record, field
from rlx.serve.engine import Asked, Engine
from rlx.serve.protocol import Refused
from rlx.serve.tools import ToolText

_LEAST = -9999.0  # OpenAI's API gives this for log 0, which JSON cannot express
_REASONS = {"stop": "stop", "length": "length", "context": "length"}


class Scored(NamedTuple):
    """A token of an answer: the offset of its text in the answer's, the token with its log-probability, and the
    likeliest tokens at its position with theirs."""

    offset: int
    token: Named
    likeliest: tuple[Named, ...]


class Named(NamedTuple):
    """A token's bytes, also as text if they are UTF-8, and its log-probability; None for the first token of a prompt.
    """

    text: str
    content: bytes
    logarithm: float | None


class Piece(Record, frozen=False, slots=False):
    """New text of a request's sequence `index`, with its tokens if their probabilities were asked for; the last piece
    also has the tool calls and why the sequence ended."""

    index: int
    text: str
    reason: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    scored: list[Scored] | None = None


class Answer(Asked, frozen=False, eq=False, slots=False):
    """A sequence whose tokens become text: `stream` decodes them, `stops` and `tools` read the text."""

    index: int = 0
    engine: Engine | None = None
    wake: asyncio.Event | None = None
    stream: Any = None
    stops: StopTexts = field(default_factory=lambda: StopTexts(()))
    tools: ToolText | None = None
    logprobs: int | None = None  # how many likeliest tokens to give with each
    single: bool = False  # whether to give at most one tool call
    named: bool = False  # whether the call was required by name: then it is not given as why the answer ended
    count: int = 0  # tokens generated, without the one that ends the text
    reason: str | None = None
    failure: str | None = None
    status: int = 500  # the response's status, if it failed
    _text: str = ""
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _decoded: int = 0  # characters of text decoded so far
    _passed: int = 0  # characters of text that `stops` has let through
    _scored: deque[Scored] = field(default_factory=deque)  # scored tokens whose text was not let through yet
    _ready: list[Scored] = field(default_factory=list)

    def begin(
        self, wake: asyncio.Event, text: str, scores: Sequence[Scores] | None = None, stream: Any = None
    ) -> None:
        """Sets up the answer: `wake` is set whenever there is something new; it begins with `text`, its echoed prompt.
        If scored, the prompt's tokens, decoded by `stream`, have `scores` from the second on."""
        self.wake, self._text = wake, text
        if scores is not None:
            assert self.logprobs is not None
            for token, own in zip(self.ids.tolist(), [None, *scores], strict=True):
                self._ready.append(self._named(token, own, self.logprobs))
                if token in self.stream.vocabulary.tokens:  # a tokenizer may have changed the text
                    self._decoded = min(self._decoded + len(stream.push(token)), len(text))
        self._decoded = self._passed = len(text)
        if self.max_tokens == 0:
            self.reason = "length"
        self._wake()

    def push(self, tokens: list[Token]) -> None:
        assert self.engine is not None
        if self.reason is not None or self.failure is not None:
            return
        known, ended = self.stream.vocabulary.tokens, tokens[-1].ended
        text_so_far = ""
        for _, token, end, scores in tokens:
            if end in ("stop", "nan") and (token in self.ends or token < 0):
                break
            self.count += 1
            if self.logprobs is not None and scores is not None:
                self._scored.append(self._named(token, scores, self.logprobs))
            # Output matrices may have padding rows beyond the vocabulary; such a token has no text.
            text = self.stream.push(token) if token in known else ""
            self._decoded += len(text)
            text_so_far += self.stops.push(text)
            if self.stops.found is not None:
                self.engine.cancel(self)
                ended = "stop"
                break
        if ended == "nan":
            self.fail("the model's logits are NaN; the file may be damaged, or activations need f32")
            return
        if error := getattr(self.constraint, "error", ""):
            self.fail(f"the grammar allows nothing more: {error}", 400)
            return
        if ended:
            text_so_far += self.stops.push(self.stream.end()) + self.stops.end()
            self.reason = _REASONS[ended]
        self._passed += len(text_so_far)
        whole = ended and self.stops.found is None
        while self._scored and (whole or self._scored[0].offset < self._passed):
            self._ready.append(self._scored.popleft())
        if self.tools is not None:
            text_so_far = self.tools.push(text_so_far)
            if ended:
                rest, self._calls = self.tools.end()
                text_so_far += rest
                self._calls = self._calls[:1] if self.single else self._calls
                if self._calls:
                    self.reason = "stop" if self.named else "tool_calls"
        self._text += text_so_far
        self._wake()

    def _named(self, token: int, scores: Scores | None, count: int) -> Scored:
        vocabulary = self.stream.vocabulary

        def named(id: int, logarithm: float | None) -> Named:
            content = vocabulary.contents([id])[0] if id in vocabulary.tokens else b""
            try:
                text = content.decode() or f"<|{id}|>"
            except UnicodeDecodeError:  # OpenAI's API writes incomplete characters so
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
            return Named(text, content, None if logarithm is None else max(logarithm, _LEAST))

        if scores is None:
            return Scored(self._decoded, named(token, None), ())
        best = zip(scores.likeliest[:count], scores.logarithms, strict=False)
        return Scored(self._decoded, named(token, scores.own), tuple(named(*one) for one in best))

    def fail(self, message: str, status: int = 500) -> None:
        self.failure, self.status = message, status
        self._wake()

    def _wake(self) -> None:
        assert self.wake is not None
        if self._text or self.reason is not None or self.failure is not None:
            self.wake.set()

    def taken(self) -> Piece | None:
        """What is new since the last call. Raises: Refused if the sequence failed."""
        if self.failure is not None:
            error = Refused(self.status, self.failure)
            error.again &= self.engine is None or self.engine.failure is None
            raise error
        if not self._text and self.reason is None:
            return None
        piece = Piece(self.index, self._text, self.reason, self._calls, None if self.logprobs is None else self._ready)
        self._text, self._ready = "", []
        return piece


async def pieces(
    answers: Sequence[Answer], wake: asyncio.Event, pause: Callable[[], float]
) -> AsyncIterator[Piece]:
    """The text of all answers as it comes, at most once per `pause()` seconds, until all have ended.

    Raises: Refused if one failed."""
    left = list(answers)
    while left:
        await wake.wait()
        wake.clear()
        next_at = asyncio.get_running_loop().time() + pause()
        for answer in list(left):
            piece = answer.taken()
            if piece is not None:
                if piece.reason is not None:
                    left.remove(answer)
                yield piece
        if left and (early := next_at - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(early)
