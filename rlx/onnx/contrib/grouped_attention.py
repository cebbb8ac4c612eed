"""GroupQueryAttention of com.microsoft: heads that share keys, and a cache that grows or has a fixed capacity."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.dtypes import i32
from rlx.ir import Tensor
from rlx.onnx.contrib.heads import attend, flag, heads, joined, scored
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import declared

_NOT_DONE = {12: "k_scale", 13: "v_scale"}


def _check_done(c: Call) -> None:
    """Raises: UnsupportedOp for a feature that rlx does not support."""
    for i, name in _NOT_DONE.items():
        if c.has(i):
            raise c.unsupported(f"the input {name} is not supported")
    for i in (3, 4):
        if c.has(i) and c.dtype(i) != c.dtype(0):
            raise c.unsupported(
                f"a cache of {c.value(i).kind} for a query of {c.value(0).kind} is not supported"
            )
    for name in ("sliding_window_cache", "kv_cache_bit_width"):
        if c.int(name, 0):
            raise c.unsupported(f"{name} = {c.int(name)} is not supported")
    for name in ("k_quant_type", "v_quant_type"):
        if c.str(name) != "NONE":
            raise c.unsupported(f"{name} = {c.str(name)!r} is not supported")


def _three(c: Call, count: int, kv_count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by heads; one input may hold all three."""
    x = c.x(0)
    if c.has(1) != c.has(2):
        raise c.bad("has a key or a value without the other")
    if count < 1 or kv_count < 1 or count % kv_count:
        raise c.bad(f"num_heads {count}, kv_num_heads {kv_count}; expected a multiple")
    if c.has(1):
        q, k, v = (
            heads(c, x, count, "query"),
            heads(c, c.x(1), kv_count, "key"),
            heads(c, c.x(2), kv_count, "value"),
        )
    else:
        every = heads(c, x, count + 2 * kv_count, "query")
        q, k, v = every[:, :count], every[:, count : count + kv_count], every[:, count + kv_count :]
    if k.shape != v.shape or (q.shape[0], *q.shape[2:]) != (k.shape[0], *k.shape[2:]):
        raise c.bad(f"by heads the query is {q.shape}, the key {k.shape}, the value {v.shape}; expected equal batches, "
                    "lengths and sizes")  # fmt: skip
    return q, k, v


def _positions(c: Call, start: Tensor | None, batch: int, length: int) -> Tensor | None:
    """The positions of the new tokens: the given ones, else counted from each row's `start`; None if they are 0, 1, …
    in all rows. A run with positions beyond the tables fails; `rope` refuses tables that are always too short."""
    rows = c.x(7).shape[0] if c.x(7).ndim else 0
    if c.has(9):
        at = c.x(9)
        if at.shape != (batch, length):
            raise c.bad(f"position_ids are {at.shape}; expected {(batch, length)}")
        if rows:
            c.limited(at, "position_ids", rows - 1)
        return at
    if start is None:
        return None
    if rows >= length:
        c.limited(start, f"the first position by seqlens_k, for {length} in tables of {rows}", rows - length)
    if batch == 1:
        return o.reshape(start, ())
    return o.add(o.reshape(start, (batch, 1)), np.arange(length, dtype=np.int32))


def _kept(c: Call, past: Tensor | None, x: Tensor, start: Tensor | None, room: int) -> Tensor:
    """The cache (batch, heads, room, size): in each row the past up to `start`, then the new elements, then zeros."""
    batch, count, length, size = x.shape
    if past is None or start is None:
        return _filled(x, room)
    before = past.shape[2]
    if batch == 1:
        if before + length == room:  # the whole past is valid
            return o.concat([past, x], 2) if before else x
        return o.dynamic_update_slice(_filled(past, room), x, [0, 0, o.reshape(start, ()), 0])
    # Rows of one table: the past, the new elements, and one row of zeros.
    rows = o.concat([past, x, c.tensor(np.zeros((batch, count, 1, size), x.dtype.np))], 2)
    place = np.arange(room, dtype=np.int32)
    first = o.reshape(start, (batch, 1))
    new = o.where(o.less(place, o.add(first, length)), o.add(o.sub(place, first), before), before + length)
    index = o.where(o.less(place, first), place, new)
    return o.take_along_axis(rows, o.reshape(index, (batch, 1, room, 1)), 2)


def _filled(x: Tensor, room: int) -> Tensor:
    more = room - x.shape[2]
    return o.pad(x, [(0, 0), (0, 0), (0, more), (0, 0)]) if more > 0 else x


def _sink(c: Call, count: int) -> Tensor | None:
    """The sink's score of each head, a further term of its softmax; None without sinks."""
    if c.has(11):
        if c.x(11).shape != (count,):
            raise c.bad(f"head_sink is {c.x(11).shape}; expected one for each of {count} heads")
        return c.x(11)
    smooth = c.int("smooth_softmax")
    if smooth not in (-1, 0, 1):
        raise c.bad(f"smooth_softmax is {smooth}; expected 0 or 1")
    return c.tensor(np.zeros((count,), np.float32)) if smooth == 1 else None


def _sunk(
    c: Call, sink: Tensor, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, start: Tensor | None,
    lengths: Tensor, causal: bool, window: int,
) -> Tensor:  # fmt: skip
    """Attention with an additional first key, which has the sink's score and a value of zeros."""
    batch, count, n_q, size = q.shape
    n_k = k.shape[2]
    none = c.tensor(np.zeros((batch, k.shape[1], 1, size), k.dtype.np))
    key, at = np.arange(n_k, dtype=np.int32), c.tensor(np.arange(n_q, dtype=np.int32)[:, None])
    if start is not None:
        at = o.add(o.reshape(start, (batch, 1, 1, 1)), at)
    seen = o.greater_equal(at, key) if causal else o.greater(o.reshape(lengths, (batch, 1, 1, 1)), key)
    if window > 0:
        seen = o.logical_and(seen, o.less(o.sub(at, min(window, n_k)), key))
    low = o.where(seen, np.float32(0), np.float32(-np.inf))
    low = o.expand(low if added is None else o.add(added, low), (batch, count, n_q, n_k))
    first = o.expand(o.reshape(o.cast(sink, low.dtype), (1, count, 1, 1)), (batch, count, n_q, 1))
    k, v = (o.concat([none, t], 2) for t in (k, v))
    there = None if start is None else o.add(lengths, 1)
    return attend(
        c, q, k, v, o.concat([first, low], 3), softcap=c.float("softcap", 0.0) or None, kv_len=there
    )


@declared(
    "GroupQueryAttention",
    inputs="query:T key:T? value:T? past_key:T_CACHE? past_value:T_CACHE? seqlens_k:M total_sequence_length:M "
    "cos_cache:T? sin_cache:T? position_ids:int64? attention_bias:T? head_sink:T? k_scale:S? v_scale:S? "
    "q_norm_weight:T? k_norm_weight:T?",
    outputs="output:T present_key:T_CACHE? present_value:T_CACHE? output_qk:T?",
    types={
        "T": "float16 bfloat16 float",
        "T_CACHE": "float float16 bfloat16 uint8 int8 float8e4m3fn",
        "S": "float",
        "M": "int32",
    },
    attributes={
        "num_heads": int,
        "kv_num_heads": int,
        "scale": float,
        "softcap": float,
        "local_window_size": -1,
        "do_rotary": int,
        "rotary_interleaved": int,
        "smooth_softmax": -1,
        "causal": 1,
        "sliding_window_cache": 0,
        "qk_output": 0,
        "qk_norm_epsilon": 1e-6,
        "k_quant_type": "NONE",
        "v_quant_type": "NONE",
        "kv_cache_bit_width": int,
    },
    required="num_heads kv_num_heads",
)
def group_query_attention(c: Call) -> tuple[Result, ...]:
    """Row b has seqlens_k[b] + 1 keys, the new ones after its past, in a cache as long as the given past, or as the
    total where that is longer. The first prompt, which is as long as the total, has no past."""
    _check_done(c)
    q, k, v = _three(c, c.int("num_heads"), c.int("kv_num_heads"))
    batch, _, length, _ = q.shape
    lengths = c.x(5)
    if lengths.size != batch:
        raise c.bad(f"seqlens_k is {lengths.shape}; expected ({batch},)")
    past = [c.opt(3), c.opt(4)]
    if (past[0] is None) != (past[1] is None) or any(
        t is not None and (t.ndim != 4 or (*t.shape[:2], t.shape[3]) != (*k.shape[:2], k.shape[3]))
        for t in past
    ):
        raise c.bad(f"the caches are {[None if t is None else t.shape for t in past]} for keys {k.shape}")
    before = 0 if past[0] is None else past[0].shape[2]
    total = c.known_between(
        6, length, before + length, "total_sequence_length", f"a past of {before} and {length} more cannot make it"
    )
    lengths = o.add(o.reshape(o.cast(lengths, i32), (batch,)), 1)
    start = None if total == length else o.sub(lengths, length)
    if c.has(14) != c.has(15):
        raise c.bad("has a q_norm_weight or a k_norm_weight without the other")
    if c.has(14):
        q, k = (o.rms_norm(t, c.x(i), eps=c.float("qk_norm_epsilon")) for t, i in ((q, 14), (k, 15)))
    if flag(c, "do_rotary"):
        if not (c.has(7) and c.has(8)):
            raise c.bad("do_rotary without cos_cache and sin_cache")
        at, interleaved = _positions(c, start, batch, length), flag(c, "rotary_interleaved")
        q, k = (o.rope(t, c.x(7), c.x(8), at, axis=2, interleaved=interleaved) for t in (q, k))
    room = max(before, total)
    if start is None:
        c.writes(o.sub(lengths, 1), 1, room)
    else:  # all of a past that the new keys follow in full is valid
        full = batch == 1 and before + length == room
        c.writes(start, length, room, before if full else 0)
    keys, values = (_kept(c, p, t, start, room) for p, t in zip(past, (k, v), strict=True))
    causal, window = flag(c, "causal"), c.int("local_window_size")
    if window > 0 and not causal:
        raise c.bad(f"local_window_size {window} with causal = 0; expected -1")
    if start is None:
        inside, seen = (k, v), None if causal else lengths
    else:
        inside, seen = (keys, values), None if batch == 1 and room == total else lengths
    added = scored(c, c.opt(10), None, (batch, q.shape[1], length, total))
    if added is not None and inside[0].shape[2] > total:
        added = o.pad(added, [(0, 0)] * 3 + [(0, inside[0].shape[2] - total)])
    sink = _sink(c, q.shape[1])
    if sink is not None:
        y = _sunk(c, sink, q, *inside, added, start, lengths, causal, window)
    else:
        before_own = min(window - 1, room) if window > 0 else None
        y = attend(c, q, *inside, added, causal, before_own, c.float("softcap", 0.0) or None, seen)
    return joined(y), keys, values
