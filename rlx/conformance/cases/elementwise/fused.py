"""Conformance of `fused`: trees composed of the ops' own expressions, as the fusion pass composes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FEW, HALVES, SHAPES, label
from rlx.conformance.tolerances import COMPOSITE, EQUAL, Tolerance
from rlx.dtypes import DType, bool_, f16, f32, i32, u8
from rlx.ir import Expr, get_op
from rlx.ir import expr as ex
from rlx.ir.types import broadcast_shapes

if TYPE_CHECKING:
    pass

Shape = tuple[int, ...]
Build = Callable[[Sequence[Expr]], tuple[Expr, ...]]
_SUMS = Tolerance("ulp", ulp=24.0, floor=2e-6)
_SUMS_REASON = "the tree adds terms of size 1 that may cancel: a few ULP of 1"


def _e(op: str, *args: Expr, **attrs: Any) -> Expr:
    rule = get_op(op).expr
    assert rule is not None
    return rule(args, attrs)


def _affine(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return (_e("add", _e("mul", a[0], a[1]), a[2]),)


def _gelu_bias(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return (_e("gelu", _e("add", a[0], a[1]), approximate="none"),)


def _gate(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return (_e("mul", _e("silu", a[0]), a[1]),)


def _two(a: Sequence[Expr]) -> tuple[Expr, ...]:
    s = _e("sigmoid", a[0])
    return s, _e("mul", s, a[1])


def _mask(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return (_e("where", _e("less", a[0], a[1]), _e("clip", a[0], min=-1.0, max=1.0), _e("neg", a[1])),)


def _polynomial(a: Sequence[Expr]) -> tuple[Expr, ...]:
    x = a[0]
    square = _e("mul", x, x)
    return (_e("maximum", _e("sub", square, ex.lit(0.25, x.dtype)), _e("minimum", x, ex.lit(0.5, x.dtype))),)


def _identity_and_square(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return _e("copy", a[0]), _e("mul", a[0], a[0])


def _constant(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return (ex.lit(1.5, f32), _e("add", a[0], a[0]))


def _shared(a: Sequence[Expr]) -> tuple[Expr, ...]:
    t = _e("tanh", a[0])
    for _ in range(2):
        t = _e("mul", _e("add", t, t), _e("sub", ex.lit(1.0, f32), t))
    return (t,)


def _rounded_between(a: Sequence[Expr]) -> tuple[Expr, ...]:
    half = _e("cast", _e("mul", a[0], a[1]), dtype=f16)
    return (_e("add", _e("cast", half, dtype=f32), a[1]),)


def _integers(a: Sequence[Expr]) -> tuple[Expr, ...]:
    return (_e("add", _e("mul", a[0], a[1]), _e("abs", _e("sub", a[0], a[1]))),)


def _logic(a: Sequence[Expr]) -> tuple[Expr, ...]:
    both = _e("logical_and", a[0], _e("logical_not", a[1]))
    return (_e("logical_xor", both, a[1]), _e("cast", both, dtype=f32))


# name, tree, dtypes of the inputs, tolerance, reason
_TREES: tuple[tuple[str, Build, tuple[DType, ...], Tolerance, str], ...] = (
    ("affine", _affine, (f32, f32, f32), _SUMS, _SUMS_REASON),
    ("gelu_bias", _gelu_bias, (f32, f32), _SUMS, _SUMS_REASON),
    ("gate", _gate, (f32, f32), COMPOSITE, "a few primitives"),
    ("two", _two, (f32, f32), COMPOSITE, "a few primitives"),
    ("mask", _mask, (f32, f32), EQUAL, ""),
    ("polynomial", _polynomial, (f32,), _SUMS, _SUMS_REASON),
    ("identity_and_square", _identity_and_square, (f32,), COMPOSITE, ""),
    ("constant", _constant, (f32,), EQUAL, ""),
    ("shared", _shared, (f32,), _SUMS, _SUMS_REASON),
    ("integers", _integers, (i32, i32), EQUAL, ""),
    ("bytes", _integers, (u8, u8), EQUAL, ""),
    ("logic", _logic, (bool_, bool_), EQUAL, ""),
)
_BROADCASTS: tuple[tuple[Shape, ...], ...] = (
    ((4, 1, 3), (5, 1), ()),
    ((), (7,), (7,)),
    ((1, 1), (33, 1), (1, 65)),
    ((2, 3, 4, 5), (4, 1), (3, 1, 1)),
)


def _case(
    name: str,
    build: Build,
    dtypes: Sequence[DType],
    shapes: Sequence[Shape],
    tolerance: Tolerance,
    reason: str,
) -> Case:
    args = [ex.arg(i, d) for i, d in enumerate(dtypes)]
    specs = tuple(
        InputSpec(s, d, "unit" if d.is_float else "normal") for s, d in zip(shapes, dtypes, strict=True)
    )
    attrs = {"trees": build(args), "shape": broadcast_shapes(*shapes)}
    kinds = "_".join(map(str, dtypes))
    return Case("fused", f"{name}-{kinds}-{'-'.join(map(label, shapes))}", specs, attrs, tolerance, reason)


def _all() -> Iterator[Case]:
    for name, build, dtypes, tolerance, reason in _TREES:
        for shape in FEW:
            yield _case(name, build, dtypes, [shape] * len(dtypes), tolerance, reason)
        yield _case(name, build, dtypes, [(65, 129), (129,), (65, 1)][: len(dtypes)], tolerance, reason)
    for shape in SHAPES:
        yield _case("affine_all", _affine, (f32,) * 3, [shape] * 3, _SUMS, _SUMS_REASON)
    for shapes in _BROADCASTS:
        yield _case("affine_broadcast", _affine, (f32,) * 3, shapes, _SUMS, _SUMS_REASON)
    for dtype in HALVES:
        for name, build, count in (("gelu_bias", _gelu_bias, 2), ("gate", _gate, 2), ("affine", _affine, 3)):
            yield _case(name, build, [dtype] * count, [(33, 17)] * count, _SUMS, _SUMS_REASON)
    yield _case(
        "rounded_between", _rounded_between, (f32, f32), [(129,)] * 2, Tolerance("ulp", ulp=4.0, floor=1e-3),
        "the product may round to the neighbouring f16",
    )  # fmt: skip


OPS = (Conformance("fused", (_all,)),)
