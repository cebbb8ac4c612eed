"""StopTexts: a stream of text that ends before the first occurrence of a stop text."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.errors import DTypeError


class StopTexts:
    """`push` takes text and returns it, but holds back an end that may be the beginning of a stop text."""

    def __init__(self, stops: Iterable[str]) -> None:
        if not isinstance(stops, Iterable):
            raise DTypeError(f"stop: {stops!r} is no text and no list of texts")
        self.stops = tuple(stops)
        for stop in self.stops:
            if not isinstance(stop, str) or not stop:
                raise DTypeError(f"stop: {stop!r} is no text by which an answer could end")
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """The text that is known to precede any stop text; nothing after one was found."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(at, stop) for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            ready, self._held = self._held[:at], ""
            return ready
        kept = max((self._overlap(stop) for stop in self.stops), default=0)
        ready = self._held[: len(self._held) - kept]
        self._held = self._held[len(ready) :]
        return ready

    def _overlap(self, stop: str) -> int:
        """How many characters at the end of the held text may begin the stop text."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(stop[:n])), 0)

    def end(self) -> str:
        """The text that was held back; called when no more text comes."""
        ready, self._held = ("" if self.found is not None else self._held), ""
        return ready
