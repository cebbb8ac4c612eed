"""Regular expressions of RE2's syntax, matched in time linear in the text, whatever the pattern.

A pattern becomes a nondeterministic automaton (Thompson, Regular Expression Search Algorithm, 1968), which is
simulated with sets of states; the transition of a set on a character is cached.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlx.errors import UnsupportedOp
from rlx.onnx.ops.regex_parse import Alternatives, Assertion, Characters, Node, Parts, Repeat, parse
from rlx.records import Record, field

MAX_STATES = 4096
MAX_STEPS = 1 << 21  # characters read plus states visited, by all matches of one pattern
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class _State(Record, frozen=False):
    """A state: the characters it reads (nothing where None), the assertion it requires, and the states it leads to."""

    reads: Characters | None = None
    holds: str = ""
    to: list[int] = field(default_factory=list)


class Regex:
    """A pattern. `where` is what errors name.

    Raises: ModelFormatError for a malformed pattern; UnsupportedOp for one that is too large.
    """

    def __init__(self, pattern: str, where: str) -> None:
        self._where = where
        self._states: list[_State] = []
        self._end = self._state()
        self._start = self._build(parse(pattern, where), self._end)
        self._next: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self._work = 0

    def _state(self, reads: Characters | None = None, holds: str = "", to: list[int] | None = None) -> int:
        if len(self._states) >= MAX_STATES:
            raise UnsupportedOp(f"{self._where}: the pattern is too large: more than {MAX_STATES} states")
        self._states.append(_State(reads, holds, to or []))
        return len(self._states) - 1

    def _build(self, node: Node, after: int) -> int:
        """States that match the node and lead to `after`; the first one."""
        if isinstance(node, Characters):
            return self._state(node, to=[after])
        if isinstance(node, Assertion):
            return self._state(holds=node.kind, to=[after])
        if isinstance(node, Parts):
            for part in reversed(node.items):
                after = self._build(part, after)
            return after
        if isinstance(node, Alternatives):
            return self._state(to=[self._build(item, after) for item in node.items])
        return self._repeat(node, after)

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            again = self._state()
            self._states[again].to = [self._build(node.item, again), after]
            after = again
        else:
            last = after
            for _ in range(node.most - node.least):
                after = self._state(to=[self._build(node.item, after), last])
        for _ in range(node.least):
            after = self._build(node.item, after)
        return after

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Raises: UnsupportedOp when matching takes too many steps."""
        for end, now, before in self._sets(text, 0):
            if end == len(text):
                return self._end in self._reached(now, before, "")
        return False

    def found(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first match from `start` on begins and ends: of those that begin there the longest. Raises: as
        `matches`."""
        for at in range(start, len(text) + 1):
            longest = None
            for end, now, before in self._sets(text, at):
                if self._end in self._reached(now, before, text[end : end + 1]):
                    longest = end
            if longest is not None:
                return at, longest
        return None

    def _sets(self, text: str, start: int) -> Iterator[tuple[int, frozenset[int], str]]:
        """The states after the characters from `start` to each end, as long as there are any, and the last of these
        characters."""
        now, before = frozenset((self._start,)), text[start - 1 : start] if start else ""
        yield start, now, before
        for end, character in enumerate(text[start:], start + 1):
            key = (now, before, character)
            states = self._next.get(key)
            if states is None:
                reached = [self._states[s] for s in self._reached(now, before, character)]
                # A repeated part is read by many states, and tested once.
                classes = {id(s.reads): s.reads for s in reached if s.reads is not None}
                taken = {k for k, characters in classes.items() if characters.has(character)}
                states = frozenset(t for s in reached if id(s.reads) in taken for t in s.to)
                if len(self._next) < MAX_STATES:
                    self._next[key] = states
            self._spend(1)
            if not states:
                return
            now, before = states, character
            yield end, now, before

    def _reached(self, states: frozenset[int], before: str, after: str) -> set[int]:
        """The states that these reach between two characters, without reading one."""
        result, stack = set(states), list(states)
        while stack:
            state = self._states[stack.pop()]
            if state.reads is None and (not state.holds or _holds(state.holds, before, after)):
                fresh = [t for t in state.to if t not in result]
                result.update(fresh)
                stack.extend(fresh)
        self._spend(2 * len(result))
        return result

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > MAX_STEPS:
            raise UnsupportedOp(f"{self._where}: matching takes more than {MAX_STEPS:,} steps")


def _holds(kind: str, before: str, after: str) -> bool:
    if kind in "bB":
        return ((before in _WORD) != (after in _WORD)) == (kind == "b")
    if kind == "^":
        return before in ("", "\n")
    return after in ("", "\n") if kind == "$" else not (before if kind == "A" else after)
