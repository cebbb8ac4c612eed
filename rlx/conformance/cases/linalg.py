"""Cases of matmul."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32, i32, i64
from rlx.ops.matmul import ACTIVATIONS

Shape = tuple[int, ...]

# (batch of a, batch of b, m, k, n)
_SIZES: tuple[tuple[Shape, Shape, int, int, int], ...] = (
    ((), (), 1, 1, 1), ((), (), 1, 7, 1), ((), (), 2, 3, 4), ((), (), 1, 64, 128), ((), (), 128, 64, 1),
    ((), (), 31, 31, 31), ((), (), 32, 32, 32), ((), (), 33, 33, 33), ((), (), 63, 65, 64), ((), (), 64, 64, 64),
    ((), (), 65, 63, 66), ((), (), 127, 129, 128), ((), (), 128, 128, 128), ((), (), 129, 127, 130),
    ((), (), 16, 384, 384), ((), (), 7, 1536, 5), ((), (), 3, 4099, 2), ((), (), 0, 3, 4), ((), (), 3, 4, 0),
    ((), (), 3, 0, 4), ((3,), (3,), 5, 7, 6), ((3,), (), 5, 7, 6), ((), (3,), 5, 7, 6), ((2, 1), (1, 3), 4, 5, 6),
    ((2, 3), (3,), 33, 8, 17), ((1,), (5,), 9, 33, 2), ((0,), (0,), 3, 4, 5), ((2, 12), (2, 12), 16, 32, 16),
    ((4,), (4,), 65, 64, 63),
)  # fmt: skip


def _case(
    size: tuple[Shape, Shape, int, int, int],
    dtypes: tuple[DType, DType] = (f32, f32),
    ta: bool = False,
    tb: bool = False,
    bias: DType | None = None,
    activation: str | None = None,
    domain: str = "normal",
) -> Case:
    batch_a, batch_b, m, k, n = size
    a = (*batch_a, k, m) if ta else (*batch_a, m, k)
    b = (*batch_b, n, k) if tb else (*batch_b, k, n)
    inputs = [InputSpec(a, dtypes[0], domain), InputSpec(b, dtypes[1], domain)]
    if bias is not None:
        inputs.append(InputSpec((n,), bias, domain))
    name = f"{dtypes[0]}-{dtypes[1]}-{label(a)}{'T' if ta else ''}-{label(b)}{'T' if tb else ''}"
    name += (f"-bias_{bias}" if bias else "") + (f"-{activation}" if activation else "")
    name += f"-{domain}" if domain != "normal" else ""
    attrs = {"transpose_a": ta, "transpose_b": tb, "activation": activation}
    return Case("matmul", name, tuple(inputs), attrs, NORM)


def _all() -> Iterator[Case]:
    for size in _SIZES:
        yield _case(size)
    for size in (_SIZES[2], _SIZES[7], _SIZES[11], _SIZES[20], _SIZES[23], _SIZES[27]):
        for ta, tb in ((True, False), (False, True), (True, True)):
            yield _case(size, ta=ta, tb=tb)
        yield _case(size, bias=f32)
        yield _case(size, tb=True, bias=f32, activation="gelu")
    for activation in ACTIVATIONS:
        for dtypes in ((f32, f32), (f16, f16), (f32, bf16)):
            yield _case(((), (), 33, 40, 65), dtypes, bias=dtypes[1], activation=activation)
        yield _case(((2,), (), 17, 24, 19), activation=activation)
    for left in FLOATS:
        for right in FLOATS:
            for size in (((), (), 33, 65, 17), ((3,), (), 5, 130, 6), ((), (), 1, 256, 33)):
                for tb in (False, True):
                    yield _case(size, (left, right), tb=tb)
            yield _case(((), (), 9, 64, 33), (left, right), bias=f32)
    for dtypes in ((i32, i32), (i64, i64), (i32, i64)):
        for size in (((), (), 5, 7, 6), ((2,), (2,), 33, 12, 9), ((), (), 3, 0, 4)):
            yield _case(size, dtypes)
        yield _case(((), (), 5, 7, 6), dtypes, ta=True, tb=True, bias=dtypes[0])
        yield _case(((), (), 5, 7, 6), dtypes, domain="any")
    for dtype in FLOATS:
        yield _case(((), (), 33, 20, 17), (dtype, dtype), domain="holes")
        yield _case(((), (), 17, 200, 9), (dtype, dtype), domain="positive")
        yield _case(((), (), 9, 20, 17), (dtype, dtype), domain="zeros")
        yield _case(((), (), 9, 20, 17), (dtype, dtype), domain="ties", bias=dtype, activation="relu")
    for dtype in FLOATS:
        # Partial sums leave the range: in which order is each device's choice, so these results are free.
        specs = (InputSpec((4, 37), dtype, "swings"), InputSpec((37, 5), dtype, "near_one"))
        attrs = {"transpose_a": False, "transpose_b": False, "activation": None}
        yield Case("matmul", f"{dtype}-{dtype}-4x37-37x5-swings", specs, attrs, NORM)
    yield _case(((65601,), (65601,), 1, 2, 1))  # more workgroups than one axis of a grid need hold


def cases() -> list[Case]:
    return list(_all())
