"""`/v1/responses`: turns its requests into chat requests, and answers into the items and events of that API."""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from rlx.models.language.graph import SCORED
from rlx.records import Record, field
from rlx.serve import protocol
from rlx.serve.answers import Piece
from rlx.serve.protocol import Chat, Fields, Refused, shown
from rlx.serve.shapes import CHAT

# Members passed unchanged to the chat request: first those of this API, then this server's own.
_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "seed", "top_k", "min_p", "stop",
         "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "chat_template_kwargs",
         "priority", "user", "safety_identifier")  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")  # there is no reasoning apart from the text
_STATES = ("in_progress", "completed", "incomplete")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,), "truncation": ("disabled",), "conversation": (), "max_tool_calls": (), "prompt": (),
    "context_management": ([],),
}  # fmt: skip
# This API's names of the chat request's members, for refusals.
_NAMES = {"response_format.json_schema.": "text.format.", "response_format": "text.format", ".function.": ".",
          "max_completion_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort"}  # fmt: skip


class Turn(Record):
    """A request for a response: the chat request, the members that the answer repeats, and the conversation's messages
    without the instructions, which are for this turn alone."""

    chat: Chat
    told: Mapping[str, Any]
    messages: list[dict[str, Any]]
    stored: bool
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(24)}")
    created: int = field(default_factory=lambda: int(time.time()))


class Stored(Record):
    """A complete response, and the messages of its conversation up to it."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    nbytes: int


class Talks:
    """The last responses, by id, for requests that continue from them: at most `count`, and together at most `nbytes`
    bytes of JSON; the least recently used is forgotten first."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._count, self._most, self._nbytes = count, nbytes, 0
        self._held: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        one = Stored(response, messages, len(json.dumps(response)) + len(json.dumps(messages)))
        self._held[response["id"]] = one
        self._nbytes += one.nbytes
        while len(self._held) > self._count or self._nbytes > self._most:
            self._nbytes -= self._held.popitem(last=False)[1].nbytes

    def get(self, id: str, param: str | None = None) -> Stored:
        """The response of this id. Raises: Refused for one that is unknown or was forgotten."""
        if id not in self._held:
            code = "previous_response_not_found" if param else "not_found"
            raise Refused(400 if param else 404, f"the response {id[:80]!r} is not here, or not any more; give the "
                          "whole talk as input", param, code)  # fmt: skip
        self._held.move_to_end(id)
        return self._held[id]

    def forget(self, id: str) -> None:
        """Raises: as `get`."""
        self._nbytes -= self.get(id).nbytes
        del self._held[id]


def turn(body: dict[str, Any], models: Sequence[str], context: int, talks: Talks) -> Turn:
    """Raises: Refused."""
    fields = Fields(body, neutral=_NEUTRAL)
    chat = {name: value for name in _SAME if (value := fields.take(name)) is not None}
    previous = fields.text("previous_response_id")
    messages = [] if previous is None else [*talks.get(previous, "previous_response_id").messages]
    messages += _input(fields)
    instructions = fields.text("instructions")
    before = [] if instructions is None else [{"role": "system", "content": instructions}]
    if not before and not messages:
        raise fields.wrong("input", "a text, or a list of items")
    tools, choice = _tools(fields)
    effort = _reasoning(fields)
    limits = {"max_completion_tokens": fields.integer("max_output_tokens", 1, context)}
    likeliest, included = fields.integer("top_logprobs", 0, SCORED), _included(fields)
    if likeliest or _LOGPROBS in included:
        chat |= {"logprobs": True, "top_logprobs": likeliest or 0}
    format = _format(fields)
    _stream_options(fields)
    metadata = fields.take("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise fields.wrong("metadata", "an object")
    stored = fields.take("store") is None or fields.flag("store")
    fields.done()
    chat |= {"messages": before + messages, "tools": tools, "tool_choice": choice, "response_format": format,
             "reasoning_effort": effort, **limits}  # fmt: skip
    chat = {name: value for name, value in chat.items() if value is not None and value != []}
    try:
        asked = protocol.chat(chat, models, context, 1)
    except Refused as error:
        raise renamed(error) from None
    settings = asked.settings
    told = {
        "model": asked.model, "instructions": instructions, "max_output_tokens": limits["max_completion_tokens"],
        "metadata": metadata or {}, "parallel_tool_calls": not asked.single, "previous_response_id": previous,
        "reasoning": {"effort": effort, "summary": None}, "store": stored, "temperature": settings.temperature,
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto", "tools": body.get("tools") or [],
        "top_logprobs": likeliest or 0, "top_p": settings.top_p, "truncation": "disabled", "background": False,
        "user": body.get("user"), "service_tier": "default",
    }  # fmt: skip
    return Turn(asked, told, messages, stored)


def renamed(error: Refused) -> Refused:
    """A refusal of the chat request, with the names of this API."""
    said, param = str(error), error.param
    for old, new in _NAMES.items():
        said, param = said.replace(old, new), None if param is None else param.replace(old, new)
    return Refused(error.status, said, param, error.code)


def _input(fields: Fields) -> list[dict[str, Any]]:
    """The chat messages in a request's input."""
    value = fields.take("input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if value is not None and not isinstance(value, list):
        raise fields.wrong("input", "a text, or a list of items")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(value or []):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise Refused(400, f"{where} is {shown(item)}; expected an item", where)
        inner = Fields(item, f"{where}.")
        kind = inner.choice("type", ("message", "function_call", "function_call_output"), "message")
        inner.text("id")
        if inner.take("status") is not None:
            inner.choice("status", _STATES)
        if kind == "message":
            role = inner.choice("role", ("user", "assistant", "system", "developer"))
            messages.append({"role": role, "content": _content(inner, "content")})
            inner.text("phase")
        elif kind == "function_call_output":
            called = inner.text("call_id", needed=True)
            messages.append({"role": "tool", "tool_call_id": called, "content": _content(inner, "output")})
        else:
            function = {name: inner.text(name, needed=True) for name in ("name", "arguments")}
            call = {"id": inner.text("call_id", needed=True), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":  # calls belong to the assistant message before them
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        inner.done()
    return messages


def _content(fields: Fields, name: str) -> str:
    value = fields.take(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong(name, "a text, or a list of parts of text")
    result = ""
    for i, part in enumerate(value):
        where = f"{fields.at(name)}[{i}]"
        if not isinstance(part, dict):
            raise Refused(400, f"{where} is {shown(part)}; expected a part of text", where)
        inner = Fields(part, f"{where}.")
        kind = inner.choice("type", ("input_text", "output_text", "text", "refusal"))
        text = inner.text("refusal" if kind == "refusal" else "text", needed=True) or ""
        for of_answers in ("annotations", "logprobs"):
            inner.take(of_answers)
        inner.done()
        result += "" if kind == "refusal" else text
    return result


def _tools(fields: Fields) -> tuple[list[Any], Any]:
    """The tools and the tool choice in a chat request's form."""
    value, choice = fields.take("tools"), fields.take("tool_choice")
    if value is not None and not isinstance(value, list):
        raise fields.wrong("tools", "a list of tools")
    tools = []
    for i, tool in enumerate(value or []):
        if not isinstance(tool, dict):
            raise Refused(400, f"tools[{i}] is {shown(tool)}; expected a tool", f"tools[{i}]")
        Fields(tool, f"tools[{i}].").choice("type", ("function",))
        tools.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
    if isinstance(choice, dict):
        inner = Fields(choice, "tool_choice.")
        inner.choice("type", ("function",))
        choice = {"type": "function", "function": {"name": inner.text("name", needed=True)}}
        inner.done()
    return tools, choice


def _reasoning(fields: Fields) -> str | None:
    inner = fields.object("reasoning")
    if inner is None:
        return None
    effort = inner.text("effort")
    for name in ("summary", "generate_summary"):  # no effect: reasoning is part of the text
        inner.text(name)
    inner.done()
    return effort


def _included(fields: Fields) -> list[str]:
    value = fields.take("include")
    if value is not None and (not isinstance(value, list) or not all(one in _INCLUDED for one in value)):
        raise fields.wrong("include", f"a list of {', '.join(_INCLUDED)}")
    return value or []


def _format(fields: Fields) -> dict[str, Any] | None:
    """The format of the text, as a chat request's `response_format`."""
    inner = fields.object("text")
    if inner is None:
        return None
    if inner.take("verbosity") is not None:
        inner.choice("verbosity", ("medium",))
    held = inner.take("format")
    if held is not None and not isinstance(held, dict):
        raise inner.wrong("format", "an object")
    inner.done()
    if held is None or held.get("type") != "json_schema":
        return held
    return {"type": "json_schema", "json_schema": {k: v for k, v in held.items() if k != "type"}}


def _stream_options(fields: Fields) -> None:
    inner = fields.object("stream_options")
    if inner is not None:
        inner.flag("include_obfuscation")
        inner.done()


# -- answers


class Told:
    """A response in progress: the items of its output, and the events that report them, numbered from 0."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.output: list[dict[str, Any]] = []
        self._number = 0
        self._part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}

    def response(self, status: str, usage: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The response as it is now."""
        counts = None if usage is None else {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip
        return {"id": self.turn.id, "object": "response", "created_at": self.turn.created, "status": status,
                "error": None, "incomplete_details": None, **self.turn.told, "output": [*self.output],
                "usage": counts, **more}  # fmt: skip

    def event(self, kind: str, **more: Any) -> str:
        data = json.dumps({"type": kind, "sequence_number": self._number, **more})
        self._number += 1
        return f"event: {kind}\ndata: {data}\n\n"

    def begin(self) -> Iterator[str]:
        for kind in ("response.created", "response.in_progress"):
            yield self.event(kind, response=self.response("in_progress"))

    def push(self, piece: Piece) -> Iterator[str]:
        """The events for a piece of text, and with the last piece those that complete the items."""
        last = piece.reason is not None
        if piece.text or (piece.scored and self.output) or (last and not piece.calls and not self.output):
            yield from self._text(piece)
        if not last:
            return
        status = "incomplete" if piece.reason == "length" else "completed"
        if self.output:
            (message,), part = self.output, self._part
            place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
            message |= {"status": status, "content": [part]}
            yield self.event("response.output_text.done", **place, text=part["text"], logprobs=part["logprobs"])
            yield self.event("response.content_part.done", **place, part=part)
            yield self.event("response.output_item.done", output_index=0, item=message)
        for call in piece.calls:
            yield from self._call(call)

    def _text(self, piece: Piece) -> Iterator[str]:
        if not self.output:
            message = {"id": f"msg_{secrets.token_hex(24)}", "type": "message", "status": "in_progress",
                       "role": "assistant", "content": []}  # fmt: skip
            self.output.append(message)
            yield self.event("response.output_item.added", output_index=0, item=message)
            yield self.event("response.content_part.added", item_id=message["id"], output_index=0, content_index=0,
                             part={**self._part})  # fmt: skip
        scored = (CHAT.logprobs(piece.scored) or {}).get("content", [])
        self._part["text"] += piece.text
        self._part["logprobs"] = [*self._part["logprobs"], *scored]
        if piece.text:
            yield self.event("response.output_text.delta", item_id=self.output[0]["id"], output_index=0,
                             content_index=0, delta=piece.text, logprobs=scored)  # fmt: skip

    def _call(self, call: dict[str, Any]) -> Iterator[str]:
        place = len(self.output)
        item = {"id": f"fc_{secrets.token_hex(24)}", "type": "function_call", "status": "completed",
                "call_id": call["id"], **call["function"]}  # fmt: skip
        self.output.append(item)
        of = {"item_id": item["id"], "output_index": place}
        yield self.event("response.output_item.added", output_index=place,
                         item={**item, "status": "in_progress", "arguments": ""})  # fmt: skip
        yield self.event("response.function_call_arguments.delta", **of, delta=item["arguments"])
        yield self.event("response.function_call_arguments.done", **of, name=item["name"],
                         arguments=item["arguments"])  # fmt: skip
        yield self.event("response.output_item.done", output_index=place, item=item)

    def whole(self, reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        """The response once its last piece was pushed."""
        if reason != "length":
            return self.response("completed", usage)
        return self.response("incomplete", usage, incomplete_details={"reason": "max_output_tokens"})

    def failed(self, error: Refused) -> str:
        what = {"code": error.code or "server_error", "message": str(error)}
        return self.event("response.failed", response=self.response("failed", error=what))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation's messages, with the answer as the last one."""
        calls = [{"id": item["call_id"], "type": "function",
                  "function": {"name": item["name"], "arguments": item["arguments"]}}
                 for item in self.output if item["type"] == "function_call"]  # fmt: skip
        answer: dict[str, Any] = {"role": "assistant", "content": self._part["text"]}
        return [*self.turn.messages, answer | ({"tool_calls": calls} if calls else {})]


async def events(
    told: Told, coming: AsyncIterator[Piece], usage: Callable[[], dict[str, Any]],
    keep: Callable[[dict[str, Any]], None],
) -> AsyncIterator[str]:  # fmt: skip
    """The events of a response; `usage` counts at the end, `keep` is given the whole response."""
    try:
        for event in told.begin():
            yield event
        async for piece in coming:
            for event in told.push(piece):
                yield event
            if piece.reason is not None:
                response = told.whole(piece.reason, usage())
                keep(response)
                yield told.event(f"response.{response['status']}", response=response)
    except Refused as error:  # the status has been sent
        yield told.failed(error)
