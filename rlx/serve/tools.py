"""Tool calls in a model's text: the formats that chat templates teach, and parsing text into calls.

The published templates of the model families say the formats: Hermes and Qwen write <tool_call>{"name": …, "arguments":
…}</tool_call>, Mistral [TOOL_CALLS][{"name": …, "arguments": …}], Llama 3 {"name": …, "parameters": …}.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from rlx.formats.tokenizer.language import LanguageTokenizer
from rlx.records import Record


class ToolFormat(Record):
    """How calls are written: `begin` and `end` around JSON (an empty `begin`: the whole answer is the JSON), which is a
    list if `listed`, and the key of the arguments in it."""

    begin: str
    end: str
    arguments: str
    listed: bool = False
    special: bool = False  # whether `begin` is a special token, which decoded text omits

    def calls(self, text: str, names: frozenset[str]) -> list[dict[str, Any]] | None:
        """The calls in a text that starts with `begin`; None if it holds anything else."""
        parts = [p for p in text.split(self.begin) if p.strip()] if self.begin else _objects(text)
        calls: list[dict[str, Any]] = []
        for part in parts:
            part = part.strip().removesuffix(self.end.strip()).strip()
            try:
                document = json.loads(part)
            except (ValueError, RecursionError):
                return None
            for call in document if isinstance(document, list) else [document]:
                name, arguments = (call.get("name"), call.get(self.arguments, {})) if isinstance(call, dict) else (0, 0)
                if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
                    return None
                calls.append(
                    {"id": f"call_{secrets.token_hex(12)}", "type": "function",
                     "function": {"name": name, "arguments": json.dumps(arguments)}}
                )  # fmt: skip
        return calls or None

    def grammar(self, tools: Sequence[dict[str, Any]], tokenizer: LanguageTokenizer, term: Any) -> str:
        """One call of one of the tools as a Lark grammar; `term` gives that of a JSON schema."""
        rules, begin = [], json.dumps(self.begin) if self.begin else ""
        if self.special:
            begin = f"<[{tokenizer.id(self.begin)}]>"
        for i, tool in enumerate(tools):
            function = tool["function"]
            opened = f'{"[" if self.listed else ""}{{"name": {json.dumps(function["name"])}, "{self.arguments}": '
            end = f"gap {json.dumps(self.end)}" if self.end else ""
            closed = json.dumps("}]" if self.listed else "}")
            rules += [
                f"call{i}: {begin} gap {json.dumps(opened)} arguments{i} {closed} {end}",
                f"arguments{i}: {term(function['parameters'])}",
            ]
        return "\n".join([f"start: {' | '.join(f'call{i}' for i in range(len(tools)))}", r"gap: /\n?/", *rules])


HERMES = ToolFormat("<tool_call>", "</tool_call>", "arguments")
MISTRAL = ToolFormat("[TOOL_CALLS]", "", "arguments", listed=True, special=True)
LLAMA = ToolFormat("", "", "parameters")


def format_of(template: str | None) -> ToolFormat | None:
    """The format of calls that a chat template teaches; None where it is not known."""
    if template is None or "tools" not in template:
        return None
    if HERMES.begin in template and "<function=" not in template:
        return HERMES
    if MISTRAL.begin in template and "[ARGS]" not in template:
        return MISTRAL
    return LLAMA if '"parameters": ' in template and ("ipython" in template or "python_tag" in template) else None


def _objects(text: str) -> list[str]:
    """The JSON objects in a text that consists of objects separated by ; or spaces; else the text itself."""
    rest, result, decoder = text.strip(), list[str](), json.JSONDecoder()
    while rest:
        try:
            _, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return [text]
        result.append(rest[:end])
        rest = rest[end:].lstrip(" \n;")
    return result


class ToolText:
    """The text of an answer as it comes: `push` gives what is certainly plain text, `end` the rest or the calls."""

    def __init__(self, format: ToolFormat, names: frozenset[str]) -> None:
        self._format, self._names = format, names
        self._held, self._calling = "", False

    def push(self, text: str) -> str:
        self._held += text
        begin = self._format.begin
        if self._calling:
            return ""
        if not begin:  # the whole answer is calls, or none of it
            start = self._held.lstrip()
            if not start or start.startswith("{"):
                return ""
            ready, self._held = self._held, ""
            self._format = ToolFormat("\0", "", "")  # a beginning of calls that no text contains
            return ready
        at = self._held.find(begin)
        if at >= 0:
            self._calling = True
            ready, self._held = self._held[:at], self._held[at:]
            return ready
        most = min(len(begin) - 1, len(self._held))
        kept = next((n for n in range(most, 0, -1) if begin.startswith(self._held[-n:])), 0)
        cut = len(self._held) - kept
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready

    def end(self) -> tuple[str, list[dict[str, Any]]]:
        """(text, calls): the text that was held back but is not part of a call, and the calls."""
        calls = self._format.calls(self._held, self._names) if self._held.strip() else None
        return ("", calls) if calls else (self._held, [])
