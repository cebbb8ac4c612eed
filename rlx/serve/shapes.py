"""The JSON of answers: whole, and in the parts of a stream."""

from __future__ import annotations

import json
from typing import Any

from rlx.serve.answers import Piece


class Shape:
    """The JSON of completions: of a whole answer, and of the parts of a stream."""

    prefix, object, chunk = "cmpl", "text_completion", "text_completion"

    def first(self, index: int) -> dict[str, Any] | None:
        """What a stream has for a sequence before its text."""
        return None

    def whole(self, piece: Piece) -> dict[str, Any]:
        return {"index": piece.index, "text": piece.text, "logprobs": None, "finish_reason": piece.reason}

    def part(self, piece: Piece) -> str:
        return f'{{"index": {piece.index}, "text": {json.dumps(piece.text)}, "logprobs": null, "finish_reason": null}}'

    def last(self, piece: Piece) -> dict[str, Any]:
        return {"index": piece.index, "text": "", "logprobs": None, "finish_reason": piece.reason}


class ChatShape(Shape):
    """The JSON of answers to messages."""

    prefix, object, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def whole(self, piece: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.calls:
            message |= {"content": piece.text or None, "tool_calls": piece.calls}
        return {"index": piece.index, "message": message, "logprobs": None, "finish_reason": piece.reason}

    def part(self, piece: Piece) -> str:
        return f'{{"index": {piece.index}, "delta": {{"content": {json.dumps(piece.text)}}}, "finish_reason": null}}'

    def last(self, piece: Piece) -> dict[str, Any]:
        calls = [{"index": i, **call} for i, call in enumerate(piece.calls)]
        delta = {"tool_calls": calls} if calls else {}
        return {"index": piece.index, "delta": delta, "finish_reason": piece.reason}


TEXT, CHAT = Shape(), ChatShape()
