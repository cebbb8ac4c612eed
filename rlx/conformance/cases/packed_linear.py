"""Conformance of a linear layer with a packed weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance import domains
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.normed_linear import mean_square
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import PACKED, DType, bf16, f16, f32, f64
from rlx.ir import Attrs
from rlx.ops.numeric import Array
from rlx.packed import PackedArray

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _case(
    lead: tuple[int, ...], n: int, blocks: int, q: DType, x: DType = f32, eps: float | None = 0.1,
    gate: str | None = None, bias: DType | None = None, domain: str = "normal",
) -> Case:  # fmt: skip
    k = blocks * q.storage.elements
    inputs = [InputSpec((*lead, k), x, domain), InputSpec((n, k), q)]
    inputs += [InputSpec((k,), f32)] if eps is not None else []
    inputs += [InputSpec((n,), bias)] if bias is not None else []
    words = [str(x), str(q), label((*lead, n)), str(blocks), "" if eps is None else "normed", gate, bias, domain]
    name = "-".join(str(w) for w in words if w)
    return Case("packed_linear", name, tuple(inputs), {"format": q, "eps": eps, "gate": gate}, NORM)


def _blocks(q: DType) -> int:
    """A number of blocks for which rows are multiples of 16 bytes."""
    return 8 if q.storage.elements > 32 else 16


def _all() -> Iterator[Case]:
    # Few, since a software driver compiles each of these kernels for seconds.
    for name in ("q4_1", "q6_k", "fp8_e5m2", "nf4_64", "iq3_s"):  # iq3_s has no kernel for one row
        yield _case((1,), 37, _blocks(PACKED[name]), PACKED[name])
    for name, x in (("q8_0", f32), ("q4_k", bf16)):
        q = PACKED[name]
        blocks = _blocks(q)
        for domain in ("normal", "zeros", "holes", "wide", "far"):
            yield _case((1,), 20, blocks, q, x, domain=domain)
        yield _case((1,), 600, blocks, q, x, domain="normal")
        yield _case((1,), 38, blocks, q, x, gate="silu")
        yield _case((1,), 70, blocks, q, x, eps=None, bias=x)
        yield _case((3,), 10, blocks, q, gate="silu")  # rows and formats that one launch cannot compute
        yield _case((1,), 10, 1, PACKED["q4_0"], x, bias=x)
    yield _case((1,), 33, 8, PACKED["int4_zp"], f16, bias=f32)
    yield _case((1,), 34, 16, PACKED["q8_0"], f16, eps=None, gate="gelu_tanh")
    for lead, n, blocks in (((), 5, 16), ((2, 1), 4, 8), ((1,), 0, 8), ((1,), 4, 0), ((0,), 4, 8)):
        yield _case(lead, n, blocks, PACKED["q8_0"])
    yield _case((1,), 66, 288, PACKED["q8_0"])  # x exceeds shared memory


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x, q, *rest = inputs
    format = attrs["format"]
    shape = (q.shape[0], q.shape[1] // format.storage.nbytes * format.storage.elements)
    w = np.square(PackedArray(format, shape, q.astype(np.uint8)).dequantize(f64))
    with np.errstate(all="ignore"):
        if attrs["eps"] is not None:
            x = x / np.sqrt(mean_square(x) + attrs["eps"]) * rest.pop(0)
        scale = np.sqrt(np.square(x) @ w.T)
        scale = scale + (np.abs(rest[0]) if rest else 0.0)
    if attrs["gate"] is None:
        return np.asarray(scale)
    half = q.shape[0] // 2
    y = np.abs(x @ np.sqrt(w).T)
    return np.asarray(scale[..., :half] * (y[..., half:] + 1) + scale[..., half:] * (y[..., :half] + 1))


@rule("packed_norm_and_linear")
def _packed(b: Builder) -> Made:
    """The op itself, or for one row the norm, product and epilogue that the fusion pass replaces by it."""
    q, dtype = b.choose((PACKED["q8_0"], PACKED["q4_0"])), b.choose((f32, f16, bf16))
    k, n = 16 * q.storage.elements, 6
    value = b.graph.constant(PackedArray(q, (n, k), domains.make((n, k), q, "normal", b.below(1 << 30))))
    gate = "silu" if b.chance(0.5) else None
    if b.chance(0.3):
        x, gamma = b.leaf((2, k), dtype), b.leaf((k,), f32) if b.chance(0.7) else None
        bias = b.leaf((n,), dtype) if gate is None else None
        return (ops.packed_linear(x, value, bias, gamma=gamma, eps=0.1, gate=gate),)
    x = b.leaf((1, k), dtype)
    x = ops.rms_norm(x, b.leaf((k,), dtype), eps=0.1) if b.chance(0.7) else x
    y = ops.packed_matmul(x, value)
    return (ops.mul(ops.silu(y[:, :3]), y[:, 3:]) if gate else y + b.leaf((1, n), dtype),)


OPS = (Conformance("packed_linear", (_all,), (_packed,), terms=_terms),)
