"""Conformance of grouped and low-rank products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32, i32
from rlx.ir import Attrs, apply, get_op
from rlx.ops.matmul import ACTIVATIONS
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

# (rows, experts, k, n). Group sizes are 1 to 19 in the domain "positive", -2 to 2 in "ties", -100 to 100 in "normal":
# empty groups, groups cut at the last row, and rows after the last group all occur.
_SIZES = (
    (1, 1, 1, 1), (7, 3, 5, 4), (40, 4, 16, 12), (64, 1, 32, 64), (65, 7, 33, 66), (128, 16, 8, 24), (0, 3, 4, 5),
    (5, 2, 0, 3), (6, 2, 3, 0), (150, 5, 40, 130), (33, 40, 7, 9), (64, 8, 64, 64),
)  # fmt: skip
_DRAWN = ("positive", "ties", "normal", "zeros")


def _grouped_case(
    size: tuple[int, int, int, int],
    dtypes: tuple[DType, DType] = (f32, f32),
    drawn: str = "positive",
    transpose: bool = False,
    domain: str = "normal",
    seed: int = 0,
) -> Case:
    rows, experts, k, n = size
    inputs = (
        InputSpec((rows, k), dtypes[0], domain),
        InputSpec((experts, n, k) if transpose else (experts, k, n), dtypes[1], domain),
        InputSpec((experts,), i32, drawn, seed),
    )
    name = f"{dtypes[0]}-{dtypes[1]}-{label(size)}{'T' if transpose else ''}-{drawn}-{domain}-{seed}"
    return Case("grouped_matmul", name, inputs, {"transpose_w": transpose}, NORM)


def _grad_case(
    size: tuple[int, int, int, int],
    dtypes: tuple[DType, DType] = (f32, f32),
    drawn: str = "positive",
    domain: str = "normal",
    seed: int = 0,
) -> Case:
    rows, experts, k, n = size
    inputs = (
        InputSpec((rows, k), dtypes[0], domain),
        InputSpec((rows, n), dtypes[1], domain),
        InputSpec((experts,), i32, drawn, seed),
    )
    name = f"{dtypes[0]}-{dtypes[1]}-{label(size)}-{drawn}-{domain}-{seed}"
    return Case("grouped_matmul_grad", name, inputs, {}, NORM)


def _lora_case(
    x: tuple[int, ...],
    n: int,
    r: int,
    dtypes: tuple[DType, DType] = (f32, f32),
    bias: bool = False,
    activation: str | None = None,
    scale: float = 0.5,
    domain: str = "normal",
) -> Case:
    k = x[-1]
    inputs = [InputSpec(x, dtypes[0], domain), InputSpec((k, n), dtypes[1], domain)]
    inputs += [InputSpec((k, r), dtypes[1], domain), InputSpec((r, n), dtypes[1], domain)]
    if bias:
        inputs.append(InputSpec((n,), dtypes[1], domain))
    name = f"{dtypes[0]}-{dtypes[1]}-{label(x)}-{n}-rank{r}{'-bias' if bias else ''}-{activation}-{scale}-{domain}"
    return Case("lora_matmul", name, tuple(inputs), {"scale": scale, "activation": activation}, NORM)


def _all() -> Iterator[Case]:
    pairs = [(a, b) for a in FLOATS for b in FLOATS]
    for size in _SIZES:
        for drawn in _DRAWN[:2]:
            yield _grouped_case(size, drawn=drawn)
            yield _grad_case(size, drawn=drawn)
        yield _grouped_case(size, transpose=True)
    for drawn in _DRAWN:
        for seed in (1, 2):
            yield _grouped_case((70, 6, 12, 20), drawn=drawn, seed=seed, transpose=seed == 2)
            yield _grad_case((70, 6, 12, 20), drawn=drawn, seed=seed)
    for dtypes in pairs:
        yield _grouped_case((40, 4, 40, 33), dtypes)
        yield _grouped_case((40, 4, 64, 32), dtypes, transpose=True)
        yield _grad_case((40, 4, 17, 24), dtypes)
    for dtype in (f32, f16, bf16):
        for domain in ("holes", "ties", "zeros"):
            yield _grouped_case((33, 3, 20, 17), (dtype, dtype), domain=domain)
            yield _grad_case((33, 3, 20, 17), (dtype, dtype), domain=domain)
    for x, n, r in (
        ((1, 1), 1, 1), ((1, 64), 48, 4), ((3, 5), 7, 2), ((33, 40), 65, 8), ((2, 5, 16), 24, 3), ((64, 64), 64, 16),
        ((0, 4), 5, 2), ((4, 0), 5, 2), ((4, 5), 0, 2), ((4, 5), 6, 0), ((20, 130), 31, 1), ((16, 384), 96, 8),
    ):  # fmt: skip
        yield _lora_case(x, n, r)
        yield _lora_case(x, n, r, bias=True, activation="gelu", scale=1.0)
    for activation in ACTIVATIONS:
        yield _lora_case((9, 24), 20, 4, activation=activation, scale=2.0)
    for dtypes in pairs:
        yield _lora_case((17, 40), 33, 4, dtypes, bias=True)
        yield _lora_case((40, 64), 32, 8, dtypes, activation="silu")
    for domain in ("holes", "ties", "zeros"):
        yield _lora_case((9, 20), 17, 3, domain=domain, bias=True)
    yield _lora_case((5, 6), 7, 2, scale=0.0)
    yield _lora_case((5, 6), 7, 2, scale=-3.0)


@rule("grouped_matmul")
def _grouped(b: Builder) -> Made:
    rows, experts, k, n = (1 + b.below(6) for _ in range(4))
    dtype, transpose = b.choose((f32, f16)), b.chance(0.5)
    x = b.leaf((rows, k), dtype)
    w = b.leaf((experts, n, k) if transpose else (experts, k, n), b.choose((f32, dtype)))
    sizes = b.graph.constant(b.rng.integers(-1, 4, (experts,)).astype(np.int32), i32)
    y = apply("grouped_matmul", x, w, sizes, transpose_w=transpose)
    return y, apply("grouped_matmul_grad", x, y, sizes)


@rule("lora_matmul")
def _lora(b: Builder) -> Made:
    x = b.ranked(2, lambda t: t.dtype.is_float)
    k, r, n = x.shape[-1], 1 + b.below(3), 1 + b.below(5)
    w, low, high = (b.leaf(s, x.dtype) for s in ((k, n), (k, r), (r, n)))
    bias = b.leaf((n,), x.dtype) if b.chance(0.5) else None
    return (ops.lora_matmul(x, w, low, high, bias, scale=0.5, activation=b.choose((None, "tanh"))),)


def _squares(op: str) -> Callable[[Sequence[Array], Attrs], Any]:
    """The size of the terms: the root of the op itself on the squares of its operands."""

    def rule(inputs: Sequence[Array], attrs: Attrs) -> Any:
        x, w, sizes = inputs
        return np.sqrt(get_op(op).reference(np.square(x), np.square(w), sizes.astype(np.int64), **attrs))

    return rule


def _lora_terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x, w, a, b = (np.square(t) for t in inputs[:4])
    squares = x @ w + attrs["scale"] ** 2 * ((x @ a) @ b)
    return np.sqrt(squares + np.square(inputs[4]) if len(inputs) == 5 else squares)


OPS = (
    Conformance("grouped_matmul", (_all,), (_grouped,), terms=_squares("grouped_matmul")),
    Conformance("grouped_matmul_grad", (_all,), (_grouped,), terms=_squares("grouped_matmul_grad")),
    Conformance(
        "lora_matmul", (_all,), (_lora,), terms=_lora_terms,
        narrower={(i, "wide"): ("roots", "x @ a, or its product with b, leaves f32 before the scale") for i in (0, 3)},
    ),
)
