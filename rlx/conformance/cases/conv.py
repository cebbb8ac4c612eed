"""Conformance of convolution, transposed convolution, their gradients, and im2col."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import none
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, label
from rlx.conformance.terms import over_squares
from rlx.conformance.tolerances import BITS, NORM
from rlx.dtypes import DType, bf16, f16, f32, i8, i32, u8
from rlx.ir import Attrs, apply
from rlx.ops.conv.convolution import transposed_sizes
from rlx.ops.numeric import Array, widened
from rlx.ops.windows import window_counts

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Setting:
    """One convolution: x (n, c, *sizes), o output channels, and the kernel with its strides, dilations and pads."""

    n: int
    c: int
    o: int
    sizes: Shape
    kernel: Shape
    stride: int | Shape = 1
    dilation: int | Shape = 1
    pads: int | Pads = 0
    groups: int = 1

    def attrs(self) -> dict[str, Any]:
        rank = len(self.sizes)
        return {
            "strides": _each(self.stride, rank),
            "dilations": _each(self.dilation, rank),
            "pads": ((self.pads, self.pads),) * rank if isinstance(self.pads, int) else self.pads,
            "groups": self.groups,
        }

    @property
    def name(self) -> str:
        words = [f"n{self.n}c{self.c}o{self.o}", label(self.sizes), f"k{label(self.kernel)}"]
        for letter, value, usual in (("s", self.stride, 1), ("d", self.dilation, 1), ("g", self.groups, 1)):
            if value != usual:
                words.append(f"{letter}{value if isinstance(value, int) else label(value)}")
        if self.pads != 0:
            flat = [self.pads] if isinstance(self.pads, int) else [v for pair in self.pads for v in pair]
            words.append("p" + "_".join(map(str, flat)))
        return "-".join(words)

    @property
    def x(self) -> Shape:
        return (self.n, self.c, *self.sizes)

    @property
    def w(self) -> Shape:
        return (self.o, self.c // self.groups, *self.kernel)

    @property
    def y(self) -> Shape:
        a = self.attrs()
        counts = window_counts("case", self.sizes, self.kernel, a["strides"], a["dilations"], a["pads"])
        return (self.n, self.o, *counts)


def _each(value: int | Shape, rank: int) -> Shape:
    return (value,) * rank if isinstance(value, int) else value


_SETTINGS: tuple[Setting, ...] = (
    # One spatial axis
    Setting(1, 1, 1, (1,), (1,)),
    Setting(2, 3, 5, (17,), (3,), pads=1),
    Setting(1, 4, 6, (31,), (5,), 2, pads=((2, 1),)),
    Setting(2, 6, 4, (23,), (3,), 3, 2, ((0, 4),), 2),
    Setting(1, 5, 5, (40,), (7,), pads=3, groups=5),
    Setting(1, 2, 3, (9,), (9,)),
    Setting(1, 3, 2, (5,), (4,), 4, 3, ((5, 7),)),
    # Two spatial axes
    Setting(1, 1, 1, (1, 1), (1, 1)),
    Setting(2, 3, 4, (7, 5), (3, 3), pads=1),
    Setting(1, 3, 8, (12, 11), (7, 7), 2, pads=3),
    Setting(2, 4, 6, (8, 9), (1, 1)),
    Setting(1, 5, 7, (9, 8), (1, 1), 2),
    Setting(1, 2, 3, (9, 13), (2, 3), (2, 1), (1, 2), ((0, 1), (2, 0))),
    Setting(2, 6, 9, (8, 7), (3, 2), (1, 2), groups=3, pads=((1, 0), (0, 2))),
    Setting(1, 8, 8, (10, 9), (3, 3), pads=1, groups=8),
    Setting(2, 7, 14, (9, 10), (3, 3), 2, pads=1, groups=7),
    Setting(1, 12, 12, (7, 7), (5, 5), 1, 2, 4, 12),
    Setting(1, 16, 16, (6, 6), (3, 3), pads=1, groups=4),
    Setting(3, 4, 2, (4, 4), (4, 4), 4),
    Setting(1, 3, 10, (16, 16), (8, 8), 8),
    Setting(1, 2, 2, (5, 6), (3, 3), 3, 2, ((3, 2), (1, 4))),
    Setting(1, 1, 2, (3, 3), (3, 3), pads=2),
    Setting(2, 3, 2, (6, 6), (1, 3), (1, 3)),
    Setting(1, 65, 66, (9, 8), (3, 3), pads=1),
    Setting(1, 33, 129, (8, 8), (1, 1)),
    Setting(1, 20, 64, (8, 8), (3, 3), pads=1),
    Setting(1, 130, 5, (5, 5), (3, 3)),
    Setting(5, 8, 63, (4, 4), (1, 1)),
    Setting(1, 64, 10, (1, 1), (1, 1)),
    Setting(1, 2, 3, (70, 3), (3, 3), pads=1),
    Setting(2, 32, 34, (6, 7), (3, 3), 2, pads=1, groups=2),
    # Three spatial axes
    Setting(1, 1, 1, (1, 1, 1), (1, 1, 1)),
    Setting(1, 2, 3, (5, 4, 6), (3, 3, 3), pads=1),
    Setting(2, 4, 4, (4, 5, 6), (2, 1, 3), (2, 1, 2), (1, 1, 2), ((1, 0), (0, 0), (0, 3)), 2),
    Setting(1, 6, 6, (5, 5, 5), (3, 3, 3), 2, pads=1, groups=6),
    Setting(1, 3, 17, (4, 4, 4), (2, 2, 2), 2),
)
_PAIRS: tuple[tuple[DType, DType], ...] = (
    (f16, f16),
    (bf16, bf16),
    (f32, f16),
    (f32, bf16),
    (f16, f32),
    (f16, bf16),
)
_FEW = tuple(_SETTINGS[i] for i in (2, 8, 12, 14, 24, 30, 34))
_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


def _conv() -> Iterator[Case]:
    def case(
        s: Setting,
        pair: tuple[DType, DType],
        bias: DType | None = None,
        activation: str | None = None,
        domain: str = "normal",
    ) -> Case:
        specs = [InputSpec(s.x, pair[0], domain), InputSpec(s.w, pair[1], "normal")]
        if bias is not None:
            specs.append(InputSpec((s.o,), bias))
        words = [f"{pair[0]}x{pair[1]}", s.name, *([f"bias_{bias}"] if bias else [])]
        words += ([activation] if activation else []) + ([domain] if domain != "normal" else [])
        return Case("conv", "-".join(words), tuple(specs), {**s.attrs(), "activation": activation}, NORM)

    for s in _SETTINGS:
        yield case(s, (f32, f32))
        yield case(s, (f32, f32), f32)
    for pair in _PAIRS:
        for s in _FEW:
            yield case(s, pair, pair[1])
    for activation in _ACTIVATIONS:
        for s in (_SETTINGS[8], _SETTINGS[14], _SETTINGS[24]):
            yield case(s, (f32, f32), f32, activation)
        yield case(_SETTINGS[12], (bf16, bf16), None, activation)
    for s in (_SETTINGS[8], _SETTINGS[14], _SETTINGS[10], _SETTINGS[32]):
        yield case(s, (f32, f32), f32, domain="holes")
        yield case(s, (f32, f32), f32, domain="offset")


def _gradients() -> Iterator[Case]:
    for s in _SETTINGS:
        sized = {"sizes": s.sizes, **s.attrs()}
        kernel = {"kernel": s.kernel, **s.attrs()}
        pairs = ((f32, f32), *(_PAIRS if s in _FEW else ()))
        for a, b in pairs:
            name = f"{a}x{b}-{s.name}"
            yield Case("conv_grad_input", name, (InputSpec(s.y, a), InputSpec(s.w, b)), sized, NORM)
            yield Case("conv_grad_weight", name, (InputSpec(s.x, a), InputSpec(s.y, b)), kernel, NORM)
    # Long sums, which kernels divide into partial sums that a second kernel adds.
    many = Setting(3, 2, 3, (53, 41), (3, 3), pads=1)
    depthwise = Setting(2, 3, 3, (60, 47), (3, 3), pads=1, groups=3)
    for s in (many, depthwise):
        for domain in ("normal", "offset"):
            specs = (InputSpec(s.x, f32, domain), InputSpec(s.y, f32, domain))
            yield Case(
                "conv_grad_weight", f"long-{s.name}-{domain}", specs, {"kernel": s.kernel, **s.attrs()}, NORM
            )


def _transposed() -> Iterator[Case]:
    def case(s: Setting, extra: Shape, pair: tuple[DType, DType], bias: bool) -> Case | None:
        """A transposed convolution of an x of `sizes` with s's output channels; kernel and geometry are those of s."""
        attrs = {**s.attrs(), "output_padding": extra}
        if any(
            (n - 1) * st + d * (k - 1) + 1 + e - a - b < 1
            for n, k, st, d, (a, b), e in zip(
                s.sizes, s.kernel, attrs["strides"], attrs["dilations"], attrs["pads"], extra, strict=True
            )
        ):
            return None
        transposed_sizes(s.sizes, s.kernel, attrs)
        specs = [InputSpec((s.n, s.o, *s.sizes), pair[0]), InputSpec(s.w, pair[1])]
        specs += [InputSpec((s.c,), pair[1])] if bias else []
        name = f"{pair[0]}x{pair[1]}-{s.name}{'-bias' if bias else ''}-e{label(extra)}"
        return Case("conv_transpose", name, tuple(specs), attrs, NORM)

    for s in _SETTINGS:
        rank = len(s.sizes)
        room = tuple(
            max(a, b) - 1 for a, b in zip(_each(s.stride, rank), _each(s.dilation, rank), strict=True)
        )
        for pair in ((f32, f32), *(_PAIRS if s in _FEW else ())):
            for extra, bias in {((0,) * rank, True), (room, False)}:
                padded_case = case(s, extra, pair, bias)
                if padded_case is not None:
                    yield padded_case


def _swept() -> Iterator[Case]:
    """Small convolutions, their gradients and transposed convolutions, over all combinations of a few parameters.

    Among dilation, stride, pads, output_padding and groups are pads of at least a kernel, strides that do not divide,
    and output_paddings of at least a stride.
    """
    moves = product((1, 2, 3), (1, 2, 4), ((0, 0), (2, 2), (1, 5), (5, 0)), (0, 1, 3), (1, 2))
    for number, (s, d, pads, e, groups) in enumerate(moves):
        rank = number % 3 + 1
        sizes, kernel = (4, 3, 2)[:rank], (3, 2, 2)[:rank]
        setting = Setting(2, 2 * groups, 2 * groups, sizes, kernel, s, d, (pads,) * rank, groups)
        attrs = setting.attrs()
        ends = [(n - 1) * s + d * (k - 1) + 1 + e - sum(pads) for n, k in zip(sizes, kernel, strict=True)]
        if e < max(s, d) and min(ends) > 0:
            specs = (InputSpec(setting.x, f32), InputSpec(setting.w, f32))
            name = f"swept-{setting.name}-e{e}"
            yield Case("conv_transpose", name, specs, {**attrs, "output_padding": (e,) * rank}, NORM)
        room = [n + sum(pads) - d * (k - 1) - 1 for n, k in zip(sizes, kernel, strict=True)]
        if e == 0 and min(room) >= 0:
            x, w, y = (InputSpec(shape, f32) for shape in (setting.x, setting.w, setting.y))
            yield Case("conv", f"swept-{setting.name}", (x, w), {**attrs, "activation": None}, NORM)
            yield Case("conv_grad_input", f"swept-{setting.name}", (y, w), {"sizes": sizes, **attrs}, NORM)
            yield Case("conv_grad_weight", f"swept-{setting.name}", (x, y), {"kernel": kernel, **attrs}, NORM)


def _im2col() -> Iterator[Case]:
    def case(s: Setting, dtype: DType, domain: str) -> Case:
        attrs = {"kernel": s.kernel, **s.attrs()}
        del attrs["groups"]
        return Case("im2col", f"{dtype}-{s.name}-{domain}", (InputSpec(s.x, dtype, domain),), attrs, BITS)

    for s in _SETTINGS:
        yield case(s, f32, "any")
    for dtype in ALL:
        for s in (_SETTINGS[2], _SETTINGS[8], _SETTINGS[12], _SETTINGS[33]):
            yield case(s, dtype, "normal" if dtype.kind == "b" else "any")


def _integers() -> Iterator[Case]:
    def case(s: Setting, x: DType, w: DType, each: bool, domain: str = "any") -> Case:
        zeros = (InputSpec((1,), i32), InputSpec((s.o if each else 1,), i32))
        specs = (InputSpec(s.x, x, domain), InputSpec(s.w, w, domain), *zeros)
        return Case("integer_conv", f"{x}x{w}-{s.name}-{'each' if each else 'one'}-{domain}", specs, s.attrs(), BITS)

    for number, s in enumerate(_SETTINGS):
        pairs = tuple(product((u8, i8), repeat=2))
        for x, w in pairs if s in _FEW else (pairs[number % 4],):
            yield case(s, x, w, number % 2 == 0)
    yield case(_SETTINGS[8], u8, i8, True, "zeros")


def _empty() -> Iterator[Case]:
    """Empty inputs, which give empty results."""
    geometry = {"strides": (1, 1), "dilations": (1, 1), "pads": ((1, 1), (1, 1))}
    x = InputSpec((0, 3, 4, 4), f32)
    yield Case("im2col", "empty", (x,), {"kernel": (3, 3), **geometry}, BITS)


@rule("conv")
def _plain(b: Builder) -> Made:
    groups = b.choose((1, 2))
    x = b.picture(2 * groups)
    w = b.leaf((groups * (1 + b.below(2)), 2, 1 + b.below(3), 1 + b.below(3)), x.dtype)
    how = {"strides": b.choose((1, 2)), "pads": b.choose((0, 1)), "groups": groups}
    y = ops.conv(x, w, b.leaf(w.shape[:1], x.dtype) if b.chance(0.5) else None, **how)
    return y, ops.im2col(x, w.shape[2:], strides=how["strides"], pads=how["pads"])


@rule("integer_conv")
def _random_integers(b: Builder) -> Made:
    x = b.leaf((1 + b.below(2), 4, 3 + b.below(4), 3 + b.below(4)), b.choose((i8, u8)))
    groups = b.choose((1, 2, 4))
    w = b.leaf((groups * (1 + b.below(2)), 4 // groups, 1 + b.below(3), 1 + b.below(3)), b.choose((i8, u8)))
    zeros = (b.below(100), b.leaf((w.shape[0],), i32))
    return (ops.integer_conv(x, w, *zeros, strides=b.choose((1, 2)), pads=b.choose((0, 1)), groups=groups),)


@rule("conv_transpose")
def _back(b: Builder) -> Made:
    x = b.picture()
    w = b.leaf((x.shape[1], 1 + b.below(3), 1 + b.below(3), 1 + b.below(3)), x.dtype)
    return (ops.conv_transpose(x, w, strides=b.choose((1, 2))),)


@rule("conv_grad_input")
def _both_gradients(b: Builder) -> Made:
    x = b.picture()
    w = b.leaf((1 + b.below(3), x.shape[1], 3, 2), x.dtype)
    y = ops.conv(x, w, strides=2, pads=1)
    attrs = {k: v for k, v in y.node.attrs.items() if k != "activation"}
    dx = apply("conv_grad_input", y, w, sizes=x.shape[2:], **attrs)
    return dx, apply("conv_grad_weight", x, y, kernel=w.shape[2:], **attrs)


def _beyond(inputs: Sequence[Array], attrs: Attrs, top: float) -> npt.NDArray[np.bool_]:
    """The channels with a weight that is not finite, which algorithms may multiply by a zero of the padding."""
    w = ~np.isfinite(widened(inputs[1]))
    groups = attrs["groups"]
    channels = w.reshape(groups, -1, *w.shape[1:]).any((1, *range(3, w.ndim + 1))).reshape(-1)
    return channels.reshape(-1, *(1 for _ in w.shape[2:]))


OPS = (
    Conformance("integer_conv", (_integers,), (_random_integers,), in_f64=none),
    Conformance("im2col", (_im2col, _empty), (_plain,)),
    Conformance("conv", (_conv, _swept), (_plain,), terms=over_squares("conv")),
    Conformance(
        "conv_grad_input", (_gradients, _swept), (_both_gradients,), terms=over_squares("conv_grad_input"),
        order_dependent=_beyond,
    ),
    Conformance("conv_grad_weight", (_gradients, _swept), (_both_gradients,), terms=over_squares("conv_grad_weight")),
    Conformance(
        "conv_transpose", (_transposed, _swept), (_back,), terms=over_squares("conv_transpose"),
        order_dependent=_beyond,
    ),
)
