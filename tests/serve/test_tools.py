"""Tool calls in text: each published format, in any pieces, and what is none."""

from __future__ import annotations

import json

import pytest

from rlx.serve.tools import HERMES, LLAMA, MISTRAL, ToolFormat, ToolText, format_of

NAMES = frozenset(["f", "g"])
CALLS = [("f", {"x": 1}), ("g", {})]
TEXTS = {
    "hermes": (HERMES, 'I look.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n<tool_call>\n'
               '{"name": "g", "arguments": {}}\n</tool_call>', "I look.\n"),
    "mistral": (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', ""),
    "llama": (LLAMA, '{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}', ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_are_read_from_any_pieces(name: str, size: int) -> None:
    format, text, plain = TEXTS[name]
    reader = ToolText(format, NAMES)
    out = "".join(reader.push(text[i : i + size]) for i in range(0, len(text), size))
    rest, calls = reader.end()
    assert out + rest == plain
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls] == CALLS
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("format", [HERMES, MISTRAL, LLAMA])
@pytest.mark.parametrize(
    "text",
    ["plain <tool text", '{"name": "h", "arguments": {}}', '<tool_call>{"name": "h"}</tool_call>', "[TOOL_CALLS]no",
     "{", '{"name": "f", "parameters": 3}', "<tool_call>" * 3, "", "  ", '{"name": ["f"], "parameters": {}}'],
)  # fmt: skip
def test_other_text_stays_as_it_is(format: ToolFormat, text: str) -> None:
    reader = ToolText(format, NAMES)
    out = "".join(map(reader.push, text))
    rest, calls = reader.end()
    assert out + rest == text and calls == []


def test_templates_say_their_format() -> None:
    for template, want in (
        ("{{ tools }} <tool_call> {...} </tool_call>", HERMES),
        ("{% if tools %}[TOOL_CALLS]", MISTRAL),
        ('{{ tools }}{"name": f, "parameters": x} <|python_tag|>', LLAMA),
        ("{{ tools }}<tool_call><function=f>", None),
        ("{{ messages }}", None),
        (None, None),
    ):
        assert format_of(template) is want
