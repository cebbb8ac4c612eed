"""Cases of group_norm, layer_norm_channels, batch_norm, and of the residual norms."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.norm import FAR, FAR_LENGTHS
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32

Shape = tuple[int, ...]

# (shape, groups): groups of one element aside, where the result is beta; odd places, whole quads, long rows, empty.
_GROUPED: tuple[tuple[Shape, int], ...] = (
    ((1, 1), 1), ((2, 4), 2), ((2, 6), 1), ((3, 6, 5), 3), ((2, 8, 4), 2), ((1, 12, 7, 5), 4), ((2, 4, 31), 1),
    ((2, 4, 32), 4), ((2, 2, 33), 2), ((1, 3, 129), 3), ((2, 32, 4, 4), 8), ((1, 8, 2, 3, 4), 2), ((3, 130, 2), 13),
    ((1, 4, 1025), 2), ((1, 2, 4100), 1), ((1, 3, 2731), 1), ((1, 2, 4500), 1), ((1, 4, 2304), 1), ((65, 4, 3), 2),
    ((0, 4, 3), 2), ((2, 4, 0), 2), ((2, 5, 1, 1), 5),
)  # fmt: skip
_CHANNELS: tuple[Shape, ...] = (
    (1, 1), (3, 7), (2, 33), (1, 1, 1), (2, 1, 5), (2, 3, 4, 5), (1, 31, 7), (1, 32, 32), (1, 33, 33), (2, 128, 3),
    (2, 129, 2), (1, 7, 129), (3, 5, 1), (1, 384, 5), (1, 768, 2, 3), (2, 8, 2, 3, 4), (65, 3, 2), (0, 4, 3), (2, 3, 0),
    (1, 4099, 2), (1, 3, 1021),
)  # fmt: skip


def _weights(c: int, dtype: DType, weights: DType | None) -> list[InputSpec]:
    return [InputSpec((c,), weights or dtype), InputSpec((c,), weights or dtype)]


def _group_norm() -> Iterator[Case]:
    def case(
        shape: Shape, groups: int, dtype: DType, domain: str = "normal", eps: float = 1e-5,
        weights: DType | None = None,
    ) -> Case:  # fmt: skip
        name = f"{dtype}-{label(shape)}-g{groups}-{domain}-eps{eps:g}" + (f"-weights_{weights}" if weights else "")
        specs = (InputSpec(shape, dtype, domain), *_weights(shape[1], dtype, weights))
        return Case("group_norm", name, specs, {"groups": groups, "eps": eps}, NORM)

    for shape, groups in _GROUPED:
        yield case(shape, groups, f32)
    for dtype in FLOATS:
        yield case((2, 8, 5, 5), 4, dtype, eps=1e-6)
        yield case((2, 8, 8), 2, dtype, eps=1e-6)
        yield case((3, 6, 9), 3, dtype, "holes")
        yield case((3, 6, 9), 3, dtype, "zeros")
        yield case((3, 6, 9), 2, dtype, "large")
    for dtype, weights in ((f32, bf16), (f32, f16), (f16, f32), (bf16, f32)):
        yield case((2, 6, 10), 3, dtype, weights=weights)
    yield case((2, 4, 65), 2, f32, "far")
    for domain in FAR:
        for dtype in FLOATS:
            for n in FAR_LENGTHS:
                yield case((4, 4, n), 2, dtype, domain)
        for shape, groups in (((3, 2, 9001), 2), ((2, 2, 50_000), 1), ((3, 8, 5, 5), 8), ((1100, 4, 6), 2)):
            yield case(shape, groups, f32, domain)


def _layer_norm_channels() -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, domain: str = "normal", eps: float = 1e-6, weights: DType | None = None
    ) -> Case:  # fmt: skip
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}" + (f"-weights_{weights}" if weights else "")
        specs = (InputSpec(shape, dtype, domain), *_weights(shape[1], dtype, weights))
        return Case("layer_norm_channels", name, specs, {"eps": eps}, NORM)

    for shape in _CHANNELS:
        yield case(shape, f32)
    for dtype in FLOATS:
        yield case((2, 33, 5), dtype, eps=1e-3)
        yield case((2, 96, 4, 4), dtype)
        yield case((3, 17, 9), dtype, "holes")
        yield case((3, 17, 9), dtype, "zeros")
    for dtype, weights in ((f32, bf16), (f32, f16), (f16, f32), (bf16, f32)):
        yield case((2, 12, 10), dtype, weights=weights)
    yield case((2, 65, 4), f32, "far")
    for domain in FAR:
        for dtype in FLOATS:
            for n in FAR_LENGTHS:
                yield case((4, n, 3), dtype, domain)
        for shape in ((3, 9001, 2), (2, 50_000), (4, 96, 33), (3, 768, 5, 7)):
            yield case(shape, f32, domain)


def _batch_norm() -> Iterator[Case]:
    def case(shape: Shape, dtype: DType, domain: str = "normal", eps: float = 1e-5, rest: DType | None = None) -> Case:
        column = (shape[1], *(1,) * (len(shape) - 2))
        specs = [InputSpec(shape, dtype, domain), *(InputSpec(column, rest or dtype) for _ in range(3))]
        specs.append(InputSpec(column, rest or dtype, "positive"))
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}" + (f"-statistics_{rest}" if rest else "")
        return Case("batch_norm", name, tuple(specs), {"eps": eps}, NORM)

    for shape in _CHANNELS[:-2]:
        yield case(shape, f32)
    for dtype in FLOATS:
        for domain in ("normal", "holes", "zeros", "large"):
            yield case((2, 5, 7, 3), dtype, domain, eps=1e-3)
    for dtype, rest in ((f16, f32), (bf16, f32), (f32, f16), (f32, bf16)):
        yield case((3, 8, 4), dtype, rest=rest)


# Around quads, lanes, and the end of what a row of registers holds.
_ROWS: tuple[Shape, ...] = (
    (1,), (7,), (1, 1), (3, 1), (5, 31), (5, 32), (5, 33), (3, 128), (3, 129), (2, 3, 384), (65, 64), (2, 1537),
    (2, 4099), (1, 8193), (1, 8196), (0, 5), (2, 0, 7), (2, 3, 4, 5), (257, 3),
)  # fmt: skip


def _residual(op: str, beta: bool) -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, keep: bool, domain: str = "normal", eps: float = 1e-5, weights: DType | None = None
    ) -> Case:
        # Far from 0 the sum is to be exact: what f32 rounds there is no part of the norm.
        added = {"constant": "zeros", "shifted": "halves"}.get(domain, "normal")
        specs = [InputSpec(shape, dtype, domain), InputSpec(shape, dtype, added)]
        specs += _weights(shape[-1], dtype, weights)[: 1 + beta]
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}{'-beta' if beta else ''}{'-sum' if keep else ''}"
        name += f"-weights_{weights}" if weights else ""
        return Case(op, name, tuple(specs), {"eps": eps, "keep_sum": keep}, NORM)

    for i, shape in enumerate(_ROWS):
        yield case(shape, f32, i % 2 == 0)
        if shape in ((5, 33), (1, 8193), (2, 3, 384)):
            yield case(shape, f32, i % 2 == 1)
    for dtype in FLOATS:
        for keep in (False, True):
            yield case((9, 384), dtype, keep, eps=1e-12)
            yield case((5, 33), dtype, keep, "large")
            yield case((7, 65), dtype, keep, "holes")
    for dtype, weights in ((f32, bf16), (f16, f32), (bf16, f32)):
        yield case((9, 130), dtype, True, weights=weights)
    for domain in FAR:
        for dtype in FLOATS:
            for i, n in enumerate(FAR_LENGTHS):
                yield case((5, n), dtype, i % 2 == 0, domain)
        for shape in ((3, 9001), (2, 50_000), (2100, 96)):
            yield case(shape, f32, False, domain)


def cases() -> list[Case]:
    return [
        *_group_norm(), *_layer_norm_channels(), *_batch_norm(), *_residual("add_layer_norm", True),
        *_residual("add_rms_norm", False), *_residual("add_rms_norm", True),
    ]  # fmt: skip
