"""Reading and writing by index, and the operators whose result's length depends on the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.ops.arithmetic import ordered, unordered
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.ops.suppression import suppressed
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import STRING
from rlx.onnx.reader.table import op

_I64 = np.dtype(np.int64)
MAX_COUNTS = 1 << 22  # n-grams, whose table is made while building
MAX_LOOKED = 1 << 22  # words, each counted once for every gram that is looked up in the pool


@op("Gather")
def gather(c: Call) -> Result:
    return o.gather(c.x(0), c.x(1), axis_of(c, c.int("axis", 0), c.x().ndim))


@op("GatherElements")
def gather_elements(c: Call) -> Result:
    return o.gather_elements(c.x(0), c.x(1), axis_of(c, c.int("axis", 0), c.x().ndim))


@op("GatherND")
def gather_nd(c: Call) -> Result:
    x, indices, batch = c.x(0), c.x(1), c.int("batch_dims", 0)
    if not 0 <= batch < min(x.ndim, indices.ndim) or x.shape[:batch] != indices.shape[:batch]:
        raise c.bad(f"batch_dims {batch} for data {x.shape} and indices {indices.shape}")
    if batch:
        # The batch axes become one, and each index tuple starts with the number of its batch.
        n, head = math.prod(x.shape[:batch]), x.shape[:batch]
        x = o.reshape(x, (n, *x.shape[batch:]))
        rest = indices.shape[batch:]
        indices = o.reshape(indices, (n, *rest))
        number = c.tensor(np.arange(n, dtype=np.int64).reshape(n, *(1,) * len(rest)))
        number = o.expand(number, (n, *rest[:-1], 1))
        elements = o.gather_nd(x, o.concat([number, indices], indices.ndim - 1))
        return o.reshape(elements, (*head, *elements.shape[1:]))
    return o.gather_nd(x, indices)


@op("Scatter", "ScatterElements")
def scatter_elements(c: Call) -> Result:
    axis = axis_of(c, c.int("axis", 0), c.x().ndim)
    return _scattered(c, lambda x, new, how: o.scatter_elements(x, c.x(1), new, axis, how))


@op("ScatterND")
def scatter_nd(c: Call) -> Result:
    if c.x(1).ndim and not c.x(1).shape[-1]:  # each tuple of no indices stands for the whole tensor
        first = c.tensor(np.zeros((*c.x(1).shape[:-1], 1), np.int64))
        whole = _scattered(c, lambda x, new, how: o.scatter_nd(o.expand_dims(x, 0), first, new, how))
        return o.squeeze(whole, 0)
    return _scattered(c, lambda x, new, how: o.scatter_nd(x, c.x(1), new, how))


def _scattered(c: Call, scatter: Callable[[Tensor, Tensor, str], Tensor]) -> Tensor:
    """Input 2 scattered into input 0; unsigned numbers of 64 bits are put in order for "max" and "min"."""
    how = c.str("reduction", "none")
    if how not in ("max", "min"):
        return scatter(c.x(0), c.x(2), how)
    return unordered(scatter(ordered(c, 0), ordered(c, 2), how), c.dtype())


@op("TensorScatter")
def tensor_scatter(c: Call) -> Result:
    """A cache with an update written at each batch's own place along an axis; in mode "circular" it wraps around."""
    past, update = c.x(0), c.x(1)
    axis = axis_of(c, c.int("axis", -2), past.ndim)
    if update.ndim != past.ndim:
        raise c.bad(f"the update is {update.shape}; expected as many axes as the cache has, {past.shape}")
    mode, n, length = c.str("mode", "linear"), past.shape[axis], update.shape[axis]
    if axis == 0 or mode not in ("linear", "circular"):
        raise c.bad(f"axis {axis}, mode {mode!r}; expected an axis other than the batches', linear or circular")
    if length > n or update.shape != (*past.shape[:axis], length, *past.shape[axis + 1 :]):
        raise c.bad(
            f"the update is {update.shape}; expected the cache's shape, {past.shape}, or a shorter axis {axis}"
        )
    start = c.opt(2)
    start = c.tensor(np.zeros(past.shape[0], np.int64)) if start is None else start
    if start.shape != past.shape[:1]:
        raise c.bad(f"write_indices are {start.shape}; expected {past.shape[:1]}, one for each batch")
    if mode == "linear":
        c.writes(start, length, n)
    elif n:
        start = o.mod(start, n)  # before the steps are added, which could pass the greatest integer
    shape = [1] * past.ndim
    shape[axis] = length
    steps = c.tensor(np.arange(length, dtype=np.int64).reshape(shape))
    first = o.reshape(start, (past.shape[0], *(1,) * (past.ndim - 1)))
    places = o.add(first, steps)
    places = o.mod(places, n) if mode == "circular" and n else places
    return o.scatter_elements(past, o.expand(places, update.shape), update, axis)


# -- results whose shape depends on the data: computed at build time, so the inputs they depend on become constants


@op("NonZero")
def non_zero(c: Call) -> Result:
    x = c.known(0)
    c.table(2, max(x.ndim, 1), x.size)
    return c.tensor(np.array(np.nonzero(np.atleast_1d(x))), _I64)


@op("Compress")
def compress(c: Call) -> Result:
    keep = c.known(1).reshape(-1).astype(bool)
    c.table(keep.size)
    places = np.flatnonzero(keep)
    x, axis = c.x(), c.int("axis")
    if axis is None:
        x, axis = o.reshape(x, (-1,)) if x.size else o.reshape(x, (0,)), 0
    return o.gather(x, c.tensor(places), axis_of(c, axis, x.ndim))


@op("Unique")
def unique(c: Call) -> tuple[Result, ...]:
    x, axis = c.known(0), c.int("axis")
    axis = None if axis is None else axis_of(c, axis, x.ndim)
    c.table(6, x.size)
    words = None
    if x.dtype == STRING:  # NumPy sorts no strings along an axis: sort their ranks instead
        words, places = np.unique(x.reshape(-1), return_inverse=True)
        x = places.reshape(x.shape)
    values, first, inverse, counts = np.unique(x, True, True, True, axis)
    inverse = inverse.reshape(-1)
    if not c.int("sorted", 1):
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, axis or 0)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    others = [c.constant(a, _I64) for a in (first, inverse, counts)]
    return (c.constant(values, x.dtype) if words is None else c.constant(words[values]), *others)


@op("NonMaxSuppression")
def non_max_suppression(c: Call) -> Value:
    """The boxes of each class that overlap no better one too much, best first. Their number depends on the data."""
    boxes, scores = c.known(0), c.known(1)
    limit = c.known_int(2) if c.has(2) else 0
    overlap = float(c.known_scalar(3)) if c.has(3) else 0.0
    least = float(c.known_scalar(4)) if c.has(4) else None
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or scores.shape[::2] != boxes.shape[:2]:
        raise c.bad(f"boxes {boxes.shape} and scores {scores.shape}; expected (N, B, 4) and (N, classes, B)")
    boxes_kept = suppressed(boxes, scores, limit, overlap, least, bool(c.int("center_point_box", 0)))
    return c.constant(boxes_kept)


@op("TfIdfVectorizer")
def tf_idf(c: Call) -> Result:
    """Counts of a pool's n-grams, with or without skipped words. Values must be known: no device op counts them."""
    x = c.known(0)
    pool = c.ints("pool_strings" if x.dtype == STRING else "pool_int64s")
    if pool is None or x.size > MAX_COUNTS:
        raise c.bad(f"has no pool for an input of {x.dtype}, or too many words: {x.size}")
    low, high, skips = c.int("min_gram_length"), c.int("max_gram_length"), c.int("max_skip_count")
    starts, places = c.ints("ngram_counts"), c.ints("ngram_indexes")
    mode, weights = c.str("mode"), c.floats("weights")
    if mode not in ("TF", "IDF", "TFIDF") or x.ndim > 2 or not 1 <= low <= high:
        raise c.bad(f"mode {mode!r}, grams of {low} to {high}, input {x.shape}")
    grams: dict[tuple[Any, ...], int] = {}
    for n, start in enumerate(starts, start=1):
        stop = starts[n] if n < len(starts) else len(pool)
        if not 0 <= start <= stop <= len(pool) or (stop - start) % n:
            raise c.bad(f"ngram_counts {starts} do not cut a pool of {len(pool)} into n-grams")
        for k in range(start, stop, n):
            if len(grams) >= len(places):
                raise c.bad(f"the pool has more n-grams than ngram_indexes, {len(places)}")
            slot = len(grams)
            grams.setdefault(tuple(pool[k : k + n]), slot)
    if weights is not None and len(weights) != len(places):
        raise c.bad(f"has {len(weights)} weights for {len(places)} n-grams")
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    width = max(places, default=-1) + 1
    if min(places, default=0) < 0 or len(rows) * width > MAX_COUNTS:
        raise c.bad(f"ngram_indexes reach from {min(places)} to {width - 1}; expected 0 to {MAX_COUNTS}")
    vectors = np.zeros((len(rows), width), np.float32)
    looked = 0

    def spend(words: int) -> None:
        nonlocal looked
        looked += words
        if looked > MAX_LOOKED:
            raise c.unsupported(
                f"its grams have more than {MAX_LOOKED:,} words; fewer skips, or a shorter input"
            )

    for row, words in enumerate(rows.tolist()):
        for slot in _slots(words, low, high, skips, grams, spend):
            weight = weights[slot] if weights is not None and mode != "TF" else 1.0
            place = (row, places[slot])
            vectors[place] = weight if mode == "IDF" else vectors[place] + weight
    return c.tensor(vectors.reshape(-1) if x.ndim < 2 else vectors)


def _slots(
    words: list[Any], low: int, high: int, skips: int, pool: dict[tuple[Any, ...], int],
    spend: Callable[[int], None],
) -> Iterator[int]:  # fmt: skip
    """The slots of the pool's grams that occur, once for each occurrence; `spend` is called with the work before it."""
    for n in sorted({len(gram) for gram in pool}):
        if not low <= n <= high:
            continue
        for step in range(1, (skips if n > 1 else 0) + 2):
            count = len(words) - (n - 1) * step
            if count <= 0:
                break
            spend(count * n)
            for start in range(count):
                slot = pool.get(tuple(words[start : start + (n - 1) * step + 1 : step]))
                if slot is not None:
                    yield slot
