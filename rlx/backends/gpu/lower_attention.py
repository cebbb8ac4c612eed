"""Lowering of attention."""

from __future__ import annotations

import math

from rlx.backends.gpu import decls
from rlx.backends.gpu.casts import cast_ref, fits, quads, stores
from rlx.backends.gpu.lowering import Lowering, lowers
from rlx.backends.gpu.steps import FileKernel
from rlx.dtypes import f32
from rlx.ir import Node

MAX_HEAD = 256  # what the registers hold of a head's width
_TILE = 64  # queries a group


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    fine = all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))
    plain = node.attrs.get("window") is None and node.attrs.get("softcap") is None
    plain = plain and all(t.dtype.kind != "i" for t in node.inputs)
    return fine and plain and node.inputs[0].shape[3] <= MAX_HEAD


@lowers("attention", when=_native)
def lower_attention(ctx: Lowering, node: Node) -> None:
    """One launch: a group for each 64 queries of a head. A float mask stored in a half is cast first."""
    q, k, v = node.inputs[:3]
    y = node.output
    if y.size == 0:
        return
    batch, heads, sq, d = q.shape
    kv_heads, sk = k.shape[1:3]
    stored = ctx.storage(y)
    refs = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (q, k, v)]
    kind, word, mask, strides = 0, "f32", refs[0], (0, 0, 0, 0)
    if len(node.inputs) == 4:
        m = node.inputs[3]
        mask, kind = ctx.ref(m), 1 if m.dtype.kind == "b" else 2
        word = ctx.storage(m).name
        if word not in ("bool", "f32"):
            mask, word = cast_ref(ctx, mask, ctx.storage(m), f32, m.size), "f32"
        strides = _strides(m.shape)
    aligned = int(d % 4 == 0) and quads(*refs, itemsize=stored.itemsize)
    constants = (max(1, math.ceil(d / 16)), int(node.attrs["causal"]), kind, aligned)
    kernel = FileKernel(decls.ATTENTION.stem, (("T", stored.name), ("M", word)), constants)
    groups = ctx.groups(batch * heads * math.ceil(sq / _TILE))
    sizes = [batch * heads, heads, kv_heads, sq, sk, d, *strides]
    ctx.launch(kernel, groups, [*refs, mask, ctx.ref(y), *sizes, float(node.attrs["scale"])])


def _strides(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Element strides over (batch, head, query, key); 0 where the mask is repeated."""
    full = (1,) * (4 - len(shape)) + shape
    strides, step = [], 1
    for n in reversed(full):
        strides.append(step if n > 1 else 0)
        step *= n
    b, h, i, j = reversed(strides)
    return b, h, i, j
