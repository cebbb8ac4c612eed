"""Cases of attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bool_, f16, f32, i32
from rlx.ops.attention.parts import swapped

# (batch, query heads, key heads, queries, keys, head size)
Size = tuple[int, int, int, int, int, int]

_SIZES: tuple[Size, ...] = (
    (1, 1, 1, 1, 1, 1), (1, 1, 1, 3, 5, 4), (2, 3, 3, 7, 7, 8), (1, 12, 12, 16, 16, 32), (2, 4, 2, 5, 9, 16),
    (1, 8, 1, 3, 33, 64), (1, 2, 2, 31, 31, 32), (1, 2, 2, 32, 32, 32), (1, 2, 2, 33, 33, 32), (1, 1, 1, 63, 65, 64),
    (1, 1, 1, 64, 128, 128), (1, 2, 1, 65, 129, 80), (1, 4, 4, 1, 257, 64), (3, 2, 2, 17, 1, 24),
    (1, 2, 2, 128, 128, 40), (0, 2, 2, 3, 4, 8), (1, 2, 2, 0, 4, 8), (1, 2, 2, 3, 0, 8), (1, 1, 1, 5, 6, 3),
)  # fmt: skip
_MASKS: tuple[tuple[int, ...], ...] = (
    (), (17,), (9, 17), (9, 1), (1, 17), (4, 9, 17), (1, 9, 17), (2, 1, 1, 17), (2, 4, 9, 17), (2, 4, 1, 1),
)  # fmt: skip
# Windows, soft caps and lengths, alone and together.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"window": 0}, {"window": 0, "causal": True}, {"window": 3}, {"window": 3, "causal": True}, {"window": 40},
    {"softcap": 0.5}, {"softcap": 30.0, "causal": True}, {"lengths": ""}, {"lengths": "b"},
    {"lengths": "b", "causal": True}, {"lengths": "b", "window": 4}, {"lengths": "", "window": 2, "causal": True},
    {"lengths": "b", "causal": True, "window": 5, "softcap": 2.0},
)  # fmt: skip


def attention_case(
    size: Size,
    dtype: DType = f32,
    mask: tuple[int, ...] | None = None,
    mask_dtype: DType = bool_,
    mask_domain: str = "normal",
    scale: float | None = None,
    causal: bool = False,
    domain: str = "normal",
    window: int | None = None,
    softcap: float | None = None,
    lengths: str | None = None,
    tokens: str = "",
) -> Case:
    """One case; `lengths` "" gives one length for all batches, "b" one each, some of them out of range."""
    b, h, kv, n_q, n_k, d = size
    shapes = {"q": (b, h, n_q, d), "k": (b, kv, n_k, d), "v": (b, kv, n_k, d)}
    given = [swapped(shape) if letter in tokens else shape for letter, shape in shapes.items()]
    specs = [InputSpec(shape, dtype, domain) for shape in given]
    name = f"{dtype}-{label(size)}"
    if mask is not None:
        specs.append(InputSpec(mask, mask_dtype, mask_domain))
        name += f"-mask_{mask_dtype}_{label(mask)}_{mask_domain}"
    if lengths is not None:
        specs.append(InputSpec((b,) if lengths else (), i32, f"wild:{max(n_k, 1)}"))
        name += f"-kv_len{lengths}"
    if causal:
        name += "-causal"
    if window is not None:
        name += f"-window{window}"
    if softcap is not None:
        name += f"-cap{softcap:g}"
    if scale is not None:
        name += f"-scale{scale:g}"
    name += f"-{domain}" if domain != "normal" else ""
    name += f"-tokens_{tokens}" if tokens else ""
    scale = 1 / math.sqrt(d) if scale is None else scale
    attrs: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
    if tokens:
        attrs["tokens"] = tokens
    return Case("attention", name, tuple(specs), attrs, NORM)


def sizes_and_masks(
    sizes: tuple[Size, ...], size: Size, masks: tuple[tuple[int, ...], ...]
) -> Iterator[Case]:
    """Every size, causal too; then at one size every mask, of bools and of numbers."""
    for each in sizes:
        yield attention_case(each)
        yield attention_case(each, causal=True)
    for mask in masks:
        yield attention_case(size, mask=mask)
        yield attention_case(size, mask=mask, mask_dtype=f32)


def _all() -> Iterator[Case]:
    size = (2, 4, 2, 9, 17, 16)
    yield from sizes_and_masks(_SIZES, size, _MASKS)
    for dtype in FLOATS:
        yield attention_case((1, 4, 4, 33, 40, 64), dtype)
        yield attention_case((2, 4, 1, 9, 9, 32), dtype, causal=True)
        yield attention_case(size, dtype, mask=(2, 1, 1, 17))
        yield attention_case(size, dtype, mask=(9, 17), mask_dtype=dtype)
        yield attention_case(size, dtype, scale=0.5, causal=True, mask=(2, 1, 9, 17))
        yield attention_case(size, dtype, domain="large")
    # Additive masks of -inf, rows of them too; sharp scores; NaN and infinity in the inputs.
    yield attention_case(size, mask=(9, 17), mask_dtype=f32, mask_domain="masked")
    yield attention_case((1, 2, 2, 33, 2, 8), mask=(33, 2), mask_dtype=f32, mask_domain="masked")
    yield attention_case((1, 2, 2, 33, 2, 8), mask=(33, 2))
    yield attention_case(size, f16, mask=(9, 17), mask_dtype=f32)
    yield attention_case(size, scale=-1.0)
    yield attention_case(size, scale=0.0)
    # More queries than keys: the first rows see no key at all.
    yield attention_case((1, 2, 2, 9, 4, 8), causal=True)
    yield attention_case((1, 2, 2, 70, 65, 16), causal=True)
    for variant in VARIANTS:
        yield attention_case(size, **variant)
        yield attention_case((2, 2, 1, 70, 75, 20), **variant)
        yield attention_case(size, mask=(9, 17), **variant)
        # Decoding: few queries, many keys.
        yield attention_case((2, 8, 2, 1, 150, 32), **variant)
        yield attention_case((2, 3, 3, 3, 150, 36), mask=(2, 1, 3, 150), mask_dtype=f32, **variant)
    for dtype in FLOATS:
        for lengths in ("", "b"):
            yield attention_case((2, 8, 2, 1, 300, 64), dtype, lengths=lengths)
            yield attention_case((2, 4, 4, 2, 70, 20), dtype, lengths=lengths, causal=True, window=30)
        yield attention_case((1, 16, 1, 1, 260, 128), dtype, lengths="b")
        yield attention_case((1, 2, 2, 4, 65, 256), dtype, softcap=5.0, lengths="b", causal=True)
        yield attention_case((1, 2, 1, 130, 140, 64), dtype, window=20, causal=True)
        yield attention_case((1, 2, 1, 70, 140, 96), dtype, window=20, softcap=3.0, lengths="")
        yield attention_case((1, 1, 1, 65, 66, 256), dtype, causal=True)
        # Heads side by side in a token's row, as products leave them: all operands, or some.
        for tokens in ("qkvy", "kv", "qy", "v"):
            yield attention_case((2, 4, 2, 70, 75, 20), dtype, tokens=tokens, causal=True)
            yield attention_case((2, 6, 3, 3, 150, 32), dtype, tokens=tokens, lengths="b")
        yield attention_case((2, 4, 4, 130, 130, 64), dtype, tokens="qkvy", mask=(2, 1, 1, 130))
        yield attention_case((2, 12, 12, 16, 16, 32), dtype, tokens="qkvy", mask=(2, 1, 1, 16))
    yield attention_case((1, 2, 2, 0, 4, 8), tokens="qkvy")
    yield attention_case((1, 2, 2, 3, 0, 8), tokens="qkvy")
    yield attention_case((2, 1, 1, 5, 6, 3), tokens="qkvy")


def cases() -> list[Case]:
    return list(_all())
