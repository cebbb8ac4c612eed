"""Random numbers: RandomUniform, RandomNormal, Bernoulli, Multinomial."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, f64
from rlx.onnx.ops.fill import checked_shape
from rlx.onnx.reader.call import Call, Value
from rlx.onnx.reader.elements import STRING, ElementType, carrier, element
from rlx.onnx.reader.table import op


def _asked(c: Call, default: ElementType) -> ElementType:
    number = c.int("dtype")
    asked = default if number is None else element(number, c.where)
    if asked == STRING:
        raise c.bad("draws strings; expected a type of numbers")
    return asked


def _spread(c: Call, shape: Sequence[int], dtype: ElementType) -> Value:
    if (carrier(dtype) not in (f32, f64) and dtype.itemsize != 2) or not carrier(dtype).is_float:
        raise c.bad(f"draws numbers of {dtype}; expected a floating-point type")
    normal = c.kind.startswith("RandomNormal")
    shift, width = (c.float("mean"), c.float("scale")) if normal else (c.float("low"), c.float("high"))
    width = width if normal else width - shift
    drawn = c.draw(checked_shape(c, list(shape)), dtype, normal)
    return Value(o.cast(o.add(o.mul(drawn, width), shift), carrier(dtype)), dtype)


@op("RandomUniform", "RandomNormal")
def random(c: Call) -> Value:
    return _spread(c, c.ints("shape"), _asked(c, np.dtype(np.float32)))


@op("RandomUniformLike", "RandomNormalLike")
def random_like(c: Call) -> Value:
    return _spread(c, c.x().shape, _asked(c, c.dtype()))


@op("Bernoulli")
def bernoulli(c: Call) -> Value:
    """1 with the probability that each element gives."""
    to = _asked(c, c.dtype())
    return Value(o.cast(o.less(c.draw(c.x().shape, c.dtype()), c.x()), carrier(to)), to)


@op("Multinomial")
def multinomial(c: Call) -> Value:
    """Classes drawn by their log-probabilities: the argmax after adding Gumbel noise to each."""
    x, count = c.x(), c.int("sample_size", 1)
    if x.ndim != 2 or not x.shape[1] or count < 0:
        raise c.bad(f"draws {count} classes of {x.shape}; expected rows of log-probabilities")
    drawn = c.draw(checked_shape(c, [x.shape[0], count, x.shape[1]]), c.dtype())
    wide = o.cast(o.expand_dims(x, (1,)), drawn.dtype)
    to = _asked(c, np.dtype(np.int32))
    return Value(o.cast(o.argmax(o.sub(wide, o.log(o.neg(o.log(drawn)))), -1), carrier(to)), to)
