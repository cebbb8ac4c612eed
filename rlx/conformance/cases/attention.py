"""Cases of attention."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bool_, f16, f32

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


def _case(
    size: Size,
    dtype: DType = f32,
    mask: tuple[int, ...] | None = None,
    mask_dtype: DType = bool_,
    mask_domain: str = "normal",
    scale: float | None = None,
    causal: bool = False,
    domain: str = "normal",
) -> Case:
    b, h, kv, n_q, n_k, d = size
    specs = [InputSpec((b, h, n_q, d), dtype, domain), *[InputSpec((b, kv, n_k, d), dtype, domain)] * 2]
    name = f"{dtype}-{label(size)}"
    if mask is not None:
        specs.append(InputSpec(mask, mask_dtype, mask_domain))
        name += f"-mask_{mask_dtype}_{label(mask)}_{mask_domain}"
    if causal:
        name += "-causal"
    if scale is not None:
        name += f"-scale{scale:g}"
    name += f"-{domain}" if domain != "normal" else ""
    attrs = {"scale": 1 / math.sqrt(d) if scale is None else scale, "causal": causal}
    return Case("attention", name, tuple(specs), attrs, NORM)


def _all() -> Iterator[Case]:
    for size in _SIZES:
        yield _case(size)
        yield _case(size, causal=True)
    size = (2, 4, 2, 9, 17, 16)
    for mask in _MASKS:
        yield _case(size, mask=mask)
        yield _case(size, mask=mask, mask_dtype=f32)
    for dtype in FLOATS:
        yield _case((1, 4, 4, 33, 40, 64), dtype)
        yield _case((2, 4, 1, 9, 9, 32), dtype, causal=True)
        yield _case(size, dtype, mask=(2, 1, 1, 17))
        yield _case(size, dtype, mask=(9, 17), mask_dtype=dtype)
        yield _case(size, dtype, scale=0.5, causal=True, mask=(2, 1, 9, 17))
        yield _case(size, dtype, domain="large")
    # Additive masks of -inf, rows of them too; sharp scores; NaN and infinity in the inputs.
    yield _case(size, mask=(9, 17), mask_dtype=f32, mask_domain="masked")
    yield _case((1, 2, 2, 33, 2, 8), mask=(33, 2), mask_dtype=f32, mask_domain="masked")
    yield _case((1, 2, 2, 33, 2, 8), mask=(33, 2))
    yield _case(size, f16, mask=(9, 17), mask_dtype=f32)
    yield _case(size, scale=-1.0)
    yield _case(size, scale=0.0)
    # More queries than keys: the first rows see no key at all.
    yield _case((1, 2, 2, 9, 4, 8), causal=True)
    yield _case((1, 2, 2, 70, 65, 16), causal=True)


def cases() -> list[Case]:
    return list(_all())
