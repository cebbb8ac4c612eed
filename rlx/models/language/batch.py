"""Batch: several sequences on one model that come and go, a token of each in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.errors import DTypeError, GraphError
from rlx.models.language.decoder import AHEAD, CHUNKS, Decoder, Sampling
from rlx.models.language.graph import LOG, Picking, mask_words

Ended = Literal["", "stop", "length", "context", "nan"]


class Constraint(Protocol):
    """Which tokens may come next in a sequence, as of a grammar."""

    def mask(self, words: npt.NDArray[np.int32]) -> None:
        """Writes the bits of the tokens that may come next: bit b of word w is token 32 w + b."""

    def take(self, token: int) -> bool:
        """Goes on past a token; whether the text is complete with it."""


class Token(NamedTuple):
    """A token of a sequence, and why it is the last one, where it is; logits of NaN end it with the token -1."""

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
    constraint: Constraint | None
    prompt: npt.NDArray[np.int32]
    taken: int = 0  # tokens of the prompt that are in the caches
    fresh: list[int] = field(default_factory=list)  # made by its prompt's run, and not given yet

    @property
    def steps(self) -> bool:
        """Whether its prompt has been taken in, so that steps continue it."""
        return self.taken == len(self.prompt)


class Batch(Closing):
    """Up to `slots` sequences at once on the weights of a decoder. `add` takes in a prompt (or `begin` and `fill`, a
    part between two steps), `step` gives a token or more of each sequence; one that has ended leaves its slot. Each
    gets the tokens that it would get alone, as far as products of several rows round as those of one.

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
        ends: frozenset[int] = frozenset(), constraint: Constraint | None = None,
    ) -> int:  # fmt: skip
        """Takes in a prompt; the number of the sequence, by which `step` calls it.

        Raises: GraphError where no slot is free, DTypeError, ShapeError for a prompt that cannot be taken."""
        number = self.begin(prompt, max_tokens, sampling, ends, constraint)
        while any(held is not None and held.number == number and not held.steps for held in self._held):
            self.fill()
        return number

    def begin(
        self, prompt: Sequence[int] | npt.NDArray[Any], max_tokens: int | None = None, sampling: Sampling | None = None,
        ends: frozenset[int] = frozenset(), constraint: Constraint | None = None,
    ) -> int:  # fmt: skip
        """A slot for a sequence, whose prompt `fill` takes in; its number. Raises: as `add`."""
        sampling, d = sampling or Sampling(), self._decoder
        if sampling.top_k is not None:
            raise DTypeError("top_k is not there for batches yet; top_p and temperature are")
        if self.free == 0:
            raise GraphError(f"all {len(self._held)} slots are taken; step() until a sequence has ended")
        ids = d.check_ids(prompt)
        most = d.context - len(ids) + 1
        if not len(ids) or (max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1)):
            raise DTypeError(f"a prompt of {len(ids)} tokens, max_tokens {max_tokens!r}; expected at least one of each")
        own = most if max_tokens is None else max_tokens
        self._count += 1
        then: Ended = "length" if own <= most and max_tokens is not None else "context"
        held = _Sequence(self._count, min(own, most), then, sampling, ends, constraint, ids)
        self._held[self._held.index(None)] = held
        return self._count

    def fill(self, most: int = CHUNKS[-1]) -> int:
        """Takes in up to `most` tokens of the prompt that has waited longest, in one run; how many those were, 0 where
        no prompt waits."""
        waiting = [(held.number, slot) for slot, held in enumerate(self._held) if held is not None and not held.steps]
        if not waiting:
            return 0
        slot, d = min(waiting)[1], self._decoder
        held = self._held[slot]
        assert held is not None
        d.length, d.slot = held.taken, slot
        rest = held.prompt[held.taken :][:most]
        part = rest[: next(d.chunks(len(rest)))]
        mask = None
        if held.constraint is not None:
            mask = np.empty((1, mask_words(d.config.vocabulary)), np.int32)
            held.constraint.mask(mask[0])
        token = d.prefill(part, held.sampling, mask)
        held.taken += len(part)
        if held.steps:
            held.fresh.append(token)
            self._at[slot], self._ids[slot] = held.taken, token
        return len(part)

    def cancel(self, sequence: int) -> None:
        """Frees the slot of a sequence. Nothing happens for one that has ended."""
        for slot, held in enumerate(self._held):
            if held is not None and held.number == sequence:
                self._held[slot] = None

    def step(self, most: int = 1) -> list[Token]:
        """The next tokens of all sequences, first those that prompts gave, then up to `most` of each; of sequences
        with constraints one, and then one of all.

        Raises: DTypeError for a `most` below 1."""
        if type(most) is not int or most < 1:
            raise DTypeError(f"most is {most!r}; expected an integer from 1")
        made: list[Token] = []
        for slot, held in enumerate(self._held):
            for token in held.fresh if held is not None else ():
                self._take(slot, token, made)
            if (held := self._held[slot]) is not None:
                held.fresh.clear()
        lasting = [held for held in self._held if held is not None and held.steps]
        if not lasting:
            return made
        if any(held.constraint is not None for held in lasting):
            most = 1
        # A sequence that ends on the way runs on: its slot's rows are written anew by the next one's prompt.
        count = min(most, AHEAD, LOG, max(held.left for held in lasting))
        log = self._run(count)
        for i in range(count):
            for slot, held in enumerate(self._held):
                if held is not None and held.steps:
                    token = int(log[slot, (self._at[slot] + i) % LOG])
                    self._ids[slot] = token
                    self._take(slot, token, made)
        self._at += count
        return made

    def _take(self, slot: int, token: int, made: list[Token]) -> None:
        held = self._held[slot]
        assert held is not None
        held.left -= 1
        ended: Ended = "nan" if token < 0 else "stop" if token in held.ends else "" if held.left else held.then
        if held.constraint is not None and ended not in ("nan", "stop") and held.constraint.take(token):
            ended = "stop"
        made.append(Token(held.number, token, ended))
        if ended:
            self._held[slot] = None

    def _run(self, count: int) -> npt.NDArray[np.int32]:
        """So many steps of all slots. Those without a sequence stand still at their first row, those whose prompts are
        being taken in at the row that the next part of the prompt writes."""
        d, slots = self._decoder, len(self._held)
        given = {name: np.zeros((slots, *shape), kind) for name, shape, kind in _DRAWS}
        stride = np.zeros(slots, np.int32)
        stepped = [held if held is not None and held.steps else None for held in self._held]
        masked = any(held is not None and held.constraint is not None for held in stepped)
        if masked:
            given["mask"] = np.full((slots, mask_words(d.config.vocabulary)), -1, np.int32)
        for slot, held in enumerate(stepped):
            if held is None:
                waits = self._held[slot]
                self._at[slot] = self._ids[slot] = 0
                if waits is not None:
                    self._at[slot] = waits.taken
                continue
            stride[slot] = 1
            for name, value in held.sampling.inputs().items():
                given[name][slot] = value[0]
            if held.sampling.temperature and held.sampling.top_p is None:
                given["top_p"][slot] = 1.0
            if held.constraint is not None:
                held.constraint.mask(given["mask"][slot])
        drawn = [h.sampling for h in stepped if h is not None and h.sampling.temperature]
        picking = Picking(not drawn, None, any(s.top_p is not None for s in drawn), masked)
        programs = [d.program(1, "next", picking, turn) for turn in range(d.turns)]
        states = programs[0].graph.states
        for name, value in {"ids": self._ids, "at": self._at, "stride": stride, **given}.items():
            if name in states:
                d.state.set(name, value)
        runs = [programs[i % len(programs)].launch() for i in range(count)]
        runs[-1].wait()
        log: npt.NDArray[np.int32] = d.state.get("log")
        return log

    def prepare(self) -> None:
        """Builds the programs of prompts and steps, greedy and with draws, so that no sequence waits for them."""
        d = self._decoder
        for picking in (Picking(), Picking(False, None, True)):
            for size in (1, *CHUNKS):
                if size <= d.context:
                    d.program(size, "token", picking).prepare()
            for turn in range(d.turns):
                d.program(1, "next", picking, turn).prepare()

    def close(self) -> None:
        """Frees the caches and programs; the weights stay with their decoder. Idempotent."""
        self._decoder.close()


_DRAWS = (("key", (2,), np.int32), ("temperature", (), np.float32), ("top_p", (), np.float32))
