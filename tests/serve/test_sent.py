"""What clients send beside a prompt: penalties, biases, limits, values for templates, and what changes no answer."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from rlx.errors import DTypeError
from rlx.models.language.batch import Token
from rlx.models.language.decoder import Sampling
from rlx.models.language.shaping import Penalties
from rlx.serve.answers import Answer
from rlx.serve.guard import refusal
from rlx.serve.limits import Limits
from rlx.serve.protocol import Refused
from rlx.serve.tools import HERMES, ToolText
from tests.models.language import tiny
from tests.serve.served import CHAT, CONFIG, GREEDY, HELLO, TALK, TEMPLATE, TEXT, Served, served, write_model

PROMPT = [5, 40, 7, 40]
ASKED: list[dict[str, Any]] = [
    {"presence_penalty": 1.5}, {"frequency_penalty": 0.7}, {"frequency_penalty": -2}, {"repetition_penalty": 1.8},
    {"logit_bias": {"33": 100, "40": -100}},
    {"logit_bias": {"60": 1.5}, "presence_penalty": 2, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
]  # fmt: skip


def _wanted(asked: dict[str, Any], count: int) -> list[int]:
    """The likeliest tokens by the float64 definition of the model, and by what OpenAI's reference and the CTRL paper
    say of penalties."""
    made: list[int] = []
    for _ in range(count):
        x = np.array(tiny.logits(CONFIG, np.array(PROMPT + made))[-1])
        seen, factor = sorted({*PROMPT, *made}), asked.get("repetition_penalty", 1)
        x[seen] = np.where(x[seen] > 0, x[seen] / factor, x[seen] * factor)
        for id, bias in asked.get("logit_bias", {}).items():
            x[int(id)] += bias
        for token in {*made}:
            x[token] -= asked.get("presence_penalty", 0) + made.count(token) * asked.get("frequency_penalty", 0)
        made.append(int(x.argmax()))
    return made


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_penalties_and_biases(server: Served, asked: dict[str, Any]) -> None:
    """With a sequence beside it that has none, which keeps its tokens."""
    numbers = [asked.get(f"{name}_penalty", default) for name, default in
               (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0))]  # fmt: skip
    bias = {int(id): value for id, value in asked.get("logit_bias", {}).items()}
    with server.model.batch(2) as batch:
        own = batch.add(np.array(PROMPT), 8, penalties=Penalties(CONFIG["vocab_size"], *numbers, bias))
        plain = batch.add(np.array(PROMPT), 8)
        told: dict[int, list[int]] = {own: [], plain: []}
        while batch.free < 2:
            for token in batch.step(4):
                told[token.sequence].append(token.token)
    assert told[own] == _wanted(asked, 8) != told[plain] == _wanted({}, 8)
    found = server.ask(TEXT, {**GREEDY, "prompt": PROMPT, "max_tokens": 8, **asked})[1]
    assert found["choices"][0]["text"] == server.service._text(told[own])


def test_limits_on_what_is_drawn(server: Served) -> None:
    """A min_p of 1 leaves the likeliest alone, a bias of 100 the token that has it."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 6, "seed": 3}
    likeliest = server.ask(TEXT, {**body, "temperature": 0})[1]["choices"][0]["text"]
    assert server.ask(TEXT, {**body, "min_p": 1, "temperature": 2})[1]["choices"][0]["text"] == likeliest
    assert server.ask(TEXT, {**body, "temperature": 2})[1]["choices"][0]["text"] != likeliest
    found = server.ask(TEXT, {**body, "logit_bias": {"33": 100}})[1]["choices"][0]["text"]
    assert found == server.model.tokenizer.decode([33] * 6)


def test_echo_and_no_tokens(server: Served) -> None:
    body = {**GREEDY, "prompt": ["hello", [5, 40]], "n": 2, "max_tokens": 3}
    plain = [c["text"] for c in server.ask(TEXT, body)[1]["choices"]]
    begins = ["hello"] * 2 + [server.model.tokenizer.decode([5, 40])] * 2
    found = server.ask(TEXT, {**body, "echo": True})[1]["choices"]
    assert [c["text"] for c in found] == [b + p for b, p in zip(begins, plain, strict=True)]
    events = server.events(TEXT, {**body, "echo": True})
    for i in range(4):
        assert "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) == found[i]["text"]
    none = server.ask(TEXT, {**body, "echo": True, "max_tokens": 0})[1]
    assert [(c["text"], c["finish_reason"]) for c in none["choices"]] == [(b, "length") for b in begins]
    assert none["usage"]["completion_tokens"] == 0
    assert server.ask(TEXT, {**body, "max_tokens": 0})[1]["choices"][3]["text"] == ""
    assert server.events(TEXT, {**body, "max_tokens": 0})[-1]["choices"][0]["finish_reason"] == "length"
    (said,) = server.ask(CHAT, {**TALK, "max_tokens": 0})[1]["choices"]
    assert said["message"]["content"] == "" and said["finish_reason"] == "length"


def _logarithms(server: Served, ids: list[int]) -> Any:
    """Of each token's probability after those before it, in float64: (tokens - 1, vocabulary)."""
    x = np.array(tiny.logits(CONFIG, np.array(ids)))[:-1]
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize("count", [0, 3])
def test_logarithms_of_the_prompt(server: Served, count: int) -> None:
    """The first token of a prompt has none; the others' are those of the definition, with the texts and the likeliest
    of their places, for each of several prompts and choices, whole and in the parts of a stream."""
    tokenizer, long = server.model.tokenizer, [(7 * i) % 130 + 4 for i in range(90)]
    prompts: list[Any] = ["hello there", PROMPT, [9], long]
    body = {**GREEDY, "prompt": prompts, "n": 2, "max_tokens": count, "echo": True, "logprobs": 3}
    plain = server.ask(TEXT, {**GREEDY, "prompt": prompts, "n": 2, "max_tokens": count})[1]["choices"]
    status, answer = server.ask(TEXT, body)
    assert status == 200 and answer["usage"]["completion_tokens"] == 8 * count
    parts = [e["choices"][0] for e in server.events(TEXT, body)]
    for i, choice in enumerate(answer["choices"]):
        prompt = prompts[i // 2]
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        text = prompt if isinstance(prompt, str) else server.service._text(ids)
        told = choice["logprobs"]
        assert choice["text"] == text + plain[i]["text"]
        made = list(server.model.tokens(ids, count)) if count else []
        assert len(told["tokens"]) == len(ids) + count and told["text_offset"][len(ids) :][:1] in ([], [len(text)])
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        logs = _logarithms(server, ids + made)
        want = [logs[at, token] for at, token in enumerate((ids + made)[1:])]
        assert told["token_logprobs"][1:] == pytest.approx(want, abs=1e-5)
        for row, token, top in zip(logs, (ids + made)[1:], told["top_logprobs"][1:], strict=True):
            likeliest = sorted({*np.sort(row)[-3:].tolist(), row[token]})
            assert sorted(top.values())[-3:] == pytest.approx(likeliest[-3:], abs=1e-5)
        streamed = [p["logprobs"] or {} for p in parts if p["index"] == i]
        assert {name: [v for part in streamed for v in part.get(name, [])] for name in told} == told
    starts = answer["choices"][0]["logprobs"]["text_offset"]
    assert starts == sorted(starts) and starts[0] == 0
    own = server.ask(TEXT, {**body, "prompt": PROMPT, "n": 1, "logprobs": 0})[1]["choices"][0]["logprobs"]
    assert [len(top) for top in own["top_logprobs"][1:]] == [1] * (len(own["tokens"]) - 1)


def test_templates_get_values(tmp_path: Path) -> None:
    more = "{% if mood is defined %}{{ mood }}{% endif %}{% if reasoning_effort == 'low' %}brief{% endif %}"
    folder = write_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(more + TEMPLATE)
    with served(folder) as server:

        def tokens(**sent: Any) -> int:
            return int(server.ask(CHAT, {**TALK, **sent})[1]["usage"]["prompt_tokens"])

        least = tokens()
        assert tokens(chat_template_kwargs={"mood": "abcdefg"}) == least + 7
        assert tokens(reasoning_effort="low", chat_template_kwargs={"mood": "a"}) == least + 6
        assert tokens(reasoning_effort="high") == least


def test_what_changes_no_answer_is_taken(server: Served) -> None:
    call = {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    refused = [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "x"}]
    messages = [*HELLO, {"role": "assistant", "content": "x", "tool_calls": [call]}]
    odd = [*HELLO, {"role": "assistant", "content": refused, "tool_calls": [call], "annotations": [{"type": "a"}]}]
    more = {"moderation": "auto", "prompt_cache_options": {"a": 1}, "parallel_tool_calls": False}
    plain, found = (server.ask(CHAT, {**TALK, **sent}) for sent in ({"messages": messages}, {"messages": odd, **more}))
    assert plain[0] == found[0] == 200 and plain[1]["choices"] == found[1]["choices"]
    assert plain[1]["usage"] == found[1]["usage"]


def test_a_named_function_ends_with_stop(server: Served) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [3]}}, "required": ["x"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {**TALK, "tools": [tool], "max_tokens": 120}
    named = {"type": "function", "function": {"name": "f"}}
    for choice, reason in ((named, "stop"), ("required", "tool_calls")):
        (said,) = server.ask(CHAT, {**body, "tool_choice": choice})[1]["choices"]
        assert said["finish_reason"] == reason and len(said["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(("single", "count"), [(True, 1), (False, 2)])
def test_at_most_one_call_where_asked(server: Served, single: bool, count: int) -> None:
    tokenizer = server.model.tokenizer
    answer = Answer(
        np.array([1], np.int32), 9, Sampling(), frozenset({1}), single=single, tools=ToolText(HERMES, frozenset("f")),
        engine=server.service.engine, stream=tokenizer.stream(), wake=asyncio.Event(),
    )  # fmt: skip
    assert answer.tools is not None
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    answer.tools.push(text)
    answer.push([Token(0, 1, "stop")])
    piece = answer.taken()
    assert piece is not None and len(piece.calls) == count


def test_what_would_be_computed_again_is_not_to_be(folder: Path) -> None:
    """504 over the wire; 500 has the header too, 503 has not."""
    with served(folder, limits=Limits(request_seconds=0.001)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = json.dumps({**GREEDY, "prompt": "a", "max_tokens": 190})
        connection.request("POST", TEXT, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        connection.close()
        assert (response.status, response.getheader("x-should-retry")) == (504, "false")
    told = [refusal(Refused(status, "")).headers.get("x-should-retry") for status in (500, 503, 429)]
    assert told == ["false", None, None]


def test_a_bias_of_no_token_is_named() -> None:
    with pytest.raises(DTypeError, match="bias has the token -1; expected ids from 0 to 99"):
        Penalties(100, bias={7: 1.0, -1: 1.0, 40: 1.0})
