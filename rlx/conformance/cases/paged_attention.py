"""Conformance of attention over keys and values in pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.attention.dense import largest_value, masked_nan
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, f16, f32, i8, i32
from rlx.ir import Attrs
from rlx.ops.attention.parts import ByToken
from rlx.ops.numeric import Array
from rlx.ops.packed_attention import BLOCK, dequantized

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

_ALL = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y
# (batch, query heads, key heads, queries, pages of a sequence, rows of a page, pages, head size)
Size = tuple[int, int, int, int, int, int, int, int]
_SIZES: tuple[Size, ...] = (
    (2, 8, 2, 1, 5, 16, 7, 64), (1, 1, 1, 1, 1, 1, 1, 1), (3, 4, 4, 1, 3, 64, 4, 128), (2, 6, 3, 3, 9, 8, 9, 20),
    (1, 4, 2, 17, 3, 16, 5, 32), (4, 16, 1, 1, 2, 64, 3, 80), (1, 2, 2, 2, 6, 16, 6, 256), (0, 2, 2, 1, 2, 4, 3, 8),
    (1, 2, 2, 0, 2, 4, 3, 8), (2, 2, 2, 1, 0, 4, 3, 8), (1, 1, 1, 1, 18, 64, 20, 64), (2, 2, 1, 2, 5, 7, 6, 64),
    (71, 8, 4, 1, 5, 16, 9, 64), (35, 8, 4, 2, 9, 8, 9, 32),
)  # fmt: skip
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"causal": True}, {"window": 3, "causal": True}, {"window": 40}, {"softcap": 2.0}, {"scale": -0.5},
    {"causal": True, "window": 30, "softcap": 5.0},
)  # fmt: skip


def _case(size: Size, dtype: DType = f32, domain: str = "normal", **attrs: Any) -> Case:
    b, h, kv, n_q, n, rows, pages, d = size
    pool = InputSpec((pages, rows, kv, d), dtype)
    specs = (InputSpec((b, n_q, h, d), dtype, domain), pool, pool, InputSpec((b, n), i32, f"wild:{pages}"),
             InputSpec((b,), i32, f"wild:{max(n * rows, 1)}"))  # fmt: skip
    name = f"{dtype}-{label(size)}-{domain}" + "".join(f"-{k}{v}" for k, v in attrs.items())
    all_attrs = {"scale": 1 / math.sqrt(d), "causal": False, "window": None, "softcap": None, **attrs}
    return Case("paged_attention", name, specs, all_attrs, NORM)


def _packed(size: Size, dtype: DType = f32, scales: str = "unit", **attrs: Any) -> Case:
    """One case of pages of 8 bits; the scales make keys and values of about 1."""
    b, h, kv, n_q, n, rows, pages, d = size
    codes, by = InputSpec((pages, rows, kv, d), i8), InputSpec((pages, rows, kv, d // BLOCK), f16, scales)
    specs = (InputSpec((b, n_q, h, d), dtype), codes, codes, InputSpec((b, n), i32, f"wild:{pages}"),
             InputSpec((b,), i32, f"wild:{max(n * rows, 1)}"), by, by)  # fmt: skip
    name = f"{dtype}-{label(size)}-8_bits-{scales}" + "".join(f"-{k}{v}" for k, v in attrs.items())
    all_attrs = {"scale": 1 / (64 * math.sqrt(max(d, 1))), "causal": False, "window": None, "softcap": None, **attrs}
    return Case("paged_attention", name, specs, all_attrs, NORM)


def _packed_cases() -> Iterator[Case]:
    for size in _SIZES:
        d = -(-size[-1] // BLOCK) * BLOCK
        for dtype in (f32, f16) if size in _SIZES[2:4] else (f32,):
            yield _packed((*size[:-1], d), dtype)
    for dtype in FLOATS[:3]:
        yield _packed((2, 8, 2, 1, 5, 16, 7, 64), dtype)
    for variant in _VARIANTS:
        variant = {**variant, **({"scale": -0.005} if "scale" in variant else {})}
        yield _packed((2, 8, 2, 1, 5, 16, 7, 64), **variant)
        yield _packed((2, 4, 2, 3, 9, 8, 9, 32), f16, **variant)
    for scales in ("zeros", "small"):
        yield _packed((2, 8, 2, 1, 5, 16, 7, 64), scales=scales)
    yield _packed((1, 2, 1, 1, 2, 8, 3, 0))


def _cases() -> Iterator[Case]:
    for size in _SIZES:
        for dtype in FLOATS:
            yield _case(size, dtype)
    for variant in _VARIANTS:
        for dtype in (f32, f16):
            yield _case((2, 8, 2, 1, 5, 16, 7, 64), dtype, **variant)
            yield _case((2, 4, 2, 3, 9, 8, 9, 32), dtype, **variant)
        yield _case((71, 8, 4, 1, 5, 16, 9, 64), f16, **variant)
    for domain in ("zeros", "holes", "large"):
        yield _case((2, 8, 2, 1, 5, 16, 7, 64), domain=domain)


@rule("paged_attention")
def _random(b: Builder) -> Made:
    batch, kv, group, n_q, n, rows, pages, d = (1 + b.below(3) for _ in range(8))
    dtype = b.choose((f32, f32, f16))
    k, v = (b.leaf((pages, rows, kv, d), dtype) for _ in range(2))
    table = b.graph.constant(b.rng.integers(0, pages, (batch, n)).astype(np.int32), i32)
    lengths = b.graph.constant(b.rng.integers(0, n * rows + 1, (batch,)).astype(np.int32), i32)
    if b.chance(0.3):
        packed = [ops.q8_0_blocks(b.leaf((pages, rows, kv, BLOCK), f32)) for _ in range(2)]
        (k, k_scales), (v, v_scales) = packed
        q = b.leaf((batch, n_q, kv * group, BLOCK), b.choose((f32, f16)))
        return (ops.paged_attention(q, k, v, table, lengths, k_scales, v_scales, causal=b.chance(0.5)),)
    q = b.leaf((batch, n_q, kv * group, d), dtype)
    window = b.choose((None, None, 0, 2))
    return (ops.paged_attention(q, k, v, table, lengths, causal=b.chance(0.5), window=window),)


def _plain(inputs: Sequence[Array], attrs: Attrs) -> tuple[list[Array], dict[str, Any]]:
    """The attention over each sequence's pages, one after the other."""
    q, k, v, table, lengths, *scales = inputs
    if scales:
        with np.errstate(all="ignore"):
            k, v = (dequantized(x, by.astype(np.float64)) for x, by in zip((k, v), scales, strict=True))
    pages = np.clip(table.astype(np.int64), 0, max(len(k) - 1, 0))
    keys, values = (t[pages].reshape(len(q), math.prod(table.shape[1:]) * t.shape[1], *t.shape[2:]) for t in (k, v))
    return [q, keys, values, lengths.astype(np.int32)], {**attrs, "tokens": _ALL}


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    return largest_value(*_plain(inputs, attrs))


def _undecided(inputs: Sequence[Array], attrs: Attrs) -> Any:
    return masked_nan(*_plain(inputs, attrs))


_STEEP = ("offset", "scores of 2,000 round to 1e-4, and weights change by as much of themselves")
OPS = (
    Conformance(
        "paged_attention", (_cases, _packed_cases), (_random,), terms=_terms, undecided=_undecided,
        narrower={(1, "far"): _STEEP},
    ),
)  # fmt: skip
