"""The caches of keys and values of a language model: how many rows they have, how a run writes them, and attention."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.dtypes import DType, bf16, f16, f32, i8
from rlx.ir import Graph, Tensor
from rlx.models.language.config import LanguageConfig
from rlx.models.language.pages import ROWS
from rlx.ops.packed_attention import BLOCK
from rlx.records import Record

LONGEST = 512  # the most tokens of a sequence that one run writes into caches, unless the model was loaded for more
_ROWS = 64  # the rows of a ring buffer are a multiple of this


def ring_rows(window: int | None, context: int, chunk: int = 0) -> int:
    """The rows of a layer's caches for a context. A layer whose queries see `window` keys before their own has a ring
    buffer for these and the tokens of one run: the token at position p is in row p modulo the number of rows."""
    if window is None:
        return context
    return min(context, -(-(window + max(chunk, LONGEST)) // _ROWS) * _ROWS)


class Size(Record):
    """The sizes of a model's program: sequences, tokens of each in a run, rows of their caches, dtypes. A context of 0
    means no caches: tokens attend to those of the same run, as in training."""

    batch: int
    chunk: int
    context: int
    activations: DType = f32
    cache: DType = f32
    slots: int = 1  # sequences that the caches hold: `batch`, or more where the batch is 1
    pages: int = 0  # pages of the pool that all sequences share; 0: each slot has rows of its own
    longest: int = 0  # tokens of the longest run of any program on these caches; at least LONGEST
    beside: int = 0  # how many of the `batch`, the last ones, are tokens of prompts and not steps of slots

    @property
    def stepped(self) -> int:
        """How many of the batch are steps, the first ones."""
        return self.batch - self.beside


class Caches:
    """The caches of one graph: states (slots, rows, kv_heads, head_size), of which a run writes `chunk` rows of each
    sequence in place; `at`, i32 (batch,), is the position of each sequence's first token in this run, `slot`, i32 (),
    the slot of the run's only sequence where there are more slots.

    A q8_0 cache is two states, integers and their scales (`rlx.q8_0_blocks`). With `size.pages` the states are
    (pages, ROWS, kv_heads, head_size), and `table`, i32 (batch, pages of the context), lists each sequence's pages.
    With `size.beside` and no pages, `owners`, i32 (batch,), are the slots of the batch's tokens, whose rows are read as
    pages."""

    def __init__(
        self, g: Graph, size: Size, at: Tensor, slot: Tensor | None, table: Tensor | None = None,
        owners: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.g, self.size, self.at = g, size, at
        self.packed = size.cache.is_packed
        self._slot = slot
        self._context = size.context or size.chunk  # the run's own rows take the place of missing caches
        self._table, self._owners = table, owners
        self._tables: dict[int, Tensor] = {}  # the tables of slots' rows as pages, by the caches' number of rows
        self._one = ops.reshape(at, ()) if size.batch == 1 else None
        self._starts: dict[int, Tensor] = {}  # the places that a run writes to, by the caches' number of rows
        self._masks: dict[tuple[int, int], Tensor] = {}  # masks by window and rows
        self._behind: Tensor | None = None
        self.held: dict[int, list[Tensor]] = {}  # what each layer's caches hold after this run's rows, as `read` takes

    def attention(
        self, index: int, q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float, softcap: float | None,
        slopes: tuple[float, ...] = (), rounded: bool = False,
    ) -> Tensor:  # fmt: skip
        """Attention of a layer over its caches after this run's k and v are written there: all tensors are (batch,
        chunk, heads, size). `slopes` are what each head's scores lose per token of distance (ALiBi), `rounded` as in
        `distances`."""
        if slopes:
            keys, values = self.keys_and_values(index, k, v, window)
            lost = self.distances(slopes, self.size.context, scale if rounded else None)
            return self._seeing(q, keys, values, window, scale, softcap, lost)
        self._write(index, k, v, window)
        return self.read(index, q, window, scale, softcap)

    def updated(
        self, index: int, q: Tensor, k: Tensor, v: Tensor, window: int | None, tables: tuple[Tensor, Tensor],
        interleaved: bool,
    ) -> Tensor:  # fmt: skip
        """q after RoPE, (batch, chunk, heads, size) in the caches' dtype, where `scatters`; k, after RoPE, and v are
        written into a layer's caches."""
        rows, (heads, size) = self.rows(window), k.shape[2:]
        lead = (self.size.pages, ROWS) if self.size.pages else (self.size.slots, rows)
        names = (f"keys.{index}", f"values.{index}")
        pools = [self.g.state(name, (*lead, heads, size), self.size.cache) for name in names]
        flat = [ops.reshape(t, (math.prod(lead), heads, size)) for t in pools]
        fresh = [ops.reshape(t, (-1, *t.shape[2:])) for t in (q, k, v)]
        (q_rows, k_rows, v_rows), (keys, values), (cos, sin) = fresh, flat, tables
        turned, *flat = ops.rope_update(
            q_rows, k_rows, v_rows, keys, values, self._places(window), ops.reshape(self._tokens, (-1,)), cos, sin,
            interleaved=interleaved,
        )  # fmt: skip
        each = self._pages_of(window)[1] if self._in_pages else 0
        shape = (math.prod(lead) // each, each, heads, size) if each else (*lead, heads, size)
        self.held[index] = []
        for name, pool, t in zip(names, pools, flat, strict=True):
            self.g.update(name, ops.reshape(t, pool.shape))
            self.held[index].append(ops.reshape(t, shape))
        return ops.reshape(turned, q.shape)

    @cached_property
    def _tokens(self) -> Tensor:
        """The position of each token of this run, i32 (batch, chunk)."""
        step = self.g.constant(np.arange(self.size.chunk, dtype=np.int32).reshape(1, -1))
        return ops.reshape(self.at, (self.size.batch, 1)) + step

    def scatters(self, window: int | None) -> bool:
        """Whether a run writes rows of floats here and there, and reads them in whole caches or in pages."""
        if self.packed or not self.size.context or self._slot is not None:
            return False
        return self._in_pages or not self._in_one_piece(self.rows(window))

    def _places(self, window: int | None) -> Tensor:
        """The index among all rows of the layer's caches of each token's row, i32 (batch · chunk,); beyond them for
        tokens in page 0, which is nobody's, so that no two tokens have one row."""
        rows = self.rows(window)
        if not self._in_pages:
            return self._start(rows)
        if rows not in self._starts:
            table, each = self._pages_of(window)
            place = self._tokens
            page = ops.gather_elements(table, place // each, axis=1)
            row = page * each + place % each
            if self.size.pages:
                row = ops.where(ops.equal(page, 0), self.size.pages * ROWS, row)
            self._starts[rows] = ops.reshape(row, (-1,))
        return self._starts[rows]

    @property
    def _read_in_place(self) -> bool:
        """Whether attention reads the pages where they are."""
        return self._in_pages and (not self.packed or self.size.chunk == 1)

    def _write(self, index: int, k: Tensor, v: Tensor, window: int | None) -> None:
        """Writes this run's k and v of a layer into its caches."""
        if self._read_in_place:
            fresh = self._blocks(index, k, v) if self.packed else self._floats(index, k, v)
            self.held[index] = self._pools(fresh, window)
        elif self.packed and self.size.chunk == 1:
            one = self.size.slots == self.size.batch and not self._in_pages
            rows = self._updated(index, k, v, window) if one else self._rows_of(self._blocks(index, k, v), window)
            self.held[index] = rows
        else:
            self.held[index] = [*self.keys_and_values(index, k, v, window)]

    def read(self, index: int, q: Tensor, window: int | None, scale: float, softcap: float | None) -> Tensor:
        """Attention over a layer's caches, into which this run's keys and values have been written: (batch, chunk,
        heads, size)."""
        held, one = self.held[index], self.size.chunk == 1
        if self._read_in_place:
            keys, values = held[::2] if self.packed else held
            scales = held[1::2] if self.packed else ()
            query, length = q if self.packed else ops.cast(q, self.size.cache), self.at + self.size.chunk
            causal = not one or window is not None
            return ops.paged_attention(query, keys, values, self._pages_of(window)[0], length, *scales, scale=scale,
                                       causal=causal, window=window, softcap=softcap)  # fmt: skip
        if self.packed and one:
            return ops.packed_attention(q, *held, scale=scale, softcap=softcap, **self._seen(window))
        keys, values = held
        return self._seeing(q, keys, values, window, scale, softcap)

    def _seeing(
        self, q: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float, softcap: float | None,
        mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        attrs = {"scale": scale, "softcap": softcap, **self._seen(window)}
        if mask is not None:
            attrs["mask"] = mask
        return turned(ops.attention(turned(ops.cast(q, keys.dtype)), turned(keys), turned(values), **attrs))

    def distances(self, slopes: tuple[float, ...], rows: int, rounded: float | None = None) -> Tensor:
        """The ALiBi bias added to each head's scores, by the distance from a query to the key in each row (a row's
        index is its position): f32 (batch, heads, chunk, rows). With a number for `rounded`, Falcon's variant: the
        key's position times the slope, computed in bf16, times that number: (heads, 1, rows)."""
        if rounded is not None:
            steps = np.asarray(slopes).astype(bf16.np).astype(np.float32)
            # A product of bf16 and an integer rounds the integer to bf16 first.
            places = np.arange(rows).astype(bf16.np).astype(np.float32)
            gain = (steps.reshape(-1, 1, 1) * places).astype(bf16.np).astype(np.float32)
            return self.g.constant(gain * np.float32(rounded))
        if self._behind is None or not self.size.context:  # layers without caches may be in bodies of their own
            step = self.g.constant(np.arange(self.size.chunk, dtype=np.int32).reshape(1, 1, -1, 1))
            numbers = self.g.constant(np.arange(rows, dtype=np.int32))
            first = ops.reshape(self.at, (self.size.batch, 1, 1, 1)) if self.size.context else 0
            self._behind = ops.cast(numbers - (step + first), f32)
        return self._behind * self.g.constant(np.asarray(slopes, np.float32).reshape(1, -1, 1, 1))

    def latent(self, index: int, q: Tensor, row: Tensor, scale: float, chosen: Tensor | None = None) -> Tensor:
        """Attention of a layer where one `row` per token, (batch, chunk, 1, size), is key and value of all heads:
        (batch, chunk, heads, size). The caches hold only these rows. `chosen`, bool (batch, 1, chunk, rows), says
        which of them a query attends to; None for all before it."""
        keys = self.kept(f"keys.{index}", row)
        return self._seeing(q, keys, keys, None, scale, None, chosen)

    def kept(self, name: str, row: Tensor) -> Tensor:
        """All rows of each sequence, (batch, rows, 1, size), after one `row` per token is written into a state."""
        if not self.packed:
            return self._rows_of([(name, ops.cast(row, self.size.cache))], None)[0]
        codes, scales = self._rows_of(list(zip((name, f"{name}.scales"), ops.q8_0_blocks(row), strict=True)), None)
        return ops.cast(ops.q8_0_numbers(codes, scales), self.size.activations)

    def keys_and_values(self, index: int, k: Tensor, v: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """A layer's keys and values from its caches, after this run's k and v are written: (batch, rows, kv_heads,
        size), in the caches' dtype, or in that of activations where the caches are packed."""
        if not self.packed:
            keys, values = self._rows_of(self._floats(index, k, v), window)
            return keys, values
        parts = self._rows_of(self._blocks(index, k, v), window)
        keys, values = (ops.cast(ops.q8_0_numbers(*parts[i : i + 2]), self.size.activations) for i in (0, 2))
        return keys, values

    def _rows_of(self, fresh: list[tuple[str, Tensor]], window: int | None) -> list[Tensor]:
        """Writes this run's rows into the states of these names. Returns: all rows of each sequence, (batch, rows, …).
        """
        if not self._in_pages:
            return [self._written(name, t, window) for name, t in fresh]
        table = self._pages_of(window)[0]
        return [ops.paged_rows(pool, table)[:, : self.size.context] for pool in self._pools(fresh, window)]

    @property
    def _in_pages(self) -> bool:
        return self._table is not None or self._owners is not None

    def _pages_of(self, window: int | None) -> tuple[Tensor, int]:
        """The pages of each of the batch in a layer with that window, i32 (batch, pages of the context), and the rows
        of a page. The page of a ring that has begun anew stands in the table again."""
        if self._table is not None:
            return self._table, ROWS
        assert self._owners is not None
        rows = self.rows(window)
        each = math.gcd(rows, self.size.context, ROWS)
        if rows not in self._tables:
            numbers = np.arange(self.size.context // each, dtype=np.int32) % (rows // each)
            first = ops.reshape(self._owners, (-1, 1)) * (rows // each)
            self._tables[rows] = first + self.g.constant(numbers)
        return self._tables[rows], each

    def _pools(self, fresh: list[tuple[str, Tensor]], window: int | None) -> list[Tensor]:
        """The pages of states of these names with this run's rows written into them."""
        each, rows = self._pages_of(window)[1], self.rows(window)
        lead = (self.size.pages, ROWS) if self.size.pages else (self.size.slots, rows)
        result = []
        for name, t in fresh:
            heads, size = t.shape[2:]
            pool = self.g.state(name, (*lead, heads, size), t.dtype)
            flat = ops.reshape(pool, (math.prod(lead), heads, size))
            flat = ops.scatter(flat, self._places(window), ops.reshape(t, (-1, heads, size)), axis=0)
            self.g.update(name, ops.reshape(flat, pool.shape))
            result.append(ops.reshape(flat, (math.prod(lead) // each, each, heads, size)))
        return result

    def _floats(self, index: int, k: Tensor, v: Tensor) -> list[tuple[str, Tensor]]:
        """k and v in the caches' dtype, by the names of their states."""
        return [(f"{name}.{index}", ops.cast(t, self.size.cache)) for name, t in (("keys", k), ("values", v))]

    def _blocks(self, index: int, k: Tensor, v: Tensor) -> list[tuple[str, Tensor]]:
        """k and v as q8_0, the integers and the scales of each, by the names of their states."""
        result = []
        for name, t in ((f"keys.{index}", k), (f"values.{index}", v)):
            codes, scales = ops.q8_0_blocks(t)
            result += [(name, codes), (f"{name}.scales", scales)]
        return result

    def _updated(self, index: int, k: Tensor, v: Tensor, window: int | None) -> list[Tensor]:
        """The q8_0 states after a step's rows are quantized and written, in one op for k and one for v."""
        result: list[Tensor] = []
        for name, t in ((f"keys.{index}", k), (f"values.{index}", v)):
            shape = (self.size.slots, self.rows(window), *t.shape[2:])
            blocks = (*shape[:-1], shape[-1] // BLOCK)
            states = self.g.state(name, shape, i8), self.g.state(f"{name}.scales", blocks, f16)
            fresh = ops.q8_0_update(ops.reshape(t, (self.size.batch, *t.shape[2:])), *states, self.at,
                                    checked=False)  # fmt: skip
            for of, new in zip((name, f"{name}.scales"), fresh, strict=True):
                self.g.update(of, new)
            result += fresh
        return result

    @property
    def plain(self) -> bool:
        """Whether the caches are floats and not paged."""
        return bool(self.size.context) and not self.size.pages and not self.packed

    def rows(self, window: int | None) -> int:
        """How many cache rows a layer with that window has."""
        size = self.size
        return size.context if size.pages else ring_rows(window, size.context, max(size.chunk, size.longest))

    def _seen(self, window: int | None) -> dict[str, Any]:
        """The arguments of attention that say which keys it sees."""
        causal, rows = self.size.chunk > 1 or window is not None, self.rows(window)
        length = (self.at if self._one is None else self._one) + self.size.chunk
        if window is None or rows == self.size.context:
            return {"causal": causal, "window": window, "kv_len": length}
        # Rows that were never written may hold anything, also NaN, which a mask alone does not keep out of the sums.
        return {"mask": self.in_sight(window, rows), "kv_len": ops.minimum(length, rows)}

    def _positions(self, rows: int) -> Tensor:
        """The position of the key in each row of a cache after this run's rows are written, below 0 for an empty row:
        (batch, 1, 1, rows), or (rows,) where a row's index is its position."""
        numbers = self.g.constant(np.arange(rows, dtype=np.int32))
        if rows == self._context:
            return numbers
        last = ops.reshape(self.at, (self.size.batch, 1, 1, 1)) + (self.size.chunk - 1)
        return last - (last - numbers + rows) % rows

    def in_sight(self, window: int | None, rows: int) -> Tensor:
        """Which rows of a cache each query sees: bool (batch, 1, chunk, rows)."""
        key = (self._context if window is None else window, rows)
        if key not in self._masks or not self.size.context:  # as in `distances`
            step = self.g.constant(np.arange(self.size.chunk, dtype=np.int32).reshape(1, 1, -1, 1))
            positions = self._positions(rows)
            behind = ops.reshape(self.at, (self.size.batch, 1, 1, 1)) + step - positions
            seen = ops.logical_and(behind >= 0, behind <= key[0])
            self._masks[key] = seen if rows == self._context else ops.logical_and(seen, positions >= 0)
        return self._masks[key]

    def _written(self, name: str, fresh: Tensor, window: int | None) -> Tensor:
        """A state with this run's rows written into it."""
        rows, (heads, size) = self.rows(window), fresh.shape[2:]
        shape = (self.size.slots, rows, heads, size)
        cache = self.g.state(name, shape, fresh.dtype)
        if self._in_one_piece(rows):
            result = ops.dynamic_update_slice(cache, fresh, self._start(rows))
        else:
            flat = ops.reshape(cache, (self.size.slots * rows, heads, size))
            flat = ops.scatter(flat, self._start(rows), ops.reshape(fresh, (-1, heads, size)), axis=0)
            result = ops.reshape(flat, shape)
        self.g.update(name, result)
        if self._slot is not None:  # a prompt's run reads only the rows of its own sequence
            slot = self.g.constant(np.array([1, 0, 0, 0], np.int32)) * self._slot
            return ops.dynamic_slice(result, slot, (1, *shape[1:]))
        return result

    def _in_one_piece(self, rows: int) -> bool:
        """Whether a run writes one contiguous range of cache rows: neither rows of several sequences nor rows that may
        wrap around in a ring buffer."""
        return self._one is not None and (self.size.chunk == 1 or rows == self.size.context)

    def _start(self, rows: int) -> Tensor:
        """Where this run writes into caches of so many rows: the start indices of one slice, i32 (4,), or the index of
        each row among the rows of all slots, i32 (batch · chunk,)."""
        if rows in self._starts:
            return self._starts[rows]
        ring = rows < self.size.context
        if self._one is not None and self._in_one_piece(rows):
            result = self.g.constant(np.array([0, 1, 0, 0], np.int32)) * (self._one % rows if ring else self._one)
            if self._slot is not None:
                result = result + self.g.constant(np.array([1, 0, 0, 0], np.int32)) * self._slot
        else:
            place = self._tokens
            first = self.g.constant(np.arange(self.size.batch, dtype=np.int32).reshape(-1, 1) * rows)
            if self._slot is not None:
                first = self._slot * rows
            result = ops.reshape((place % rows if ring else place) + first, (-1,))
        self._starts[rows] = result
        return result


def turned(x: Tensor) -> Tensor:
    """x with axes 1 and 2 swapped: (batch, length, heads, size) to (batch, heads, length, size), or back."""
    return ops.transpose(x, (0, 2, 1, 3))


def cache_bytes(
    config: LanguageConfig, context: int, dtype: DType, pages: int = 0, longest: int = 0
) -> tuple[int, ...]:
    """The bytes of keys and values in each layer, for one sequence or for a pool of `pages`; `longest` is as in `Size`.
    """
    a = config.attention
    if a is None:
        return (0,) * config.layers

    indexer = a.latent.indexer if a.latent else None

    def one(index: int) -> int:
        if config.mixers[index] not in ("attention", "latent", "hybrid") or a.source(index) != index:
            return 0
        rows, own = pages * ROWS or ring_rows(a.windows[index], context, longest), a.of(index)
        result = dtype.nbytes((1 if a.latent else 2, rows, own.kv_heads, own.head_size))
        if indexer is not None and context > indexer.kept and indexer.sources[index] == index:
            result += dtype.nbytes((rows, indexer.size))
        return result

    return tuple(map(one, range(config.layers)))
