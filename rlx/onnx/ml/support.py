"""Support vector machines of ai.onnx.ml: SVMRegressor, SVMClassifier with the probabilities of pairs of classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, i64
from rlx.ir import Tensor
from rlx.onnx.ml.features import count_of, features, labels_of, numbers_of, transformed
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import Array
from rlx.onnx.reader.table import ML, op

MAX_APART = 1 << 22  # differences of rows and support vectors that are made at once
MAX_CLASSES = 65535
TRIALS = 100  # trials of the probabilities' iteration
NEAR = 0.005  # the iteration ends at this error over the number of classes


@op("SVMRegressor", domain=ML)
def svm_regressor(c: Call) -> Result:
    """Σ coefficient · kernel(x, support vector) + rho; for a one-class machine the sign of that."""
    x, count = features(c), c.int("n_supports", 0)
    weights, rho = numbers_of(c, "coefficients", x), numbers_of(c, "rho", x)
    vectors = numbers_of(c, "support_vectors", x) if count else weights
    rows = count if count else 1
    if vectors is None or rho is None or weights is None or vectors.size != rows * x.shape[1]:
        raise c.bad(f"n_supports is {count}, with {count_of(vectors)} numbers for {x.shape[1]} features")
    if count and weights.size != count:
        raise c.bad(f"coefficients has {weights.size} numbers for {count} support vectors")
    scores = _kernel(c, x, vectors.reshape(rows, -1), c.str("kernel_type", "LINEAR") if count else "LINEAR")
    scores = o.matmul(scores, c.tensor(weights.reshape(-1, 1))) if count else scores
    scores = o.add(scores, float(rho[0]))
    if c.int("one_class", 0):
        return o.where(o.greater(scores, 0.0), 1.0, -1.0)
    return transformed(c, scores, c.str("post_transform", "NONE"))


@op("SVMClassifier", domain=ML)
def svm_classifier(c: Call) -> tuple[Result, ...]:
    """Without support vectors a linear model of each class. With them a machine for each pair of classes: the label is
    that of most votes, the scores are those of the pairs, or with prob_a and prob_b the classes' probabilities."""
    x, labels = o.cast(features(c), f32), labels_of(c, "classlabels_ints", "classlabels_strings")
    after, k = c.str("post_transform", "NONE"), len(labels)
    weights, rho = numbers_of(c, "coefficients", x), numbers_of(c, "rho", x)
    if weights is None or rho is None or not 2 <= k <= MAX_CLASSES:
        raise c.bad(f"has {count_of(weights)} coefficients, {count_of(rho)} numbers in rho and {k} classes")
    a, b = numbers_of(c, "prob_a", x), numbers_of(c, "prob_b", x)
    if count_of(a) != count_of(b):
        raise c.bad(f"prob_a has {count_of(a)} numbers, prob_b {count_of(b)}; expected as many")
    counts = c.ints("vectors_per_class", [])
    if not sum(counts):
        scores = _linear(c, x, weights, float(rho[0]), k)
        best = o.argmax(scores, -1)
        if k == 2 and a is None:  # as ONNX Runtime decides, which does not compare the two scores first
            top = o.max(scores, -1)
            second = o.greater_equal(top, 0.5) if bool(np.all(weights >= 0)) else o.greater(top, 0.0)
            best = o.where(second, c.tensor(np.int64(1)), o.cast(best, i64))
        return _named(c, best, labels), transformed(c, scores, after)
    pairs = _pairs(c, x, weights, rho, counts, k)
    best = o.argmax(_votes(c, pairs, k), -1)
    if a is not None and b is not None:
        if a.size < pairs.shape[1]:
            raise c.bad(f"prob_a has {a.size} numbers; expected {pairs.shape[1]}, one a pair of {k} classes")
        n = pairs.shape[1]
        chances = o.sigmoid(o.neg(o.add(o.mul(pairs, c.tensor(a[:n])), c.tensor(b[:n]))))
        return _named(c, best, labels), transformed(c, _coupled(c, o.clip(chances, 1e-7, 1 - 1e-7), k), after)
    if k > 2:
        return _named(c, best, labels), transformed(c, pairs, after)
    if after == "PROBIT":
        raise c.unsupported("post_transform PROBIT of the one score of two classes is not supported")
    pairs = o.sigmoid(pairs) if after == "LOGISTIC" else pairs
    other = o.neg(pairs) if after == "NONE" else o.sub(1.0, pairs)
    return _named(c, best, labels), o.concat([other, pairs], 1)


def _named(c: Call, best: Tensor, labels: Array) -> Value:
    names = c.constant(labels)
    return Value(o.gather(names.tensor, best, 0), names.dtype)


def _linear(c: Call, x: Tensor, weights: Array, rho: float, k: int) -> Tensor:
    if weights.size != k * x.shape[1]:
        raise c.bad(f"coefficients has {weights.size} numbers for {x.shape[1]} features of {k} classes")
    return o.add(o.matmul(x, c.tensor(np.ascontiguousarray(weights.reshape(k, -1).T))), rho)


def _pairs(c: Call, x: Tensor, weights: Array, rho: Array, counts: Sequence[int], k: int) -> Tensor:
    """The scores of the machines, those of classes (0, 1), (0, 2), …, (1, 2), …: positive ones are for the former."""
    total, n = sum(counts), k * (k - 1) // 2
    vectors = numbers_of(c, "support_vectors", x)
    if len(counts) != k or min(counts) < 0 or vectors is None or vectors.size != total * x.shape[1]:
        raise c.bad(
            f"vectors_per_class is {counts[:9]}, with {count_of(vectors)} numbers for {x.shape[1]} features and {k} "
            "classes"
        )
    if weights.size < (k - 1) * total or rho.size < n:
        raise c.bad(
            f"has {weights.size} coefficients and {rho.size} numbers in rho; expected {(k - 1) * total} and {n}"
        )
    c.table(total, n)
    rows = weights[: (k - 1) * total].reshape(k - 1, total)
    ends = np.cumsum([0, *counts])
    parts = [slice(start, end) for start, end in pairwise(ends)]
    table = np.zeros((total, n), np.float32)
    for at, (i, j) in enumerate(zip(*np.triu_indices(k, 1), strict=True)):
        table[parts[i], at] = rows[j - 1, parts[i]]
        table[parts[j], at] = rows[i, parts[j]]
    kernel = _kernel(c, x, vectors.reshape(total, -1), c.str("kernel_type", "LINEAR"))
    return o.add(o.matmul(kernel, c.tensor(table)), c.tensor(rho[:n]))


def _votes(c: Call, pairs: Tensor, k: int) -> Tensor:
    """The number of machines that are for each class."""
    c.table(pairs.shape[1], k)
    first, second = (np.eye(k, dtype=np.float32)[places] for places in np.triu_indices(k, 1))
    won = o.cast(o.greater(pairs, 0.0), f32)
    return o.add(o.matmul(won, c.tensor(first)), o.matmul(o.sub(1.0, won), c.tensor(second)))


def _coupled(c: Call, chances: Tensor, k: int) -> Tensor:
    """The probabilities of k classes from those of pairs (Wu, Lin and Weng: Probability Estimates for Multi-class
    Classification by Pairwise Coupling, algorithm 2), which LIBSVM iterates until the error of a row is small."""
    n = chances.shape[1]
    c.table(n, k, k)
    i, j = np.triu_indices(k, 1)
    above, below = np.zeros((n, k * k), np.float32), np.zeros((n, k * k), np.float32)
    above[np.arange(n), i * k + j] = below[np.arange(n), j * k + i] = 1
    # r[i, j] is the chance of class i against class j; each is one number, so these products are exact.
    r = o.add(o.matmul(chances, c.tensor(above)), o.matmul(o.sub(1.0, chances), c.tensor(below)))
    r = o.reshape(r, (-1, k, k))
    turned = o.transpose(r, (0, 2, 1))
    unit = c.tensor(np.eye(k, dtype=np.float32))
    diagonal = o.sum(o.mul(r, r), 1)
    q = o.where(o.greater(unit, 0.0), o.expand_dims(diagonal, (1,)), o.neg(o.mul(r, turned)))
    rows = (unit, o.moveaxis(q, 1, 0), o.transpose(diagonal, (1, 0)))

    def products(p: Tensor) -> tuple[Tensor, Tensor]:
        qp = o.sum(o.mul(q, o.expand_dims(p, (1,))), -1)
        return qp, o.sum(o.mul(p, qp), -1, keepdims=True)

    def each(state: Any, row: Any) -> Any:
        (p, qp, pqp), (one, q_row, q_own) = state, row
        own, size = o.sum(o.mul(qp, one), -1, keepdims=True), o.expand_dims(q_own, (1,))
        step = o.div(o.sub(pqp, own), size)
        whole = o.add(1.0, step)
        pqp = o.div(o.add(pqp, o.mul(step, o.add(o.mul(step, size), o.mul(own, 2.0)))), o.mul(whole, whole))
        qp = o.div(o.add(qp, o.mul(step, q_row)), whole)
        return (o.div(o.add(p, o.mul(step, one)), whole), qp, pqp), None

    def goes_on(carry: Any) -> Tensor:
        step, _, active = carry
        return o.logical_and(o.less(step, TRIALS), o.any(active))

    def trial(carry: Any) -> Any:
        step, p, active = carry
        qp, pqp = products(p)
        error = o.max(o.abs(o.sub(qp, pqp)), -1, keepdims=True)
        active = o.logical_and(active, o.greater_equal(error, NEAR / k))
        (updated, _, _), _ = o.scan(each, (p, qp, pqp), rows)
        return o.add(step, 1), o.where(active, updated, p), active

    start = o.expand(c.tensor(np.float32(1 / k)), (chances.shape[0], k))
    active = o.expand(c.tensor(np.array(True)), (chances.shape[0], 1))
    result: Tensor = o.while_loop(goes_on, trial, (c.tensor(np.int64(0)), start, active), max_steps=TRIALS)[1]
    return result


def _kernel(c: Call, x: Tensor, vectors: Array, kind: str) -> Tensor:
    gamma, shift, degree = [*c.floats("kernel_params", []), 0.0, 0.0, 0.0][:3]
    if kind == "RBF":
        return o.exp(o.mul(_apart(c, x, vectors), -float(gamma)))
    result = o.matmul(x, c.tensor(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return result
    result = o.add(o.mul(result, float(gamma)), float(shift))
    if kind == "POLY":
        return o.pow(result, float(degree))
    if kind != "SIGMOID":
        raise c.bad(f"kernel_type is {kind!r}; expected LINEAR, POLY, RBF or SIGMOID")
    return o.tanh(result)


def _apart(c: Call, x: Tensor, vectors: Array) -> Tensor:
    """|x - v|² of each row and support vector. It is computed directly: expanded into products, cancellation would lose
    near vectors. Many rows are taken some at a time."""
    n, width = x.shape
    v = c.tensor(vectors[None])

    def squares(rows: Tensor) -> Tensor:
        away = o.sub(o.expand_dims(rows, (1,)), v)
        return o.sum(o.mul(away, away), -1)

    few = max(1, MAX_APART // max(vectors.size, 1))
    if n <= few:
        return squares(x)
    blocks = -(-n // few)
    padded = o.pad(x, ((0, blocks * few - n), (0, 0)))
    _, distances = o.scan(lambda _, rows: ((), squares(rows)), (), o.reshape(padded, (blocks, few, width)))
    return o.reshape(distances, (blocks * few, len(vectors)))[:n]
