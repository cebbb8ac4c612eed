"""The JSON of answers: whole, and in the parts of a stream."""

from __future__ import annotations

import json
from typing import Any

from rlx.serve.answers import Named, Piece, Scored


class Shape:
    """The JSON of completions: of a whole answer, and of the parts of a stream."""

    prefix, object, chunk = "cmpl", "text_completion", "text_completion"

    def first(self, index: int) -> dict[str, Any] | None:
        """The first entry of a sequence in a stream, before its text, if any."""
        return None

    def whole(self, piece: Piece) -> dict[str, Any]:
        told = self.logprobs(piece.scored)
        return {"index": piece.index, "text": piece.text, "logprobs": told, "finish_reason": piece.reason}

    def part(self, piece: Piece) -> str:
        told = "null" if piece.scored is None else json.dumps(self.logprobs(piece.scored))
        text = json.dumps(piece.text)
        return f'{{"index": {piece.index}, "text": {text}, "logprobs": {told}, "finish_reason": null}}'

    def last(self, piece: Piece) -> dict[str, Any]:
        """The last entry of a sequence in a stream. It also has tokens that gave no text."""
        told = None if piece.text else self.logprobs(piece.scored)
        return {"index": piece.index, "text": "", "logprobs": told, "finish_reason": piece.reason}

    def logprobs(self, scored: list[Scored] | None) -> dict[str, Any] | None:
        """The tokens of a piece, with the logarithms of their probabilities."""
        if scored is None:
            return None
        return {
            "tokens": [one.token.text for one in scored],
            "token_logprobs": [one.token.logarithm for one in scored],
            "top_logprobs": [
                None if one.token.logarithm is None
                else {t.text: t.logarithm for t in (*one.likeliest, one.token)}
                for one in scored
            ],
            "text_offset": [one.offset for one in scored],
        }  # fmt: skip


class ChatShape(Shape):
    """The JSON of answers to messages."""

    prefix, object, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def whole(self, piece: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.calls:
            message |= {"content": piece.text or None, "tool_calls": piece.calls}
        told = self.logprobs(piece.scored)
        return {"index": piece.index, "message": message, "logprobs": told, "finish_reason": piece.reason}

    def part(self, piece: Piece) -> str:
        told = "" if piece.scored is None else f'"logprobs": {json.dumps(self.logprobs(piece.scored))}, '
        content = json.dumps(piece.text)
        return f'{{"index": {piece.index}, "delta": {{"content": {content}}}, {told}"finish_reason": null}}'

    def last(self, piece: Piece) -> dict[str, Any]:
        calls = [{"index": i, **call} for i, call in enumerate(piece.calls)]
        delta = {"tool_calls": calls} if calls else {}
        told = {} if piece.text or piece.scored is None else {"logprobs": self.logprobs(piece.scored)}
        return {"index": piece.index, "delta": delta, **told, "finish_reason": piece.reason}

    def logprobs(self, scored: list[Scored] | None) -> dict[str, Any] | None:
        if scored is None:
            return None
        content = [{**_entry(one.token), "top_logprobs": [*map(_entry, one.likeliest)]} for one in scored]
        return {"content": content, "refusal": None}


def _entry(token: Named) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logarithm, "bytes": [*token.content]}


TEXT, CHAT = Shape(), ChatShape()
