"""Decoder: runs a language model over tokens. A few programs, by chunk size, share weights and caches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.dtypes import DType, as_dtype, f16, f32, i8, i32
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError, UnsupportedOp
from rlx.formats.files import shown
from rlx.host.locks import renewed
from rlx.ir import TensorType, node_of
from rlx.models.language.adapters import Adapter, LowRank, LowRanks, Scaled
from rlx.models.language.caches import Size, cache_bytes, ring_rows
from rlx.models.language.config import Attention, LanguageConfig
from rlx.models.language.graph import GREEDY, LOG, Head, Picking, language_graph
from rlx.models.language.pages import ROWS, Pages
from rlx.models.language.placement import Room, check_lent, check_room, check_rooms, room_of
from rlx.models.language.shaping import Shaping
from rlx.models.language.speculation import Speculation
from rlx.models.language.split import SplitProgram, SplitStates, Stage
from rlx.models.language.weights import ModelWeights
from rlx.ops.packed_attention import BLOCK
from rlx.ops.random.draws import key as key_of
from rlx.records import Record
from rlx.runtime import CompiledGraph, Session, State, Store, Weights

if TYPE_CHECKING:
    from rlx.models.language.ranks import Ranks, RanksProgram, RanksStates
    from rlx.ranks.team import Team

    _Program = CompiledGraph | SplitProgram | RanksProgram

Ids = npt.NDArray[np.int32]
AHEAD = 16  # runs begun before their tokens are read
# A program's chunk, head, picking, turn, tokens of prompts beside its steps, and adapters.
_Key = tuple[int, Head, Picking, int, int, LowRank | LowRanks | None]
CHUNKS = (16, 128, 512)  # tokens of a prompt in one run; if too few are left for a padded run, each is a run of its own
LEAST = 16  # the smallest `prefill_chunk`
LONG, LONG_BYTES = 2048, 40 * 10**9  # the longest run of one sequence on a GPU with so much memory


def _sizes(largest: int | None, context: int, long: bool) -> tuple[int, ...]:
    """The chunk sizes for prompts; `long`: whether LONG is among them where no `largest` is asked for.

    Raises: ShapeError for an impossible `largest`."""
    if largest is None:
        return (*CHUNKS, LONG) if long and context >= LONG else CHUNKS
    if type(largest) is not int or largest < LEAST:
        raise ShapeError(f"prefill_chunk is {largest!r}; expected an integer from {LEAST}")
    largest = min(largest, max(context, LEAST))
    return (*(c for c in CHUNKS if c < largest), largest)


class Sampling(Record):
    """How tokens are sampled: a temperature of 0 takes the likeliest."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    min_p: float | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 1e6)
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if value is not None:
                _number(name, value, 0.0, 1.0)
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise DTypeError(f"top_k is {self.top_k!r}; expected an integer from 1, or None for no such limit")
        for name, value in (("top_k", self.top_k), ("top_p", self.top_p), ("min_p", self.min_p)):
            if value is not None and not self.temperature:
                raise DTypeError(
                    f"{name} is {value!r} beside a temperature of 0, which takes the likeliest token and draws none; "
                    f"give a temperature such as 0.8, or leave {name} out"
                )
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise DTypeError(f"seed is {self.seed!r}; expected an integer from 0 to 2**64 - 1")

    @property
    def picking(self) -> Picking:
        if self.temperature == 0:
            return GREEDY
        return Picking(False, self.top_k, "top_p" in self.limits, min_p="min_p" in self.limits)

    @property
    def limits(self) -> dict[str, float]:
        """`top_p` and `min_p`, unless all tokens are within them."""
        limits = {"top_p": (self.top_p, 1.0), "min_p": (self.min_p, 0.0)}
        return {name: value for name, (value, none) in limits.items() if value is not None and value != none}

    def inputs(self) -> dict[str, Any]:
        if self.temperature == 0:
            return {}
        numbers = {"temperature": self.temperature, **self.limits}
        made: dict[str, Any] = {n: np.array([v], np.float32) for n, v in numbers.items()}
        return {"key": np.asarray(key_of(self.seed)).reshape(1, 2), **made}


class Decoder(Closing):
    """A model on one device with its caches, or its layers on several. Its programs are compiled when first needed.

    `context` is how many tokens the caches hold; `length` how many are in them. `split` lists the sessions whose
    devices take the layers, in order, each with a number of layers: None for as many as fit, or for the last the rest.
    With `slots` there are caches for several sequences, which `Batch` fills, or the `pages` that these share; `like` is
    a decoder of the same model, whose weights are used. `ranks` are those that share the model, `weights` those of the
    first one in this process. `prefill_chunk` is the most tokens of a prompt in one run. None means 512, or 2,048 for
    one sequence on a GPU of at least 40 GB of which the model leaves an eighth free: on smaller ones such a run of a
    large model could take seconds, after which some drivers abort it. Not for use by several threads at once.
    Raises: OutOfDeviceMemory, before anything is read, for a model that does not fit; ShapeError for a `split` that is
    not one of the model's layers.
    """

    def __init__(
        self, config: LanguageConfig, weights: ModelWeights, session: Session, context: int, *,
        activations: DType = f32, cache: DType = f32, slots: int = 1, like: Decoder | None = None,
        split: Sequence[tuple[Session, int | None]] = (), pages: Pages | None = None,
        prefill_chunk: int | None = None, ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.ranks: Ranks | None = ranks if like is None else like.ranks
        self.pages = pages
        self.slots = slots
        self.session = session
        self.context = context
        self.length = self.slot = self._top = 0
        self.activations = activations
        self.cache = cache
        self.prefill_chunk = prefill_chunk
        info = session.info
        long = slots == 1 and not split and info.kind == "discrete" and info.memory_bytes >= LONG_BYTES
        self.sizes = _sizes(prefill_chunk, context, long)
        self.source = weights
        self.adapter: Adapter | None = None  # the adapter of the programs and of the caches' content
        self.number = -1  # the adapter of the prompt being computed, among those of `place`; -1 for none
        self._several: LowRanks | None = None
        self._placed: dict[str, Adapter] = {}  # adapters whose matrices the states hold
        self._programs: dict[_Key, _Program] = {}
        self._lock = renewed(self, "_lock", threading.Lock)
        self._closed = False
        self._weights = (weights,) if self.ranks is None else self.ranks.weights
        for rank, each in enumerate(self._weights):
            self.graph(1, rank=rank)
            each.check()
        if prefill_chunk is None and long:  # the free memory must hold the tensors of a long run
            need = sum(self.room(context).need(range(config.layers), like is not None))
            if need > session.device.free_bytes() // 8 * 7:
                self.sizes = CHUNKS
        sessions = split or [(session, None)]
        if like is not None:
            sessions = [(stage.session, len(stage.layers)) for stage in like.stages]
        count = 0 if pages is None else pages.count
        if self.ranks is not None:
            sessions = [(session, None) for session in self.ranks.meeting.sessions]
            layers = check_rooms(self.room, sessions, self.slots, context, like is not None, count)
        else:
            layers = check_room(self.room, sessions, self.slots, context, like is not None, count)
            check_lent(config, weights.source.where, layers)
        self.stages: list[Stage] = []
        for (own, _), part in zip(sessions, layers, strict=True):
            held = Weights(own.device) if like is None else like.stages[len(self.stages)].weights
            self.stages.append(Stage(own, part, held, State(own.device)))
        # On Vulkan the host waits for a program's last run before it starts that program again; so two alternate.
        self.turns = 2 if self._whole and session.info.id.startswith("vulkan") else 1
        self.state: State | SplitStates | RanksStates = self.stages[0].state
        if self._team is not None:
            from rlx.models.language.ranks import RanksStates  # most models have none

            self.state = RanksStates(self._team, [stage.state for stage in self.stages])
        elif not self._whole:
            self.state = SplitStates(self.stages)
        self._lends = like is None  # whether the weights are this decoder's own
        if like is not None:
            return
        try:
            if self.ranks is None:
                self._load(weights, self.stages)
            for rank, each in enumerate(() if self.ranks is None else self._weights):
                self._load(each, self.stages[rank : rank + 1], rank)
        except BaseException:
            self.close()
            raise

    def _load(self, weights: ModelWeights, stages: Sequence[Stage], rank: int = 0) -> None:
        """Reads the weights of some stages."""
        stores: dict[str, list[Store]] = {}
        for stage in stages:
            params = self.graph(1, layers=stage.layers, rank=rank).params
            stage.weights.declare({name: t.type for name, t in params.items()})
            for name in params:
                stores.setdefault(name, []).append(stage.weights)
        weights.load(stores)

    @property
    def _whole(self) -> bool:
        """Whether each program has all layers."""
        return len(self.stages) == 1 or self.ranks is not None

    @property
    def rank(self) -> int:
        """The number of the rank that this process is, of several that share the model."""
        return 0 if self.ranks is None else self.ranks.meeting.own[0]

    @property
    def _team(self) -> Team | None:
        """The threads of the ranks, where these are threads."""
        return None if self.ranks is None else self.ranks.team

    @property
    def where(self) -> str:
        """The device, or how many layers are on each."""
        if self.ranks is not None:
            return self.ranks.text
        return self.session.info.id if self._whole else ", ".join(stage.where for stage in self.stages)

    def room(self, context: int) -> Room:
        """The memory that the layers need with caches for `context` tokens, of all ranks on one device together."""
        config = self.config if self.ranks is None else self.ranks.parts[0].local()
        if self.pages is not None:
            caches = cache_bytes(config, context, self.cache, self.pages.count)
        else:
            one = cache_bytes(config, context, self.cache, longest=self.sizes[-1])
            caches = tuple(self.slots * n for n in one)
        where = self.source.source.where
        return room_of(config, where, self.source.sizes, self.source.table_bytes, caches)

    @property
    def cache_bytes(self) -> int:
        """The bytes of all keys and values."""
        return sum(self.room(self.context).caches)

    def graph(
        self, chunk: int, head: Head = "token", picking: Picking = GREEDY, layers: range | None = None, rank: int = 0,
        beside: int = 0,
    ) -> Any:  # fmt: skip
        batch = beside + (self.slots if head in ("next", "guessed") else 1)
        if head == "next" and layers is not None:  # the host starts each step if layers are on several devices
            head = "token"
        pages = 0 if self.pages is None else self.pages.count
        size = Size(batch, chunk, self.context, self.activations, self.cache, self.slots, pages, self.sizes[-1], beside)
        if self.ranks is None:
            return language_graph(self.config, size, self.source, head, picking, self._low, layers)
        part = self.ranks.parts[rank]
        return language_graph(part.local(), size, self._weights[rank], head, picking, layers=layers, parallel=part)

    @property
    def _low(self) -> LowRank | LowRanks | None:
        return self._several if self.adapter is None else self.adapter.low

    def fit(self, adapter: Adapter) -> None:
        """Makes the matrices of an adapter for this model; they are copied to the device when it is first used.

        Raises: ModelFormatError for an adapter of another model, UnsupportedOp where ranks share the model."""
        if self.ranks is not None:
            raise UnsupportedOp(f"{adapter.path}: a model that tensor_parallel cuts takes no adapters; "
                                "layers_on= does, and so does one device")  # fmt: skip
        kept, self.adapter = self.adapter, adapter
        try:
            self.graph(1)
        finally:
            self.adapter = kept
        adapter.make(self.activations, self.config.multiplier, self._weight_of)
        for name in adapter.bases:
            weight = self.source.matrix(name)
            store = next((s.weights for s in self.stages if weight is not None and s.weights.find(weight)), None)
            if weight is None or store is None:
                raise ModelFormatError(f"{adapter.path} holds a weight of {shown(name)}, which the model has not")
            adapter.check_base(name, store.get(weight))

    def _weight_of(self, product: str) -> Scaled:
        """The weight of a product as the device has it, and its scale."""
        name = f"{product}.weight"
        store = next(stage.weights for stage in self.stages if stage.weights.find(name))
        return store.get(name), self.source.scale_of(name)

    def use(self, adapter: Adapter | None) -> None:
        """Runs the model with this adapter, fitted to it before, or with none, from now on. A change makes the content
        of the caches useless. Raises: OutOfDeviceMemory."""
        self.adapter = adapter
        if adapter is None:
            return
        for name, array in adapter.matrices.items():
            if self._placed.get(name) is not adapter:
                self.state.reserve({name: _type_of(array)})
                self._placed.pop(name, None)
                self.state.set(name, array)
                self._placed[name] = adapter

    def place(self, adapters: Sequence[Adapter]) -> None:
        """Loads several fitted adapters at once: each sequence then uses the one of its number, -1 for none. Raises:
        OutOfDeviceMemory."""
        self._several = several = LowRanks(adapters)
        self.graph(1)
        for name, array in several.matrices.items():
            self.state.reserve({name: _type_of(array)})
            self.state.set(name, array)

    @property
    def programs(self) -> list[_Program]:
        """The programs compiled so far."""
        with self._lock:
            return list(self._programs.values())

    def program(
        self, chunk: int, head: Head = "token", picking: Picking = GREEDY, turn: int = 0, beside: int = 0
    ) -> _Program:
        """The program for one chunk size; each `turn` has a program of its own, since the host need not wait between
        runs of two different programs. `beside` is how many tokens of prompts a step of all slots computes too, where
        `fuses` allows it. Raises: GraphError after `close`."""
        key = (chunk, head, picking, turn, beside, self._low)
        if (result := self._known(key)) is None:
            made = self._compiled(chunk, head, picking, beside)  # unlocked: other threads can use other programs
            result = self._known(key, made)
            if result is not made:
                made.close()
        assert result is not None
        return result

    def _known(self, key: _Key, new: _Program | None = None) -> _Program | None:
        """The program of a key; `new` is entered if there was none. Raises: GraphError after `close`."""
        with self._lock:
            if not self._closed:
                return self._programs.get(key) if new is None else self._programs.setdefault(key, new)
        if new is not None:
            new.close()
        raise GraphError("the model is closed; load it again")

    @cached_property
    def fuses(self) -> bool:
        """Whether one run can take steps of all slots and tokens of prompts: all layers must be on one device, which
        has kernels that read the pages of each layer's keys."""
        a = self.config.attention
        if self.ranks is not None or len(self.stages) > 1 or a is None or self.config.recurrent:
            return False
        if a.latent or a.alibi or a.sinks:
            return False
        return all(self._reads_pages(own) for own in map(a.of, range(self.config.layers)))

    def _reads_pages(self, a: Attention) -> bool:
        """Whether the device has a kernel for attention to pages of keys of these sizes; without one, all pages of each
        token's sequence would be copied."""
        keys = (1, ROWS, a.kv_heads, a.head_size)
        if self.cache.is_packed:
            types = [self.activations, i8, i8, i32, i32, f16, f16]
            scales = (*keys[:3], a.head_size // BLOCK)
        else:
            types, scales = [self.cache] * 3 + [i32, i32], keys
        shapes = ((1, 1, a.heads, a.head_size), keys, keys, (1, 1), (1,), scales, scales)
        attrs = {"scale": a.scale, "causal": False, "window": None, "softcap": a.softcap}
        node = node_of("paged_attention", [*map(TensorType, shapes, types)], attrs)
        return self.session.device.support(node) == "native"

    def _compiled(self, chunk: int, head: Head, picking: Picking, beside: int = 0) -> _Program:
        def one(graph: Any, stage: Stage) -> CompiledGraph:
            return stage.session.compile(graph, weights=stage.weights, state=stage.state)

        if self._team is not None:
            from rlx.models.language.ranks import RanksProgram

            graphs = (self.graph(chunk, head, picking, rank=rank) for rank in range(len(self.stages)))
            return RanksProgram(self._team, [one(g, stage) for g, stage in zip(graphs, self.stages, strict=True)])
        whole = self.graph(chunk, head, picking, beside=beside)
        if isinstance(self.state, State):
            return one(whole, self.stages[0])
        parts = [one(self.graph(chunk, head, picking, stage.layers), stage) for stage in self.stages]
        assert isinstance(self.state, SplitStates)
        return SplitProgram(whole, parts, self.state, self.context)

    # -- chunks

    def chunks(self, count: int) -> Iterator[int]:
        """The chunk sizes for `count` tokens after the first `length`; the last chunk may need padding."""
        at, left = self.length, count
        while left:
            room = self.context - at
            sizes = [c for c in self.sizes if c <= room]
            if self.config.recurrent:  # padding would change the recurrent states
                sizes = [c for c in sizes if c <= left]
            whole = [c for c in sizes if c <= left]
            padded = [c for c in sizes if c > left]
            # Several runs of 512 tokens take hardly longer than one run over all of them, so a long run is padded less.
            # On a large GPU a short run takes hardly longer than a shorter one.
            short = 8 if self.session.info.kind == "discrete" else 2
            least = 0 if not padded else padded[0] * 3 // 4 if padded[0] >= LONG else padded[0] // short
            if padded and (left > 2 or whole) and (not whole or left > least):
                size = padded[0]
            else:
                size = whole[-1] if whole else 1
            yield size
            at, left = at + min(size, left), left - min(size, left)

    def _inputs(self, ids: Ids, size: int) -> dict[str, Any]:
        padded = np.zeros((1, size), np.int32)
        padded[0, : len(ids)] = ids
        result: dict[str, Any] = {"ids": padded, "at": np.array([self.length], np.int32)}
        if self._several is not None:
            result["adapter"] = np.array([self.number], np.int32)
        if self.pages is not None:
            result["table"] = self.pages.table[self.slot : self.slot + 1]
        elif self.slots > 1:
            result["slot"] = np.array(self.slot, np.int32)
        return result

    def _runs(self, ids: Ids) -> Iterator[tuple[Ids, int]]:
        """The parts of a prompt with their chunk sizes; `length` grows with each part."""
        done = 0
        for size in self.chunks(len(ids)):
            part = ids[done : done + size]
            self._top = max(self._top, self.length + size)
            yield part, size
            done += len(part)
            self.length += len(part)

    # -- what a caller uses

    def check_ids(self, ids: Sequence[int] | Ids, more: int = 0) -> Ids:
        """The ids as an array. Raises: DTypeError, ShapeError for ids out of range, and for more than the context."""
        try:
            given = np.asarray(ids)
        except ValueError as error:
            raise DTypeError("token ids are rows of several lengths; expected one row of integers") from error
        whole = given.dtype.kind in "iu" or all(type(i) is int for i in given.flat)  # those beyond 64 bits are objects
        if given.ndim != 1 or not whole:
            what = f"{given.dtype} {given.shape}" if given.ndim else f"{ids!r:.60}"
            raise DTypeError(f"token ids are {what}; expected one row of integers{_instead_of_ids(ids)}")
        top = self.config.vocabulary
        if given.size and not 0 <= int(given.min()) <= int(given.max()) < top:
            odd = int(given.min()) if given.min() < 0 else int(given.max())
            raise ShapeError(f"token {odd} is out of range; the model has the tokens 0 to {top - 1}")
        if len(given) + more > self.context:
            longest = self.config.positions
            larger = f", or load the model with a larger context (it was made for {longest})"
            raise ShapeError(
                f"{len(given)} tokens" + (f" and {more} to come" if more else "") + f" are more than the context of "
                f"{self.context}" + (f"; shorten the prompt{larger}" if self.context < longest else
                                     ", all that the model was made for; shorten the prompt")
            )  # fmt: skip
        return given.astype(np.int32)

    @property
    def token_bytes(self) -> int:
        """The bytes of weights that a run over one token reads."""
        return self.source.bytes_read

    def keeps(self, length: int) -> bool:
        """Whether the caches hold all that is needed to continue after the first `length` tokens: a ring buffer may
        have overwritten keys that are still inside the window."""
        a = self.config.attention
        for window in {None} if a is None or length == 0 else set(a.windows):
            rows = ring_rows(window, self.context, self.sizes[-1])
            if window is not None and rows < self.context and max(0, length - window) < self._top - rows:
                return False
        return True

    def straight(self, length: int) -> bool:
        """Whether each of the first `length` tokens is in the cache row of its position, also after runs beyond them:
        no ring buffer has wrapped around, and the model is not recurrent."""
        a = self.config.attention
        if self.config.recurrent or a is None:
            return False
        rows = min(ring_rows(window, self.context, self.sizes[-1]) for window in a.windows)
        return rows == self.context or length + max(self.sizes[-1], AHEAD) <= rows

    def reset(self, length: int = 0) -> None:
        """Forgets all but the first `length` tokens. Raises: GraphError for a recurrent model, whose state cannot be
        rolled back, and where the caches of windowed layers no longer hold the keys needed (`keeps`)."""
        if self.config.recurrent and length not in (0, self.length):
            raise GraphError("a recurrent model cannot forget some of its tokens; reset(0) forgets all")
        if not self.keeps(length):
            raise GraphError(f"layers with windows have lost the keys before token {length:,}; reset(0) forgets all")
        self._top = self._top if length else 0
        if self.config.recurrent and length == 0:
            for program in list(self._programs.values())[:1]:
                for name, t in program.graph.states.items():
                    if name in self._placed:
                        continue
                    self.state.set(name, np.zeros(t.shape, t.dtype.np))
        self.length = length

    def logits(self, ids: Ids) -> npt.NDArray[np.float32]:
        """The logits at each token, f32 (tokens, vocabulary); the tokens follow those in the caches."""
        return self._all(ids, "logits", self.config.vocabulary)

    def hidden(self, ids: Ids) -> npt.NDArray[np.float32]:
        """The states after the last norm, f32 (tokens, width)."""
        return self._all(ids, "hidden", self.config.width)

    def _all(self, ids: Ids, head: Head, width: int) -> npt.NDArray[np.float32]:
        if self.ranks is not None:
            self.ranks.agree(ids, {})
        out, done = np.empty((len(ids), width), np.float32), 0
        for part, size in self._runs(ids):
            found = self.program(size, head).run(self._inputs(part, size))[head]
            out[done : done + len(part)] = found[0, : len(part)]
            done += len(part)
        return out

    def prepare(
        self, count: int, sampling: Sampling, guesses: int = 0, shaping: Shaping | None = None
    ) -> float:
        """Builds the programs for a prompt of `count` tokens and its answer, whose runs verify up to `guesses` guesses.
        Returns: the seconds that it took."""
        start, picking = time.perf_counter(), _picking(sampling, shaping)
        for size in set(self.chunks(count)):
            self.program(size, "token", picking).prepare()
        if guesses:
            self.program(1, "token").prepare()
            if self.length + guesses < self.context:
                self.program(1 + guesses, "choices").prepare()
            return time.perf_counter() - start
        for turn in range(self.turns):
            self.program(1, "next", picking, turn).prepare()
        return time.perf_counter() - start

    def prefill(self, ids: Ids, sampling: Sampling, shaping: Shaping | None = None) -> int:
        """Computes these tokens. Returns: the token that follows them."""
        more = sampling.inputs() | (shaping.inputs() if shaping else {})
        return int(self.take(ids, _picking(sampling, shaping), more)["token"][0, 0])

    def take(self, ids: Ids, picking: Picking, more: Mapping[str, Any]) -> dict[str, Any]:
        """Computes these tokens. Returns: the outputs of the last run, which picks the next token; `more` are that
        run's inputs for sampling and masks."""
        result: dict[str, Any] = {}
        if self.ranks is not None:
            self.ranks.agree(ids, more)
        for part, size in self._runs(ids):
            inputs = {**self._inputs(part, size), **more}
            if size > 1:
                inputs["last"] = np.array([len(part) - 1], np.int32)
            result = self.program(size, "token", picking).run(inputs)
        return result

    def decode(
        self, token: int, sampling: Sampling, ahead: int = 1, most: int | None = None, shaping: Shaping | None = None
    ) -> Iterator[int]:
        """Generates the tokens after this one, `most` of them, or until the context is full.

        The steps need nothing from the host: several are launched one after the other, and then the host reads all
        their tokens, since a read waits for all work launched before it. Their number grows from `ahead`, so that the
        first tokens come at once. No run is launched beyond the last token.
        `length` counts the tokens whose successors were given: cache rows that runs beyond them wrote are overwritten
        later. A recurrent model takes one step at a time, since its states cannot be rolled back; so does `shaping`,
        which must see each token before the next run."""
        at = self.length
        end = self.context if most is None else min(self.context, at + most)
        if at >= end:
            return
        programs = [self.program(1, "next", _picking(sampling, shaping), turn) for turn in range(self.turns)]
        start = {"ids": np.full((1, 1), token, np.int32), "at": np.array([at], np.int32), **sampling.inputs()}
        start["stride"] = np.ones(1, np.int32)
        for name, value in start.items():
            self.state.set(name, value)
        while at < end:
            count = min(ahead, end - at)
            for name, value in shaping.inputs().items() if shaping else ():
                self.state.set(name, value)
            self._top = max(self._top, at + count)
            runs = [programs[i % len(programs)].launch() for i in range(at, at + count)]
            runs[-1].wait()
            log = self.state.get("log")[0]
            made = [int(log[i % LOG]) for i in range(at, at + count)]
            at += count
            for found in made:
                self.length += 1
                yield found
            waits = shaping or self.config.recurrent or not self._whole or self.session.info.kind == "cpu"
            ahead = 1 if waits else min(2 * ahead, AHEAD)

    def guess(self, history: list[int], speculation: Speculation) -> Iterator[int]:
        """Generates the likeliest tokens after the history by speculative decoding.

        One run over the last token and the guesses after it shows how many guesses match the model's own choices: these
        and the model's next choice are given. The caller adds each token to the history. Raises: GraphError for a
        recurrent model, whose states cannot be rolled back."""
        if self.config.recurrent:
            raise GraphError("a recurrent model cannot take back wrong guesses; generate without lookup and draft")
        while self.length < self.context:
            size = 1 + speculation.most
            fits = self.length + size <= self.context
            guessed = speculation.guess(history, speculation.most) if fits else []
            if not guessed:
                size = 1
            self._top = max(self._top, self.length + size)
            inputs = self._inputs(np.array([history[-1], *guessed], np.int32), size)
            head: Head = "choices" if size > 1 else "token"
            choices = self.program(size, head).run(inputs)[head][0].tolist()
            right = next((i for i, (g, c) in enumerate(zip(guessed, choices, strict=False)) if g != c), len(guessed))
            speculation.tried += len(guessed)
            speculation.right += right
            for token in choices[: right + 1]:
                self.length += 1
                yield token

    def close(self) -> None:
        """Frees programs, caches and weights. Idempotent."""
        with self._lock:
            self._closed = True
            for program in self._programs.values():
                program.close()
            self._programs.clear()
            for stage in getattr(self, "stages", ()):
                stage.state.close()
                if self._lends:
                    stage.weights.close()


def _instead_of_ids(prompt: Any) -> str:
    """What to write for a prompt that is no token ids; empty where that is not known."""
    if isinstance(prompt, str | bytes):
        return "; model.tokenize(text) gives them"
    try:
        kinds = {type(one) for one in prompt}
    except TypeError:
        return ""
    if kinds == {str}:
        return "; one text at a time is taken, and model.batch(slots) runs several at once"
    return "; model.chat takes messages" if kinds == {dict} or isinstance(prompt, dict) else ""


def _type_of(array: npt.NDArray[Any]) -> TensorType:
    return TensorType(array.shape, as_dtype(array.dtype))


def _picking(sampling: Sampling, shaping: Shaping | None) -> Picking:
    return shaping.picking(sampling.picking) if shaping else sampling.picking


def _number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise DTypeError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")
