"""An attention node as its kernels see it: sizes, strides, and where mask and lengths lie in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.attention import choice
from rlx.backends.gpu.program.casts import cast_ref
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType, f32
from rlx.ir import Node, Tensor
from rlx.ops.attention.parts import NO_TOKENS, ByToken, rest, swapped

CAUSAL, WINDOW, CAPPED, COUNTED = 1, 2, 4, 8  # flags of the kernels' constant FLAGS
BY_TOKEN = 16  # times the attribute `tokens`, a mask of four bits: the further bits of FLAGS
JOINED, FROM_FORWARD = 256, 512  # q, k and v are parts of one tensor; a gradient is given the softmax sums


@dataclass(frozen=True, slots=True)
class Attention:
    """The values behind every attention kernel's arguments: sizes, constants, and where mask and lengths lie."""

    batch: int
    heads: int
    kv_heads: int
    sq: int
    sk: int
    d: int
    flags: int
    mask_kind: int
    mask_word: str
    mask: Ref | None
    strides: tuple[int, int, int, int]
    lengths: Ref | None
    each: int
    window: int
    scale: float
    cap: float
    tokens: ByToken = NO_TOKENS
    joined: bool = False

    @property
    def count(self) -> int:
        return self.batch * self.heads

    def problem(self, stored: DType, precision: str, units: bool) -> choice.Problem:
        """The record on which the choice of an algorithm depends."""
        heads = (self.batch, self.heads, self.kv_heads)
        return choice.Problem(*heads, self.sq, self.sk, self.d, stored, precision, units)

    def constants(self, aligned: int) -> dict[str, int]:
        """Constants of every attention kernel."""
        wide = max(1, math.ceil(self.d / 16))
        return {"WIDE": wide, "FLAGS": self.flags, "MASK": self.mask_kind, "ALIGNED": aligned}

    def pointers(self, refs: Sequence[Ref]) -> list[Ref]:
        """The operands, then mask and lengths; where one of these is absent, the first operand is passed in its
        place."""
        return [*refs, self.mask or refs[0], self.lengths or refs[0]]

    def sizes(self, *more: int) -> list[int | float]:
        """The scalar arguments of the few-query kernels and of the gradient kernels, in declaration order; `more`
        follows the sizes."""
        whole = [self.count, self.heads, self.kv_heads, self.sq, self.sk, self.d, *self.strides, self.each]
        return [*whole, self.window, *more, self.scale, self.cap]

    def sizes_and_rows(self) -> list[int | float]:
        """The scalar arguments of the tiled kernels: those of `sizes`, then the row strides of q, k and v."""
        heads = {ByToken.Q: self.heads, ByToken.K: self.kv_heads, ByToken.V: self.kv_heads}
        if self.joined:
            heads = dict.fromkeys(heads, self.heads + 2 * self.kv_heads)
        return self.sizes(*(self.d * (n if one in self.tokens else 1) for one, n in heads.items()))


def attention_of(
    ctx: Lowering, node: Node, q: Tensor, k: Tensor, others: Sequence[Tensor], tokens: ByToken | None = None
) -> Attention:
    """The `Attention` of a node. `tokens`, or else the node's attribute, says which operands are laid out by token; a
    mask stored neither as bool nor as f32 is cast to f32 here."""
    tokens = node.attrs.get("tokens", NO_TOKENS) if tokens is None else tokens
    q_shape = swapped(q.shape) if ByToken.Q in tokens else q.shape
    k_shape = swapped(k.shape) if ByToken.K in tokens else k.shape
    return attention_of_shapes(ctx, node, q_shape, k_shape, others, tokens)


def attention_of_shapes(
    ctx: Lowering, node: Node, q_shape: tuple[int, ...], k_shape: tuple[int, ...], others: Sequence[Tensor],
    tokens: ByToken,
) -> Attention:  # fmt: skip
    """The `Attention` of a node whose queries and keys have these shapes, (batch, heads, length, size)."""
    (batch, heads, sq, d), (kv_heads, sk) = q_shape, k_shape[1:3]
    mask, lengths = rest(node.op.name, others)
    window, cap = node.attrs.get("window"), node.attrs.get("softcap")
    flags = CAUSAL * node.attrs["causal"] + WINDOW * (window is not None)
    flags += CAPPED * (cap is not None) + COUNTED * (lengths is not None)
    flags += BY_TOKEN * tokens.value
    joined = node.attrs.get("kv_heads") is not None
    flags += JOINED * joined
    kind, word, held, strides = 0, "f32", None, (0, 0, 0, 0)
    if mask is not None:
        held, kind = ctx.ref(mask), 1 if mask.dtype.kind == "b" else 2
        word = ctx.storage(mask).name
        if word not in ("bool", "f32"):
            held, word = cast_ref(ctx, held, ctx.storage(mask), f32, mask.size), "f32"
        strides = _strides(mask.shape)
    return Attention(
        batch, heads, kv_heads, sq, sk, d, flags, kind, word, held, strides,
        None if lengths is None else ctx.ref(lengths), int(lengths is not None and lengths.size > 1),
        min(window or 0, sq + sk), float(node.attrs["scale"]), float(cap or 0.0), tokens, joined,
    )  # fmt: skip


def _strides(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Element strides over (batch, head, query, key); 0 where the mask is broadcast."""
    full = (1,) * (4 - len(shape)) + shape
    strides, step = [], 1
    for n in reversed(full):
        strides.append(step if n > 1 else 0)
        step *= n
    b, h, i, j = reversed(strides)
    return b, h, i, j
