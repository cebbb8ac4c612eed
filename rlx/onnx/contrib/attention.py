"""Attention and MultiHeadAttention of com.microsoft, with caches of earlier keys and values; rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.contrib.heads import attend, filtered, flag, grown, heads, joined, scored
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import declared

_HALVES = "float float16 bfloat16"


def check_nothing(c: Call, inputs: dict[int, str], *attributes: str) -> None:
    """Checks for inputs and attributes that rlx does not support.

    Raises: UnsupportedOp if one of the inputs is given, or one of the attributes is not 0."""
    for i, name in inputs.items():
        if c.has(i):
            raise c.unsupported(f"the input {name} is not supported")
    for name in attributes:
        if c.int(name, 0):
            raise c.unsupported(f"{name} = {c.int(name)} is not supported")


def _answer(
    c: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, past: int
) -> Tensor:
    """The attention output, heads concatenated. With `unidirectional` the last query attends to all keys, each query
    before it to one key fewer."""
    batch, count, n_q, _ = q.shape
    n_k = k.shape[2]
    causal = flag(c, "unidirectional") and n_q > 1
    if causal and n_k != past + n_q:
        raise c.unsupported(f"unidirectional = 1 for {n_q} queries and {n_k - past} keys is not supported")
    low = None
    if mask is not None:
        low, causal = filtered(c, mask, batch, n_q, n_k, causal)
    added = scored(c, bias, low, (batch, count, n_q, n_k))
    return joined(attend(c, q, k, v, added, causal))


@declared(
    "Attention",
    inputs="input:T weights:T bias:T? mask_index:M? past:T? attention_bias:T? past_sequence_length:M?",
    outputs="output:T present:T?",
    types={"T": _HALVES, "M": "int32"},
    attributes={
        "num_heads": int,
        "unidirectional": 0,
        "qkv_hidden_sizes": list[int],
        "scale": float,
        "mask_filter_value": float,
        "do_rotary": int,
        "rotary_embedding_dim": int,
        "past_present_share_buffer": int,
    },
    required="num_heads",
)
def attention(c: Call) -> tuple[Result, ...]:
    """One product gives queries, keys and values; `past` and `present` are (2, batch, heads, length, size)."""
    check_nothing(c, {6: "past_sequence_length"}, "do_rotary", "past_present_share_buffer")
    x, w, bias, past = c.x(0), c.x(1), c.opt(2), c.opt(4)
    if (
        x.ndim != 3
        or w.ndim != 2
        or x.shape[2] != w.shape[0]
        or (bias is not None and bias.shape != w.shape[1:])
    ):
        raise c.bad(
            f"the input is {x.shape}, weights {w.shape}, bias {None if bias is None else bias.shape}; expected "
            "(batch, length, inner), (inner, all) and (all,)"
        )
    third = w.shape[1] // 3
    sizes = c.ints("qkv_hidden_sizes", [third] * 3)
    if len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != w.shape[1] or sizes[0] != sizes[1]:
        raise c.bad(
            f"weights {w.shape} for queries, keys and values of {sizes}; expected these as their columns"
        )
    return answered(c, o.matmul(x, w, bias), sizes, c.opt(3), past, c.opt(5))


def answered(
    c: Call, projected: Tensor, sizes: Sequence[int], mask: Tensor | None, past: Tensor | None, bias: Tensor | None
) -> tuple[Result, ...]:
    """Attention of queries, keys and values of these sizes, side by side in `projected`; and the new cache."""
    count = c.int("num_heads")
    ends = (0, sizes[0], 2 * sizes[0], sum(sizes))
    names = ("queries", "keys", "values")
    q, k, v = (heads(c, projected[..., ends[i] : ends[i + 1]], count, name) for i, name in enumerate(names))
    before = 0
    if past is not None:
        if past.ndim != 5 or past.shape[0] != 2:
            raise c.bad(f"past is {past.shape}; expected (2, batch, heads, past, size)")
        before = past.shape[3]
        k, v = (grown(c, past[i], t, "past") for i, t in enumerate((k, v)))
    y = _answer(c, q, k, v, mask, bias, before)
    if c.n_outputs < 2:
        return (y,)
    if k.shape != v.shape:
        raise c.unsupported("a present of keys and values of different sizes is not supported")
    return y, o.stack([k, v], 0)


def _unpacked(c: Call, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by heads, bias added: from three inputs; from (batch, length, heads, 3, size); from
    queries and (batch, length, heads, 2, size); or with keys and values that are by heads already."""
    first, key, value, bias = c.x(0), c.opt(1), c.opt(2), c.opt(3)
    if first.ndim == 5 and key is None and value is None:
        parts = _split(c, first, count, 3, "query")
    elif key is not None and key.ndim == 5 and value is None:
        parts = [first, *_split(c, key, count, 2, "key")]
    elif key is None or value is None:
        raise c.bad("lacks a key or a value")
    else:
        parts = [first, key, value]
    if bias is not None:
        sizes = [t.shape[2] if t.ndim == 3 else t.shape[1] * t.shape[3] for t in parts]
        if bias.shape != (sum(sizes),):
            raise c.bad(f"the bias is {bias.shape}; expected one for each of {sizes}")
        ends = (0, sizes[0], sizes[0] + sizes[1], sum(sizes))
        # Keys and values that are given by heads already include their biases.
        parts = [o.add(t, bias[ends[i] : ends[i + 1]]) if t.ndim == 3 else t for i, t in enumerate(parts)]
    named = zip(parts, ("query", "key", "value"), strict=True)
    q, k, v = (t if t.ndim == 4 and name != "query" else heads(c, t, count, name) for t, name in named)
    if k.shape[:3] != v.shape[:3] or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise c.bad(
            f"the query by heads is {q.shape}, the key {k.shape}, the value {v.shape}; they do not fit"
        )
    return q, k, v


def _split(c: Call, x: Tensor, count: int, parts: int, what: str) -> list[Tensor]:
    if x.shape[2:4] != (count, parts):
        raise c.bad(f"the {what} is {x.shape}; expected (batch, length, {count} heads, {parts}, size)")
    return [o.reshape(x[:, :, :, i], (*x.shape[:2], count * x.shape[4])) for i in range(parts)]


@declared(
    "MultiHeadAttention",
    inputs="query:T key:T? value:T? bias:T? key_padding_mask:M? attention_bias:T? past_key:T? past_value:T? "
    "past_sequence_length:M? cache_indirection:M?",
    outputs="output:T present_key:T? present_value:T? qk:QK?",
    types={"T": _HALVES, "QK": _HALVES, "M": "int32"},
    attributes={"num_heads": int, "unidirectional": 0, "scale": float, "mask_filter_value": float},
    required="num_heads",
)
def multi_head_attention(c: Call) -> tuple[Result, ...]:
    check_nothing(c, {8: "past_sequence_length", 9: "cache_indirection"})
    q, k, v = _unpacked(c, c.int("num_heads"))
    past = c.opt(6)
    if c.has(6) != c.has(7):
        raise c.bad("has a past_key or a past_value without the other")
    k, v = grown(c, past, k, "past_key"), grown(c, c.opt(7), v, "past_value")
    if k.shape[2] != v.shape[2]:
        raise c.bad(f"past and new make keys {k.shape}, values {v.shape}; expected one length")
    y = _answer(c, q, k, v, c.opt(4), c.opt(5), 0 if past is None else past.shape[2])
    return y, k, v


@declared(
    "RotaryEmbedding",
    inputs="input:T position_ids:M cos_cache:T sin_cache:T",
    outputs="output:T",
    types={"T": _HALVES, "M": "int64"},
    attributes={
        "interleaved": int,
        "num_heads": int,
        "rotary_embedding_dim": int,
        "scale": float,
        "is_packed_batching": int,
    },
)
def rotary_embedding(c: Call) -> Result:
    """Pairs turned by the angles of their positions: (batch, length, heads · size) or (batch, heads, length, size)."""
    check_nothing(c, {}, "is_packed_batching")
    if c.float("scale", 1.0) != 1.0:
        raise c.unsupported(f"scale = {c.float('scale')} is not supported")
    x, at, cos, sin = (c.x(i) for i in range(4))
    if x.ndim not in (3, 4) or cos.ndim != 2 or cos.shape != sin.shape:
        raise c.bad(f"the input is {x.shape}, the tables {cos.shape} and {sin.shape}; expected three or four "
                    "dimensions, and two of equal lengths")  # fmt: skip
    width = c.int("rotary_embedding_dim", 0)
    if width and width != 2 * cos.shape[1]:
        raise c.bad(f"the tables are {cos.shape}, rotary_embedding_dim {width}; expected half of it")
    count = c.int("num_heads", 0)
    turned = x
    if x.ndim == 3:
        size = x.shape[2] // count if count else 2 * cos.shape[1]
        if size < 1 or x.shape[2] % size or (count and x.shape[2] % count):
            raise c.bad(f"the input is {x.shape}, {count} heads; expected a multiple of them")
        turned = o.reshape(x, (*x.shape[:2], x.shape[2] // size, size))
    axis = 2 if x.ndim == 4 else 1
    most = cos.shape[0] - 1
    if at.size == 1 and at.ndim <= 1:
        at, most = o.reshape(at, ()), most - max(x.shape[axis] - 1, 0)
    elif at.shape != (x.shape[0], x.shape[axis]):
        raise c.bad(
            f"position_ids are {at.shape} for {x.shape}; expected one, or one for each batch and place"
        )
    if x.size:
        c.limited(at, "position_ids", most)
    return o.reshape(o.rope(turned, cos, sin, at, axis=axis, interleaved=flag(c, "interleaved")), x.shape)
