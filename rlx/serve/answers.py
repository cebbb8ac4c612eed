"""Answers: the tokens of a request's sequences as text, in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.models.language.text import StopTexts
from rlx.serve.engine import Asked, Engine
from rlx.serve.protocol import Refused
from rlx.serve.tools import ToolText

_REASONS = {"stop": "stop", "length": "length", "context": "length"}


@dataclass
class Piece:
    """Text that has come of a request's sequence `index`, and with the last of it the calls and why it ended."""

    index: int
    text: str
    reason: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Answer(Asked):
    """A sequence whose tokens become text: `stream` decodes them, `stops` and `tools` read the text."""

    index: int = 0
    engine: Engine | None = None
    wake: asyncio.Event | None = None
    stream: Any = None
    stops: StopTexts = field(default_factory=lambda: StopTexts(()))
    tools: ToolText | None = None
    count: int = 0  # tokens made, without one that ends the text
    reason: str | None = None
    failure: str | None = None
    _text: str = ""
    _calls: list[dict[str, Any]] = field(default_factory=list)

    def push(self, tokens: list[int], ended: str) -> None:
        assert self.engine is not None
        if self.reason is not None or self.failure is not None:
            return
        known = self.stream.vocabulary.tokens
        made = ""
        for i, token in enumerate(tokens):
            if ended in ("stop", "nan") and i == len(tokens) - 1 and (token in self.ends or token < 0):
                break
            self.count += 1
            # Models have rows beyond their vocabulary, to fill blocks; a token of those has no text.
            made += self.stops.push(self.stream.push(token)) if token in known else ""
            if self.stops.found is not None:
                self.engine.cancel(self)
                ended = "stop"
                break
        if ended == "nan":
            self.fail("the model's logits are NaN; the file may be damaged, or activations need f32")
            return
        if error := getattr(self.constraint, "error", ""):
            self.fail(error)
            return
        if ended:
            made += self.stops.push(self.stream.end()) + self.stops.end()
            self.reason = _REASONS[ended]
        if self.tools is not None:
            made = self.tools.push(made)
            if ended:
                rest, self._calls = self.tools.end()
                made += rest
                if self._calls:
                    self.reason = "tool_calls"
        self._text += made
        self._wake()

    def fail(self, message: str) -> None:
        self.failure = message
        self._wake()

    def _wake(self) -> None:
        assert self.wake is not None
        if self._text or self.reason is not None or self.failure is not None:
            self.wake.set()

    def taken(self) -> Piece | None:
        """What has come since the last call. Raises: Refused where it failed."""
        if self.failure is not None:
            raise Refused(500, self.failure)
        if not self._text and self.reason is None:
            return None
        piece = Piece(self.index, self._text, self.reason, self._calls)
        self._text = ""
        return piece


async def pieces(
    answers: Sequence[Answer], wake: asyncio.Event, pause: Callable[[], float]
) -> AsyncIterator[Piece]:
    """The text of all answers as it comes, not more often than after a `pause` of seconds, until all have ended.

    Raises: Refused where one failed."""
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
