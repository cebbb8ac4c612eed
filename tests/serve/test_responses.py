"""`/v1/responses`: the texts of a chat, as items and events, and talks that go on from a response."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from rlx.serve.protocol import Refused
from rlx.serve.responses import Talks
from tests.serve.served import CHAT, GREEDY, Served

RESPONSES = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"x": {"enum": [3, 4]}}, "required": ["x"], "additionalProperties": False}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
ASKED = {**GREEDY, "input": "hello", "max_output_tokens": 9}


def chatted(server: Served, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    status, answer = server.ask(CHAT, {**GREEDY, "messages": messages, "max_tokens": 9, **more})
    assert status == 200, answer
    return answer["choices"][0]["message"]  # type: ignore[no-any-return]


def responded(server: Served, **asked: Any) -> dict[str, Any]:
    status, answer = server.ask(RESPONSES, {**ASKED, **asked})
    assert status == 200, answer
    return answer  # type: ignore[no-any-return]


def events(server: Served, **asked: Any) -> list[dict[str, Any]]:
    """The events of a stream, in their order and each by its name."""
    status, text = server.ask(RESPONSES, {**ASKED, **asked, "stream": True})
    assert status == 200 and text.endswith("\n\n"), text
    made = []
    for number, part in enumerate(text.split("\n\n")[:-1]):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        made.append(event)
    return made


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


HELLO = [{"role": "user", "content": "hello"}]


def test_a_response_is_the_answer_of_a_chat(server: Served) -> None:
    response = responded(server)
    assert text_of(response) == chatted(server, HELLO)["content"]
    assert (response["object"], response["status"], response["model"]) == ("response", "incomplete", "tiny")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"} and response["id"].startswith("resp_")
    counts = response["usage"]
    assert counts["output_tokens"] == 9 and counts["total_tokens"] == counts["input_tokens"] + 9
    (message,) = response["output"]
    assert (message["role"], message["status"]) == ("assistant", "incomplete")
    told = responded(server, instructions="be brief", metadata={"a": "b"}, temperature=0.0, user="x")
    assert text_of(told) == chatted(server, [{"role": "system", "content": "be brief"}, *HELLO])["content"]
    assert (told["instructions"], told["metadata"], told["user"]) == ("be brief", {"a": "b"}, "x")


def test_events_say_what_the_whole_response_says(server: Served) -> None:
    made, whole = events(server), responded(server)
    kinds = [event["type"].removeprefix("response.") for event in made]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert {*kinds[4:-4]} == {"output_text.delta"}
    text = "".join(event["delta"] for event in made if event["type"] == "response.output_text.delta")
    last = made[-1]["response"]
    assert text == made[-4]["text"] == made[-3]["part"]["text"] == text_of(last) == text_of(whole)
    assert last["output"] == [made[-2]["item"]] and last["usage"] == whole["usage"]
    assert made[0]["response"]["status"] == "in_progress" and made[0]["response"]["id"] == last["id"]


def test_items_are_the_messages_of_a_chat(server: Served) -> None:
    """Each form in which a talk may come back gives the text of the same talk in a chat."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 3}'}}
    messages = [
        {"role": "developer", "content": "rules"}, {"role": "user", "content": "a b"},
        {"role": "assistant", "content": "now", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "four"}, {"role": "user", "content": "so"},
    ]  # fmt: skip
    items = [
        {"role": "developer", "content": "rules"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a "},
                                                        {"type": "input_text", "text": "b"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "now", "annotations": [], "logprobs": []},
                     {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"x": 3}',
         "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "four"}]},
        {"role": "user", "content": "so"},
    ]  # fmt: skip
    assert text_of(responded(server, input=items)) == chatted(server, messages)["content"]
    plain = [*items[:4], {**items[4], "output": "four"}, items[5]]
    assert text_of(responded(server, input=plain)) == chatted(server, messages)["content"]


def test_a_talk_goes_on_from_a_response(server: Served) -> None:
    first = responded(server, instructions="only now")
    second = responded(server, input="more", previous_response_id=first["id"])
    talk = [*HELLO, {"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "more"}]
    assert text_of(second) == chatted(server, talk)["content"]
    third = events(server, input="end", previous_response_id=second["id"])[-1]["response"]
    talk += [{"role": "assistant", "content": text_of(second)}, {"role": "user", "content": "end"}]
    assert text_of(third) == chatted(server, talk)["content"]
    assert server.ask(f"{RESPONSES}/{third['id']}") == (200, third)
    status, gone = server.ask(f"{RESPONSES}/{third['id']}", method="DELETE")
    assert (status, gone["deleted"]) == (200, True)
    assert server.ask(f"{RESPONSES}/{third['id']}")[0] == 404
    unkept = responded(server, store=False)
    for id in (third["id"], unkept["id"]):
        status, answer = server.ask(RESPONSES, {**ASKED, "previous_response_id": id})
        assert (status, answer["error"]["param"]) == (400, "previous_response_id")


def test_tools_schemas_and_logarithms_are_those_of_a_chat(server: Served) -> None:
    required = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 120}
    called = responded(server, **required)
    (item,) = called["output"]
    assert (item["type"], item["name"], called["status"]) == ("function_call", "f", "completed")
    assert json.loads(item["arguments"])["x"] in (3, 4)
    by_name = responded(server, **required | {"tool_choice": {"type": "function", "name": "f"}})
    assert by_name["output"][0]["arguments"] == item["arguments"]
    made = events(server, **required)
    kinds = [event["type"].removeprefix("response.") for event in made[2:]]
    assert kinds == ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
                     "output_item.done", "completed"]  # fmt: skip
    assert made[3]["delta"] == made[4]["arguments"] == item["arguments"] and made[2]["item"]["arguments"] == ""
    assert made[4]["item_id"] == made[-1]["response"]["output"][0]["id"]
    again = [{"role": "user", "content": "hello"}, item, {"type": "function_call_output", "call_id": item["call_id"],
                                                          "output": "done"}]  # fmt: skip
    assert text_of(responded(server, input=again)) == text_of(
        responded(server, input=[again[-1]], previous_response_id=called["id"])
    )

    format = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    held = responded(server, text={"format": format}, max_output_tokens=60)
    assert json.loads(text_of(held))["x"] in (3, 4) and held["text"]["format"] == format

    scored = responded(server, top_logprobs=2, include=["message.output_text.logprobs"])
    logprobs = scored["output"][0]["content"][0]["logprobs"]
    want = server.ask(CHAT, {**GREEDY, "messages": HELLO, "max_tokens": 9, "logprobs": True, "top_logprobs": 2})[1]
    assert logprobs == want["choices"][0]["logprobs"]["content"]
    deltas = [e for e in events(server, top_logprobs=2) if e["type"] == "response.output_text.delta"]
    assert [one for event in deltas for one in event["logprobs"]] == logprobs


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": None}, "input"), ({"input": 3}, "input"), ({"input": ["a"]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "a", "extra": 1}]}, "input[0].extra"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": {}}, "tools"),
        ({"tools": [{**TOOL, "name": "not a name"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_tokens": 9}, "max_tokens"), ({"n": 2}, "n"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 3}}}}, "text.format"),
        ({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"), ({"include": ["file_search_call.results"]}, "include"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"), ({"metadata": 3}, "metadata"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"), ({"temperature": 3}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(asked: dict[str, Any], param: str, server: Served) -> None:
    status, answer = server.ask(RESPONSES, {**ASKED, **asked})
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_kept_talks_are_bounded() -> None:
    talks = Talks(3, 2000)
    for number in range(5):
        talks.keep({"id": f"r{number}"}, [{"role": "user", "content": "x"}])
    assert len(talks) == 3
    talks.get("r2")
    talks.keep({"id": "r5"}, [])
    assert talks.get("r2") and len(talks) == 3
    with pytest.raises(Refused, match="not here, or not any more"):
        talks.get("r3")
    talks.keep({"id": "large"}, [{"role": "user", "content": "x" * 1990}])
    assert len(talks) == 0 and talks._nbytes == 0


def test_clients_that_leave_end_their_response(server: Served) -> None:
    with server.begun({**GREEDY, "input": "hello", "max_output_tokens": 180}, RESPONSES):
        server.until(lambda now: now["rlx_sequences_running"] == 1)
    server.until(lambda now: now["rlx_sequences_running"] == 0)
    kept = len(server.service.talks)
    with server.sent({**GREEDY, "input": "hello", "max_output_tokens": 180}, RESPONSES):
        server.until(lambda now: now["rlx_sequences_running"] == 1)
    server.until(lambda now: now["rlx_sequences_running"] == 0)
    assert len(server.service.talks) == kept
