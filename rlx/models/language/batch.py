"""Batch: several sequences on one model that come and go, a token of each in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.errors import DTypeError, GraphError
from rlx.models.language.decoder import AHEAD, Decoder, Sampling
from rlx.models.language.graph import LOG, Picking

Ended = Literal["", "stop", "length", "context"]


class Token(NamedTuple):
    """A token of a sequence, and why it is the last one, where it is."""

    sequence: int
    token: int
    ended: Ended


@dataclass(slots=True)
class _Sequence:
    number: int
    left: int  # tokens that may still come
    then: Ended  # why it ends when none is left
    sampling: Sampling
    ends: frozenset[int]
    fresh: list[int] = field(default_factory=list)  # made by its prompt's run, and not given yet


class Batch(Closing):
    """Up to `slots` sequences at once on the weights of a decoder. `add` takes in a prompt, `step` gives a token or
    more of each sequence; one that has ended leaves its slot. Each gets the tokens that it would get alone, as far as
    products of several rows round as those of one.

    Not for use by several threads at once. Raises: OutOfDeviceMemory where the caches do not fit, GraphError for a
    recurrent model."""

    def __init__(self, decoder: Decoder, slots: int, context: int | None = None) -> None:
        if type(slots) is not int or slots < 2:
            raise DTypeError(f"slots is {slots!r}; expected an integer from 2")
        if decoder.config.recurrent:
            raise GraphError("a batch of a recurrent model is not there yet; generate one after the other")
        if context is not None and (type(context) is not int or not 1 <= context <= decoder.context):
            raise DTypeError(f"context is {context!r}; expected an integer from 1 to the model's {decoder.context}")
        self._decoder = Decoder(
            decoder.config, decoder.source, decoder.session, context or decoder.context, slots=slots, like=decoder,
            activations=decoder.activations, cache=decoder.cache,
        )  # fmt: skip
        self._held: list[_Sequence | None] = [None] * slots
        self._at = np.zeros(slots, np.int32)
        self._ids = np.zeros((slots, 1), np.int32)
        self._count = 0

    @property
    def free(self) -> int:
        """How many more sequences there is room for."""
        return self._held.count(None)

    def add(
        self, prompt: Sequence[int] | npt.NDArray[Any], max_tokens: int | None = None, sampling: Sampling | None = None,
        ends: frozenset[int] = frozenset(),
    ) -> int:  # fmt: skip
        """Takes in a prompt; the number of the sequence, by which `step` calls it.

        Raises: GraphError where no slot is free, DTypeError, ShapeError for a prompt that cannot be taken."""
        sampling, d = sampling or Sampling(), self._decoder
        if sampling.top_k is not None:
            raise DTypeError("top_k is not there for batches yet; top_p and temperature are")
        if self.free == 0:
            raise GraphError(f"all {len(self._held)} slots are taken; step() until a sequence has ended")
        ids = d.check_ids(prompt)
        most = d.context - len(ids) + 1
        if not len(ids) or (max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1)):
            raise DTypeError(f"a prompt of {len(ids)} tokens, max_tokens {max_tokens!r}; expected at least one of each")
        slot = self._held.index(None)
        d.length, d.slot = 0, slot
        token = d.prefill(ids, sampling)
        own = most if max_tokens is None else max_tokens
        self._count += 1
        then: Ended = "length" if own <= most and max_tokens is not None else "context"
        self._held[slot] = _Sequence(self._count, min(own, most), then, sampling, ends, [token])
        self._at[slot], self._ids[slot] = len(ids), token
        return self._count

    def cancel(self, sequence: int) -> None:
        """Frees the slot of a sequence. Nothing happens for one that has ended."""
        for slot, held in enumerate(self._held):
            if held is not None and held.number == sequence:
                self._held[slot] = None

    def step(self, most: int = 1) -> list[Token]:
        """The next tokens of all sequences, up to `most` of each, first those that prompts gave.

        Raises: DTypeError for a `most` below 1."""
        if type(most) is not int or most < 1:
            raise DTypeError(f"most is {most!r}; expected an integer from 1")
        made: list[Token] = []
        for slot, held in enumerate(self._held):
            for token in held.fresh if held is not None else ():
                self._take(slot, token, made)
            if (held := self._held[slot]) is not None:
                held.fresh.clear()
        lasting = [held for held in self._held if held is not None]
        if made or not lasting:
            return made
        count = min(most, AHEAD, LOG, *(held.left for held in lasting))
        log = self._run(count)
        for i in range(count):
            for slot, held in enumerate(self._held):
                if held is not None:
                    token = int(log[slot, (self._at[slot] + i) % LOG])
                    self._ids[slot] = token
                    self._take(slot, token, made)
        self._at += count
        return made

    def _take(self, slot: int, token: int, made: list[Token]) -> None:
        held = self._held[slot]
        assert held is not None
        held.left -= 1
        ended: Ended = "stop" if token in held.ends else "" if held.left else held.then
        made.append(Token(held.number, token, ended))
        if ended:
            self._held[slot] = None

    def _run(self, count: int) -> npt.NDArray[np.int32]:
        """So many steps of all slots; those without a sequence stand still at their first row."""
        d, slots = self._decoder, len(self._held)
        given = {name: np.zeros((slots, *shape), kind) for name, shape, kind in _DRAWS}
        stride = np.zeros(slots, np.int32)
        for slot, held in enumerate(self._held):
            if held is None:
                self._at[slot] = 0
                continue
            stride[slot] = 1
            for name, value in held.sampling.inputs().items():
                given[name][slot] = value[0]
            if held.sampling.temperature and held.sampling.top_p is None:
                given["top_p"][slot] = 1.0
        drawn = [h.sampling for h in self._held if h is not None and h.sampling.temperature]
        picking = Picking(not drawn, None, any(s.top_p is not None for s in drawn))
        programs = [d.program(1, "next", picking, turn) for turn in range(d.turns)]
        states = programs[0].graph.states
        for name, value in {"ids": self._ids, "at": self._at, "stride": stride, **given}.items():
            if name in states:
                d.state.set(name, value)
        runs = [programs[i % len(programs)].launch() for i in range(count)]
        runs[-1].wait()
        log: npt.NDArray[np.int32] = d.state.get("log")
        return log

    def close(self) -> None:
        """Frees the caches and programs; the weights stay with their decoder. Idempotent."""
        self._decoder.close()


_DRAWS = (("key", (2,), np.int32), ("temperature", (), np.float32), ("top_p", (), np.float32))
