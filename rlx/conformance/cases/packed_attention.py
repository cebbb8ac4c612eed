"""Conformance of attention over keys and values of 8 bits."""

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
from rlx.conformance.tolerances import BITS, NORM
from rlx.dtypes import DType, bool_, f16, f32, i8, i32
from rlx.ir import Attrs
from rlx.ops.attention.parts import ByToken
from rlx.ops.numeric import Array
from rlx.ops.packed_attention import BLOCK, dequantized

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

_ALL = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y
# (batch, query heads, key heads, queries, keys, head size)
Size = tuple[int, int, int, int, int, int]
_SIZES: tuple[Size, ...] = (
    (1, 1, 1, 1, 1, 32), (2, 8, 2, 1, 150, 64), (1, 4, 4, 1, 257, 128), (2, 6, 3, 3, 70, 96), (1, 32, 8, 1, 300, 64),
    (1, 4, 2, 17, 40, 32), (3, 16, 1, 1, 33, 128), (1, 2, 2, 2, 66, 256), (1, 2, 1, 70, 75, 64), (0, 2, 2, 3, 4, 32),
    (1, 2, 2, 0, 4, 32), (1, 2, 2, 3, 0, 32), (1, 1, 1, 1, 9, 0), (1, 1, 1, 1, 1100, 64),
)  # fmt: skip
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"causal": True}, {"window": 3, "causal": True}, {"window": 4}, {"softcap": 2.0}, {"lengths": ""}, {"lengths": "b"},
    {"lengths": "b", "causal": True, "window": 30}, {"lengths": "b", "softcap": 0.5}, {"scale": 0.5},
)  # fmt: skip


def _case(
    size: Size, dtype: DType = f32, mask: InputSpec | None = None, lengths: str | None = None, domain: str = "normal",
    scales: str = "unit", **attrs: Any,
) -> Case:  # fmt: skip
    """One case; the scales make keys and values of about 1."""
    b, h, kv, n_q, n_k, d = size
    rows, blocks = (b, n_k, kv, d), (b, n_k, kv, d // BLOCK)
    codes, by = InputSpec(rows, i8), InputSpec(blocks, f16, scales)
    specs = [InputSpec((b, n_q, h, d), dtype, domain), codes, by, codes, by]
    name = f"{dtype}-{label(size)}-{domain}-{scales}" + "".join(f"-{k}{v}" for k, v in attrs.items())
    if mask is not None:
        specs.append(mask)
        name += f"-mask_{mask.dtype}_{label(mask.shape)}"
    if lengths is not None:
        specs.append(InputSpec((b,) if lengths else (), i32, f"wild:{max(n_k, 1)}"))
        name += f"-kv_len{lengths}"
    scale = 1 / (64 * math.sqrt(max(d, 1)))
    all_attrs = {"scale": scale, "causal": False, "window": None, "softcap": None, **attrs}
    return Case("packed_attention", name, tuple(specs), all_attrs, NORM)


def _cases() -> Iterator[Case]:
    for size in _SIZES:
        for dtype in FLOATS:
            yield _case(size, dtype)
        yield _case(size, lengths="b")
    decoding, several = (2, 8, 2, 1, 150, 64), (2, 4, 2, 5, 70, 32)
    for variant in _VARIANTS:
        variant = {**variant, **({"scale": 0.005} if "scale" in variant else {})}
        yield _case(decoding, **variant)
        yield _case(several, **variant)
        yield _case(decoding, f16, **variant)
        yield _case(decoding, mask=InputSpec((2, 1, 1, 150), bool_), **variant)
    yield _case(decoding, mask=InputSpec((2, 8, 1, 150), f32))
    yield _case(several, mask=InputSpec((5, 70), f32, "masked"), lengths="b")
    yield _case(several, mask=InputSpec((5, 1), bool_))
    for domain in ("zeros", "holes", "large", "roots"):
        yield _case(decoding, domain=domain)
    for scales in ("zeros", "tiny", "small"):
        yield _case(decoding, scales=scales)


@rule("packed_attention")
def _random(b: Builder) -> Made:
    batch, kv, group, n_q, n_k = (1 + b.below(3) for _ in range(5))
    n_k = n_k if b.chance(0.7) else 40
    q = b.leaf((batch, n_q, kv * group, BLOCK), b.choose((f32, f32, f16)))
    k, v = (ops.q8_0_blocks(b.leaf((batch, n_k, kv, BLOCK), f32)) for _ in range(2))
    mask = b.leaf((n_q, n_k), b.choose((bool_, f32))) if b.chance(0.3) else None
    lengths = b.graph.constant(b.rng.integers(0, n_k + 1, (batch,)).astype(np.int32), i32) if b.chance(0.5) else None
    window = b.choose((None, None, 0, 2))
    return (ops.packed_attention(q, *k, *v, mask=mask, kv_len=lengths, causal=b.chance(0.5), window=window),)


def _plain(inputs: Sequence[Array], attrs: Attrs) -> tuple[list[Array], dict[str, Any]]:
    """The attention over the dequantized keys and values."""
    q, k, k_scales, v, v_scales, *others = inputs
    with np.errstate(all="ignore"):
        keys, values = dequantized(k, k_scales.astype(np.float64)), dequantized(v, v_scales.astype(np.float64))
    return [q, keys, values, *others], {**attrs, "tokens": _ALL}


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    return largest_value(*_plain(inputs, attrs))


def _undecided(inputs: Sequence[Array], attrs: Attrs) -> Any:
    return masked_nan(*_plain(inputs, attrs))


def _updates() -> Iterator[Case]:
    """Updates of a cache at positions within its rows and beyond them."""
    sizes = ((1, 2, 64, 5), (3, 1, 32, 1), (4, 3, 96, 70), (1, 1, 256, 9), (0, 1, 32, 2), (2, 2, 0, 3))
    for size in sizes:
        for dtype in FLOATS:
            yield _update(size, dtype)
    for domain in ("zeros", "holes", "large", "tiny", "wide", "special"):
        yield _update((2, 2, 64, 5), f32, domain)
    yield _update((3, 2, 64, 5), f32, reach="wild:40")


def _update(size: tuple[int, int, int, int], dtype: DType, domain: str = "normal", reach: str = "") -> Case:
    batch, heads, d, rows = size
    cache = (batch, rows, heads, d)
    specs = [InputSpec((batch, heads, d), dtype, domain), InputSpec(cache, i8),
             InputSpec((*cache[:3], d // BLOCK), f16), InputSpec((batch,), i32, reach or f"index:{rows}")]  # fmt: skip
    return Case("q8_0_update", f"{dtype}-{label(size)}-{domain}" + f"-{reach}" * bool(reach), tuple(specs), {}, BITS)


@rule("q8_0_update")
def _random_update(b: Builder) -> Made:
    batch, heads, rows = (1 + b.below(3) for _ in range(3))
    codes, scales = ops.q8_0_blocks(b.leaf((batch, rows, heads, BLOCK), f32))
    x, at = b.leaf((batch, heads, BLOCK), b.choose(FLOATS)), b.leaf((batch,), i32)
    return ops.q8_0_update(x, codes, scales, at, checked=False)


_STEEP = "keys of such numbers give scores whose last places are whole weights"
OPS = (
    Conformance(
        "packed_attention", (_cases,), (_random,), terms=_terms, undecided=_undecided,
        narrower={
            (0, "wide"): ("roots", "times integers of 127 larger numbers leave f32"),
            (5, "far"): ("offset", "scores of 2,000 round to 1e-4, and weights change by as much of themselves"),
        },
        without={(2, "wide"): _STEEP, (2, "far"): _STEEP},
    ),
    Conformance("q8_0_update", (_updates,), (_random_update,)),
)  # fmt: skip
