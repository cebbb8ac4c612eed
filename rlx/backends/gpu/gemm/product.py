"""A matmul node as the product its kernels see: sizes, batch axes merged, the strides of each operand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.ir import Node

MAX_AXES = 3  # batch axes of one launch


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of products: sizes, and per batch axis (outermost first) its length and the strides of A and B in
    elements, 0 where an operand is broadcast."""

    m: int
    n: int
    k: int
    batch: tuple[tuple[int, int, int], ...]
    transpose_a: bool
    transpose_b: bool

    @property
    def count(self) -> int:
        return math.prod(d for d, _, _ in self.batch)

    @property
    def pitches(self) -> tuple[int, int]:
        """The leading dimensions of A and of B: the elements of a row in memory."""
        return (self.m if self.transpose_a else self.k), (self.k if self.transpose_b else self.n)


def tiles_across(p: Product, sides: Sequence[float]) -> int:
    """The number of tiles of sides[0] rows and sides[1] columns in a matrix of the result."""
    return math.ceil(p.m / sides[0]) * math.ceil(p.n / sides[1])


def product_of(node: Node) -> Product:
    """The node's product with its batch axes merged where possible; a batch whose members share B becomes one product
    of more rows."""
    a, b = (t.shape for t in node.inputs[:2])
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    m, k = (a[-1], a[-2]) if ta else (a[-2], a[-1])
    n = node.output.shape[-1]
    out = node.output.shape[:-2]
    merged: list[tuple[int, int, int]] = []
    for d, sa, sb in zip(out, _strides(a, len(out)), _strides(b, len(out)), strict=True):
        if d == 1:
            continue
        if merged and merged[-1][1] == sa * d and merged[-1][2] == sb * d:
            merged[-1] = (merged[-1][0] * d, sa, sb)
        else:
            merged.append((d, sa, sb))
    if not ta and len(merged) == 1 and merged[0][1] == m * k and merged[0][2] == 0:
        m, merged = m * merged[0][0], []
    return Product(m, n, k, tuple(merged), ta, tb)


def _strides(shape: Sequence[int], rank: int) -> list[int]:
    """Element strides of the batch axes, aligned to `rank` axes; 0 where the operand is broadcast."""
    strides, step = [], shape[-1] * shape[-2]
    for d in reversed(shape[:-2]):
        strides.append(step if d > 1 else 0)
        step *= d
    strides += [0] * (rank - len(strides))
    return strides[::-1]


def outer(product: Product, most: int) -> tuple[list[tuple[int, int, int]], tuple[tuple[int, int, int], ...]]:
    """The batch axes outside the innermost `most`, as (number, offset in A, offset in B) for each of their indices; and
    the innermost axes."""
    beyond, inner = product.batch[: max(0, len(product.batch) - most)], product.batch[-most:]
    members = []
    for number, at in enumerate(itertools.product(*(range(d) for d, _, _ in beyond))):
        offset_a = sum(i * sa for i, (_, sa, _) in zip(at, beyond, strict=True))
        offset_b = sum(i * sb for i, (_, _, sb) in zip(at, beyond, strict=True))
        members.append((number, offset_a, offset_b))
    return members, inner
