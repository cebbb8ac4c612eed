"""Conformance of tokens' rotated queries and keys, and their writes into caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.attention.step import ANGLES, ROUNDED
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32, i32

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

# (tokens, query heads, key heads, size, rows)
Size = tuple[int, int, int, int, int]
_SIZES: tuple[Size, ...] = (
    (1, 8, 2, 64, 300), (1, 1, 1, 1, 1), (5, 2, 1, 8, 9), (2, 3, 3, 6, 7), (33, 4, 2, 32, 40), (130, 7, 1, 64, 200),
    (2, 2, 2, 128, 150), (7, 4, 4, 256, 14), (3, 4, 1, 80, 70), (0, 2, 1, 8, 4), (20, 6, 2, 16, 64),
)  # fmt: skip


def _case(
    size: Size, token: DType = f32, cache: DType = f32, pairs: int | None = None, interleaved: bool = False
) -> Case:
    tokens, heads, kv_heads, d, rows = size
    pairs = d // 2 if pairs is None else pairs
    specs = [InputSpec((tokens, n, d), token) for n in (heads, kv_heads, kv_heads)]
    specs += [InputSpec((rows, kv_heads, d), cache) for _ in range(2)]
    specs += [InputSpec((tokens,), i32, f"distinct:{rows}"), InputSpec((tokens,), i32, f"wild:{rows}")]
    specs += [InputSpec((rows + 2, pairs), f32, "unit") for _ in range(2)]
    name = f"{token}-{cache}-{label(size)}-turned{pairs}{'p' * interleaved}"
    return Case("rope_update", name, tuple(specs), {"interleaved": interleaved}, ROUNDED.get(cache, NORM))


def _all() -> Iterator[Case]:
    for size in _SIZES:
        yield _case(size)
        yield _case(size, interleaved=True, pairs=size[3] // 4)
    size = (12, 8, 2, 64, 30)
    for token, cache in ((f32, f32), (f32, f16), (f32, bf16), (f16, f16), (bf16, bf16), (bf16, f32)):
        yield _case(size, token, cache)
        yield _case(size, token, cache, 12, True)


@rule("rope_update")
def _update(b: Builder) -> Made:
    tokens, kv, group, d, more = (1 + b.below(3) for _ in range(5))
    token, cache = b.choose((f32, f32, f16)), b.choose(FLOATS)
    d, rows = d if b.chance(0.7) else 32, tokens + more
    q, k, v = (b.leaf((tokens, n, d), token) for n in (kv * group, kv, kv))
    keys, values = (b.leaf((rows, kv, d), cache) for _ in range(2))
    cos, sin = (b.leaf((rows, d // 2), f32) for _ in range(2))
    places = np.roll(np.arange(tokens, dtype=np.int32) - 1, b.below(3))
    return ops.rope_update(q, k, v, keys, values, places, b.leaf((tokens,), i32), cos, sin, interleaved=b.chance(0.5))


OPS = (
    Conformance("rope_update", (_all,), (_update,), without={(i, "wide"): ANGLES for i in (7, 8)}),
)  # fmt: skip
