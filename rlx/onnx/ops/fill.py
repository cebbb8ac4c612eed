"""Constants, and tensors made from a shape alone: Constant, ConstantOfShape, Range, Shape, EyeLike, Trilu …"""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import U64, carrier, element
from rlx.onnx.reader.string_table import strings
from rlx.onnx.reader.table import op

MAX_ELEMENTS = 1 << 28  # elements of a tensor that a model claims without giving its data
MAX_RANGE = 1 << 22  # elements of a Range, which is made while building


@op("Constant")
def constant(c: Call) -> Value:
    values = {k: v for k, v in c.attrs.items() if v is not None}
    if len(values) != 1:
        raise c.bad(f"has the attributes {sorted(values)}; expected exactly one value")
    ((name, value),) = values.items()
    if name == "value":
        return c.constant(value)
    if name in ("value_int", "value_ints"):
        return c.constant(value, np.dtype(np.int64))
    if name in ("value_float", "value_floats"):
        return c.constant(value, np.dtype(np.float32))
    if name in ("value_string", "value_strings"):
        return c.constant(strings([value]).reshape(()) if name == "value_string" else strings(value))
    raise c.unsupported(f"{name} is not supported: sparse tensors are not computed with")


def checked_shape(c: Call, dims: list[int]) -> tuple[int, ...]:
    """A shape a model asks for. Raises: ModelFormatError when it is negative or too large."""
    if any(d < 0 for d in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise c.bad(
            f"asks for shape {dims}; expected no negative dimension and at most {MAX_ELEMENTS} elements"
        )
    return tuple(dims)


@op("ConstantOfShape")
def constant_of_shape(c: Call) -> Value:
    value = c.attrs.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    if value.size != 1:
        raise c.bad(f"value has {value.size} elements; expected one")
    shape = checked_shape(c, c.known_ints(0))
    one = c.constant(value.reshape(()))
    return Value(o.expand(one.tensor, shape), one.dtype)


@op("Shape")
def shape(c: Call) -> Result:
    dims = c.x().shape
    return c.tensor(dims[c.int("start", 0) : c.int("end")], np.dtype(np.int64))


@op("Size")
def size(c: Call) -> Result:
    return c.tensor(c.x().size, np.dtype(np.int64))


@op("Range")
def range_(c: Call) -> Result:
    start, limit, step = (c.known(i).reshape(-1) for i in range(3))
    ends = [v.astype(float) for v in (start, limit, step)]
    if any(v.size != 1 or not np.isfinite(v).all() for v in ends) or step[0] == 0:
        raise c.bad("start, limit and delta must be one finite number each, delta not 0")
    count = max(math.ceil((limit[0].item() - start[0].item()) / step[0].item()), 0)
    if count > MAX_RANGE:
        raise c.unsupported(f"has {count} elements; at most {MAX_RANGE} are supported")
    c.table(3, count)
    kind = c.dtype()
    if c.version >= 27 and kind.kind not in "iu" and kind.itemsize == 2:
        c.choice("stash_type", 1, 10, 11, 16)
    work = kind if kind.kind in "iu" or kind.itemsize >= 4 else np.dtype(np.float32)
    return c.tensor(
        (start[0].astype(work) + np.arange(count).astype(work) * step[0].astype(work)).astype(kind)
    )


@op("EyeLike")
def eye_like(c: Call) -> Value:
    dims = c.x().shape
    if len(dims) != 2:
        raise c.bad(f"the input is {dims}; expected two dimensions")
    dtype = c.dtype() if c.int("dtype") is None else element(c.int("dtype"), c.where)
    c.table(2, *dims)
    return c.constant(np.eye(*dims, k=c.int("k", 0)).astype(dtype))


@op("Trilu")
def trilu(c: Call) -> Result:
    x = c.x()
    if x.ndim < 2:
        raise c.bad(f"the input is {x.shape}; expected at least two dimensions")
    k = c.known_int(1) if c.has(1) else 0
    c.table(3, *x.shape[-2:])
    rows, columns = np.indices(x.shape[-2:])
    keep = columns - rows >= k if c.int("upper", 1) else columns - rows <= k
    return o.where(c.tensor(keep), x, c.tensor(np.zeros((), carrier(c.dtype()).np)))


@op("OneHot", since=9)
def one_hot(c: Call) -> Result:
    """A negative index counts from the end; one out of range gives only off values."""
    depth = c.known_int(1)
    checked_shape(c, [depth])
    indices, values = c.x(0), c.x(2)
    if values.shape != (2,):
        raise c.bad(f"values are {values.shape}; expected (2,): off and on")
    indices = indices if indices.dtype.is_int else o.cast(indices, "i64")
    if c.dtype() == U64:  # the carriers of 2^63 and more are negative
        indices = o.where(o.less(indices, 0), depth, indices)
    hot = o.one_hot(indices, depth, c.int("axis", -1), on=True, off=False, dtype="bool")
    off, on = o.split(values, 2)
    return o.where(hot, o.reshape(on, ()), o.reshape(off, ()))
