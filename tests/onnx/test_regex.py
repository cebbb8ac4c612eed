"""Regular expressions against Python's own, on what both can write; RE2's refusals; patterns made to explode."""

from __future__ import annotations

import random
import re

import pytest

from rlx.errors import ModelFormatError, UnsupportedOp
from rlx.onnx.ops.regex import Regex
from rlx.onnx.ops.regex_parse import Characters


def matches(pattern: str, text: str) -> bool:
    return Regex(pattern, "node").matches(text)


def pattern_of(rng: random.Random, depth: int = 0) -> str:
    kind = rng.randrange(10 if depth < 3 else 5)
    if kind < 5:
        return rng.choice(
            ["a", "b", "c", ".", r"\d", r"\W", "[ab]", "[^a]", "[a-c1]", r"\b", "^", "$", "", r"\.", "[]x]"]
        )
    if kind < 7:
        return pattern_of(rng, depth + 1) + pattern_of(rng, depth + 1)
    if kind == 7:
        return f"({pattern_of(rng, depth + 1)}|{pattern_of(rng, depth + 1)})"
    sign = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?", "{,2}"])
    return f"(?:{pattern_of(rng, depth + 1)}){sign}"


def test_as_pythons_own() -> None:
    rng = random.Random(7)
    compared = 0
    for _ in range(2500):
        pattern = pattern_of(rng).replace("{,2}", "{0,2}")
        for _ in range(4):
            text = "".join(rng.choice("abc1. \n]x") for _ in range(rng.randrange(6)))
            # Python's $ and \b differ at a last newline and in empty texts; (?a:…) keeps the classes to ASCII.
            want = re.fullmatch("(?a:" + pattern.replace("$", r"\Z") + ")", text) is not None
            assert matches(pattern, text) == want, (pattern, text)
            compared += want
    assert compared > 500


@pytest.mark.parametrize(
    "pattern, yes, no",
    [
        (r"(?i)straße|K", ["STRASSE".replace("SS", "ß"), "k", "\u212a"], ["strase"]),
        (r"(?i:a)b", ["Ab"], ["AB"]),
        (r"a(?i)b|c", ["aB", "C"], ["AB"]),
        (r"(?s).", ["\n"], ["", "ab"]),
        (r".", ["é", "\U0001f600"], ["\n"]),
        (r"(?m)a$\n^b", ["a\nb"], ["ab"]),
        (r"\pL+\p{Nd}\P{Lu}", ["éa1x"], ["éa1X", "11x"]),
        (r"[[:alpha:]_][\w\-]*", ["_a-9"], ["9a"]),
        (r"[^[:^digit:]]", ["7"], ["x"]),
        (r"\x41\x{1F600}\t", ["A\U0001f600\t"], ["A"]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["axb"]),
        (r"(?P<year>\d{4})-(?<month>\d\d)", ["2024-05"], ["24-05"]),
        (r"a{,2}", ["a{,2}"], ["a", ""]),
        (r"[a-]b[]]", ["-b]"], ["bb]"]),
        (r"", [""], ["a"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"(?U)a+?", ["aa"], [""]),
    ],
)
def test_what_re2_writes(pattern: str, yes: list[str], no: list[str]) -> None:
    assert all(matches(pattern, text) for text in yes)
    assert not any(matches(pattern, text) for text in no)


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a)", "[a", "a**", "*a", "(?=a)", "(?!a)", "(?<=a)b", r"(a)\1", r"\C", "a{2,1}", "a{1001}", "[b-a]", "\\",
     r"\xg1", r"\x{110000}", r"\p{Greek}", "[[:what:]]", "(?P<a b>c)", "(?Px)", "(" * 100 + ")" * 100],
)  # fmt: skip
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(ModelFormatError, match="node: the pattern"):
        Regex(pattern, "node")


def test_patterns_made_to_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a" * 3000
    for pattern in ("(a+)+b", "(a|a)*b", "(a|aa)+$b", "(.*)(.*)(.*)(.*)[^a]", "a?" * 400 + "a" * 400 + "b"):
        assert not matches(pattern, text)
    with pytest.raises(UnsupportedOp, match="more than 4096 states"):
        Regex("((a{100}){100}){100}", "node")
    regex = Regex(r"(?:\pL?){1000}", "node")
    monkeypatch.setattr("rlx.onnx.ops.regex.MAX_STEPS", 100_000)
    with pytest.raises(UnsupportedOp, match="more than 100,000 steps"):
        regex.matches("".join(chr(0x4E00 + k) for k in range(1000)))


def test_a_class_that_many_states_read_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class_ = "".join(chr(0x4E00 + 2 * k) for k in range(3000))
    regex = Regex(f"(?:[{class_}]?){{1000}}", "node")
    asked: list[str] = []
    has = Characters.has

    def counted(self: Characters, character: str) -> bool:
        asked.append(character)
        return has(self, character)

    monkeypatch.setattr(Characters, "has", counted)
    assert regex.matches(class_[:20]) and not regex.matches(class_[:20] + "x")
    assert len(asked) == 21


def test_ranges_of_a_class_may_overlap_and_touch() -> None:
    pattern = "[f-ka-cb-dea-b\\d5-6]*"
    for k in range(128):
        assert matches(pattern, chr(k)) == (chr(k) in "abcdefghijk0123456789"), k
