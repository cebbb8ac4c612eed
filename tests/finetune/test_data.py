"""Data files to examples: columns, which tokens count, broken lines, long examples, templates that fail."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import DataError, ModelFormatError, RlxError
from rlx.finetune.data import Broken, LeftOut, Record, read
from rlx.finetune.examples import Example, examples_of, shown_example
from rlx.finetune.model import tokenizer_of
from rlx.finetune.rows import IGNORED, length_of, orders, rows_of
from tests.finetune import tiny


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer_of(tiny.write_base(tmp_path_factory.mktemp("base")))


def learned(example: Example, tokenizer: Any) -> str:
    return str(tokenizer.decode(example.ids[example.counted].tolist(), special=True))


def made(path: Path, tokenizer: Any, length: int = 99, skipped: bool = False) -> tuple[list[Example], LeftOut]:
    left = LeftOut(path, skipped)
    return examples_of(path, tokenizer, length, left), left


def test_of_messages_all_answers_count_and_nothing_else(tokenizer: Any, tmp_path: Path) -> None:
    path = tiny.write_lines(tmp_path / "a.jsonl", tiny.talks(4))
    found, left = made(path, tokenizer)
    assert [learned(e, tokenizer) for e in found] == ["abc</s>0 1</s>", "abcabc</s>", "abcabcabc</s>",
                                                      "abcabcabcabc</s>3 4</s>"]  # fmt: skip
    assert tokenizer.decode(found[1].ids.tolist(), special=True) == "<s>usay 1</s><s>aabcabc</s>"
    assert [e.line for e in found] == [1, 2, 3, 4] and not left.count
    assert list(shown_example(found[0], tokenizer)) == [
        "line 1: 27 tokens, 8 count", '  read    "<s>usay 0</s><s>a"', '  learned "abc</s>"',
        '  read    "<s>umore</s><s>a"', '  learned "0 1</s>"',
    ]  # fmt: skip


def test_of_a_prompt_with_its_completion_the_completion_counts(tokenizer: Any, tmp_path: Path) -> None:
    pairs = [{"prompt": "two and two ", "completion": "is four"}]
    found, _ = made(tiny.write_lines(tmp_path / "a.jsonl", pairs), tokenizer)
    assert [learned(e, tokenizer) for e in found] == ["is four</s>"]
    said = [{"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "no"), ("user", "now"))]
    asked = {"prompt": said, "completion": [{"role": "assistant", "content": "yes"}]}
    found, _ = made(tiny.write_lines(tmp_path / "b.jsonl", [asked]), tokenizer)
    assert [learned(e, tokenizer) for e in found] == ["yes</s>"]
    found, _ = made(tiny.write_lines(tmp_path / "c.jsonl", [{"text": "a text"}]), tokenizer)
    assert [learned(e, tokenizer) for e in found] == ["a text</s>"]


def test_a_template_that_leaves_thoughts_out_of_earlier_answers(tmp_path: Path) -> None:
    """As Qwen3's: the last answer is written with its (empty) thoughts, earlier ones without."""
    template = (
        "{% for m in messages %}<s>{{ m.role[:1] }}{% if m.role == 'assistant' and loop.last %}[]{% endif %}"
        "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>a{% endif %}"
    )
    tokenizer = tokenizer_of(tiny.write_base(tmp_path / "base", template))
    found, _ = made(tiny.write_lines(tmp_path / "a.jsonl", tiny.talks(1)), tokenizer)
    assert learned(found[0], tokenizer) == "abc</s>[]0 1</s>"


BROKEN: dict[str, Any] = {
    '{"text": "a"': "line 2: is no JSON: Expecting ',' delimiter at character 13",
    '["a"]': "line 2: is ['a']; expected an object",
    '{"text": 3}': "line 2: text is 3; expected a text",
    '{"words": "a"}': "line 2: text is None; expected a text",
    '{"text": "\\ud800"}': "line 2: encode: the text holds a lone surrogate at character 0",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_named_with_its_reason_or_counted(line: str, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n\n{{"text": "fine too"}}\n')
    with pytest.raises(DataError) as error:
        made(path, tokenizer)
    assert BROKEN[line] in str(error.value) and "--skip-broken" in str(error.value)
    found, left = made(path, tokenizer, skipped=True)
    assert [e.line for e in found] == [1, 4] and left.counts == {"broken": 1}
    assert BROKEN[line] in str(left)


ANSWERS: dict[str, tuple[Any, str]] = {
    "none": ({}, "the content of a message is None; expected a text"),
    "a number": ({"content": 4}, "the content of a message is 4; expected a text"),
    "an image": ({"content": [{"type": "image_url"}]}, "a part of a message's content is {'type': 'image_url'}"),
    "calls": ({"content": None, "tool_calls": [{"name": "clock"}]}, "tool_calls, which the chat template does not"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_the_template_would_not_write_is_not_learned(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", **ANSWERS[kind][0]}]
    with pytest.raises(DataError) as error:
        made(tiny.write_lines(tmp_path / "a.jsonl", [{"messages": talk}]), tokenizer)
    assert ANSWERS[kind][1] in str(error.value)


def test_parts_of_text_are_joined_and_calls_are_learned_where_a_template_writes_them(tmp_path: Path) -> None:
    calls = "{% for c in m.tool_calls or [] %}[{{ c.name }}]{% endfor %}"
    template = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content }}" + calls)
    tokenizer = tokenizer_of(tiny.write_base(tmp_path / "base", template))
    parts = [{"type": "text", "text": part} for part in ("a", "b")]
    talk = [{"role": "user", "content": parts}, {"role": "assistant", "tool_calls": [{"name": "clock"}]}]
    found, _ = made(tiny.write_lines(tmp_path / "a.jsonl", [{"messages": talk}]), tokenizer)
    assert tokenizer.decode(found[0].ids.tolist(), special=True) == "<s>uab</s><s>a[clock]</s>"
    assert learned(found[0], tokenizer) == "[clock]</s>"


def test_a_template_that_refuses_answers_without_their_calls_writes_these(tmp_path: Path) -> None:
    """As Mistral's, which takes an answer with calls as no turn of its own."""
    template = tiny.TEMPLATE.replace("{{ m.content }}", (
        "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}"
        "{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.name }}]{% endfor %}"
    ))  # fmt: skip
    tokenizer = tokenizer_of(tiny.write_base(tmp_path / "base", template))
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"name": "clock"}]},
            {"role": "tool", "content": "4"}, {"role": "assistant", "content": "b"}]  # fmt: skip
    found, _ = made(tiny.write_lines(tmp_path / "a.jsonl", [{"messages": talk}]), tokenizer)
    assert learned(found[0], tokenizer) == "[clock]</s>b</s>"


def test_examples_longer_than_the_rows_are_counted(tokenizer: Any, tmp_path: Path) -> None:
    path = tiny.write_lines(tmp_path / "a.jsonl", [{"text": "a" * n} for n in (5, 40, 60)])
    found, left = made(path, tokenizer, 20)
    assert [len(e.ids) for e in found] == [6]
    assert str(left) == f"{path}: left out: 2 longer than 20 tokens (line 2: 41)"
    with pytest.raises(DataError, match=r"no example is left to train on: .*3 longer than 4 tokens \(line 1: 6\)"):
        made(path, tokenizer, 4)


def test_a_template_that_fails(tokenizer: Any, tmp_path: Path) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    base = tokenizer_of(tiny.write_base(tmp_path / "a", refuses + tiny.TEMPLATE))
    system = {"messages": [{"role": "system", "content": "s"}, *tiny.talks(1)[0]["messages"]]}
    path = tiny.write_lines(tmp_path / "a.jsonl", [*tiny.talks(1), system])
    with pytest.raises(DataError, match=r"line 2: the chat template does not take these messages: .*no system here"):
        made(path, base)
    assert made(path, base, skipped=True)[1].counts == {"broken": 1}
    wrong = tokenizer_of(tiny.write_base(tmp_path / "b", "{{ messages[0].content.nothing() }}"))
    with pytest.raises(ModelFormatError, match="the chat template fails"):
        made(path, wrong, skipped=True)
    turns = tokenizer_of(tiny.write_base(tmp_path / "c", "{{ messages|length }}" + tiny.TEMPLATE))
    with pytest.raises(DataError, match="line 1: the chat template writes what stands before message 2 otherwise"):
        made(path, turns)
    tools = tiny.write_lines(tmp_path / "t.jsonl", [{**tiny.talks(1)[0], "tools": [{"name": "clock"}]}])
    with pytest.raises(DataError, match="line 1: has tools beside its messages"):
        made(tools, tokenizer)
    user = tiny.write_lines(tmp_path / "b.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    with pytest.raises(DataError, match="there is no message of the role assistant"):
        made(user, tokenizer)


def test_csv_and_json_and_what_is_no_data(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt,completion\n"two\nlines ",yes\nonly one\n"c ",d\n')
    assert list(read(path)) == [
        Record(2, {"prompt": "two\nlines ", "completion": "yes"}),
        Broken(4, "has 1 fields; expected 2, as the first line"),
        Record(5, {"prompt": "c ", "completion": "d"}),
    ]
    assert [learned(e, tokenizer) for e in made(path, tokenizer, skipped=True)[0]] == ["yes</s>", "d</s>"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "a"}, 3]))
    assert list(read(path)) == [Record(1, {"text": "a"}), Broken(2, "is 3; expected an object, such as {\"text\": …}")]
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    with pytest.raises(DataError, match=r"several values: JSON lines have the ending \.jsonl"):
        read(path)
    with pytest.raises(DataError, match="does not exist; give a file of JSON lines"):
        read(tmp_path / "nothing.jsonl")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match="a data file is JSON lines"):
        read(tmp_path / "a.txt")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(DataError, match="no example is left to train on; it has no records"):
        made(empty, tokenizer)
    other = tiny.write_lines(tmp_path / "other.jsonl", [{"instruction": "a", "output": "b"}])
    with pytest.raises(DataError, match=r"has the columns \['instruction', 'output'\]; expected messages"):
        made(other, tokenizer)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "\xff"}\n')
    assert list(read(bad)) == [Record(1, {"text": "a"}), Broken(2, "is no UTF-8 from byte 11 on")]


def test_parquet_is_read_in_its_order(tokenizer: Any, tmp_path: Path) -> None:
    """Talks are lists of structs, of which Parquet makes dicts with all keys."""
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which pip install 'rlx[ray]' brings")
    from pyarrow import parquet

    path, talks = tmp_path / "a.parquet", tiny.talks(1500)
    talks[3]["messages"] = None
    parquet.write_table(pyarrow.Table.from_pylist(talks), path)
    assert [record.line for record in read(path)] == list(range(1, 1501))
    with pytest.raises(DataError, match="line 4: messages is None; expected"):
        made(path, tokenizer)
    examples, left = made(path, tokenizer, skipped=True)
    plain, _ = made(tiny.write_lines(tmp_path / "a.jsonl", talks), tokenizer, skipped=True)
    assert left.counts["broken"] == 1 and len(examples) == 1499
    assert [e.ids.tolist() for e in examples] == [e.ids.tolist() for e in plain]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be read as Parquet after row 0: "):
        list(read(path))


def test_parquet_needs_a_package_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(RlxError, match="needs the package `pyarrow`: pip install pyarrow"):
        list(read(tmp_path / "a.parquet"))


def test_rows_hold_every_target_once_and_never_across_examples() -> None:
    rng = np.random.default_rng(0)
    examples = []
    for line, n in enumerate(rng.integers(2, 60, 40)):
        examples.append(Example(line, rng.integers(1, 99, n).astype(np.int32), rng.random(n) < 0.5))
    length = length_of(examples, 64, 4, True)
    rows = rows_of(examples, length, True)
    assert length == 64 and len(rows) < 25 and rows.examples == 40
    pairs = [(e, i) for e in examples for i in range(1, len(e.ids)) if e.counted[i]]
    wanted = sorted((int(e.ids[i - 1]), int(e.ids[i])) for e, i in pairs)
    at = rows.targets != IGNORED
    assert sorted(zip(rows.ids[at].tolist(), rows.targets[at].tolist(), strict=True)) == wanted
    texts = sorted(tuple(row[own == s].tolist()) for row, own in zip(rows.ids, rows.segments, strict=True)
                   for s in range(1, int(own.max()) + 1))  # fmt: skip
    assert texts == sorted(tuple(e.ids.tolist()) for e in examples)
    alone = rows_of(examples, length, False)
    assert len(alone) == 40 and (alone.segments.max(1) == 1).all()
    batches = list(rows.batches(4, orders(len(rows), 1, 0), 2))
    for batch in batches:
        assert (batch["targets"] != IGNORED).sum() == pytest.approx(batch["count"].sum())
    assert {b["ids"].shape for b in batches} == {(4, 64)}
