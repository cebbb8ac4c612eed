"""Conformance of a linear layer of a row's RMS norm."""

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
    lead: Shape, k: int, n: int, x: DType = f32, weight: DType = f32, gate: str | None = None,
    domains: Sequence[str] = ("normal", "normal", "normal"),
) -> Case:  # fmt: skip
    shapes: tuple[Shape, ...] = ((*lead, k), (k,), (n, k))
    specs = tuple(InputSpec(s, t, d) for s, t, d in zip(shapes, (x, f32, weight), domains, strict=True))
    name = f"{x}-{weight}-{label(shapes[0])}-{label(shapes[2])}" + (f"-{gate}" if gate else "")
    name += "" if set(domains) == {"normal"} else f"-{'-'.join(domains)}"
    return Case("normed_linear", name, specs, {"eps": 0.1, "gate": gate}, NORM)


def _all() -> Iterator[Case]:
    for lead, k, n in (((1,), 1, 1), ((1,), 7, 5), ((3,), 64, 6), ((2, 1), 40, 8), ((), 33, 4), ((1,), 2056, 34)):
        yield _case(lead, k, n)
    for x, weight in ((f32, f32), (f32, f16), (f32, bf16), (f16, f16), (bf16, bf16)):
        for gate in (None, "silu", "gelu_tanh"):
            yield _case((1,), 256, 40, x, weight, gate)
            yield _case((1,), 301, 22, x, weight, gate)
        yield _case((1,), 4160, 12, x, weight)
    for x in FLOATS:
        for domain in ("zeros", "holes", "wide", "far"):
            yield _case((1,), 72, 10, x, x, domains=(domain, "normal", "normal"))
        yield _case((1,), 72, 10, x, x, domains=("normal", "zeros", "zeros"))
        yield _case((1,), 72, 10, x, x, domains=("normal", "holes", "holes"))


def mean_square(x: Array) -> Any:
    """The mean square of each row; 0 for rows without elements, where NumPy warns."""
    return np.sum(x * x, axis=-1, keepdims=True) / max(1, x.shape[-1])


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x, gamma, weight = inputs
    with np.errstate(all="ignore"):
        normed = x / np.sqrt(mean_square(x) + attrs["eps"]) * gamma
        scale = np.sqrt(np.matmul(normed**2, weight.T**2))
    if attrs["gate"] is None:
        return np.asarray(scale)
    half = weight.shape[0] // 2
    y = np.abs(np.matmul(normed, weight.T))
    return np.asarray(scale[..., :half] * (y[..., half:] + 1) + scale[..., half:] * (y[..., :half] + 1))


@rule("normed_linear")
def _normed_linear(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    gamma, gate = b.leaf(x.shape[-1:], x.dtype), b.choose((None, None, "silu"))
    weight = b.leaf((2 * (1 + b.below(3)), x.shape[-1]), x.dtype)
    return (ops.normed_linear(x, gamma, weight, 0.1, gate),)


@rule("norm_and_linear")
def _norm_and_linear(b: Builder) -> Made:
    """One row's norm and its product, which the fusion pass replaces by one op."""
    k, dtype = 1 + b.below(9), b.choose((f32, f32, f16, bf16))
    normed = ops.rms_norm(b.leaf((1, k), dtype), b.leaf((k,), dtype), eps=0.1)
    y = ops.matmul(normed, b.leaf((6, k), dtype), transpose_b=True)
    return (ops.mul(ops.silu(y[:, :3]), y[:, 3:]) if b.chance(0.5) else y,)


OPS = (Conformance("normed_linear", (_all,), (_normed_linear, _norm_and_linear), terms=_terms),)
