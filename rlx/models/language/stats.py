"""Stats: the counts and times of an answer."""

from __future__ import annotations

from typing import Literal

from rlx.records import Record

_ENDS = {"stop": "at the end of the answer", "length": "after max_tokens", "context": "the context is full"}


class Stats(Record, frozen=False):
    """The counts and times of a `generate`: prompt tokens that were computed (`reused` were in the caches already),
    tokens generated, seconds until the first of them and after it, seconds spent building programs before, bytes of
    weights that are read per token, the device or devices, the bytes of KV caches there, guessed tokens and how many of
    them were accepted, and why it ended."""

    prompt: int = 0
    reused: int = 0
    tokens: int = 0
    first_seconds: float = 0.0
    rest_seconds: float = 0.0
    build_seconds: float = 0.0
    token_bytes: int = 0
    where: str = ""
    cache_bytes: int = 0
    guessed: int = 0
    accepted: int = 0
    ended: Literal["", "stop", "length", "context"] = ""

    @property
    def rate(self) -> float:
        """Tokens a second after the first one; 0 if there are no more."""
        return (self.tokens - 1) / self.rest_seconds if self.tokens > 1 and self.rest_seconds else 0.0

    def __str__(self) -> str:
        read = self.prompt / self.first_seconds if self.first_seconds else 0.0
        lines = f"prompt: {self.prompt:,} tokens"
        if self.first_seconds:
            lines += f", {read:,.1f} a second; the first token after {self.first_seconds:.3f} s"
        if self.reused:
            lines += f"; {self.reused:,} more were there already"
        if rate := self.rate:
            read_bytes = f"{named_bytes(self.token_bytes)} of weights a token, {named_bytes(rate * self.token_bytes)}/s"
            lines += f"\nanswer: {self.tokens:,} tokens, {rate:,.1f} a second; {read_bytes}"
        if self.where:
            lines += f"\ncaches: {named_bytes(self.cache_bytes)} of keys and values on {self.where}"
        if self.guessed:
            lines += f"\nguesses: {self.accepted:,} of {self.guessed:,} accepted"
        if self.build_seconds > 0.01:
            lines += f"\nprograms: built in {self.build_seconds:.1f} s before the prompt"
        return f"{lines}\nended: {_ENDS[self.ended]}" if self.ended else lines


def named_bytes(count: float) -> str:
    """A number of bytes in MB or GB, with three significant digits, or all digits before the point."""
    number, unit = (count / 1e9, "GB") if count >= 1e9 else (count / 1e6, "MB")
    return f"{number:,.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"
