"""Cases of the backward pass of attention."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.attention import VARIANTS, Size, attention_case, sizes_and_masks
from rlx.conformance.cases.shapes import FLOATS
from rlx.dtypes import bool_, f32

_SIZES: tuple[Size, ...] = (
    (1, 1, 1, 1, 1, 1), (1, 1, 1, 3, 5, 4), (2, 3, 3, 7, 7, 8), (2, 4, 2, 5, 9, 16), (1, 8, 1, 3, 33, 64),
    (1, 2, 2, 31, 31, 32), (1, 2, 2, 32, 32, 32), (1, 2, 2, 33, 33, 32), (1, 1, 1, 63, 65, 64), (1, 1, 1, 64, 128, 128),
    (1, 2, 1, 65, 129, 80), (1, 4, 4, 1, 257, 64), (3, 2, 2, 17, 1, 24), (1, 2, 2, 66, 66, 20), (0, 2, 2, 3, 4, 8),
    (1, 2, 2, 0, 4, 8), (1, 2, 2, 3, 0, 8), (1, 1, 1, 5, 6, 3), (1, 1, 1, 5, 9, 256),
)  # fmt: skip
_MASKS: tuple[tuple[int, ...], ...] = ((17,), (9, 17), (9, 1), (2, 1, 1, 17), (2, 4, 9, 17), (4, 1, 17))


def _grad(case: Case) -> Case:
    """The gradient at the inputs of a forward case."""
    q = case.inputs[0]
    d = InputSpec(q.shape, q.dtype)
    return Case("attention_grad", case.name, (d, *case.inputs), case.attrs, case.tolerance)


def _all() -> Iterator[Case]:
    size = (2, 4, 2, 9, 17, 16)
    yield from sizes_and_masks(_SIZES, size, _MASKS)
    for variant in VARIANTS:
        yield attention_case(size, **variant)
        yield attention_case((2, 2, 1, 70, 75, 20), **variant)
    for dtype in FLOATS:
        yield attention_case((1, 4, 4, 33, 40, 64), dtype)
        yield attention_case((2, 4, 1, 9, 9, 32), dtype, causal=True)
        yield attention_case(size, dtype, mask=(9, 17), mask_dtype=dtype)
        yield attention_case(size, dtype, softcap=2.0, window=5, causal=True, lengths="b")
    yield attention_case(size, mask=(9, 17), mask_dtype=f32, mask_domain="masked")
    yield attention_case((1, 2, 2, 33, 2, 8), mask=(33, 2), mask_dtype=bool_)
    yield attention_case(size, scale=-1.0)
    yield attention_case(size, scale=0.0)
    yield attention_case((1, 2, 2, 70, 65, 16), causal=True)


def cases() -> list[Case]:
    return [_grad(case) for case in _all()]
