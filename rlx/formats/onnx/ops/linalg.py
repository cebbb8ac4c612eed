"""Products: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.formats.onnx.ops.blocks import packed_product
from rlx.formats.onnx.reader.call import Call, Result
from rlx.formats.onnx.reader.table import op
from rlx.ir import Tensor


@op("MatMul")
def matmul(c: Call) -> Result:
    made = packed_product(c, c.x(0), c.x(1))
    return o.matmul(c.x(0), c.x(1)) if made is None else made


@op("Gemm")
def gemm(c: Call) -> Tensor:
    a, b, beta = c.x(0), c.x(1), c.float("beta", 1.0)
    bias = c.opt(2)
    if a.ndim != 2 or b.ndim != 2:
        raise c.bad(f"A is {a.shape}, B is {b.shape}; expected two dimensions each")
    alpha = c.float("alpha", 1.0)
    ta, tb = bool(c.int("transA", 0)), bool(c.int("transB", 0))
    packed = packed_product(c, o.transpose(a) if ta else a, b, tb)
    if (
        packed is None
        and bias is not None
        and bias.ndim == 1
        and alpha == beta == 1.0
        and bias.shape[0] == b.shape[0 if tb else 1]
        and (a.dtype.is_float)
    ):
        return o.matmul(a, b, bias, transpose_a=ta, transpose_b=tb)
    y = o.matmul(a, b, transpose_a=ta, transpose_b=tb) if packed is None else packed
    y = y if alpha == 1.0 else o.mul(y, alpha)
    if bias is None or beta == 0.0:
        return y
    return o.add(y, bias if beta == 1.0 else o.mul(bias, beta))


@op("Einsum")
def einsum(c: Call) -> Result:
    """Pairwise products from left to right, each a matmul over batch, kept and summed labels."""
    operands = c.xs()
    terms, result = _labels(c, operands)
    widths: dict[str, int] = {}
    for labels, t in zip(terms, operands, strict=True):
        for label, n in zip(labels, t.shape, strict=True):
            if widths.setdefault(label, n) == 1:
                widths[label] = n
            if n not in (1, widths[label]):
                raise c.bad(f"label {label!r} is {n} and {widths[label]} long")
    ready = [_diagonal(labels, t) for labels, t in zip(terms, operands, strict=True)]
    labels, x = ready[0]
    for k, (other, y) in enumerate(ready[1:], start=1):
        later = set(result).union(*(r[0] for r in ready[k + 1 :]))
        labels, x = _product(labels, x, other, y, later, widths)
    gone = tuple(i for i, label in enumerate(labels) if label not in result)
    if gone:
        x, labels = o.sum(x, gone), [label for label in labels if label in result]
    return o.transpose(x, [labels.index(label) for label in result]) if result else x


def _labels(c: Call, operands: Sequence[Tensor]) -> tuple[list[list[str]], list[str]]:
    """The labels of every operand and of the result, ellipses written out as "0", "1", … from the right."""
    text = c.str("equation", "").replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise c.bad(f"the equation {text!r} is for {len(parts)} operands, {len(operands)} came")
    terms, most = [], 0
    for part, t in zip(parts, operands, strict=True):
        head, dots, tail = part.partition("...")
        extra = t.ndim - len(head) - len(tail)
        if extra < 0 or (extra and not dots) or not (head + tail + "a").isalpha():
            raise c.bad(f"the term {part!r} does not fit an operand of shape {t.shape}")
        terms.append([*head, *(str(extra - 1 - i) for i in range(extra)), *tail])
        most = max(most, extra)
    dims = [str(most - 1 - i) for i in range(most)]
    if arrow:
        head, dots, tail = right.partition("...")
        result = [*head, *(dims if dots else []), *tail]
    else:
        everything = [label for term in terms for label in term]
        result = dims + sorted(v for v in set(everything) - set(dims) if everything.count(v) == 1)
    known = {label for term in terms for label in term}
    if len(set(result)) != len(result) or not set(result) <= known:
        raise c.bad(f"the result {right!r} of the equation {text!r} repeats a label or has one of no operand")
    return terms, result


def _diagonal(labels: list[str], t: Tensor) -> tuple[list[str], Tensor]:
    """Repeated labels of one operand taken along their diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i, j = [k for k, v in enumerate(labels) if v == label][:2]
            n = t.shape[i]
            t = o.moveaxis(o.moveaxis(t, j, 0), i + 1, 1)  # moving j to the front shifts i by one
            t = o.reshape(t, (n * n, *t.shape[2:]))
            t = o.gather(t, t.graph.constant(np.arange(n, dtype=np.int32) * (n + 1)), 0)
            labels = [label] + [v for k, v in enumerate(labels) if k not in (i, j)]
    return labels, t


def _product(
    a: list[str], x: Tensor, b: list[str], y: Tensor, later: set[str], widths: dict[str, int]
) -> tuple[list[str], Tensor]:
    batch = [v for v in a if v in b and v in later]
    summed = [v for v in a if v in b and v not in later]
    only_a, only_b = [v for v in a if v not in b], [v for v in b if v not in a]
    wide = [o.expand(t, [widths[v] if v in batch + summed else n for v, n in zip(labels, t.shape, strict=True)])
            for labels, t in ((a, x), (b, y))]  # fmt: skip
    left = o.transpose(wide[0], [a.index(v) for v in batch + only_a + summed])
    right = o.transpose(wide[1], [b.index(v) for v in batch + summed + only_b])
    n, m, k, p = (
        math.prod(sizes) for sizes in (
            left.shape[: len(batch)], left.shape[len(batch) : len(batch) + len(only_a)],
            left.shape[len(batch) + len(only_a) :], right.shape[len(batch) + len(summed) :],
        )
    )  # fmt: skip
    columns, rows = o.reshape(left, (n, m, k)), o.reshape(right, (n, k, p))
    # Without a summed label this is an elementwise product: a matmul would run a tiny product for each batch element.
    made = o.matmul(columns, rows) if summed else o.mul(columns, rows)
    shape = (*left.shape[: len(batch) + len(only_a)], *right.shape[len(batch) + len(summed) :])
    return batch + only_a + only_b, o.reshape(made, shape)


@op("Det")
def det(c: Call) -> Result:
    """Gaussian elimination with partial pivoting, unrolled in the graph: n steps for n × n."""
    x = c.x()
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] > MAX_DET:
        raise c.unsupported(f"of {x.shape}; expected square matrices of at most {MAX_DET} rows")
    n, lead = x.shape[-1], x.shape[:-2]
    a = o.reshape(o.cast(x, f32) if x.dtype.is_half else x, (math.prod(lead), n, n))
    result: Tensor | None = None
    for k in range(n):
        m = n - k
        pivot = o.argmax(o.abs(a[:, :, 0]), 1, keepdims=True)  # (B, 1)
        rows = o.expand(o.reshape(pivot, (-1, 1, 1)), (a.shape[0], 1, m))
        top = o.gather_elements(a, rows, 1)  # (B, 1, m)
        first = a[:, :1, :]
        sign = o.where(o.equal(pivot[:, 0], 0), 1.0, -1.0)
        here = o.equal(
            o.reshape(c.tensor(np.arange(m, dtype=np.int64)), (1, m, 1)), o.reshape(pivot, (-1, 1, 1))
        )
        a = o.where(here, first, a)
        value = o.mul(o.cast(sign, a.dtype), top[:, 0, 0])
        result = value if result is None else o.mul(result, value)
        safe = o.where(o.equal(top[:, :, :1], 0), 1.0, top[:, :, :1])
        a = o.sub(a[:, 1:, 1:], o.mul(o.div(a[:, 1:, :1], safe), top[:, :, 1:]))
    made = c.tensor(np.ones(a.shape[0], a.dtype.np)) if result is None else result
    return o.reshape(made, lead)


MAX_DET = 64
