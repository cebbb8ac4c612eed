"""Engine: the thread that owns a model, and steps a batch of the sequences that clients ask for."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import RlxError
from rlx.models.language.batch import Batch, Scores, Token
from rlx.models.language.decoder import Sampling
from rlx.models.language.graph import Picking
from rlx.models.language.model import LanguageModel
from rlx.models.language.pages import ROWS
from rlx.models.language.reading import Pooled, pooled
from rlx.models.language.shaping import Constraint, Penalties
from rlx.records import Record, field
from rlx.serve.metrics import Metrics
from rlx.serve.queue import Client, FairQueue

TURN_SECONDS = 0.02  # quick steps run for so long before their tokens are sent
SOON = 4  # the most steps before new sequences are admitted, where some wait
SCORED_PART = 64  # the tokens of a prompt whose logits, a row of the vocabulary each, are in memory at once
MAX_HANDOVERS = 4  # the most handovers that the event loop may be behind before the model waits for it
SWITCH_SECONDS = 0.0001  # the interpreter's switch interval: the model's thread must not wait long for the event loop


class Busy(Exception):
    """As many sequences as may wait are waiting."""


class Asked(Record, frozen=False, eq=False, slots=False):
    """A sequence that a client asked for; once an engine has taken it, `push` gives its tokens to the event loop."""

    ids: npt.NDArray[np.int32]
    max_tokens: int | None
    sampling: Sampling
    ends: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    adapter: str | None = None
    penalties: Penalties | None = None
    scored: bool = False  # whether its tokens are to have scores
    client: Client = ("", "")
    priority: int = 0  # the lowest number begins first
    cancelled: bool = False
    number: int = 0  # the number in the batch
    since: float = field(default_factory=time.perf_counter)  # the time of its last token, or of the request
    begun: bool = False  # an engine has taken it out of its queue
    first: bool = True  # no token has been generated yet
    shared: int = 0  # tokens of its prompt that were not computed

    def push(self, tokens: list[Token]) -> None:
        """Takes its next tokens, in the event loop. The last one says why it has ended, where it has."""
        raise NotImplementedError

    def fail(self, message: str, status: int = 500) -> None:
        """Ends it before it is complete, in the event loop."""
        raise NotImplementedError


class _Reading(Record, frozen=False, eq=False, slots=False):
    """A computation over a whole text (an embedding, scores) beside the sequences: `parts` gives partial results, one
    between two steps each, and `join` the final result."""

    parts: Callable[[], Iterator[Any]]
    join: Callable[[list[Any]], Any]
    found: asyncio.Future[Any]


class Engine:
    """Steps the sequences of clients on one model, in a thread of its own.

    `ask`, `embed` and `cancel` are called in the event loop. Prompts are computed `part` tokens at a time between two
    steps, so that running sequences go on. Programs for a new kind of sequence are built by another thread, while that
    sequence waits. A `FairQueue` decides whose turn it is. At most `waiting` sequences wait; when the event loop is
    `MAX_HANDOVERS` handovers behind, the model waits for it."""

    def __init__(
        self, model: LanguageModel, slots: int, waiting: int, metrics: Metrics, part: int | None = None,
        pages: int | None = None, lookup: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.slots, self.metrics = model, slots, metrics
        self.batch: Batch = model.batch(slots, pages=pages, lookup=lookup)
        # On a GPU a part of a prompt takes as long as a step or two; on a CPU its time grows with its tokens.
        sizes = self.batch.sizes
        self.part = part or sizes[min(1, len(sizes) - 1) if model.session.info.kind == "cpu" else -1]
        self.failure: str | None = None
        self.failed: Callable[[], None] = lambda: None  # called in the event loop after a failure
        self._most_waiting = waiting
        self._changed = threading.Condition()
        self._waiting: FairQueue[Asked] = FairQueue()
        self._builder = ThreadPoolExecutor(1, "rlx-programs")
        self._building: dict[Picking, Future[None]] = {}
        self._readings: deque[_Reading] = deque()
        self._reading: _Reading | None = None  # the one at work
        self._running: dict[int, Asked] = {}
        self._left = False  # whether a sequence that runs has been cancelled
        self._stop = False
        self._sent = threading.BoundedSemaphore(MAX_HANDOVERS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        metrics.gauges |= {
            "rlx_slots": ("Sequences that can run at once.", lambda: self.slots),
            "rlx_sequences_running": ("Sequences that run.", lambda: len(self._running)),
            "rlx_sequences_waiting": ("Sequences that wait for a slot.", lambda: len(self._waiting)),
            "rlx_embeddings_waiting": ("Texts that wait for an embedding or logarithms.", lambda: len(self._readings)),
        }
        what = "Tokens of prompts that were not computed, since pages or slots had them, so far."
        metrics.gauges["rlx_tokens_shared"] = (what, lambda: self.batch.shared)
        if lookup:
            metrics.gauges |= {
                "rlx_guesses_tried": ("Guesses of tokens that runs tried, so far.", lambda: self.batch.tried),
                "rlx_guesses_right": ("Guesses that were the tokens that came, so far.", lambda: self.batch.right),
            }
        if (held := self.batch.pages) is not None:
            metrics.gauges |= {
                "rlx_pages": (f"Pages of keys and values, of {ROWS} tokens each.", lambda: held.count - 1),
                "rlx_pages_free": ("Pages that a sequence may take now.", lambda: held.free),
            }

    # -- in the event loop

    def start(self) -> None:
        """Starts the thread, which hands tokens to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="rlx-engine", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        return len(self._running) + len(self._waiting)

    def ask(self, asked: Sequence[Asked]) -> None:
        """Takes sequences. Raises: Busy where too many wait, RlxError after a failure."""
        with self._changed:
            self._check()
            if len(self._waiting) + len(asked) - self.batch.free > self._most_waiting:
                raise Busy
            for one in asked:
                self._waiting.add(one)
            self._changed.notify()

    def embed(self, ids: npt.NDArray[np.int32], pooling: Pooled) -> asyncio.Future[Any]:
        """The embedding of a text; cancel the future to give it up. Raises: as `ask`."""
        return self._read(
            lambda: self.model.hidden_parts(ids, self.part), lambda states: pooled(np.concatenate(states), pooling)
        )

    def rank(self, ids: npt.NDArray[np.int32]) -> asyncio.Future[float]:
        """A reranker's score of a prompt of a query and a document; cancel the future to give it up. Raises: as `ask`.
        """
        return self._read(
            lambda: self.model.hidden_parts(ids, self.part), lambda states: self.model.reading.score(states[-1][-1])
        )

    def score(self, ids: npt.NDArray[np.int32], adapter: str | None = None) -> asyncio.Future[list[Scores]]:
        """The scores of a prompt's tokens from its second on; cancel the future to give it up. Raises: as `ask`."""

        def parts() -> Iterator[list[Scores]]:
            at = 1
            for logits in self.model.logits_parts(ids, min(self.part, SCORED_PART), adapter=adapter):
                yield [*map(Scores.of, logits, ids[at : at + len(logits)].tolist())]
                at += len(logits)

        return self._read(parts, lambda scores: [one for part in scores for one in part])

    def _read(self, parts: Callable[[], Iterator[Any]], join: Callable[[list[Any]], Any]) -> asyncio.Future[Any]:
        with self._changed:
            self._check()
            if len(self._readings) + (self._reading is not None) > self._most_waiting:
                raise Busy
            job = _Reading(parts, join, asyncio.get_running_loop().create_future())
            self._readings.append(job)
            self._changed.notify()
        return job.found

    def _check(self) -> None:
        if self.failure is not None:
            raise RlxError(f"the model has stopped: {self.failure}")
        if self._stop:
            raise RlxError("the server is stopping")

    def cancel(self, asked: Asked) -> None:
        """Cancels a sequence; its slot is free from the next step on. Does nothing for one that has ended."""
        with self._changed:
            if asked.cancelled:
                return
            asked.cancelled = True
            if asked in self._waiting:
                self._waiting.end(asked)
            elif asked.begun:
                self._left = True
                self._changed.notify()

    def stop(self) -> None:
        """Ends the thread after its step. Sequences that run or wait are failed."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Ends the thread, and frees the batch."""
        self.stop()
        self._builder.shutdown(cancel_futures=True)
        self.batch.close()

    # -- in the thread

    def _run(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            self._steps()
            why = "the server was stopped"
        except Exception as error:  # noqa: BLE001 - clients must not wait for ever
            self.failure = why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sys.setswitchinterval(before)
        with self._changed:
            self._stop = True
            asked = [*self._running.values(), *self._waiting.order]
            readings = [*self._readings, *([] if self._reading is None else [self._reading])]
            self._reading = None
            self._waiting = FairQueue()
            for held in (self._running, self._readings):
                held.clear()
        self._call(_fail, asked, readings, why, 503 if self.failure is None else 500)
        if self.failure is not None:
            self._call(self.failed)

    def _steps(self) -> None:
        parts: Iterator[None] | None = None  # what is left of the text that is being read
        seconds = 0.0  # the time of the last step
        tokens: list[Token] = []  # tokens not yet handed to the event loop
        turn = time.perf_counter()  # when the last ones were
        while True:
            with self._changed:
                while not (self._stop or self._running or self._readings or parts or self._next() is not None):
                    self._changed.wait()
                if self._stop:
                    return
                gone = [asked for asked in self._running.values() if asked.cancelled] if self._left else []
                self._left = False
                if parts is None and self._readings:
                    self._reading = self._readings.popleft()
                    parts = self._read_parts(self._reading)
            for asked in gone:
                self.batch.cancel(asked.number)
                self._end(asked)
            self._begin()
            if self._running:
                before, new = self.batch.prompted, [number for number, asked in self._running.items() if asked.first]
                start, steps, most = time.perf_counter(), self.batch.steps, 1
                if seconds and not parts:
                    most = max(1, int((TURN_SECONDS + turn - start) / seconds))
                # A place that becomes free is not left long to nobody.
                tokens += self.step(min(most, SOON) if self._waiting else most)
                now = time.perf_counter()
                if run := self.batch.steps - steps:  # fewer than `most` if a sequence needs single steps
                    seconds = (now - start) / run
                for number, count in self.batch.shared_by(new).items():
                    self._running[number].shared = count
                self.metrics.prompt_tokens += self.batch.prompted - before
                if now - turn + seconds > TURN_SECONDS or not self.batch.stepping:
                    self._hand_over(tokens)
                    tokens, turn = [], time.perf_counter()
            if parts is not None and next(parts, True):
                parts = self._reading = None

    def _read_parts(self, job: _Reading) -> Iterator[None]:
        """Reads a text, a part of its tokens between two steps."""
        parts: list[Any] = []
        if job.found.cancelled():  # while it waited
            return
        try:
            for part in job.parts():
                if job.found.cancelled():
                    return
                parts.append(part)
                self.metrics.prompt_tokens += len(part)
                yield
            outcome = job.join(parts)
        except RlxError as error:
            outcome = error
        self._reading = None  # first, since the event loop may then begin another
        self._call(_settle, job, outcome)

    def step(self, most: int) -> list[Token]:
        """Up to `most` tokens of each sequence, after or beside about `part` tokens of waiting prompts."""
        if self.batch.fuses and self.batch.stepping:
            return self.batch.step(most, self.part)
        return self.batch.step(1 if self.fill() else most)

    def fill(self) -> int:
        """Computes about `part` tokens of waiting prompts. Returns: how many."""
        taken = 0
        while taken <= self.part // 2 and (more := self.batch.fill(self.part - taken)):
            taken += more
        return taken

    def _next(self) -> Asked | None:
        """The next sequence among those whose programs are built. Starts the build of missing programs, and fails the
        sequences whose program could not be built."""
        for one in self._waiting.order:
            lacks = self.batch.lacks(one.sampling, one.constraint, one.penalties, one.scored)
            if lacks is None:
                return one
            built = self._building.get(lacks)
            if built is None:
                built = self._building[lacks] = self._builder.submit(self.batch.prepare, lacks)
                built.add_done_callback(self._notify)
            if not built.done():
                continue
            del self._building[lacks]
            if (error := built.exception()) is None:
                return one
            self._waiting.end(one)
            self._call(one.fail, str(error))
        return None

    def _notify(self, _: Any) -> None:
        with self._changed:
            self._changed.notify()

    def _begin(self) -> None:
        """Gives free slots to the sequences at the head of the queue."""
        while self.batch.free:
            with self._changed:
                one = self._next()
                if one is None:
                    return
                self._waiting.begin(one)
                self._waiting.charge(one, len(one.ids))
                one.begun = True
            try:
                one.number = self.batch.begin(one.ids, one.max_tokens, one.sampling, one.ends, one.constraint,
                                              adapter=one.adapter, scored=one.scored, penalties=one.penalties,
                                              priority=one.priority)  # fmt: skip
            except RlxError as error:
                with self._changed:
                    self._waiting.end(one)
                self._call(one.fail, str(error))
            else:
                self._running[one.number] = one

    def _end(self, asked: Asked) -> None:
        with self._changed:
            del self._running[asked.number]
            self._waiting.end(asked)

    def _hand_over(self, new_tokens: list[Token]) -> None:
        """Hands tokens to the event loop, grouped by sequence."""
        if not new_tokens:
            return
        now, m = time.perf_counter(), self.metrics
        told: dict[int, tuple[Asked, list[Token]]] = {}
        for token in new_tokens:
            if (asked := self._running.get(token.sequence)) is not None:  # it was not cancelled meanwhile
                told.setdefault(token.sequence, (asked, []))[1].append(token)
        for asked, tokens in told.values():
            with self._changed:
                self._waiting.charge(asked, len(tokens))
            if tokens[-1].ended:
                self._end(asked)
            count, passed = len(tokens), now - asked.since
            asked.since = now
            m.generated_tokens += count
            if asked.first:
                asked.first = False
                m.first_token.add(passed)
            else:
                m.between_tokens.add(passed / count, count)
        while not self._sent.acquire(timeout=0.1):
            if self._stop:
                return
        self._call(self._deliver, [*told.values()])

    def _deliver(self, told: list[tuple[Asked, list[Token]]]) -> None:
        self._sent.release()
        for asked, tokens in told:
            if asked.cancelled:
                continue
            try:
                asked.push(tokens)
            except Exception as error:  # noqa: BLE001 - the client must not wait for ever, nor others end with it
                asked.fail(f"{type(error).__name__}: {error}")
                self.cancel(asked)

    def _call(self, function: Any, *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._stop = True  # the event loop is closed: the server was killed, and no client is left


def _settle(job: _Reading, outcome: Any) -> None:
    if job.found.done():
        return
    if isinstance(outcome, RlxError):
        job.found.set_exception(outcome)
    else:
        job.found.set_result(outcome)


def _fail(asked: list[Asked], readings: list[_Reading], why: str, status: int) -> None:
    for one in asked:
        one.fail(why, status)
    for job in readings:
        _settle(job, RlxError(why))
