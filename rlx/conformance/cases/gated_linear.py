"""Conformance of a linear layer whose results gate one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32
from rlx.ir import Attrs
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


def _case(
    lead: Shape, k: int, n: int, x: DType = f32, weight: DType = f32, gate: str = "silu",
    domains: Sequence[str] = ("normal", "normal"),
) -> Case:  # fmt: skip
    shapes: tuple[Shape, ...] = ((*lead, k), (n, k))
    specs = tuple(InputSpec(s, t, d) for s, t, d in zip(shapes, (x, weight), domains, strict=True))
    name = f"{x}-{weight}-{label(shapes[0])}-{label(shapes[1])}-{gate}"
    name += "" if set(domains) == {"normal"} else f"-{'-'.join(domains)}"
    return Case("gated_linear", name, specs, {"gate": gate}, NORM)


def _all() -> Iterator[Case]:
    for lead, k, n in (((1,), 1, 2), ((5,), 7, 6), ((2, 3), 40, 8), ((), 33, 4), ((0,), 5, 4), ((3,), 9, 0)):
        yield _case(lead, k, n)
    yield _case((4,), 0, 6)
    for x, weight in ((f32, f32), (f32, f16), (f32, bf16), (f16, f16), (bf16, bf16)):
        for gate in ("silu", "gelu_tanh"):
            yield _case((2,), 72, 80, x, weight, gate)
            yield _case((40,), 64, 144, x, weight, gate)
        yield _case((150,), 200, 288, x, weight)  # more than a tile
        yield _case((19,), 61, 22, x, weight, "relu")
        yield _case((264,), 104, 528, x, weight)
    for x in FLOATS:
        for domain in ("zeros", "holes"):
            yield _case((18,), 72, 16, x, x, domains=(domain, "normal"))
        yield _case((18,), 72, 16, x, x, domains=("normal", "holes"))


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x, weight = inputs
    half = weight.shape[0] // 2
    with np.errstate(all="ignore"):
        scale = np.sqrt(np.matmul(x**2, weight.T**2))
        y = np.abs(np.matmul(x, weight.T))
    return np.asarray(scale[..., :half] * (y[..., half:] + 1) + scale[..., half:] * (y[..., :half] + 1))


@rule("gated_linear")
def _gated_linear(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    weight = b.leaf((2 * (1 + b.below(3)), x.shape[-1]), x.dtype)
    return (ops.gated_linear(x, weight, b.choose(("silu", "relu"))),)


@rule("linear_and_gate")
def _linear_and_gate(b: Builder) -> Made:
    """A product of many rows and a gate, which the fusion pass replaces by one op."""
    k, dtype = 1 + b.below(9), b.choose((f32, f32, f16, bf16))
    y = ops.matmul(b.leaf((65, k), dtype), b.leaf((6, k), dtype), transpose_b=True)
    return (ops.mul(ops.silu(y[:, :3]), y[:, 3:]),)


OPS = (Conformance("gated_linear", (_all,), (_gated_linear, _linear_and_gate), terms=_terms),)
