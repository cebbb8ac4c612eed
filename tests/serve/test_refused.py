"""Bodies that the server refuses: each with a status of 4xx and a message that names what is wrong."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from tests.full import full
from tests.serve.served import CHAT, HELLO, PROMPT, TALK, TEXT, VECTORS, Served

DEEP = b"[" * 500 + b"]" * 500
TOOL = {"type": "function", "function": {"name": "f"}}
REFUSED: list[tuple[str, Any, int, str]] = [
    (TEXT, b"{", 400, "no JSON"),
    (TEXT, b"\xff{}", 400, "no JSON"),
    (TEXT, b"[1]", 400, "expected a JSON object"),
    (TEXT, b'{"model": NaN}', 400, "no JSON number"),
    (TEXT, b'{"model": -Infinity}', 400, "no JSON number"),
    (TEXT, b'{"temperature": 1e999}', 400, "out of range"),
    (TEXT, b'{"seed": ' + b"9" * 5000 + b"}", 400, "no JSON"),
    (TEXT, b'{"prompt": ' + DEEP + b"}", 400, "nested"),
    (TEXT, b"[" * 100_000, 400, "nested too deeply"),
    (TEXT, {"prompt": ""}, 400, "no tokens"),  # the one model is meant
    ("/v1/chat/completion", PROMPT, 404, "did you mean '/v1/chat/completions'?"),
    ("/chat/completions", PROMPT, 404, "/v1/chat/completions has it here"),
    ("/completion", PROMPT, 404, "/v1/completions has it here"),
    ("/odd", PROMPT, 404, "this server has /, /health, "),
    ("/v1/messages", TALK, 404, "Anthropic's API is not spoken here; /v1/chat/completions"),
    ("/v1/messages/count_tokens", TALK, 404, "Anthropic's API is not spoken here"),
    ("/v1/completions/", PROMPT, 404, "without the last / it is /v1/completions"),
    ("/tokenize", {"content": "a"}, 404, "model.tokenize(text)"),
    (TEXT, {**PROMPT, "n_predict": 3}, 400, "n_predict is not known (here it is max_tokens)"),
    (CHAT, {**TALK, "max_output_tokens": 3}, 400, "(here it is max_tokens)"),
    (TEXT, {**PROMPT, "repeat_penalty": 1.1}, 400, "(here it is repetition_penalty)"),
    (TEXT, {**PROMPT, "grammar": "root ::= \"a\""}, 400, '(here it is response_format: it holds an answer to {"type":'),
    (CHAT, {**TALK, "system": "be brief"}, 400, "(here it is messages: [{"),
    (CHAT, {**TALK, "cache_prompt": True}, 400, "(prefixes are always kept; leave it out)"),
    (TEXT, {**PROMPT, "messages": HELLO}, 400, "(/v1/chat/completions takes messages)"),
    (TEXT, {**PROMPT, "mirostat": 2}, 400, "tokens are drawn by temperature"),
    (CHAT, {**TALK, "max_tokens": 3, "max_completion_tokens": 4}, 400, "expected max_completion_tokens, 4"),
    ("/v1/responses", {"input": "a", "response_format": {}}, 400, '(here it is text: {"format": …})'),
    ("/v1/threads", {}, 404, "this server has /, /health, "),
    ("/v1/chat", TALK, 404, "/v1/chat/completions has it here"),
    (TEXT, {"messages": HELLO}, 400, "prompt is null; expected a text"),
    (CHAT, {"prompt": "a"}, 400, "messages is null"),
    (VECTORS, {"model": "tiny", "input": "a", "n_predict": 3}, 400, "n_predict is not known"),
    (TEXT, {**PROMPT, "model": "gpt-4o"}, 404, "this server has 'tiny'"),
    (TEXT, {"model": "tiny"}, 400, "prompt is null"),
    (TEXT, {**PROMPT, "prompt": ""}, 400, "no tokens"),
    (TEXT, {**PROMPT, "prompt": [[]]}, 400, "expected a text, token ids"),
    (TEXT, {**PROMPT, "prompt": [1, "a"]}, 400, "expected a text, token ids"),
    (TEXT, {**PROMPT, "prompt": [True]}, 400, "expected a text, token ids"),
    (TEXT, {**PROMPT, "prompt": [-1]}, 400, "token -1 is out of range"),
    (TEXT, {**PROMPT, "prompt": [1 << 70]}, 400, "is out of range"),
    (TEXT, {**PROMPT, "prompt": "a" * 201}, 400, "201 tokens are more than the 200"),
    (TEXT, {**PROMPT, "prompt": [5] * 201}, 400, "201 tokens are more than the 200"),
    (TEXT, {**PROMPT, "prompt": "\ud800"}, 400, "lone surrogate"),
    (TEXT, {**PROMPT, "prompt": ["a"] * 17}, 400, "at most 16"),
    (TEXT, {**PROMPT, "prompt": ["a"] * 6, "n": 3}, 400, "6 prompts of 3 choices"),
    (TEXT, {**PROMPT, "max_tokens": -1}, 400, "max_tokens is -1; expected an integer from 0 to 200"),
    (TEXT, {**PROMPT, "max_tokens": 10**30}, 400, "expected an integer from 0 to 200"),
    (TEXT, {**PROMPT, "max_tokens": 1.5}, 400, "max_tokens is 1.5"),
    (TEXT, {**PROMPT, "max_tokens": True}, 400, "max_tokens is true"),
    (TEXT, {**PROMPT, "temperature": -1}, 400, "temperature is -1; expected a number from 0 to 2"),
    (TEXT, {**PROMPT, "temperature": "hot"}, 400, 'temperature is "hot"'),
    (TEXT, {**PROMPT, "top_p": 1.1}, 400, "top_p is 1.1"),
    (TEXT, {**PROMPT, "seed": 1 << 64}, 400, "seed is"),
    (TEXT, {**PROMPT, "n": 99}, 400, "n is 99; expected an integer from 1 to 16"),
    (TEXT, {**PROMPT, "stop": ""}, 400, "stop is"),
    (TEXT, {**PROMPT, "stop": ["a"] * 17}, 400, "stop is"),
    (TEXT, {**PROMPT, "stop": {}}, 400, "stop is {}"),
    (TEXT, {**PROMPT, "stream": 1}, 400, "stream is 1; expected true or false"),
    (TEXT, {**PROMPT, "stream_options": {"include_usage": True}}, 400, "stream: true alone"),
    (TEXT, {**PROMPT, "stream": True, "stream_options": {"odd": 1}}, 400, "stream_options.odd is not known"),
    (TEXT, {**PROMPT, "temperatur": 1}, 400, "did you mean 'temperature'?"),
    (TEXT, {**PROMPT, "\ud800": 1}, 400, "\\ud800 is not known"),
    (TEXT, {**PROMPT, "logprobs": 21}, 400, "logprobs is 21; expected an integer from 0 to 20"),
    (TEXT, {**PROMPT, "logprobs": True}, 400, "logprobs is true; expected an integer"),
    (TEXT, {**PROMPT, "top_k": 0.5}, 400, "top_k is 0.5"),
    (TEXT, {**PROMPT, "frequency_penalty": 2.5}, 400, "frequency_penalty is 2.5; expected a number from -2 to 2"),
    (TEXT, {**PROMPT, "presence_penalty": "a"}, 400, "presence_penalty is"),
    (TEXT, {**PROMPT, "repetition_penalty": 0}, 400, "repetition_penalty is 0; expected a number from 0.01"),
    (TEXT, {**PROMPT, "min_p": -1}, 400, "min_p is -1"),
    (TEXT, {**PROMPT, "logit_bias": {"a": 1}}, 400, 'logit_bias has "a"; expected the id of a token'),
    (TEXT, {**PROMPT, "logit_bias": {"01": 1, "1": 2}}, 400, 'logit_bias has "01"; expected the id of a token'),
    (TEXT, {**PROMPT, "logit_bias": {"1": 101}}, 400, "logit_bias.1 is 101; expected a number from -100 to 100"),
    (TEXT, {**PROMPT, "logit_bias": {"140": 1}}, 400, "logit_bias has the token 140; expected ids from 0 to 139"),
    (TEXT, {**PROMPT, "logit_bias": {"1": None}}, 400, "logit_bias.1 is null; expected a number from -100 to 100"),
    (CHAT, {**TALK, "echo": True}, 400, "echo is not there yet"),
    (CHAT, {**TALK, "reasoning_effort": "low"}, 400, "reasoning_effort is not read by the model's chat template"),
    (CHAT, {**TALK, "reasoning_effort": "odd"}, 400, "reasoning_effort is"),
    (CHAT, {**TALK, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs has messages"),
    (CHAT, {**TALK, "chat_template_kwargs": {"self": 1}}, 400, "chat_template_kwargs has self"),
    (CHAT, {**TALK, "parallel_tool_calls": 0}, 400, "parallel_tool_calls is 0"),
    (TEXT, {**PROMPT, "response_format": {"type": "xml"}}, 400, "response_format.type"),
    (TEXT, {**PROMPT, "response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    (CHAT, {**TALK, "logprobs": 3}, 400, "logprobs is 3; expected true or false"),
    (CHAT, {**TALK, "top_logprobs": 3}, 400, "top_logprobs go with logprobs: true alone"),
    (CHAT, {**TALK, "logprobs": True, "top_logprobs": 21}, 400, "an integer from 0 to 20"),
    (CHAT, {**TALK, "messages": []}, 400, "expected a list of messages"),
    (CHAT, {**TALK, "messages": "hi"}, 400, "expected a list of messages"),
    (CHAT, {**TALK, "messages": [3]}, 400, "messages[0] is 3"),
    (CHAT, {**TALK, "messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role"),
    (CHAT, {**TALK, "messages": [{"role": "user"}]}, 400, "messages[0].content is null"),
    (CHAT, {**TALK, "messages": [{"role": "user", "content": "odd"}]}, 400, "an odd message"),
    (CHAT, {**TALK, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "content[0].type"),
    (CHAT, {**TALK, "messages": [{"role": "user", "content": "a" * 300}]}, 400, "tokens are more than the 200"),
    (CHAT, {**TALK, "messages": [{**HELLO[0], "odd": 1}]}, 400, "messages[0].odd is not known"),
    (CHAT, {**TALK, "tools": [{"type": "function"}]}, 400, "tools[0].function is null"),
    (CHAT, {**TALK, "tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name"),
    (CHAT, {**TALK, "tools": [TOOL, TOOL]}, 400, "two tools have one name"),
    (CHAT, {**TALK, "tool_choice": "required"}, 400, "there are no tools"),
    (CHAT, {**TALK, "tools": [TOOL], "tool_choice": "sometimes"}, 400, "tool_choice is"),
    (CHAT, {**TALK, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "one of f"),
    (CHAT, {**TALK, "prompt": "a"}, 400, "prompt is not known"),
    (VECTORS, {"model": "tiny", "input": []}, 400, "input is []"),
    (VECTORS, {"model": "tiny", "input": "a", "dimensions": 25}, 400, "25"),
    (VECTORS, {"model": "tiny", "input": "a", "encoding_format": "hex"}, 400, "one of float, base64"),
]  # fmt: skip


def test_what_is_wrong_is_named(server: Served) -> None:
    for path, body, status, what in REFUSED:
        got, found = server.ask(path, body)
        assert got == status and what in found["error"]["message"], (body if len(str(body)) < 200 else path, found)
        assert found["error"]["type"] == "invalid_request_error"
    many = {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(900)}}
    for schema, what in (
        ({"type": "odd"}, "the grammar is not supported"), ({"$ref": "http://x/y"}, "the grammar is not supported"),
        ({"type": "string", "pattern": "("}, "the grammar is not supported"), ({"$ref": "#"}, "allows no text"),
        (many, "the grammar allows nothing more: Parser Error"),
    ):  # fmt: skip
        format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        got, found = server.ask(CHAT, {**TALK, "response_format": format})
        assert got == 400 and what in found["error"]["message"] and "<state>" not in found["error"]["message"]
    assert server.ask(TEXT, b"prompt=a", Content_Type="application/x-www-form-urlencoded")[0] == 415
    status, found = server.ask(TEXT)
    assert status == 405 and "; send a POST" in found["error"]["message"]
    assert server.ask("/v1/responses/a", method="PUT")[1]["error"]["message"].endswith("; send a DELETE or GET")
    assert server.ask(TEXT, method="PUT")[0] == 405 and server.ask("/v1/odd")[0] == 404
    assert server.ask("/v1/models/odd")[0] == 404 and server.ask("/v1/models/tiny")[1]["context_length"] == 200
    assert server.ask(TEXT, PROMPT, Host="evil.example")[0] == 403
    assert server.ask(TEXT, PROMPT, Origin="http://evil.example")[0] == 403
    assert server.ask(TEXT, PROMPT, Origin=f"http://127.0.0.1:{server.port}")[0] == 200


ODD: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -1e308, 1 << 63, 10**400, "", "a", "\x00", "\udfff", "é" * 50, [], {}, [[]], [{}],
    [0], [-1], [None], ["a", ["b"]], {"a": 1}, {"type": "function"}, {"type": "text", "text": 3}, [1e300], [True, 1],
]  # fmt: skip


@pytest.mark.parametrize(
    "path, body, param, what",
    [
        (TEXT, {**PROMPT, "logit_bias": {"999": 1}}, "logit_bias", "logit_bias has the token 999"),
        (TEXT, {**PROMPT, "logit_bias": {"1": -101}}, "logit_bias.1", "logit_bias.1 is -101"),
        (TEXT, {**PROMPT, "prompt": [140]}, "prompt", "prompt: token 140 is out of range"),
        (TEXT, {**PROMPT, "prompt": "\ud800"}, "prompt", "prompt: encode: the text holds a lone surrogate"),
        (CHAT, {**TALK, "messages": [{"role": "user", "content": "odd"}]}, "messages", "messages: "),
        (VECTORS, {"model": "tiny", "input": [[1], [140]]}, "input", "input: token 140 is out of range"),
        (CHAT, {**TALK, "response_format": {"type": "json_schema", "json_schema": {
            "name": "s", "schema": {"type": "odd"}}}}, "response_format", "response_format: "),
    ],
)  # fmt: skip
def test_what_the_model_refuses_is_named(server: Served, path: str, body: Any, param: str, what: str) -> None:
    status, found = server.ask(path, body)
    assert status == 400 and found["error"]["message"].startswith(what) and found["error"]["param"] == param, found


def test_no_body_makes_an_error_of_the_server(server: Served) -> None:
    """Bodies with a value, at any depth, that was put in place of another, or beside."""
    rng = random.Random(7)
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    whole = {
        TEXT: {**PROMPT, "stop": ["x"], "n": 1, "seed": 3, "top_p": 0.5, "stream": False,
               "logit_bias": {"3": 1}, "min_p": 0.1, "presence_penalty": 1, "echo": False,
               "best_of": 1, "logprobs": 1, "top_k": 5},
        CHAT: {**TALK, "logprobs": True, "top_logprobs": 2, "tools": [tool], "tool_choice": "auto",
               "chat_template_kwargs": {"a": 1}, "parallel_tool_calls": False,
               "response_format": {"type": "text"},
               "messages": [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]},
                            {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c"}]},
        VECTORS: {"model": "tiny", "input": ["a", "b"], "encoding_format": "float", "user": "me"},
    }  # fmt: skip
    for _ in range(3000 if full() else 80):
        path = rng.choice(list(whole))
        body = json.loads(json.dumps(whole[path]))
        at: Any = body
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = rng.choice(keys) if keys else None
            inner = at[key] if key is not None else None
            if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
                at = inner
                continue
            break
        value = rng.choice(ODD)
        if isinstance(at, list):
            at[key if key is not None else slice(0, 0)] = value if key is not None else [value]
        else:
            at[rng.choice([key, "odd", "logprobs", "top_k", "max_tokens"])] = value
        status, found = server.ask(path, body)
        assert status in (200, 400, 404), (body, found)
    assert server.service.engine.failure is None
