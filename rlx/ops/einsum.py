"""einsum: sums of products, contracted two operands at a time as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import i32, i64, promote
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ops import reduce
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.elementwise import binary
from rlx.ops.matmul import matmul
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement

Labels = list[str]


def einsum(subscripts: str, *operands: TensorLike) -> Tensor:
    """The sum of products that the subscripts name, as numpy.einsum: "ij,jk->ik" is a matrix product.

    A letter repeated within one operand is its diagonal, letters missing on the right are summed over, `...` stands
    for axes that broadcast; without `->` the letters that occur once are kept, in alphabetical order. Shape: by the
    subscripts; an axis of length 1 broadcasts. Dtype: promoted; bools and integers below i64 give i32, as of rlx.sum
    and rlx.matmul. Gradient: to each operand, by the products' rules.
    Numerics: products of two operands at a time, in the order that numpy.einsum_path finds to need the fewest
    multiplications, each summed as rlx.matmul. Raises: ShapeError for subscripts that do not fit the operands.
    """
    inputs = list(tensors("einsum", *operands))
    terms, result = _labels(subscripts, inputs)
    common = promote(*(t.dtype for t in inputs))
    common = common if common.is_float or common == i64 else i32
    # Floats keep their dtypes, which matmul reads side by side, and the last product has the promoted one.
    inputs = [t if t.dtype.is_float else cast_to(t, common) for t in inputs]
    widths: dict[str, int] = {}
    for labels, t in zip(terms, inputs, strict=True):
        for label, n in zip(labels, t.shape, strict=True):
            if widths.setdefault(label, n) == 1:
                widths[label] = n
            if n not in (1, widths[label]):
                raise ShapeError(f"einsum: {subscripts!r}: label {label!r} is {n} and {widths[label]} long")
    ready = [_diagonal(labels, t) for labels, t in zip(terms, inputs, strict=True)]
    for pair in _order(subscripts, inputs) if len(inputs) > 2 else [(0, 1)] * (len(inputs) - 1):
        taken = [ready.pop(i) for i in sorted(pair, reverse=True)][::-1]
        later = set(result).union(*(labels for labels, _ in ready))
        left, right = (
            _summed(labels, t, later.union(other[0]))
            for (labels, t), other in zip(taken, taken[::-1], strict=True)
        )
        ready.append(_product(*left, *right, later, widths))
    labels, x = _summed(*ready[0], set(result))
    return movement.transpose(x, [labels.index(label) for label in result]) if result else x


def _labels(text: str, operands: Sequence[Tensor]) -> tuple[list[Labels], Labels]:
    """The labels of every operand and of the result, ellipses written out as "0", "1", … from the right."""
    left, arrow, right = text.replace(" ", "").partition("->")
    if not text.isascii():
        raise ShapeError(f"einsum: {text!r}: labels are the letters a to z and A to Z")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ShapeError(f"einsum: {text!r} has subscripts for {len(parts)} operands, {len(operands)} came")
    terms, most = [], 0
    for part, t in zip(parts, operands, strict=True):
        head, dots, tail = part.partition("...")
        extra = t.ndim - len(head) - len(tail)
        if extra < 0 or (extra and not dots) or not (head + tail + "a").isalpha():
            raise ShapeError(
                f"einsum: {text!r}: the term {part!r} does not fit an operand of shape {t.shape}"
            )
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
        raise ShapeError(f"einsum: {text!r}: the result {right!r} repeats a label, or has one of no operand")
    return terms, result


def _order(text: str, operands: Sequence[Tensor]) -> Sequence[tuple[int, int]]:
    """The pairs to contract, numbered as operands are when the earlier pairs have been replaced by one at the end."""
    shapes = [np.broadcast_to(np.float32(0), t.shape) for t in operands]
    path: list[tuple[int, int]] = np.einsum_path(text, *shapes, optimize="greedy")[0][1:]
    if all(len(step) == 2 for step in path):
        return path
    return [(0, 1)] * (
        len(operands) - 1
    )  # a term of three or more at once: NumPy found no order to be better


def _diagonal(labels: Labels, t: Tensor) -> tuple[Labels, Tensor]:
    """Repeated labels of one operand taken along their diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i, j = [k for k, v in enumerate(labels) if v == label][:2]
            if t.shape[i] != t.shape[j]:
                raise ShapeError(
                    f"einsum: label {label!r} is {t.shape[i]} and {t.shape[j]} long in one operand"
                )
            t = arrange.diagonal(t, 0, i, j)
            labels = [v for k, v in enumerate(labels) if k not in (i, j)] + [label]
    return labels, t


def _summed(labels: Labels, t: Tensor, needed: set[str]) -> tuple[Labels, Tensor]:
    """The operand summed over the labels that nothing else needs."""
    gone = tuple(i for i, label in enumerate(labels) if label not in needed)
    return [v for v in labels if v in needed], reduce.sum(t, gone) if gone else t


def _product(
    a: Labels, x: Tensor, b: Labels, y: Tensor, later: set[str], widths: dict[str, int]
) -> tuple[Labels, Tensor]:
    batch = [v for v in a if v in b and v in later]
    summed = [v for v in a if v in b and v not in later]
    only_a, only_b = [v for v in a if v not in b], [v for v in b if v not in a]
    wide = [
        movement.expand(
            t, [widths[v] if v in batch + summed else n for v, n in zip(labels, t.shape, strict=True)]
        )
        for labels, t in ((a, x), (b, y))
    ]
    left = movement.transpose(wide[0], [a.index(v) for v in batch + only_a + summed])
    right = movement.transpose(wide[1], [b.index(v) for v in batch + summed + only_b])
    at = len(batch) + len(only_a)
    n, m, k, p = (
        math.prod(sizes)
        for sizes in (left.shape[: len(batch)], left.shape[len(batch) : at], left.shape[at:],
                      right.shape[len(batch) + len(summed) :])
    )  # fmt: skip
    columns, rows = movement.reshape(left, (n, m, k)), movement.reshape(right, (n, k, p))
    # Without a summed label this is an elementwise product: a matmul would run a tiny product for each batch element.
    product = matmul(columns, rows) if summed else binary.mul(columns, rows)
    shape = (*left.shape[:at], *right.shape[len(batch) + len(summed) :])
    return batch + only_a + only_b, movement.reshape(product, shape)


__all__ = ["einsum"]
