"""Chat templates beside transformers' own rendering, and templates that would run code, hang or eat memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats.tokenizer import chat
from rlx.formats.tokenizer.chat import ChatTemplate
from rlx.formats.tokenizer.language import folder_template
from tests.outside import outside

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": 'Be <brief> & "kind".\n'},
    {"role": "user", "content": " Was ist ½ + ½? 🙂"},
    {"role": "assistant", "content": "1", "reasoning_content": "halves"},
    {"role": "user", "content": "And twice?"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    }
]
# Written for this test in the manner of published ones: each uses what some family of models needs.
TEMPLATES = {
    "marks around turns": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
        "'<|im_end|>' + "
        "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "headers and bos": (
        "{{- bos_token }}\n{%- set loop_messages = messages %}\n{%- for message in loop_messages %}\n"
        "    {%- set content = '<|start|>' + message['role'] + '<|end|>\n\n'+ message['content'] | trim + "
        "eos_token %}\n"
        "    {%- if loop.index0 == 0 %}{% set content = bos_token ~ content %}{% endif %}\n    {{- content "
        "}}\n{%- endfor %}"
    ),
    "a system turn taken out": (
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = "
        "messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != "
        "(loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if loop.first and system is defined %}<<{{ system.strip() }}>> {% endif %}[{{ m.content }}]{% endfor %}"
    ),
    "tools as JSON": (
        "{%- if tools %}\n  {{- 'Tools:\n' }}{% for t in tools %}{{ t | tojson }}\n{{ t['function'] | "
        "tojson(indent=2) }}"
        "{% endfor %}\n{%- endif %}{{ messages | map(attribute='role') | join(', ') }}"
    ),
    "a namespace": (
        "{%- set ns = namespace(found=false, last=-1) %}{%- for m in messages[::-1] %}{%- if not ns.found and "
        "m.role == "
        "'user' %}{% set ns.found = true %}{% set ns.last = loop.index0 %}{% endif %}{%- endfor %}{{ ns.last }} "
        "{{ ns.found }}"
    ),
    "macros": (
        "{% macro turn(role, text) -%}<{{ role|upper }}>{{ text|trim|replace('\n', ' ') }}</{{ role }}>{%- "
        "endmacro %}"
        "{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}"
    ),
    "breaks": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}{% if loop.index > 3 "
        "%}{% break %}"
        "{% endif %}{{ loop.index }}{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "reasoning": "{% for m in messages %}{{ m.thinking or '' }}{{ m.get('reasoning_content', '-') }}{% endfor %}",
    "white space of blocks": "a\n  {% if true %}\n  b\n  {%- endif %}\n\n{% for m in messages %}\n  {{ m.role "
        "}}\n{% endfor %}\nc\n",
    "tests and filters": (
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ [3, 1, 2] | sort | first }} "
        "{{ 'x' is string }} {{ none is none }} {{ messages[0] is mapping }} {{ {'b': 1, 'a': 2} | dictsort }} "
        "{{ 'a,b'.split(',') }} {{ 'äÖ' | upper }} {{ 7 // 2 }} {{ 'ab' * 3 }} {{ '%s-%d' | format('a', 3) }} "
        "{{ dict(a=1) }}"
    ),
    "escapes": "{{ messages[0] | tojson }} {{ '<&>\"' }} {{ '<&>' | e }} {{ 'ü' | tojson(ensure_ascii=true) }}",
}  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(template: str, **more: Any) -> str:
    return ChatTemplate(template, TOKENS, "model.gguf").render(MESSAGES, **more)


@pytest.mark.judged
@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers_renders(name: str) -> None:
    known = outside("transformers.utils.chat_template_utils").render_jinja_template
    for prompt in (True, False):
        for messages in (MESSAGES[1:], MESSAGES[1:2], MESSAGES):
            for tools in (None, TOOLS):
                settings = {"tools": tools, "add_generation_prompt": prompt}
                ours = ChatTemplate(TEMPLATES[name], TOKENS)
                found = known([messages], chat_template=TEMPLATES[name], documents=None, **settings, **TOKENS)
                assert ours.render(messages, **settings) == (
                    found[0][0] if isinstance(found, tuple) else found[0]
                )


@pytest.mark.judged
def test_refusals_as_transformers_refuses() -> None:
    known = outside("transformers.utils.chat_template_utils").render_jinja_template
    template = TEMPLATES["a system turn taken out"]
    with pytest.raises(Exception, match="roles must alternate"):
        known([MESSAGES[2:]], chat_template=template, tools=None, documents=None)
    with pytest.raises(RlxError, match="does not take these messages: roles must alternate"):
        ChatTemplate(template, TOKENS).render(MESSAGES[2:])


OF_FILES: dict[str, Any] = {
    "processor_config.json": {"chat_template": "settings"}, "chat_template.json": {"chat_template": "older"},
    "chat_template.jinja": "file", "tokenizer_config.json": {"chat_template": "tokenizer"},
}  # fmt: skip


def templates_in(folder: Path, *names: str) -> Path:
    """A folder of a processor with templates of these files."""
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text("{}")
    for name in names:
        held = OF_FILES[name]
        (folder / name).write_text(held if isinstance(held, str) else json.dumps(held))
    return folder


def held_template(folder: Path) -> str | None:
    file = folder / "tokenizer_config.json"
    return folder_template(folder, json.loads(file.read_text()) if file.exists() else {})


def test_which_template_of_a_folder_counts(tmp_path: Path) -> None:
    """Those of a processor first, in transformers' order; without a processor the older file is the last."""
    order = ("settings", "older", "file", "tokenizer")
    for i, found in enumerate(order):
        folder = templates_in(tmp_path / found, *list(OF_FILES)[i:])
        assert held_template(folder) == found
    (tmp_path / "older" / "preprocessor_config.json").unlink()
    assert held_template(tmp_path / "older") == "file"
    (tmp_path / "older" / "chat_template.jinja").unlink()
    assert held_template(tmp_path / "older") == "tokenizer"
    (tmp_path / "older" / "tokenizer_config.json").unlink()
    assert held_template(tmp_path / "older") == "older"
    for held, told in (({}, "chat_template is None, expected a text"), ({"chat_template": 3}, "chat_template is 3")):
        (tmp_path / "older" / "chat_template.json").write_text(json.dumps(held))
        with pytest.raises(ModelFormatError, match=rf"chat_template\.json: {told}"):
            held_template(tmp_path / "older")
    named = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    for several in (named, {entry["name"]: entry["template"] for entry in named}):
        (tmp_path / "older" / "chat_template.json").write_text(json.dumps({"chat_template": several}))
        assert held_template(tmp_path / "older") == "b"


@pytest.mark.judged
def test_which_template_transformers_processors_take(tmp_path: Path) -> None:
    known = outside("transformers.processing_utils").ProcessorMixin.get_processor_dict
    for i, found in enumerate(("settings", "older", "file")):
        folder = templates_in(tmp_path / found, *list(OF_FILES)[i:])
        settings, more = known(folder)
        assert {**more, **settings}["chat_template"] == held_template(folder) == found


def test_what_a_template_gives() -> None:
    assert rendered(TEMPLATES["headers and bos"]).startswith(
        '<s><s><|start|>system<|end|>\n\nBe <brief> & "kind".</s>'
    )
    assert rendered(TEMPLATES["tools as JSON"], tools=TOOLS).startswith(
        'Tools:\n{"type": "function", "function": {"na'
    )
    assert rendered("{{ strftime_now('%d.%m.%Y') }}", now=datetime(2031, 2, 3)) == "03.02.2031"
    unsafe = (
        "raise_exception.__globals__",
        "'{0.__class__}'.format('')",
        "messages.__init__",
        "cycler.__mro__",
    )
    for text in unsafe:  # unsafe names are undefined, which is written as nothing
        assert rendered("{{ " + text + " }}") == ""
    assert rendered("{{ enable_thinking }}{{ none_given is defined }}", enable_thinking=False) == "FalseFalse"


HOSTILE = {
    "a long loop": ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    "loops in loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more "
        "than a second"),
    "calls without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
    "calls that double": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}", "more "
        "than a second"
    ),
    "a long text": ("{{ 'x' * 10**9 }}", "repeats"),
    "a long list": ("{{ 10**9 * [1] }}", "repeats"),
    "texts that double": (
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "memory"
    ),
    "blocks that double": (
        "{% set n = namespace(s='xxxx') %}{% for i in range(64) %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}"
        "{% set n.s = t %}{% endfor %}", "memory"
    ),
    "a wide number": ("{{ '%1000000000d' % 3 }}", "memory"),
    "a wide text": ("{{ 'a'.center(10**10) }}", "memory"),
    "much output": ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "4,000,000 characters"),
    "a large number": ("{{ 9**9**9**9 }}", "power"),
    "numbers that double": ("{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% "
        "endfor %}", "bits"),
    "tuples compared": (
        "{% set a = 'a', 'a' %}{% set b = 'a', 'a' %}" + "{% set a = (a, a) %}{% set b = (b, b) %}" * 40 + "{{ "
        "a == b }}",
        "more than a second",
    ),
    "a class": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a name of a namespace": ("{{ namespace(__class__=1) }}", "underscore|cannot have"),
    "a method of dict's type": ("{{ dict.mro() }}", "fails"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "a change of the messages": ("{{ messages.append(1) }}", "unsafe"),
    "what is cut off": ("{% for m in messages %}", "TemplateSyntaxError"),
    "an unknown tag": ("{% exec 'x' %}", "unknown tag"),
    "an unknown name": ("{{ nothing.x }}", "undefined"),
    "an unknown filter": ("{{ 1 | shell }}", "No filter named"),
    "deep brackets": ("{{ " + "(" * 4000 + "1" + ")" * 4000 + " }}", "too deeply"),
}  # fmt: skip


SLOW = ("loops in loops", "calls that double", "tuples compared")  # these take their second


@pytest.mark.parametrize("name", list(HOSTILE))
@pytest.mark.full(name=SLOW)
def test_hostile_templates(name: str) -> None:
    template, words = HOSTILE[name]
    with pytest.raises(ModelFormatError, match=words) as caught:
        rendered(template)
    assert "model.gguf" in str(caught.value) and str(caught.value).isprintable()


def test_after_one_that_ended_its_process_others_are_rendered() -> None:
    with pytest.raises(ModelFormatError):
        rendered(HOSTILE["tuples compared"][0])
    assert rendered("{{ messages | length }}") == "4"


def test_an_interrupt_leaves_no_answer_for_the_next_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendered("{{ 1 }}") == "1"

    def interrupted() -> None:
        raise KeyboardInterrupt

    running = chat._PROCESS._process
    assert running is not None
    monkeypatch.setattr(running.stdout, "readline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rendered("{{ 2 }}")
    monkeypatch.undo()
    assert rendered("{{ 3 }}") == "3"


def test_the_process_is_not_given_the_servers_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_API_KEY", "of the server alone")
    chat._PROCESS.close()  # the next one is started with this environment
    assert ChatTemplate("{{ messages[0].role }}", {}).render([{"role": "user"}]) == "user"
    assert chat._PROCESS._process is not None
    given = Path(f"/proc/{chat._PROCESS._process.pid}/environ").read_bytes()
    assert b"PATH=" in given and b"of the server alone" not in given


def test_messages_that_are_wrong() -> None:
    template = ChatTemplate("{{ messages }}", {})
    with pytest.raises(DTypeError, match="expected an object"):
        template.render(["hello"])  # type: ignore[list-item]
    with pytest.raises(DTypeError, match="must be JSON"):
        template.render([{"role": "user", "content": b"x"}])
    with pytest.raises(RlxError, match="does not take these messages: no system"):
        rendered("{{ raise_exception('no system') }}")
    with pytest.raises(ModelFormatError, match="1,000,000"):
        ChatTemplate("x" * 1_000_001, {})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_fork_has_a_process_of_its_own() -> None:
    assert rendered("{{ 1 }}") == "1"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if rendered("{{ 2 }}") == "2" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert rendered("{{ 3 }}") == "3"


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs a system with pipes that end processes")
def test_a_worker_that_has_ended_is_an_error_where_pipes_end_processes() -> None:
    """Commands give SIGPIPE its default action, for what reads their output alone."""
    code = """
import signal
from rlx.errors import ModelFormatError
from rlx.formats.tokenizer import chat
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
template = chat.ChatTemplate("{{ messages[0].content }}", {})
said = [{"role": "user", "content": "a" * 100_000}]
template.render(said)
process = chat._PROCESS._process
process.kill()
process.wait()
process.poll = lambda: None  # as where it ends a moment later
try:
    template.render(said)
except ModelFormatError:
    print(len(template.render(said)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout, done.stderr) == (0, "100000\n", "")


def test_a_template_of_parts_gets_a_text_as_one() -> None:
    """Templates of models for images and texts go through a list of parts, and write nothing of a text."""
    template = (
        "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% endif %}{% endfor %};{% endfor %}"
    )
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}]
    assert ChatTemplate(template, {}).render(messages) == "user:hello;assistant:there;"
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert ChatTemplate(template, {}).render(parts) == "user:hello;"
