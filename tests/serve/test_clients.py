"""The server as OpenAI's own client sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.outside import outside

SCHEMA = {"type": "object", "properties": {"x": {"enum": [3, 4]}}, "required": ["x"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.mark.judged
def test_the_client_of_openai_takes_every_answer(server: Any) -> None:
    openai = outside("openai")
    talk = [{"role": "user", "content": "hello"}]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").owned_by == "rlx"
        whole = client.completions.create(model="tiny", prompt="hello", max_tokens=20, temperature=0)
        assert whole.choices[0].text == "".join(server.model.generate("hello", 20))
        parts = client.completions.create(model="tiny", prompt="hello", max_tokens=20, temperature=0, stream=True)
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text

        said = client.chat.completions.create(model="tiny", messages=talk, max_completion_tokens=9, temperature=0, n=2)
        assert said.choices[0].message.content == "".join(server.model.chat(talk, 9)) and len(said.choices) == 2
        usage = {"include_usage": True}
        events = list(client.chat.completions.create(
            model="tiny", messages=talk, max_completion_tokens=9, temperature=0, stream=True, stream_options=usage
        ))  # fmt: skip
        text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
        assert text == said.choices[0].message.content and events[-1].usage.total_tokens > 0

        told = client.chat.completions.create(
            model="tiny", messages=talk, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
        )
        entries = told.choices[0].logprobs.content
        assert len(entries) == 5 and all(e.logprob == e.top_logprobs[0].logprob <= 0 for e in entries)
        asked = {"model": "tiny", "prompt": "q", "max_tokens": 5, "logprobs": 2, "extra_body": {"top_k": 1}}
        likely = client.completions.create(**asked).choices[0]
        assert "".join(likely.logprobs.tokens) == likely.text and len(likely.logprobs.top_logprobs[0]) == 2
        parts = client.completions.create(**asked, stream=True)
        streamed = [p.choices[0].logprobs for p in parts if p.choices[0].logprobs]
        assert [v for one in streamed for v in one.token_logprobs] == likely.logprobs.token_logprobs

        called = client.chat.completions.create(
            model="tiny", messages=talk, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=120
        )
        (call,) = called.choices[0].message.tool_calls
        assert call.function.name == "f" and json.loads(call.function.arguments)["x"] in (3, 4)
        with client.chat.completions.stream(
            model="tiny", messages=talk, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=120
        ) as stream:
            made = stream.get_final_completion().choices[0]
        assert made.finish_reason == "tool_calls"
        assert made.message.tool_calls[0].function.arguments == call.function.arguments

        found = client.embeddings.create(model="tiny", input=["hello", "a b"])
        assert [len(row.embedding) for row in found.data] == [24, 24]
        for error, body in (
            (openai.BadRequestError, {"model": "tiny", "prompt": "a", "temperature": -1}),
            (openai.NotFoundError, {"model": "other", "prompt": "a"}),
        ):
            with pytest.raises(error, match=r"temperature is -1|this server has 'tiny'"):
                client.completions.create(**body)


@pytest.mark.judged
def test_the_client_of_openai_takes_responses(server: Any) -> None:
    """Its types take every field that is sent (`to_dict` of a strict model names what they do not know), and what it
    puts together from a stream is the whole response."""
    openai = outside("openai")
    tool = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(**asked, input="hello", max_output_tokens=9, instructions="be brief")
        talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
        assert first.output_text == "".join(server.model.chat(talk, 9)) and first.usage.output_tokens == 9
        assert first.status == "incomplete" and first.incomplete_details.reason == "max_output_tokens"
        type(first).model_validate(first.to_dict())
        second = client.responses.create(**asked, input="more", max_output_tokens=9, previous_response_id=first.id)
        assert client.responses.retrieve(second.id).output_text == second.output_text
        events = list(client.responses.create(**asked, input="hello", max_output_tokens=9, stream=True))
        for event in events:
            type(event).model_validate(event.to_dict())
        whole = client.responses.create(**asked, input="hello", max_output_tokens=9).output_text
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole
        with client.responses.stream(**asked, input="hello", tools=[tool], tool_choice="required",
                                     max_output_tokens=120) as stream:  # fmt: skip
            kinds = [event.type for event in stream]
            made = stream.get_final_response()
        assert kinds[-1] == "response.completed" and "response.function_call_arguments.delta" in kinds
        assert json.loads(made.output[0].arguments)["x"] in (3, 4) and made.output[0].name == "f"
        again = [{"role": "user", "content": "hello"}, made.output[0],
                 {"type": "function_call_output", "call_id": made.output[0].call_id, "output": "4"}]  # fmt: skip
        assert client.responses.create(**asked, input=again, max_output_tokens=5).output_text
        held = client.responses.create(
            **asked, input="hello", max_output_tokens=60,
            text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
        )  # fmt: skip
        assert json.loads(held.output_text)["x"] in (3, 4)
        client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError, match="not here, or not any more"):
            client.responses.retrieve(second.id)
        with pytest.raises(openai.BadRequestError, match="web_search"):
            client.responses.create(**asked, input="a", tools=[{"type": "web_search"}])
