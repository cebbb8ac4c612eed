"""Accepts regular expressions of a tokenizer.json only if their time is known to be linear in the text.

The package `tokenizers` matches by backtracking, so `(a+)+$` takes time exponential in the text, `a+b` quadratic. An
alternative is linear when nothing that can fail follows an unbounded repeat: the characters that the repeat has read
are then part of the match and never read again. Everything before such a repeat has a bounded length, and the ways to
match it are counted. Published expressions that are linear for other reasons are recognized by their text.
"""

from __future__ import annotations

import re
from math import inf

from rlx.records import Record

MAX_PATTERN = 2000  # characters
MAX_STEPS = 512  # steps at one place of a text
_MAX_DEPTH = 8
_MAX_REPEAT = 64

# White space as the last alternatives of GPT-2 and its successors. One alternative may read a run to its end and fail;
# the next then matches all of the run but one character.
_TAILS = (
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
    r"|\s+(?!\S)|\s+",
    r"|\s+(?!\S)",
)
# Words by case (GPT-4o, Mistral): if one alternative reads a run of capitals and fails, the next matches it.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HEADS = tuple(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ending}|"
    for ending in ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
)

# Kimi's, where Chinese characters also delimit words; K-EXAONE's, where nothing follows the repeat.
_CONTRACTIONS, _FIRST = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = (f"{letters[:-1]}&&[^\\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_HEADS += (
    rf"[\p{{Han}}]+|{_FIRST}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_FIRST}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|",
    rf"{_CONTRACTIONS}|{_FIRST}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|",
)
# Numbers, and their first one or two digits beyond groups of three: each is read once, from the number's beginning.
_NUMBERS = (r"(?<!\d)\d+\b", r"(?<!\d)\d{1,2}(?=(?:\d{3})+\b)", r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))")

_ATOM = re.compile(r"\\[sSdDwWnrt]|\\[pP]\{\^?[A-Za-z_]{1,40}\}|\\[^\w\s]|[^\\\[\](){}|?*+^$]")
_QUANTIFIER = re.compile(r"([?*+])|\{(\d{1,3})(,?)(\d{0,3})\}")


class Cost(Record):
    """The cost of an expression: the least and the largest number of characters it matches (infinite where it ends in
    an unbounded repeat), and the number of ways in which it may be tried at one place."""

    least: int
    most: float
    ways: int


def least_match(pattern: str) -> int:
    """The least number of characters that the expression matches.

    Raises: ValueError that says why the expression is not one that is known to take linear time.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"it has {len(pattern):,} characters, more than {MAX_PATTERN:,}")
    if pattern in _NUMBERS:
        return 1
    rest = pattern
    for head in _HEADS:
        rest = rest.removeprefix(head)
    for tail in _TAILS:
        rest = rest.removesuffix(tail)
    reader = _Reader(rest)
    cost = reader.alternatives(0)
    if reader.at < len(rest):
        raise ValueError(f"character {rest[reader.at]!r} closes nothing")
    if cost.least < 1:
        raise ValueError("it may match nothing at all")
    if cost.ways > MAX_STEPS:
        raise ValueError(f"it may take {cost.ways:,} steps at each place of a text, more than {MAX_STEPS}")
    return cost.least


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.bounds = 0  # how many \A and \z were read: they match no characters and may fail

    def alternatives(self, depth: int) -> Cost:
        if depth > _MAX_DEPTH:
            raise ValueError("its groups are nested too deeply")
        found = [self._sequence(depth)]
        while self._next() == "|":
            self.at += 1
            found.append(self._sequence(depth))
        return Cost(min(c.least for c in found), max(c.most for c in found), sum(c.ways for c in found))

    def _sequence(self, depth: int) -> Cost:
        least, most, ways, bounded = 0, 0.0, 1, 1
        while self._next() not in ("", "|", ")"):
            bounds = self.bounds
            item = self._item(depth)
            if most == inf and (item.least or self.bounds > bounds):
                raise ValueError(
                    "what follows a repeat without end may fail, so that a text is read again and again"
                )
            least += item.least
            most += item.most
            ways = min(ways * item.ways, 1 << 40)
            bounded += item.least if item.most == inf else int(item.most)
        return Cost(least, most, ways * bounded)  # each way may read the bounded part again

    def _item(self, depth: int) -> Cost:
        atom = self._atom(depth)
        found = _QUANTIFIER.match(self.text, self.at)
        if found is None:
            if self._next() in tuple("?*+{"):
                raise ValueError(f"the repeat at character {self.at} is not known")
            return atom
        self.at = found.end()
        if self._next() in tuple("?*+{"):
            raise ValueError("lazy, possessive and repeated repeats are not known")
        if found[1]:
            low, high = {"?": (0, 1.0), "*": (0, inf), "+": (1, inf)}[found[1]]
        else:
            low = int(found[2])
            high = low if not found[3] else int(found[4]) if found[4] else inf
        if low > _MAX_REPEAT or (high != inf and not low <= high <= _MAX_REPEAT):
            raise ValueError(f"a repeat of {found[0]!r} is more than {_MAX_REPEAT}")
        single = atom == Cost(1, 1, 1)
        if not single and high != 1:
            raise ValueError("only single characters may be repeated")
        if atom.most == inf and high > 1:
            raise ValueError("a repeat without end stands in another repeat")
        ways = atom.ways + 1 if not single else 1 if high == inf else int(high) - low + 1
        return Cost(atom.least * low, atom.most * high, ways)

    def _atom(self, depth: int) -> Cost:
        if self._next() == "[":
            self._set()
            return Cost(1, 1, 1)
        if self._next() == "(":
            opened = next((o for o in ("(?:", "(?i:") if self.text.startswith(o, self.at)), "(")
            if opened == "(" and self.text.startswith("(?", self.at):
                raise ValueError(f"the group {self.text[self.at : self.at + 4]!r} is not known")
            self.at += len(opened)
            inner = self.alternatives(depth + 1)
            if self._next() != ")":
                raise ValueError("a group is not closed")
            self.at += 1
            return inner
        if self.text.startswith((r"\A", r"\z"), self.at):  # the text's beginning or end
            self.at += 2
            self.bounds += 1
            return Cost(0, 0, 1)
        found = _ATOM.match(self.text, self.at)
        if found is None:
            raise ValueError(f"{self.text[self.at : self.at + 4]!r} at character {self.at} is not known")
        self.at = found.end()
        return Cost(1, 1, 1)

    def _set(self) -> None:
        """Skips a set in brackets, which matches one character whatever it holds."""
        depth, first = 0, False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "\\":
                self.at += 1
            elif letter == "[":
                depth += 1
                first = True
                if self.text.startswith("^", self.at + 1):
                    self.at += 1
                self.at += 1
                continue
            elif letter == "]":
                if first:
                    raise ValueError("a set begins with ]")
                depth -= 1
            first = False
            self.at += 1
            if not depth:
                return
        raise ValueError("a set is not closed")

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]
