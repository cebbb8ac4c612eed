"""The syntax of regular expressions as RE2 writes them; constructs that RE2 omits for linear time are refused."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from typing import NoReturn

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.records import Record, replace

MAX_PATTERN_CHARACTERS = 1 << 14
MAX_NESTED_GROUPS = 64
MAX_REPEAT = 1000  # as in RE2
LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


class Characters(Record):
    """One character of the ranges or the Unicode categories, or, negated, of neither; `fold`: in any case.

    Requires: ranges that rise and do not meet, as `united` makes them.
    """

    ranges: Ranges
    categories: tuple[tuple[str, bool], ...] = ()
    negated: bool = False
    fold: bool = False

    def has(self, character: str) -> bool:
        return self._holds(character) != self.negated

    def _holds(self, character: str) -> bool:
        forms = {character}
        if self.fold:
            low, high = character.lower(), character.upper()
            forms |= {low, high, low.upper(), high.lower()}
        return any(
            _inside(self.ranges, ord(f))
            or any(unicodedata.category(f).startswith(c) == wanted for c, wanted in self.categories)
            for f in forms if len(f) == 1
        )  # fmt: skip


class Assertion(Record):
    """A condition between two characters: A and z are the ends of the text, ^ and $ of lines, b and B of words."""

    kind: str


class Parts(Record):
    items: tuple[Node, ...]


class Alternatives(Record):
    items: tuple[Node, ...]


class Repeat(Record):
    item: Node
    least: int
    most: int | None


Node = Characters | Assertion | Parts | Alternatives | Repeat

_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_ESCAPES = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_NAMED: dict[str, Ranges] = {
    "alpha": ((65, 90), (97, 122)), "digit": _DIGIT, "alnum": ((48, 57), (65, 90), (97, 122)), "upper": ((65, 90),),
    "lower": ((97, 122),), "space": ((9, 13), (32, 32)), "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "word": _WORD, "xdigit": ((48, 57), (65, 70), (97, 102)), "blank": ((9, 9), (32, 32)), "ascii": ((0, 127),),
    "cntrl": ((0, 31), (127, 127)), "graph": ((33, 126),), "print": ((32, 126),),
}  # fmt: skip


class _Flags(Record):
    fold: bool = False
    lines: bool = False
    dot_all: bool = False


def _inside(ranges: Ranges, code: int) -> bool:
    k = bisect_right(ranges, (code, LAST)) - 1
    return k >= 0 and code <= ranges[k][1]


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as ranges that rise and do not meet."""
    merged: list[tuple[int, int]] = []
    for a, b in sorted(ranges):
        if merged and a <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return tuple(merged)


def outside(ranges: Ranges) -> Ranges:
    """Every character but those."""
    gaps, start = [], 0
    for a, b in sorted(ranges):
        if a > start:
            gaps.append((start, a - 1))
        start = max(start, b + 1)
    return (*gaps, (start, LAST)) if start <= LAST else tuple(gaps)


def parse(pattern: str, where: str) -> Node:
    """Raises: ModelFormatError."""
    return _Parser(pattern, where).whole()


class _Parser:
    def __init__(self, pattern: str, where: str) -> None:
        self._text, self._where, self._at, self._depth = pattern, where, 0, 0
        self._flags = _Flags()
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            self._bad(f"is longer than {MAX_PATTERN_CHARACTERS} characters")

    def _bad(self, what: str) -> NoReturn:
        raise ModelFormatError(
            f"{self._where}: the pattern {shown(self._text)} at {self._at}: {what} (the syntax is RE2's)"
        )

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._bad("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, text: str) -> bool:
        result = self._text.startswith(text, self._at)
        self._at += len(text) if result else 0
        return result

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            self._bad(f"lacks a {end}")
        result, self._at = self._text[self._at : stop], stop + len(end)
        return result

    def whole(self) -> Node:
        result = self._alternatives()
        if self._at < len(self._text):
            self._bad("has a ) too many")
        return result

    def _alternatives(self) -> Node:
        items, parts = [], list[Node]()
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._takes("|"):
                items.append(Parts(tuple(parts)))
                parts = []
            else:
                parts += self._item()
        items.append(Parts(tuple(parts)))
        return items[0] if len(items) == 1 else Alternatives(tuple(items))

    def _item(self) -> list[Node]:
        if self._takes("\\Q"):
            stop = self._text.find("\\E", self._at)
            literal = self._text[self._at : stop if stop >= 0 else None]
            self._at = stop + 2 if stop >= 0 else len(self._text)
            before: list[Node] = [self._one(ord(c)) for c in literal]
        else:
            before = [a for a in (self._atom(),) if a is not None]
        if not before:
            return []
        atom = before.pop()
        repeated = False
        while (bounds := self._bounds()) is not None:
            if repeated:
                self._bad("repeats a repetition")
            self._takes("?")  # a lazy repeat matches the same whole texts
            atom, repeated = Repeat(atom, *bounds), True
        return [*before, atom]

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return bounds
        stop = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at) or stop < 0:
            return None
        low, comma, high = self._text[self._at + 1 : stop].partition(",")
        numbers = [n for n in (low, high) if n]
        if not low or not all(n.isascii() and n.isdecimal() for n in numbers):
            return None  # the brace is a literal
        self._at = stop + 1
        least, most = int(low[:9]), (int(high[:9]) if high else None) if comma else int(low[:9])
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            self._bad(f"repeats {least} to {most} times; expected rising numbers up to {MAX_REPEAT}")
        return least, most

    def _one(self, code: int) -> Characters:
        return Characters(((code, code),), fold=self._flags.fold)

    def _atom(self) -> Node | None:
        c = self._next()
        if c == "(":
            return self._group()
        if c == "[":
            return self._set()
        if c in "*+?":
            self._bad(f"has nothing for the {c} to repeat")
        if c == ".":
            return Characters(((0, LAST),) if self._flags.dot_all else ((0, 9), (11, LAST)))
        if c in "^$":
            return Assertion(c if self._flags.lines else "A" if c == "^" else "z")
        if c != "\\":
            return self._one(ord(c))
        if self._at < len(self._text) and self._text[self._at] in "AzbB":
            return Assertion(self._next())
        ranges, categories = self._escape()
        return Characters(ranges, categories, fold=self._flags.fold)

    def _group(self) -> Node | None:
        outer = self._flags
        self._depth += 1
        if self._depth > MAX_NESTED_GROUPS:
            self._bad(f"has groups nested more than {MAX_NESTED_GROUPS} deep")
        if self._takes("?P<") or (self._text[self._at : self._at + 2] == "?<" and self._takes("?<")):
            name = self._until(">")
            if not name.isidentifier():
                self._bad(f"has a group named {name[:40]!r}, or looks behind, which is not supported")
        elif self._takes("?"):
            closed = self._options()
            if closed:  # (?i) holds for the rest of its group
                self._depth -= 1
                return None
        result = self._alternatives()
        if not self._takes(")"):
            self._bad("lacks a )")
        self._flags, self._depth = outer, self._depth - 1
        return result

    def _options(self) -> bool:
        value = True
        while (c := self._next()) not in ":)":
            if c == "-" and value:
                value = False
            elif c in "imsU":
                name = {"i": "fold", "m": "lines", "s": "dot_all"}.get(c)
                self._flags = replace(self._flags, **{name: value}) if name else self._flags
            else:
                self._bad(f"has a group that starts with ?{c}, which is not supported")
        return c == ")"

    def _escape(self) -> tuple[Ranges, tuple[tuple[str, bool], ...]]:
        c = self._next()
        if c.lower() in _CLASSES:
            ranges = _CLASSES[c.lower()]
            return (ranges if c.islower() else outside(ranges)), ()
        if c in "pP":
            name = self._until("}") if self._takes("{") else self._next()
            wanted = (c == "p") != name.startswith("^")
            name = name.removeprefix("^")
            if not (len(name) <= 2 and name[:1] in ("L", "M", "N", "P", "S", "Z", "C")):
                self._bad(f"has the class {name[:40]!r}; only categories as L or Lu are supported")
            return (), ((name, wanted),)
        code = _ESCAPES.get(c)
        if c == "x":
            digits = self._until("}") if self._takes("{") else self._next() + self._next()
            if not 0 < len(digits) <= 6 or not all(d in "0123456789abcdefABCDEF" for d in digits):
                self._bad(f"has the number {digits[:20]!r}")
            code = int(digits, 16)
        elif code is None and (c.isalnum() and c.isascii()):
            self._bad(f"has the escape \\{c}, which is not supported")
        code = ord(c) if code is None else code
        if code > LAST:
            self._bad("names a character that there is not")
        return ((code, code),), ()

    def _set(self) -> Characters:
        negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        categories: tuple[tuple[str, bool], ...] = ()
        first = True
        while first or not self._takes("]"):
            first = False
            if self._takes("[:"):
                name = self._until(":]")
                named = _NAMED.get(name.removeprefix("^"))
                if named is None:
                    self._bad(f"has the class {name[:40]!r}")
                ranges += outside(named) if name.startswith("^") else named
                continue
            low, more = self._member()
            categories += more
            single = len(low) == 1 and low[0][0] == low[0][1]
            if single and re.match(r"-[^\]]", self._text[self._at : self._at + 2]):
                self._at += 1
                high, _ = self._member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    self._bad("has a range that does not rise")
                low = ((low[0][0], high[0][0]),)
            ranges += low
        return Characters(united(ranges), tuple(dict.fromkeys(categories)), negated, self._flags.fold)

    def _member(self) -> tuple[Ranges, tuple[tuple[str, bool], ...]]:
        c = self._next()
        return self._escape() if c == "\\" else (((ord(c), ord(c)),), ())
