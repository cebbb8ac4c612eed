"""Cases of the backward passes of norms, softmax and cross-entropy, and of cross-entropy and fake quantization."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.norm import FAR
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import EQUAL, NORM
from rlx.dtypes import DType, bf16, f16, f32, i32

Shape = tuple[int, ...]

# Not rows of two: layer norm makes ±1 of them whatever they hold, and their gradient cancels to nothing.
_ROWS: tuple[Shape, ...] = (
    (7,), (3, 1), (5, 31), (5, 32), (5, 33), (3, 128), (3, 129), (2, 3, 96), (65, 64), (600, 5), (1100, 36), (2, 1537),
    (1, 8193), (2, 8196), (0, 5), (2, 0, 7), (2, 3, 4, 5), (257, 3), (1, 33), (64, 4), (70, 33),
)  # fmt: skip
_GROUPED: tuple[tuple[Shape, int], ...] = (
    ((2, 6), 1), ((3, 6, 5), 3), ((2, 8, 4), 2), ((1, 12, 7, 5), 4), ((2, 4, 31), 1), ((2, 4, 32), 4), ((1, 3, 129), 3),
    ((2, 32, 4, 4), 8), ((1, 8, 2, 3, 4), 2), ((3, 130, 3), 13), ((1, 2, 4100), 1), ((1, 3, 2731), 1), ((65, 4, 3), 2),
    ((0, 4, 3), 2), ((2, 4, 0), 2), ((2, 5, 1, 1), 1), ((300, 3, 2), 1), ((1, 4, 2304), 2), ((1, 2, 17000), 1),
)  # fmt: skip


def _weights_gradient(op: str, grouped: bool = False) -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, groups: int = 1, domain: str = "normal", eps: float = 1e-5,
        weights: DType | None = None, beta: DType | None = f32,
    ) -> Case:  # fmt: skip
        c = shape[1 if grouped else -1]
        specs = (InputSpec(shape, dtype), InputSpec(shape, dtype, domain), InputSpec((c,), weights or dtype))
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}{f'-g{groups}' if grouped else ''}"
        name += f"-weights_{weights or dtype}-beta_{beta}"
        attrs = {"eps": eps, "beta": beta, **({"groups": groups} if grouped else {})}
        return Case(op, name, specs, attrs, NORM)

    for shape, groups in _GROUPED if grouped else [(s, 1) for s in _ROWS]:
        # A row of one element cancels too, but for eps.
        yield case(shape, f32, groups, eps=1.0 if shape[-1] == 1 and not grouped else 1e-5)
    image = [((2, 6, 10), 3), ((2, 8, 5, 5), 2), ((3, 6, 9), 2)]
    for dtype in FLOATS:
        rows = image if grouped else [((9, 96), 1), ((5, 33), 1), ((2, 3, 65), 1)]
        for (shape, groups), domain in zip(rows, ("normal", "large", "holes"), strict=True):
            yield case(shape, dtype, groups, domain, beta=dtype)
        yield case(rows[0][0], dtype, rows[0][1], "zeros", eps=1e-3, beta=None)
    for dtype, weights in ((f32, bf16), (f32, f16), (f16, f32), (bf16, f32)):
        shape, groups = image[0] if grouped else ((9, 130), 1)
        yield case(shape, dtype, groups, weights=weights, beta=f32 if weights == f32 else None)
    for domain in FAR:
        for dtype in FLOATS:
            for n in (7, 64, 1000):
                yield case((4, 4, n) if grouped else (5, n), dtype, 2, domain)
        far: list[Shape] = [(3, 2, 9001), (2, 2, 50_000)] if grouped else [(3, 9001), (2, 50_000), (2100, 96)]
        for shape in far:
            yield case(shape, f32, 2, domain)


def _softmax() -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str = "normal") -> Case:
        specs = (InputSpec(shape, dtype, domain), InputSpec(shape, dtype, "unit"))
        return Case("softmax_grad", f"{dtype}-{label(shape)}-axis{axis}-{domain}", specs, {"axis": axis}, NORM)

    for shape in ((1,), *_ROWS):
        yield case(shape, len(shape) - 1, f32)
    for shape in ((5, 33), (3, 5, 7), (3, 129, 2), (33, 2, 3), (2, 3, 4, 5), (4, 0)):
        for axis in range(len(shape) - 1):
            yield case(shape, axis, f32)
    for dtype in FLOATS:
        for domain in ("large", "holes", "zeros"):
            yield case((33, 65), 1, dtype, domain)
        yield case((2, 12, 16), 2, dtype)
        yield case((9, 130), 0, dtype)


def _cross_entropy() -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, domain: str = "normal", labels: str = "index", ignore: int = -100
    ) -> Iterator[Case]:
        held = InputSpec(shape[:-1], i32, f"{labels}:{max(shape[-1], 1)}")
        specs = (InputSpec(shape, dtype, domain), held)
        name = f"{dtype}-{label(shape)}-{domain}-{labels}-ignore{ignore}"
        yield Case("cross_entropy", name, specs, {"ignore_index": ignore}, NORM)
        d = InputSpec(shape[:-1], f32)
        yield Case("cross_entropy_grad", name, (d, *specs), {"ignore_index": ignore}, NORM)

    for shape in ((1,), (3, 2), *_ROWS):
        yield from case(shape, f32)
    for dtype in FLOATS:
        for domain in ("large", "holes", "zeros", "masked", "far"):
            yield from case((33, 65), dtype, domain)
        yield from case((9, 40), dtype)
        yield from case((40, 7), dtype, labels="wild", ignore=3)
        yield from case((40, 7), dtype, ignore=-2)
        yield from case((40, 3), dtype, labels="wild", ignore=0)


def _fake_quantize() -> Iterator[Case]:
    """Bit for bit: one level more or less is a whole step, so the levels must agree."""

    def case(
        shape: Shape, scale: Shape, dtype: DType, low: int, high: int, zero: bool, domain: str = "large",
        scales: DType = f32,
    ) -> Iterator[Case]:  # fmt: skip
        specs = [InputSpec(shape, dtype, domain), InputSpec(scale, scales, "positive")]
        if zero:
            specs.append(InputSpec(scale, i32, "positive"))
        name = f"{dtype}-{label(shape)}-by{label(scale)}-{low}to{high}-{domain}{'-zero' if zero else ''}"
        name += "" if scales == f32 else f"-scale_{scales}"
        attrs = {"low": low, "high": high}
        yield Case("fake_quantize", name, tuple(specs), attrs, EQUAL)
        yield Case("fake_quantize_grad", name, (InputSpec(shape, dtype, "any"), *specs), attrs, EQUAL)

    per_tensor: tuple[Shape, ...] = ((), (0,), (1,), (31,), (33,), (1021,), (3, 5, 7), (65, 129))
    for i, shape in enumerate(per_tensor):
        yield from case(shape, (), f32, -128, 127, i % 2 == 0)
    for shape, scale in (
        ((4, 3), (4, 1)), ((4, 3), (3,)), ((2, 5, 7), (5, 1)), ((2, 0, 7), (0, 1)), ((2, 33, 4, 4), (33, 1, 1)),
        ((33, 65), (65,)),
    ):  # fmt: skip
        yield from case(shape, scale, f32, 0, 255, True)
        yield from case(shape, scale, f32, -8, 7, False)
    for dtype in FLOATS:
        for domain in ("halves", "normal", "holes", "zeros"):
            yield from case((5, 33), (5, 1), dtype, -127, 127, False, domain)
        yield from case((5, 33), (), dtype, 0, 15, False)
        yield from case((5, 33), (), dtype, 0, 15 + 16, True)
    for dtype, scales in ((f32, f16), (f16, f16), (bf16, bf16)):
        yield from case((5, 33), (33,), dtype, -128, 127, True, scales=scales)


def cases() -> list[Case]:
    norms = [c for op in ("layer_norm_grad", "rms_norm_grad") for c in _weights_gradient(op)]
    norms += _weights_gradient("group_norm_grad", grouped=True)
    return [*norms, *_softmax(), *_cross_entropy(), *_fake_quantize()]
