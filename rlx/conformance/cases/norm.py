"""Conformance of norms, of norms of a sum, and of their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, Rule, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, GRADIENT_ROWS, ROWS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# Lengths of rows of equal numbers and of rows far from 0: one for each way in which kernels hold a row.
_FAR_LENGTHS = (1, 2, 7, 64, 1000, 4096)
_FAR = ("constant", "shifted")


# (shape, groups): two of groups with one element, which give beta; odd offsets, multiples of 4, long rows, empty.
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


_GRADIENT_GROUPED: tuple[tuple[Shape, int], ...] = (
    ((2, 6), 1), ((3, 6, 5), 3), ((2, 8, 4), 2), ((1, 12, 7, 5), 4), ((2, 4, 31), 1), ((2, 4, 32), 4), ((1, 3, 129), 3),
    ((2, 32, 4, 4), 8), ((1, 8, 2, 3, 4), 2), ((3, 130, 3), 13), ((1, 2, 4100), 1), ((1, 3, 2731), 1), ((65, 4, 3), 2),
    ((0, 4, 3), 2), ((2, 4, 0), 2), ((2, 5, 1, 1), 1), ((300, 3, 2), 1), ((1, 4, 2304), 2), ((1, 2, 17000), 1),
)  # fmt: skip


# Lengths around multiples of 4 and of a subgroup, and around the longest row that is kept in registers.
_RESIDUAL_ROWS: tuple[Shape, ...] = (
    (1,), (7,), (1, 1), (3, 1), (5, 31), (5, 32), (5, 33), (3, 128), (3, 129), (2, 3, 384), (65, 64), (2, 1537),
    (2, 4099), (1, 8193), (1, 8196), (0, 5), (2, 0, 7), (2, 3, 4, 5), (257, 3),
)  # fmt: skip


def _norm(op: str, beta: bool) -> Iterator[Case]:
    def case(
        shape: Shape,
        dtype: DType,
        domain: str = "normal",
        eps: float = 1e-5,
        weights: DType | None = None,
    ) -> Case:
        d = shape[-1:]
        specs = [InputSpec(shape, dtype, domain), InputSpec(d, weights or dtype)]
        if beta:
            specs.append(InputSpec(d, weights or dtype))
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}{'-beta' if beta else ''}"
        name += f"-weights_{weights}" if weights else ""
        return Case(op, name, tuple(specs), {"eps": eps}, NORM)

    for shape in ROWS:
        # A row of one element equals its mean: without eps layer_norm would be 0 / 0.
        yield case(shape, f32)
    for dtype in FLOATS:
        for shape in ((9, 384), (5, 33), (2, 3, 128)):
            yield case(shape, dtype, eps=1e-12)
        yield case((7, 65), dtype, "offset")
        yield case((7, 65), dtype, "holes")
        yield case((7, 65), dtype, "zeros")
        yield case((7, 65), dtype, "large", eps=1e-6)
    for dtype, weights in ((f32, bf16), (f32, f16), (f16, f32), (bf16, f32)):
        yield case((9, 130), dtype, weights=weights)
    yield case((9, 257), f32, "far")
    for domain in _FAR:
        for dtype in FLOATS:
            for n in _FAR_LENGTHS:
                yield case((5, n), dtype, domain)
        for shape in ((3, 9001), (2, 50_000), (2100, 96), (2100, 130), (1000,)):
            yield case(shape, f32, domain)


def _affine(c: int, dtype: DType, weights: DType | None) -> list[InputSpec]:
    return [InputSpec((c,), weights or dtype), InputSpec((c,), weights or dtype)]


def _group_norm_cases() -> Iterator[Case]:
    def case(
        shape: Shape, groups: int, dtype: DType, domain: str = "normal", eps: float = 1e-5,
        weights: DType | None = None,
    ) -> Case:  # fmt: skip
        name = f"{dtype}-{label(shape)}-g{groups}-{domain}-eps{eps:g}" + (f"-weights_{weights}" if weights else "")
        specs = (InputSpec(shape, dtype, domain), *_affine(shape[1], dtype, weights))
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
    for domain in _FAR:
        for dtype in FLOATS:
            for n in _FAR_LENGTHS:
                yield case((4, 4, n), 2, dtype, domain)
        for shape, groups in (((3, 2, 9001), 2), ((2, 2, 50_000), 1), ((3, 8, 5, 5), 8), ((1100, 4, 6), 2)):
            yield case(shape, groups, f32, domain)


def _layer_norm_channels_cases() -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, domain: str = "normal", eps: float = 1e-6, weights: DType | None = None
    ) -> Case:  # fmt: skip
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}" + (f"-weights_{weights}" if weights else "")
        specs = (InputSpec(shape, dtype, domain), *_affine(shape[1], dtype, weights))
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
    for domain in _FAR:
        for dtype in FLOATS:
            for n in _FAR_LENGTHS:
                yield case((4, n, 3), dtype, domain)
        for shape in ((3, 9001, 2), (2, 50_000), (4, 96, 33), (3, 768, 5, 7)):
            yield case(shape, f32, domain)


def _batch_norm_cases() -> Iterator[Case]:
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


def _residual(op: str, beta: bool) -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, keep: bool, domain: str = "normal", eps: float = 1e-5, weights: DType | None = None
    ) -> Case:
        # For rows far from 0 the residual is chosen so that the sum is exact: its rounding is not the norm's error.
        added = {"constant": "zeros", "shifted": "halves"}.get(domain, "normal")
        specs = [InputSpec(shape, dtype, domain), InputSpec(shape, dtype, added)]
        specs += _affine(shape[-1], dtype, weights)[: 1 + beta]
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}{'-beta' if beta else ''}{'-sum' if keep else ''}"
        name += f"-weights_{weights}" if weights else ""
        return Case(op, name, tuple(specs), {"eps": eps, "keep_sum": keep}, NORM)

    for i, shape in enumerate(_RESIDUAL_ROWS):
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
    for domain in _FAR:
        for dtype in FLOATS:
            for i, n in enumerate(_FAR_LENGTHS):
                yield case((5, n), dtype, i % 2 == 0, domain)
        for shape in ((3, 9001), (2, 50_000), (2100, 96)):
            yield case(shape, f32, False, domain)
    for keep in (False, True):
        plain = case((5, 33), f32, keep, "shifted")
        turned = (plain.inputs[1], plain.inputs[0], *plain.inputs[2:])
        yield replace(plain, name=f"{plain.name}-residual", inputs=turned)


def _gradient(op: str, grouped: bool = False) -> Iterator[Case]:
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

    for shape, groups in _GRADIENT_GROUPED if grouped else [(s, 1) for s in GRADIENT_ROWS]:
        # The gradient of a row of one element cancels to 0, except for eps.
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
    for domain in _FAR:
        for dtype in FLOATS:
            for n in (7, 64, 1000):
                yield case((4, 4, n) if grouped else (5, n), dtype, 2, domain)
        far: list[Shape] = [(3, 2, 9001), (2, 2, 50_000)] if grouped else [(3, 9001), (2, 50_000), (2100, 96)]
        for shape in far:
            yield case(shape, f32, 2, domain)


@rule("layer_norm", rough=True)
def _layer_norm(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    d = (x.shape[-1],)
    return (ops.layer_norm(x, b.leaf(d, x.dtype), b.leaf(d, x.dtype), 1e-5),)


@rule("rms_norm")
def _rms_norm(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    beta = b.leaf((x.shape[-1],), x.dtype) if b.chance(0.3) else None
    return (ops.rms_norm(x, b.leaf((x.shape[-1],), x.dtype), beta, eps=0.1),)


def _weights(b: Builder, x: Tensor, n: int, count: int) -> list[Tensor]:
    return [b.leaf((n,), b.choose((x.dtype, x.dtype, f32))) for _ in range(count)]


def _groups(b: Builder, channels: int) -> int:
    result: int = b.choose([n for n in range(1, channels + 1) if channels % n == 0])
    return result


@rule("group_norm", rough=True)
def _group_norm(b: Builder) -> Made:
    x = b.ranked(2, is_float)
    gamma, beta = _weights(b, x, x.shape[1], 2)
    return (ops.group_norm(x, _groups(b, x.shape[1]), gamma, beta, 1e-3),)


@rule("layer_norm_channels", rough=True)
def _layer_norm_channels(b: Builder) -> Made:
    x = b.ranked(2, is_float)
    gamma, beta = _weights(b, x, x.shape[1], 2)
    return (ops.layer_norm_channels(x, gamma, beta, 1e-3),)


@rule("batch_norm", rough=True)
def _batch_norm(b: Builder) -> Made:
    x = b.ranked(2, is_float)
    gamma, beta, mean, var = _weights(b, x, x.shape[1], 4)
    return (ops.batch_norm(x, gamma, beta, mean, ops.abs(var) + 0.5, 1e-3),)


@rule("add_layer_norm", rough=True)
def _add_layer_norm(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    y = b.pick(lambda t: t.type == x.type)
    gamma, beta = _weights(b, x, x.shape[-1], 2)
    return ops.add_layer_norm(x, y if y is not None else b.leaf(x.shape, x.dtype), gamma, beta)


@rule("add_rms_norm")
def _add_rms_norm(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    y = b.leaf(x.shape, x.dtype)
    gamma, beta = _weights(b, x, x.shape[-1], 2)
    return ops.add_rms_norm(x, y, gamma, beta if b.chance(0.5) else None, 0.1)


@rule("residual_norm")
def _residual_norm(b: Builder) -> Made:
    """A residual sum and its norm, which the fusion pass replaces by one op."""
    x = b.ranked(1, is_float)
    total = ops.add(x, b.leaf(x.shape, x.dtype))
    y = ops.rms_norm(total, _weights(b, x, x.shape[-1], 1)[0], eps=0.1)
    return (total, y) if b.chance(0.5) else (y,)


def _grad(op: str, grouped: bool = False) -> Rule:
    def add(b: Builder) -> Made:
        x = b.ranked(2 if grouped else 1, is_float)
        n = x.shape[1 if grouped else -1]
        attrs = {"groups": _groups(b, n)} if grouped else {}
        beta = b.choose((f32, x.dtype, f16, bf16, None))
        d = b.leaf(x.shape, x.dtype)
        return apply_multi(op, d, x, *_weights(b, x, n, 1), eps=0.1, beta=beta, **attrs)

    return Rule(op, add, rough=True)


_SQUARES = ("roots", "the mean of squares, which defines a norm, leaves f32 from numbers of 1e19 on")
_INFINITE = {
    (0, "special"): "differences of infinite means: torch and the reference arrange them otherwise, and differ in NaN"
}
_WIDE = {(0, "wide"): _SQUARES}
_WIDE_SUM = {(i, "wide"): _SQUARES for i in (0, 1)}
OPS = (
    Conformance("layer_norm", (partial(_norm, "layer_norm", True),), (_layer_norm,), narrower=_WIDE),
    Conformance(
        "rms_norm", (partial(_norm, "rms_norm", False), partial(_norm, "rms_norm", True)), (_rms_norm, _residual_norm),
        narrower=_WIDE,
    ),
    Conformance("group_norm", (_group_norm_cases,), (_group_norm,), narrower=_WIDE),
    Conformance("layer_norm_channels", (_layer_norm_channels_cases,), (_layer_norm_channels,), narrower=_WIDE),
    Conformance("batch_norm", (_batch_norm_cases,), (_batch_norm,)),
    Conformance(
        "add_layer_norm", (partial(_residual, "add_layer_norm", True),), (_add_layer_norm,),
        narrower=_WIDE_SUM,
    ),
    Conformance(
        "add_rms_norm", (partial(_residual, "add_rms_norm", False), partial(_residual, "add_rms_norm", True)),
        (_add_rms_norm,), narrower=_WIDE_SUM,
    ),
    Conformance(
        "layer_norm_grad", (partial(_gradient, "layer_norm_grad"),), (_grad("layer_norm_grad"),),
        narrower={(1, "wide"): _SQUARES}, without=_INFINITE,
    ),
    Conformance(
        "rms_norm_grad", (partial(_gradient, "rms_norm_grad"),), (_grad("rms_norm_grad"),),
        narrower={(1, "wide"): _SQUARES},
    ),
    Conformance(
        "group_norm_grad", (partial(_gradient, "group_norm_grad", True),), (_grad("group_norm_grad", True),),
        narrower=_WIDE_SUM, without=_INFINITE,
    ),
)  # fmt: skip
