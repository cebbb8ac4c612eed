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
from rlx.ops.attention.parts import rest, swapped

CAUSAL, WINDOW, CAPPED, COUNTED = 1, 2, 4, 8  # flags of the kernels' constant FLAGS
BY_TOKEN = {"q": 16, "k": 32, "v": 64, "y": 128}  # more of FLAGS, by the letters of the attribute `tokens`


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
    tokens: str = ""

    @property
    def count(self) -> int:
        return self.batch * self.heads

    def problem(self, stored: DType, precision: str) -> choice.Problem:
        """The record on which the choice of an algorithm depends."""
        heads = (self.batch, self.heads, self.kv_heads)
        return choice.Problem(*heads, self.sq, self.sk, self.d, stored, precision)

    def constants(self, aligned: int) -> dict[str, int]:
        """Constants of every attention kernel."""
        wide = max(1, math.ceil(self.d / 16))
        return {"WIDE": wide, "FLAGS": self.flags, "MASK": self.mask_kind, "ALIGNED": aligned}

    def pointers(self, refs: Sequence[Ref]) -> list[Ref]:
        """The operands, then mask and lengths; the first operand takes the place of one that is absent."""
        return [*refs, self.mask or refs[0], self.lengths or refs[0]]

    def sizes(self) -> list[int | float]:
        """The scalar arguments of the gradient's kernels, as their declarations list them."""
        whole = [self.count, self.heads, self.kv_heads, self.sq, self.sk, self.d, *self.strides, self.each]
        return [*whole, self.window, self.scale, self.cap]

    def sizes_and_rows(self, *more: int) -> list[int | float]:
        """The scalar arguments of the forward kernels: those of `sizes`, the distances between the rows of q, of k and
        of v, and `more`."""
        *whole, scale, cap = self.sizes()
        named = zip("qkv", (self.heads, self.kv_heads, self.kv_heads), strict=True)
        rows = [heads * self.d if letter in self.tokens else self.d for letter, heads in named]
        return [*whole, *rows, *more, scale, cap]


def attention_of(ctx: Lowering, node: Node, q: Tensor, k: Tensor, others: Sequence[Tensor]) -> Attention:
    """The `Attention` of a node; a mask that is stored neither as bool nor as f32 is cast to f32 here."""
    tokens: str = node.attrs.get("tokens", "")
    batch, heads, sq, d = swapped(q.shape) if "q" in tokens else q.shape
    kv_heads, sk = (swapped(k.shape) if "k" in tokens else k.shape)[1:3]
    mask, lengths = rest(node.op.name, others)
    window, cap = node.attrs.get("window"), node.attrs.get("softcap")
    flags = CAUSAL * node.attrs["causal"] + WINDOW * (window is not None)
    flags += CAPPED * (cap is not None) + COUNTED * (lengths is not None)
    flags += sum(BY_TOKEN[letter] for letter in tokens)
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
        min(window or 0, sq + sk), float(node.attrs["scale"]), float(cap or 0.0), tokens,
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
