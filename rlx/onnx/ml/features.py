"""Operators of ai.onnx.ml that are arithmetic on features: scaling, linear models."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, f64
from rlx.ir import Tensor
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import STRING, Array
from rlx.onnx.reader.string_table import strings
from rlx.onnx.reader.table import ML, op


def features(c: Call) -> Tensor:
    """The first input as a matrix of floats, one row a sample."""
    x = c.x()
    if x.ndim not in (1, 2):
        raise c.bad(f"the input is {x.shape}; expected rows of features")
    x = x if x.dtype == f64 else o.cast(x, f32)
    return x if x.ndim == 2 else o.reshape(x, (1, -1))


def numbers_of(c: Call, name: str, like: Tensor) -> Array | None:
    """The numbers of an attribute, or of its form *_as_tensor, in a tensor's dtype; None where both are absent."""
    tensor = f"{name}_as_tensor"
    numbers = c.floats(name, []) if c.attrs.get(tensor) is None else numeric(c, tensor)
    return np.asarray(numbers, like.dtype.np).reshape(-1) if len(numbers) else None


def numeric(c: Call, name: str) -> Array:
    """The numbers of a tensor attribute as a vector, which is empty where the attribute is left out."""
    result: Array = np.asarray(c.attrs.get(name, np.zeros(0))).reshape(-1)
    if result.dtype == STRING:
        raise c.bad(f"{name} holds strings; expected numbers")
    return result


def count_of(a: Array | None) -> int:
    return 0 if a is None else a.size


def transformed(c: Call, scores: Tensor, name: str) -> Tensor:
    """Scores after a post_transform."""
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return o.sigmoid(scores)
    if name == "SOFTMAX":
        return o.softmax(scores, -1)
    if name == "PROBIT":
        return _probit(scores)
    if name != "SOFTMAX_ZERO":
        raise c.bad(f"post_transform is {name!r}; expected NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT")
    # SOFTMAX_ZERO leaves scores of zero out of the softmax.
    top = o.max(scores, -1, keepdims=True)
    kept = o.where(
        o.greater(o.abs(scores), 1e-7), o.exp(o.sub(scores, top)), o.mul(scores, o.exp(o.neg(top)))
    )
    total = o.sum(kept, -1, keepdims=True)
    return o.where(o.equal(total, 0.0), 0.5, o.div(kept, total))


def _probit(p: Tensor) -> Tensor:
    """√2·erf⁻¹(2p - 1) by Winitzki's approximation, as ONNX Runtime computes it; NaN where p is no probability."""
    a = 0.147
    x = o.sub(o.mul(p, 2.0), 1.0)
    log = o.log(o.mul(o.sub(1.0, x), o.add(1.0, x)))
    v = o.add(o.mul(log, 0.5), 2 / (3.14159 * a))
    size = o.sqrt(o.sub(o.sqrt(o.sub(o.mul(v, v), o.mul(log, 1 / a))), v))
    return o.mul(o.where(o.less(x, 0.0), o.neg(size), size), math.sqrt(2))


def labels_of(c: Call, ints: str, texts: str) -> Array:
    """The names of the classes, integers or strings."""
    integers, named = c.ints(ints), c.ints(texts)
    if bool(integers) == bool(named):
        raise c.bad(f"expected the names of classes in one of {ints} and {texts}")
    return np.asarray(integers, np.int64) if integers else strings(named)


def labelled(c: Call, scores: Tensor, labels: Array) -> Value:
    """The name of the class with the greatest score, the first of equal ones."""
    names = c.constant(labels)
    return Value(o.gather(names.tensor, o.argmax(scores, -1), 0), names.dtype)


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(c: Call) -> Result:
    x, indices = c.x(0), o.reshape(c.x(1), (-1,))
    columns = o.gather(x, indices, axis_of(c, -1, x.ndim))
    return o.reshape(columns, (1, -1)) if x.ndim == 1 else columns


@op("Binarizer", domain=ML)
def binarizer(c: Call) -> Result:
    return o.greater(c.x(), c.float("threshold", 0.0))


@op("Scaler", domain=ML)
def scaler(c: Call) -> Result:
    x = c.x() if c.x().dtype == f64 else o.cast(c.x(), f32)
    width = x.shape[-1] if x.ndim else 1
    for name, call in (("offset", o.sub), ("scale", o.mul)):
        numbers = numbers_of(c, name, x)
        if numbers is None or numbers.size not in (1, width):
            raise c.bad(f"{name} has {count_of(numbers)} numbers; expected 1 or {width}")
        x = call(x, c.tensor(numbers))
    return x


@op("Normalizer", domain=ML)
def normalizer(c: Call) -> Result:
    x, norm = features(c), c.str("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise c.bad(f"norm is {norm!r}; expected MAX, L1 or L2")
    if norm == "MAX":
        size = o.max(x, -1, keepdims=True)
    else:
        size = o.sum(o.abs(x) if norm == "L1" else o.mul(x, x), -1, keepdims=True)
        size = o.sqrt(size) if norm == "L2" else size
    return o.reshape(o.div(x, o.where(o.equal(size, 0.0), 1.0, size)), c.x().shape)


@op("Imputer", domain=ML)
def imputer(c: Call) -> Result:
    x = c.x()
    kind = "float" if x.dtype.is_float else "int64"
    values, missing = c.ints(f"imputed_value_{kind}s"), c.attrs.get(f"replaced_value_{kind}", 0)
    if x.ndim < 1 or not values or len(values) not in (1, x.shape[-1]):
        raise c.bad(f"imputed_value_{kind}s has {len(values or ())} numbers for {x.shape}")
    gone = o.isnan(x) if isinstance(missing, float) and math.isnan(missing) else o.equal(x, missing)
    return o.where(gone, c.tensor(np.asarray(values, x.dtype.np)), x)


@op("FeatureVectorizer", domain=ML)
def feature_vectorizer(c: Call) -> Result:
    """Inputs side by side, each cut or filled with zeros to its own number of columns."""
    widths, parts = c.ints("inputdimensions", []), []
    if len(widths) != len(c.inputs) or any(w < 0 or w > 1 << 24 for w in widths):
        raise c.bad(f"inputdimensions {widths[:9]} for {len(c.inputs)} inputs")
    for x, width in zip(c.xs(), widths, strict=True):
        x = o.cast(x, f32)
        x = o.reshape(x, (-1, 1)) if x.ndim == 1 else x
        if x.ndim != 2:
            raise c.bad(f"an input is {x.shape}; expected rows of features")
        parts.append(x[:, : min(width, x.shape[1])])
        if width > x.shape[1]:
            parts.append(o.expand(c.tensor(np.zeros((), np.float32)), (x.shape[0], width - x.shape[1])))
    return o.concat(parts, 1)


def _linear(c: Call, x: Tensor, rows: int | None) -> Tensor:
    weights = numbers_of(c, "coefficients", x)
    n = x.shape[1]
    if weights is None or n == 0 or weights.size % n or (rows is not None and weights.size != rows * n):
        raise c.bad(
            f"coefficients has {count_of(weights)} numbers for {n} features and {rows or 'some'} targets"
        )
    scores = o.matmul(x, c.tensor(np.ascontiguousarray(weights.reshape(-1, n).T)))
    added = numbers_of(c, "intercepts", x)
    if added is not None and added.size not in (1, scores.shape[1]):
        raise c.bad(f"intercepts has {added.size} numbers for {scores.shape[1]} targets")
    return scores if added is None else o.add(scores, c.tensor(added))


@op("LinearRegressor", domain=ML)
def linear_regressor(c: Call) -> Result:
    return transformed(c, _linear(c, features(c), c.int("targets", 1)), c.str("post_transform", "NONE"))


@op("LinearClassifier", domain=ML)
def linear_classifier(c: Call) -> tuple[Result, ...]:
    scores, after = _linear(c, features(c), None), c.str("post_transform", "NONE")
    labels = labels_of(c, "classlabels_ints", "classlabels_strings")
    if scores.shape[1] == 1 and len(labels) == 2 and after == "LOGISTIC":
        scores = o.concat([o.neg(scores), scores], 1)
    if scores.shape[1] != len(labels) or len(labels) < 2:
        raise c.unsupported(
            f"{scores.shape[1]} scores for {len(labels)} classes with {after} are not supported"
        )
    return labelled(c, scores, labels), transformed(c, scores, after)
