"""Batch: several sequences on one model that come and go, a token of each in every step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache, reduce
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.errors import DTypeError, GraphError, RlxError
from rlx.models.language.adapters import Adapter
from rlx.models.language.caches import LONGEST
from rlx.models.language.decoder import AHEAD, Decoder, Sampling
from rlx.models.language.graph import GREEDY, LOG, SCORED, Picking, mask_words
from rlx.models.language.pages import MOST, ROWS, Pages, pages_for
from rlx.models.language.shaping import Constraint, Penalties
from rlx.models.language.speculation import GUESSES, Guesser, Pace, agreed
from rlx.records import Record, field

Ended = Literal["", "stop", "length", "context", "nan"]
MASK_SECONDS = 0.002  # how long a step waits for masks; a sequence whose mask is late does not take part in it
# The time that tokens of prompts may take in the same runs as steps, as a share of the steps' time, by backend, while
# few prompts wait.
SHARE = {"cuda": 0.5, "vulkan": 0.5, "cpu": 1e9}
LONGEST_PAUSE = 32  # steps without a look for guesses, where these do not pay
_TILE = 32  # rows of a tile of products
# The least tokens of prompts in a run, since with fewer most of the time goes to what the first one costs; and the most
# in the smallest part.
_LEAST_PART, _MOST_PART = 48, 256
_LARGE = 1 << 14  # elements of an input of steps
_MASKING = 2  # threads that compute masks
_DRAWN = Picking(False)


class Scores(NamedTuple):
    """The log-probability of a token, and the SCORED likeliest tokens at its position with theirs, likeliest first: by
    the model's own logits, before temperature, limits or mask."""

    own: float
    likeliest: tuple[int, ...]
    logarithms: tuple[float, ...]

    @classmethod
    def of(cls, logits: npt.NDArray[np.float32], token: int) -> Scores:
        """The scores of a token from the logits (vocabulary,) at its position; equal logits are ordered by token id.

        Raises: RlxError for logits of NaN."""
        least = np.partition(logits, -min(SCORED, len(logits)))[-min(SCORED, len(logits))]
        wide, most = logits.astype(np.float64), float(logits.max())
        if np.isnan(most):
            raise RlxError("the model's logits are NaN; the file may be damaged, or activations need f32")
        logs = wide - (most + np.log(np.exp(wide - most).sum()))
        best = np.flatnonzero(logits >= least)
        best = best[np.argsort(-logits[best], kind="stable")][:SCORED]
        return cls(float(logs[token]), tuple(best.tolist()), tuple(logs[best].tolist()))


class Token(NamedTuple):
    """A token of a sequence, why the sequence ended if this is its last token, and its scores if they were asked for;
    NaN logits end a sequence with the token -1."""

    sequence: int
    token: int
    ended: Ended
    scores: Scores | None = None


class _Kept(NamedTuple):
    """What the caches of a free slot still hold: the rows of these tokens, computed with the adapter of that number."""

    tokens: npt.NDArray[np.int32]
    adapter: int
    since: int  # how many sequences had begun when the slot became free


class _Sequence(Record, frozen=False):
    number: int
    left: int  # tokens that may still come
    then: Ended  # why it ends when none is left
    sampling: Sampling
    ends: frozenset[int]
    constraint: Constraint | None
    penalties: Penalties | None
    scored: bool
    plain: bool  # whether its next tokens need no input from the host
    picking: Picking
    adapter: int  # the adapter's number in the batch, -1 for none
    priority: int
    prompt: npt.NDArray[np.int32]
    taken: int = 0  # tokens of the prompt that are in the caches
    shared: int = 0  # tokens of the prompt that were reused, not computed
    kept: int = 0  # length of the prompt's prefix whose rows the slot's caches hold, except the overwritten first rows
    placed: bool = True  # whether it holds the pages for its prompt
    again: bool = False  # whether its prompt has been computed before
    made: list[int] = field(default_factory=list)  # tokens generated since its prompt was begun
    fresh: list[tuple[int, Scores | None]] = field(default_factory=list)  # the token from its prompt, not returned yet
    mask: Future[npt.NDArray[np.int32]] | None = None  # the bits of the tokens that may come next
    guesser: Guesser | None = None
    draws: Mapping[str, Any] = field(default_factory=dict)  # its inputs of sampling, the same in each step

    @property
    def steps(self) -> bool:
        """Whether its whole prompt has been computed, so that steps continue it."""
        return self.taken == len(self.prompt)

    def after(self, token: int) -> Ended:
        """Why it ends with its latest token; empty where it goes on."""
        return "nan" if token < 0 else "stop" if token in self.ends else "" if self.left else self.then

    @property
    def rest(self) -> int:
        """How many tokens of its prompt are to be computed."""
        return len(self.prompt) - self.taken

    @property
    def masked(self) -> bool:
        """Whether its mask has been computed, or it needs none."""
        return self.mask is None or self.mask.done()


class Batch(Closing):
    """Up to `slots` sequences at once on the weights of a decoder. `add` takes in a prompt (or `begin` and `fill`, a
    part between two steps), `step` gives a token or more of each sequence; one that has ended leaves its slot. Each
    gets the tokens that it would get alone, as far as products of several rows round as those of one. `adapters` were
    fitted to the decoder, and lie beside the weights: each sequence takes the one that it names, all in one program.

    With `pages`, sequences share that many pages of ROWS tokens and take them as they grow: a common prefix is stored
    and computed once. A prompt waits until there are enough pages for it; where running sequences need more than there
    are, the one that came last frees its pages and waits, and later continues after its tokens are computed again.

    Masks of constraints are computed by other threads while the batch runs; a sequence whose mask is late does not take
    part in the steps of the others.

    `fill` computes a part of a prompt in a run of its own; where the batch `fuses`, `step` takes tokens of prompts
    beside the others' steps, so that one run reads the weights for both.

    Without pages a sequence takes the slot whose previous sequence shares the longest prefix with it, and computes only
    the rest; with no such slot, the one that has been free longest. `shared` counts the tokens that were not computed.

    With `lookup`, tokens are guessed from each sequence's earlier text, and several are verified in one run where that
    is expected to give more tokens a second: the same tokens, also when sampling, since a draw depends on its position
    only. `tried` and `right` count the guesses. Not for recurrent models, whose states cannot be rolled back.

    Not for use by several threads at once. Raises: OutOfDeviceMemory where the caches do not fit; DTypeError for fewer
    pages than one sequence may need, and for caches that have none."""

    def __init__(
        self, decoder: Decoder, slots: int, context: int | None = None, adapters: Mapping[str, Adapter] | None = None,
        pages: int | None = None, lookup: bool = False,
    ) -> None:  # fmt: skip
        if decoder.ranks is not None and decoder.ranks.team is None:
            raise GraphError("a batch goes by the clock, which ranks that are processes do not share; load the model "
                             "with tensor_parallel in one process, on its own devices")  # fmt: skip
        if lookup and (decoder.config.recurrent or (decoder.ranks is None and len(decoder.stages) > 1)):
            why = "is recurrent, and cannot take back wrong guesses" if decoder.config.recurrent else "is split"
            raise DTypeError(f"lookup: the model {why}; leave it out")
        if type(slots) is not int or slots < 2:
            raise DTypeError(f"slots is {slots!r}; expected an integer from 2")
        if context is not None and (type(context) is not int or not 1 <= context <= decoder.context):
            raise DTypeError(f"context is {context!r}; expected an integer from 1 to the model's {decoder.context}")
        context = context or decoder.context
        self.pages = None if pages is None else Pages(_pages(pages, decoder, context), slots, context)
        self._decoder = Decoder(
            decoder.config, decoder.source, decoder.session, context, slots=slots, like=decoder,
            activations=decoder.activations, cache=decoder.cache, pages=self.pages, prefill_chunk=decoder.prefill_chunk,
        )  # fmt: skip
        self._adapters = {name: number for number, name in enumerate(adapters or ())}
        if adapters:
            try:
                self._decoder.place([*adapters.values()])
            except BaseException:
                self._decoder.close()
                raise
        self._held: list[_Sequence | None] = [None] * slots
        self._ended: list[_Sequence] = []  # sequences that left their slots since the last step began
        self._kept: list[_Kept | None] = [None] * slots
        self._shared = 0
        # In a free slot each run overwrites the first rows, so these are computed anew for the next sequence.
        self._spoilt = decoder.sizes[0] if lookup else 1
        self._at = np.zeros(slots, np.int32)
        self._ids = np.zeros((slots, 1), np.int32)
        # Sizes of the part of prompts in a run, for which the rows of a run are whole tiles. The smallest keeps up with
        # prompts of twice as many tokens as are generated, so that runs with it are the rule and take equally long.
        part = max(_LEAST_PART, min(2 * slots, _MOST_PART), decoder.sizes[0])
        part += -(slots + part) % _TILE
        self._parts = (part, part + 2 * _TILE, part + 6 * _TILE)
        self._fused = False  # whether the last run had such a part
        self._credit = 0.0  # the seconds that such parts may take now
        self._lie: dict[str, npt.NDArray[Any]] = {}  # the values last written to the states of steps, if still valid
        self._count = 0
        self._built: list[Picking] = []  # ways to pick tokens whose programs are all compiled
        self._least: dict[tuple[int, ...], Picking] = {}  # the cheapest of `_built` for these ids of pickings
        self._masking: ThreadPoolExecutor | None = None
        self.steps = 0  # steps run so far, each over all sequences
        self.prompted = 0  # tokens of prompts computed so far
        self.lookup, self._pace = lookup, Pace()
        self._silent = self._pause = 0  # steps until guesses are looked for again, and how many the last pause had
        self.tried = self.right = 0  # guesses that were verified, and those accepted

    @property
    def free(self) -> int:
        """How many more sequences there is room for."""
        return self._held.count(None)

    def add(
        self, prompt: Sequence[int] | npt.NDArray[Any], max_tokens: int | None = None, sampling: Sampling | None = None,
        ends: frozenset[int] = frozenset(), constraint: Constraint | None = None, *, adapter: str | None = None,
        scored: bool = False,
        penalties: Penalties | None = None, priority: int = 0,
    ) -> int:  # fmt: skip
        """Computes a prompt. Returns: the sequence's number, which `step` gives with its tokens. `adapter` names one of
        the batch's; with `scored` its tokens have `Scores`; `penalties` are for this sequence alone. Waiting prompts
        with the lowest `priority` number are computed first, and keep their pages longest.

        Raises: GraphError where no slot is free, or too few pages, DTypeError, ShapeError for a prompt that cannot be
        taken, RlxError for an adapter that the batch has not."""
        number = self.begin(prompt, max_tokens, sampling, ends, constraint, adapter=adapter, scored=scored,
                            penalties=penalties, priority=priority)  # fmt: skip
        try:
            while held := next((h for h in self._held if h is not None and h.number == number and not h.steps), None):
                if held.mask is not None:
                    held.mask.result()
                if not self.fill():
                    raise GraphError("there are too few free pages for this prompt now; step() until a sequence has "
                                     "ended, or begin() it, so that it waits")  # fmt: skip
        except BaseException:  # the caller never gets the number, so could not cancel it
            self.cancel(number)
            raise
        return number

    def begin(
        self, prompt: Sequence[int] | npt.NDArray[Any], max_tokens: int | None = None, sampling: Sampling | None = None,
        ends: frozenset[int] = frozenset(), constraint: Constraint | None = None, *, adapter: str | None = None,
        scored: bool = False,
        penalties: Penalties | None = None, priority: int = 0,
    ) -> int:  # fmt: skip
        """Reserves a slot for a sequence, whose prompt `fill` computes. Returns: its number. Raises: as `add`."""
        sampling, d = sampling or Sampling(), self._decoder
        if self.free == 0:
            raise GraphError(f"all {len(self._held)} slots are taken; step() until a sequence has ended")
        ids = d.check_ids(prompt)
        most = d.context - len(ids) + 1
        if not len(ids) or (max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1)):
            raise DTypeError(f"a prompt of {len(ids)} tokens, max_tokens {max_tokens!r}; expected at least one of each")
        chosen = -1 if adapter is None else self._adapters.get(adapter)
        if chosen is None:
            known = ", ".join(map(repr, self._adapters)) or "none"
            raise RlxError(f"there is no adapter {adapter!r:.40} in this batch; it has {known}, those that were loaded "
                           "when it was made")  # fmt: skip
        own = most if max_tokens is None else max_tokens
        self._count += 1
        then: Ended = "length" if own <= most and max_tokens is not None else "context"
        if penalties is not None:
            penalties.begin(ids)
        plain = constraint is None and penalties is None and not scored
        held = _Sequence(self._count, min(own, most), then, sampling, ends, constraint, penalties, scored, plain,
                         _wanted(sampling, constraint, penalties, scored), chosen, priority, ids)  # fmt: skip
        held.placed = self.pages is None
        held.draws = _draws(sampling)
        self._mask(held)
        self._held[self._slot_for(held)] = held
        return self._count

    def _slot_for(self, held: _Sequence) -> int:
        """The free slot that a sequence takes."""
        free = [slot for slot, other in enumerate(self._held) if other is None]
        same = {slot: self._same(slot, held) for slot in free}
        slot = max(free, key=lambda slot: (same[slot], -self._since(slot)))
        held.kept, self._kept[slot] = same[slot], None
        held.shared = max(held.kept - self._spoilt, 0)
        self._shared += held.shared
        return slot

    def _since(self, slot: int) -> int:
        kept = self._kept[slot]
        return -1 if kept is None else kept.since

    def _same(self, slot: int, held: _Sequence) -> int:
        """The length of the prefix that a free slot's caches share with a prompt without its last token; 0 if shorter
        than a page: such a prefix is computed anew, since kernels of other sizes round differently."""
        kept = self._kept[slot]
        if kept is None or kept.adapter != held.adapter:
            return 0
        count = min(len(kept.tokens), len(held.prompt) - 1)
        apart = np.flatnonzero(kept.tokens[:count] != held.prompt[:count])
        count = int(apart[0]) if len(apart) else count
        return count if count >= ROWS else 0

    def fill(self, most: int | None = None) -> int:
        """Computes up to `most` tokens of the next waiting prompt in one run, by default as many as a run takes.
        Returns: how many, 0 if no prompt waits or there are no pages for it."""
        d, slot = self._decoder, self._waiting()
        if slot is None:
            return 0
        held = self._held[slot]
        assert held is not None
        d.length, d.slot, d.number = held.taken, slot, held.adapter
        rest = held.prompt[held.taken :][:most]
        if held.taken < self._spoilt < held.kept:  # end the run there: padding would overwrite kept rows
            rest = held.prompt[held.taken : self._spoilt]
        part = rest[: next(d.chunks(len(rest)))]
        if len(part) < len(held.prompt) - held.taken:  # more of the prompt follows: no token is picked
            d.take(part, GREEDY, {})
            held.taken += len(part)
            self.prompted += len(part)
            if held.taken == self._spoilt:
                held.taken = max(held.taken, held.kept)
            self._know(slot, held)
            return len(part)
        picking = self._picking([held])
        found = d.take(part, picking, _inputs([held], picking, d.config.vocabulary))
        held.taken += len(part)
        self.prompted += len(part)
        held.fresh.append((int(found["token"][0, 0]), _scores(found, 0) if held.scored else None))
        self._at[slot], self._ids[slot] = held.taken, found["token"][0, 0]
        self._know(slot, held)
        return len(part)

    def _waiting(self, last: bool = True) -> int | None:
        """The slot of the prompt to compute next: prompts that hold their pages come first, then the lowest priority
        number, then the earliest. Without `last` it looks for tokens that need no mask, as a prompt's last one does."""
        waiting = [(not held.placed, held.priority, held.number, slot) for slot, held in enumerate(self._held)
                   if held is not None and not held.steps
                   and (held.masked if last else not held.placed or held.rest > 1)]  # fmt: skip
        if not waiting:
            return None
        (absent, _, _, slot), pages = min(waiting), self.pages
        held = self._held[slot]
        assert held is not None
        if absent and pages is not None:
            taken = pages.begin(slot, held.prompt, held.adapter)
            if taken is None:
                return None
            held.taken, held.placed = taken, True
            held.shared = held.shared if held.again else taken
        return slot

    def _know(self, slot: int, held: _Sequence) -> None:
        if self.pages is not None:
            self.pages.know(slot, held.prompt[: held.taken], held.adapter)

    def _leave(self, slot: int) -> None:
        """Frees a slot; its rows are kept for a later sequence with the same prefix."""
        held, self._held[slot] = self._held[slot], None
        assert held is not None
        self._ended.append(held)
        # No run has written the last token's row yet, and runs past a sequence's end overwrite the caches' last row.
        count = held.taken + max(len(held.made) - 1, 0) if held.steps else held.taken
        tokens = np.concatenate([held.prompt, np.asarray(held.made, np.int32)])[: min(count, self._decoder.context - 1)]
        if self.pages is not None:
            self.pages.know(slot, tokens, held.adapter)
            self.pages.release(slot)
        elif self._spoilt <= held.taken and self._decoder.straight(len(tokens)):
            self._kept[slot] = _Kept(tokens, held.adapter, self._count)

    @property
    def shared(self) -> int:
        """How many prompt tokens were not computed, since pages or slots held them."""
        return self._shared if self.pages is None else self.pages.shared

    def shared_by(self, sequences: Iterable[int]) -> dict[int, int]:
        """The same count for each of these sequences that run, or have ended in the last step, by its number."""
        known = {held.number: held.shared for held in (*self._held, *self._ended) if held is not None}
        return {number: known[number] for number in sequences if number in known}

    def _mask(self, held: _Sequence) -> None:
        """Begins to compute the mask of a sequence's next token, where it has a constraint."""
        if held.constraint is None:
            return
        if self._masking is None:
            self._masking = ThreadPoolExecutor(_MASKING, "rlx-masks")
        words, constraint = np.empty(mask_words(self._decoder.config.vocabulary), np.int32), held.constraint

        def computed() -> npt.NDArray[np.int32]:
            constraint.mask(words)
            return words

        held.mask = self._masking.submit(computed)

    def _going(self) -> list[_Sequence | None]:
        """The sequences that take part in a step, by slot. Those whose mask is late do not; if no sequence could take
        part, it waits for the first mask."""
        pending = [held.mask for held in self._held if held is not None and held.mask is not None]
        if not pending:
            return self._stepped(self._held)
        wait(pending, MASK_SECONDS)
        if not any(held is not None and held.masked for held in self._held):
            wait(pending, return_when=FIRST_COMPLETED)
        return [held if held is not None and held.steps and held.masked else None for held in self._held]

    @property
    def _all_step(self) -> bool:
        """Whether no prompt waits."""
        return all(held is None or held.taken == len(held.prompt) for held in self._held)

    @staticmethod
    def _stepped(held: Sequence[_Sequence | None]) -> list[_Sequence | None]:
        """Those of the sequences whose whole prompts have been computed, by slot."""
        return [one if one is not None and one.taken == len(one.prompt) else None for one in held]

    def _grow(self, going: Sequence[_Sequence | None], count: int) -> None:
        """Gives each stepping sequence pages for `count` more tokens; where pages run out, the latest sequence of the
        highest priority number gives up its pages and waits."""
        pages = self.pages
        if pages is None:
            return
        order = sorted((held.priority, held.number, slot) for slot, held in enumerate(self._held)
                       if held is not None and held.placed)  # fmt: skip
        for _, _, slot in [*order]:
            held = self._held[slot]
            if going[slot] is None or held is None or not held.placed:
                continue
            most = min(int(self._at[slot]) + min(count, held.left), self._decoder.context)
            while not pages.grow(slot, most):
                *_, last = order.pop()
                self._wait(last)
                if last == slot:
                    break

    def _wait(self, slot: int) -> None:
        """Frees the pages of a sequence, which then waits like a prompt that consists of all its tokens."""
        held = self._held[slot]
        assert held is not None and self.pages is not None
        self.pages.release(slot)
        held.prompt = np.concatenate([held.prompt, np.asarray(held.made, np.int32)])
        held.made.clear()
        held.taken, held.placed, held.guesser, held.again = 0, False, None, True

    def cancel(self, sequence: int) -> None:
        """Frees the slot of a sequence. Nothing happens for one that has ended."""
        for slot, held in enumerate(self._held):
            if held is not None and held.number == sequence:
                self._leave(slot)

    @property
    def fuses(self) -> bool:
        """Whether steps can take tokens of prompts beside them."""
        return self._decoder.fuses

    @property
    def stepping(self) -> bool:
        """Whether there are sequences that a step continues now."""
        return any(held is not None and held.steps and held.masked for held in self._held)

    def step(self, most: int = 1, beside: int = 0) -> list[Token]:
        """The next tokens of all sequences: first those that prompts gave, then up to `most` of each, or one of each if
        any sequence has a constraint, penalties or scores. With `beside`, where sequences step and prompts wait, each
        run may compute up to `beside` tokens of the prompts too; those that the first one completes step with it, and
        no later one completes any.

        Raises: DTypeError for a `most` below 1, or a `beside` below 0; GraphError for a `beside` where no run `fuses`.
        """
        if type(most) is not int or most < 1:
            raise DTypeError(f"most is {most!r}; expected an integer from 1")
        if type(beside) is not int or beside < 0:
            raise DTypeError(f"beside is {beside!r}; expected an integer from 0")
        if beside and not self.fuses:
            raise GraphError("beside: prompts of this model are computed by runs of their own; call fill()")
        made: list[Token] = []
        self._ended.clear()
        for slot, held in enumerate(self._held):
            if held is not None and held.fresh:
                for token, scores in held.fresh:
                    self._take(slot, token, scores, made)
                held.fresh.clear()
        going = self._going()
        lasting = [held for held in going if held is not None]
        if not lasting:
            return made
        plain = all(held.plain for held in lasting)
        most = most if plain else 1
        rows = self._guesses(going) if self.lookup and plain else None
        if beside and self._all_step:
            self._fused = False
        elif beside:
            missing = self._missing(beside)
            self._fused = not (self._fused and rows) and self._fuse(going, most, 0 if missing else beside, made)
            if self._fused:
                return made
            most = max(1, min(most, math.ceil(missing))) if missing else most
        if rows is not None:
            self._try(going, rows, made)
            return made
        count = self._count_of(going, most)
        self._grow(going, count)
        going = self._stepped(going)
        if not any(going):
            return made
        start = time.perf_counter()
        log, found = self._run(going, count)
        seconds = (time.perf_counter() - start) / count
        self._pace.add(1, seconds)
        if count == 1:  # comparable with runs that include prompts: both wait for the host after one step
            self._pace.add((1, 0), seconds)
        self._credit += self._share * seconds * count
        self._give(going, count, log, found, made)
        return made

    def _count_of(self, going: Sequence[_Sequence | None], most: int) -> int:
        """How many steps, up to `most`, these sequences take at once. One that ends before the last of them runs on:
        the next prompt overwrites its slot's rows. It must not run beyond the context, where each step would write its
        token in the place of the last one's."""
        room = self._decoder.context - max(int(self._at[slot]) for slot, held in enumerate(going) if held is not None)
        return min(most, AHEAD, LOG, room, max(held.left for held in going if held is not None))

    def _give(
        self, going: Sequence[_Sequence | None], count: int, log: npt.NDArray[np.int32], scored: Mapping[str, Any],
        tokens: list[Token],
    ) -> None:  # fmt: skip
        """Adds the tokens of `count` steps, first those of the first step, in the order of the slots."""
        first, ended = len(tokens), list[tuple[int, int]]()  # the last step of each slot that ends, and the slot
        steps: list[list[Token]] = [[] for _ in range(count)]
        slots = np.flatnonzero([held is not None and self._held[slot] is held for slot, held in enumerate(going)])
        ids = log[slots[:, None], (self._at[slots, None] + np.arange(count)) % LOG]
        self._ids[slots] = ids[:, -1:]
        for slot, row in zip(slots.tolist(), ids.tolist(), strict=True):
            held = going[slot]
            assert held is not None
            if not held.plain:  # then there is one step
                self._take(slot, row[0], _scores(scored, slot) if held.scored else None, steps[0])
                continue
            row = row[: held.left]
            if min(row) < 0 or not held.ends.isdisjoint(row):
                row = row[: 1 + next(i for i, token in enumerate(row) if token < 0 or token in held.ends)]
            held.left -= len(row)
            held.made += row
            number, why = held.number, held.after(row[-1])
            for step, token in zip(steps, row, strict=False):
                step.append(Token(number, token, ""))
            if why:
                steps[len(row) - 1][-1] = Token(number, row[-1], why)
                ended.append((len(row), slot))
        for _, slot in sorted(ended):
            self._leave(slot)
        tokens += (token for step in steps for token in step)
        self._at += np.array([count if held is not None else 0 for held in going], np.int32)
        self._learn(going, tokens[first:])
        self._silent = max(0, self._silent - count)

    def _fuse(self, going: Sequence[_Sequence | None], steps: int, most: int, tokens: list[Token]) -> bool:
        """Runs up to `steps` steps, each with up to `most` tokens of waiting prompts beside it. A prompt's last token
        is that of its slot in the first step, which gives the first token of the answer. Returns: False where no prompt
        has a token that can be computed now; then nothing was run."""
        count = self._count_of(going, steps)
        self._grow(going, count)
        before: dict[int, int] = {}
        part = self._part(most, before)
        joined = [slot for slot, held in enumerate(self._held)
                  if held is not None and held.placed and held.rest == 1 and held.masked]  # fmt: skip
        if part is None and not joined:
            return False
        for slot in joined:
            held = self._held[slot]
            assert held is not None
            before.setdefault(slot, held.taken)
            self._at[slot], self._ids[slot] = held.taken, held.prompt[-1]
            held.taken += 1
            if not held.plain:
                count = 1
            elif self.pages is not None:
                count = min(count, self._decoder.context + 1 - held.taken)
                count = min(count, 1 + self.pages.room(slot, held.taken, count - 1))
        now = [held if held is not None and held.steps and (slot in joined or going[slot] is held) else None
               for slot, held in enumerate(self._held)]  # fmt: skip
        parts = [] if part is None else [part, *self._parts_after(part, self._count_of(now, count) - 1, most, before)]
        count = max(1, len(parts))
        start = time.perf_counter()
        try:
            log, scored = self._run(now, count, parts)
        except BaseException:
            for slot, taken in before.items():
                held = self._held[slot]
                assert held is not None
                held.taken = taken
            raise
        size, seconds = self._room(parts[0].shape[1]) if parts else 0, time.perf_counter() - start
        if count == 1:
            self._pace.add((1, size), seconds)
        step = count * (self._step or seconds / count)
        bound = max(map(self._cost, self._parts))  # also for a run that another program of the device held up
        self._credit = min(max(self._credit + step - seconds, -bound), bound) + self._share * step
        self.prompted += len(joined) + sum(part.shape[1] for part in parts)
        for slot in before:
            held = self._held[slot]
            assert held is not None
            self._know(slot, held)
        self._give(now, count, log, scored, tokens)
        return True

    def _parts_after(
        self, part: npt.NDArray[np.int32], count: int, most: int, before: dict[int, int]
    ) -> list[npt.NDArray[np.int32]]:  # fmt: skip
        """Up to `count` parts for the runs right after one with this part: none that completes a prompt, which would
        then wait for its first token, all of one size, and only as many as the prompts' share of the time allows; none
        while it is not known how long a run with such a part takes, since only runs by themselves are timed."""
        size, parts, total = self._room(part.shape[1]), list[npt.NDArray[np.int32]](), part.shape[1]
        if self._pace.of((1, size)) is None:
            return parts
        cost, gain = self._cost(size), self._share * self._step
        while len(parts) < count and self._credit + (len(parts) + 1) * (gain - cost) >= cost:
            taken: dict[int, int] = {}
            if (more := self._part(most, taken)) is None:
                break
            total += more.shape[1]
            held = {slot: one for slot in taken if (one := self._held[slot]) is not None}
            # A slot's own row in each of these runs is that after the last part, and must not be in a ring's window.
            if total >= LONGEST or self._room(more.shape[1]) != size or any(one.rest == 1 for one in held.values()):
                for slot, one in held.items():
                    one.taken = taken[slot]
                break
            parts.append(more)
            for slot, first in taken.items():
                before.setdefault(slot, first)
        return parts

    def _part(self, most: int, before: dict[int, int]) -> npt.NDArray[np.int32] | None:
        """Takes about `most` tokens of waiting prompts, none of them a prompt's last one. Returns: their ids, places
        and slots, i32 (3, tokens); None without any. `before` gets how many tokens of each prompt were taken before.
        """
        size, parts, taken = self._room_beside(most), list[npt.NDArray[np.int32]](), 0
        while taken < min(most, size) and (slot := self._waiting(last=False)) is not None:
            held = self._held[slot]
            assert held is not None
            first, end = held.taken, len(held.prompt) - 1
            spoilt = first < self._spoilt < held.kept
            # All spoilt rows at once, since runs of guesses write several rows of a slot that stands still.
            end = self._spoilt if spoilt else min(end, first + most - taken, first + size - taken)
            if end - first > size - taken:
                break
            if end > first:
                before.setdefault(slot, first)
                parts.append(np.stack([held.prompt[first:end], np.arange(first, end), np.full(end - first, slot)]))
                taken += end - first
                held.taken = held.kept if spoilt else end
        return np.concatenate(parts, axis=1).astype(np.int32) if parts else None

    def _room_beside(self, most: int) -> int:
        """The size of a part for up to `most` tokens of the prompts that wait: the largest that is needed of those that
        add no more to a step than the prompts' share of its time, or are not measured yet; else the smallest."""
        rest = sum(held.rest - 1 for held in self._held if held is not None and not held.steps)
        longest = self._share * self._step
        short = [size for size in self._parts if self._cost(size) <= longest] or [self._parts[0]]
        wanted = self._room(min(rest, most))
        return next((size for size in short if size >= wanted), short[-1])

    def _room(self, tokens: int) -> int:
        """The least of the sizes of parts that takes so many tokens, or the largest."""
        return next((size for size in self._parts if size >= tokens), self._parts[-1])

    @property
    def _step(self) -> float:
        """The seconds of a step by itself, 0 where that is not known."""
        return self._pace.of((1, 0)) or self._pace.of(1) or 0.0

    def _cost(self, size: int) -> float:
        """The seconds that a part of prompts adds to a step, 0 where that is not known."""
        took = self._pace.of((1, size))
        return 0.0 if took is None or not self._step else max(0.0, took - self._step)

    @property
    def _share(self) -> float:
        """The part of the steps' time that prompts may take beside them: as much as they are of the sequences, if that
        is more than SHARE."""
        held = [one.steps for one in self._held if one is not None]
        return max(SHARE[self._decoder.session.info.backend], held.count(False) / len(held) if held else 0.0)

    def _missing(self, most: int) -> float:
        """The number of steps without tokens of prompts until prompts may take up to `most` tokens beside a step; 0 if
        they may now, or if no prompt waits."""
        if self._waiting(last=False) is None:
            return 0.0
        missing = self._cost(self._room_beside(most)) - self._credit
        return 0.0 if missing <= 0 else missing / (self._share * self._step)

    def _guesses(self, going: Sequence[_Sequence | None]) -> list[list[int]] | None:
        """Guesses of the next tokens of each slot; None where a step is expected to give more tokens a second."""
        size, rows = 1 + GUESSES, list[list[int]]()
        if self._silent > 0:
            return None
        if max(self._rows_held(slot) for slot in range(len(self._held))) + size > self._decoder.context:
            return None  # the run would write past the slot's rows into the next slot's
        expected = 0.0
        for held in going:
            rows.append([])
            if held is None:
                continue
            if held.guesser is None:
                held.guesser = Guesser([])
            held.guesser.follow(held.prompt, held.made)
            rows[-1] = held.guesser.guess(min(GUESSES, held.left - 1))
            expected += held.guesser.expected(len(rows[-1]))
        one, several, count = self._pace.of(1), self._pace.of(size), sum(held is not None for held in going)
        if one is None or (several is None and not expected):
            return None
        pays = bool(expected) and (several is None or (count + expected) * one > count * several)
        if not pays:
            self._rest(False)
        return rows if pays else None

    def _rest(self, paid: bool) -> None:
        """Looks for guesses in the next step where they paid; else after a pause, which doubles up to LONGEST_PAUSE."""
        self._pause = 0 if paid else min(max(2 * self._pause, 1), LONGEST_PAUSE)
        self._silent = self._pause

    def _rows_held(self, slot: int) -> int:
        """The row that a slot's next token is written to."""
        held = self._held[slot]
        return 0 if held is None else int(self._at[slot]) if held.steps else held.taken

    def _try(self, going: Sequence[_Sequence | None], rows: list[list[int]], made: list[Token]) -> None:
        """Runs once over each sequence's last token and its guesses; adds the right ones and one token after them."""
        d, start = self._decoder, time.perf_counter()
        self._grow(going, 1)
        going = self._stepped(going)
        lasting = [held for held in going if held is not None]
        if not lasting:
            return
        size = 1 + GUESSES
        picking = self._picking(lasting)
        drawn = _inputs(going, picking, d.config.vocabulary)
        ids = np.zeros((len(going), size), np.int32)
        for slot, held in enumerate(going):
            self._at[slot] = self._rows_held(slot)
            if held is None:
                continue
            if self.pages is not None:  # guesses must not take pages that running sequences need
                rows[slot] = rows[slot][: self.pages.room(slot, int(self._at[slot]) + 1, len(rows[slot]))]
            ids[slot, 0] = self._ids[slot, 0]
            ids[slot, 1 : 1 + len(rows[slot])] = rows[slot]
        given = {"ids": ids, "at": self._at, **{name: np.repeat(value, size, 0) for name, value in drawn.items()}}
        if self.pages is not None:
            given["table"] = np.where([[held is not None] for held in going], self.pages.table, 0)
        if self._adapters:
            given["adapter"] = np.array([-1 if held is None else held.adapter for held in going], np.int32)
        choices = d.program(size, "guessed", picking).run(given)["choices"]
        self.steps += 1
        first = len(made)
        for slot, held in enumerate(going):
            if held is None:
                continue
            right = agreed(rows[slot], choices[slot].tolist())
            self.tried += len(rows[slot])
            self.right += right
            for token in choices[slot, : right + 1].tolist():
                self._at[slot] += 1
                self._ids[slot] = token
                self._take(slot, token, None, made)
                if self._held[slot] is not held:
                    break
        self._learn(going, made[first:])
        self._pace.add(size, time.perf_counter() - start)
        one, several = self._pace.of(1), self._pace.of(size)
        if one is not None and several is not None:
            self._rest(len(made[first:]) * one > len(lasting) * several)

    def _learn(self, going: Sequence[_Sequence | None], made: Sequence[Token]) -> None:
        """Gives the new tokens to those guessers of the sequences that continue whose guesses they follow; the others
        read them when they guess again."""
        if not self.lookup:
            return
        came: dict[int, list[int]] = {}
        for token in made:
            came.setdefault(token.sequence, []).append(token.token)
        for held in going:
            if held is not None and held.guesser is not None and held.guesser.guesses and held.number in came:
                held.guesser.take(came[held.number])

    def _take(self, slot: int, token: int, scores: Scores | None, made: list[Token]) -> None:
        held = self._held[slot]
        assert held is not None
        held.left -= 1
        ended = held.after(token)
        if held.constraint is not None and ended not in ("nan", "stop") and held.constraint.take(token):
            ended = "stop"
        if not ended:
            self._mask(held)
        if held.penalties is not None and token >= 0:
            held.penalties.take(token)
        held.made.append(token)
        made.append(Token(held.number, token, ended, scores))
        if ended:
            self._leave(slot)

    def _run(
        self, going: Sequence[_Sequence | None], count: int, parts: Sequence[npt.NDArray[np.int32]] = ()
    ) -> tuple[npt.NDArray[np.int32], dict[str, Any]]:
        """Runs `count` steps of all slots, where there are `parts` of prompts with one beside each. Returns: the
        tokens, and the last step's outputs. Slots that take no part do not advance: free ones write their first row
        each time, those with an unfinished prompt or a late mask the row that they write next anyway."""
        d = self._decoder
        picking = self._picking([held for held in going if held is not None])
        given = _inputs(going, picking, d.config.vocabulary)
        given["stride"] = np.array([held is not None for held in going], np.int32)
        filled = {slot for part in parts for slot in part[2].tolist()}
        room = self._room(parts[0].shape[1]) if parts else 0
        # Padded with copies of a part's last token.
        beside = [{"beside": np.pad(part, ((0, 0), (0, room - part.shape[1])), "edge")} for part in parts]
        writing = [self._held[slot] if slot in filled else held for slot, held in enumerate(going)]
        if self._adapters:
            given["adapter"] = np.array([-1 if held is None else held.adapter for held in writing], np.int32)
        lies = self._lie.get("ids", np.zeros_like(self._ids))
        for slot, held in enumerate(self._held):
            if held is None or not held.steps:  # any token will do
                self._at[slot], self._ids[slot] = 0 if held is None else held.taken, lies[slot]
        programs = [d.program(1, "next", picking, turn, room) for turn in range(1 if room else d.turns)]
        states = programs[0].graph.states
        if self.pages is not None:
            own = [[held is not None] for held in writing]  # others write into page 0, which belongs to no sequence
            given["table"] = np.where(own, self.pages.table, 0)
        for name, value in {"ids": self._ids, "at": self._at, **given}.items():
            # Large inputs differ from step to step, and comparing them takes as long as writing them.
            if name in states and (value.size > _LARGE or not np.array_equal(self._lie.get(name, ()), value)):
                self._lie.pop(name, None)
                d.state.set(name, value)
                self._lie[name] = value.copy()
        at = self._lie.pop("at")
        del self._lie["ids"]  # until the run is done
        runs = [programs[i % len(programs)].launch(more) for i, more in enumerate(beside or [None] * count)]
        found: dict[str, Any] = runs[-1].wait("host") if picking.scored else {}
        runs[-1].wait()
        self.steps += count
        log: npt.NDArray[np.int32] = d.state.get("log")
        last = d.context - 1
        places = np.minimum(at + (count - 1) * given["stride"], last)
        self._lie["ids"] = np.take_along_axis(log, places[:, None] % LOG, axis=1)
        self._lie["at"] = np.minimum(at + count * given["stride"], last)
        return log, found

    @property
    def sizes(self) -> tuple[int, ...]:
        """The chunk sizes in which prompts are computed."""
        return self._decoder.sizes

    def lacks(
        self, sampling: Sampling, constraint: Constraint | None = None, penalties: Penalties | None = None,
        scored: bool = False,
    ) -> Picking | None:  # fmt: skip
        """What to `prepare` so that a sequence of these settings can join without waiting for a compilation; None if
        all is built. Not for several threads at once."""
        wanted = _wanted(sampling, constraint, penalties, scored)
        each = {id(held.picking): held.picking for held in self._held if held is not None}
        wanted = reduce(Picking.__or__, each.values(), wanted)
        return None if any(wanted | known == known for known in self._built) else wanted | _DRAWN

    def _picking(self, stepped: Iterable[_Sequence]) -> Picking:
        """A picking that covers the settings of all these sequences: the cheapest that is built, else their union."""
        each = {id(held.picking): held.picking for held in stepped}
        if (found := self._least.get(key := tuple(each))) is None:
            wanted = reduce(Picking.__or__, each.values())
            found = min((known for known in [*self._built] if wanted | known == known),
                        key=lambda known: known.extent, default=wanted)  # fmt: skip
            self._least[key] = found
        return found

    def prepare(self, *pickings: Picking) -> None:
        """Builds the programs of prompts and steps for these pickings, by default greedy, sampled, and sampled within
        limits of `top_p`, so that no sequence waits for them. Another thread may call it while this one steps."""
        d = self._decoder
        for picking in pickings or (Picking(), _DRAWN, Picking(False, None, True)):
            for size in (1, *d.sizes):
                if size <= d.context:
                    d.program(size, "token", picking).prepare()
            for turn in range(d.turns):
                d.program(1, "next", picking, turn).prepare()
            for room in self._parts if self.fuses else ():
                d.program(1, "next", picking, beside=room).prepare()
            if self.lookup and not (picking.masked or picking.penalized or picking.scored):
                d.program(1 + GUESSES, "guessed", picking).prepare()
            if picking not in self._built:
                self._built.append(picking)
                self._least = {}

    def close(self) -> None:
        """Frees the caches and programs; the weights stay with their decoder. Idempotent."""
        if self._masking is not None:
            self._masking.shutdown(cancel_futures=True)
        self._decoder.close()


def _pages(count: int, decoder: Decoder, context: int) -> int:
    """The checked `pages`. Raises: DTypeError for an impossible number of pages, or caches that cannot have pages."""
    least = pages_for(context) + 1
    if type(count) is not int or not least <= count <= MOST:
        raise DTypeError(f"pages is {count!r}; expected an integer from {least} to {MOST:,}: at least those of a "
                         f"context of {context}, and one that takes what is nobody's")  # fmt: skip
    if decoder.config.recurrent:
        raise DTypeError("pages are not there for recurrent models, whose states have no rows; leave them out")
    return count


def _wanted(
    sampling: Sampling, constraint: Constraint | None, penalties: Penalties | None, scored: bool
) -> Picking:
    """The picking for one sequence's settings; always the same object for the same settings."""
    drawn = bool(sampling.temperature)
    limits = sampling.limits if drawn else {}
    return _one(not drawn, "top_p" in limits, constraint is not None, drawn and sampling.top_k is not None, scored,
                "min_p" in limits, penalties is not None)  # fmt: skip


@cache
def _one(
    greedy: bool, top_p: bool, masked: bool, top_ks: bool, scored: bool, min_p: bool, penalized: bool
) -> Picking:
    return Picking(greedy, None, top_p, masked, top_ks, scored, min_p, penalized)


def _inputs(stepped: Sequence[_Sequence | None], picking: Picking, vocabulary: int) -> dict[str, Any]:
    """The inputs of sampling, a row for each sequence; a temperature of 0 takes the likeliest token."""
    given: dict[str, Any] = {}
    if not picking.greedy:
        given = {"key": np.zeros((len(stepped), 2), np.int32), "temperature": np.zeros(len(stepped), np.float32)}
    if picking.top_p:
        given["top_p"] = np.ones(len(stepped), np.float32)
    if picking.top_ks:
        given["top_k"] = np.zeros(len(stepped), np.int32)
    if picking.min_p:
        given["min_p"] = np.zeros(len(stepped), np.float32)
    if picking.penalized:
        given["scale"] = np.ones((len(stepped), vocabulary), np.float32)
        given["shift"] = np.zeros((len(stepped), vocabulary), np.float32)
    if picking.masked:
        given["mask"] = np.full((len(stepped), mask_words(vocabulary)), -1, np.int32)
    for row, held in enumerate(stepped):
        if held is None or (held.plain and picking.greedy):
            continue
        if held.mask is not None:
            given["mask"][row] = held.mask.result()
        if held.penalties is not None:
            given["scale"][row], given["shift"][row] = held.penalties.scale, held.penalties.shift
        for name, value in () if picking.greedy else held.draws.items():
            given[name][row] = value
    return given


def _draws(sampling: Sampling) -> dict[str, Any]:
    """A sequence's row of the inputs of sampling; what is not in it is as `_inputs` begins."""
    draws = {name: value[0] for name, value in sampling.inputs().items()}
    return draws if sampling.top_k is None else {**draws, "top_k": sampling.top_k}


def _scores(found: Mapping[str, Any], row: int) -> Scores:
    own, *logarithms = found["scores"][row].tolist()
    return Scores(own, tuple(found["likeliest"][row].tolist()), tuple(logarithms))
