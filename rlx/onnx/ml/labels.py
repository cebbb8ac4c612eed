"""Values looked up in tables: LabelEncoder, CategoryMapper, OneHotEncoder. Strings too are looked up on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.dtypes import i32, i64
from rlx.ir import Tensor
from rlx.onnx.ml.features import labels_of
from rlx.onnx.ops.fill import checked_shape
from rlx.onnx.reader.call import Call, Maps, Result, Value
from rlx.onnx.reader.elements import STRING, Array
from rlx.onnx.reader.string_table import as_array, strings
from rlx.onnx.reader.table import ML, op

MAX_SPAN = 1 << 20  # integer keys within this range are looked up in a table over the range
MAX_COMPARISONS = 1 << 24


def _places(c: Call, v: Value, keys: Array) -> Tensor:
    """The position of each element among the keys, from 1; 0 where it is none. Of equal keys the last one counts."""
    if keys.dtype != v.dtype:
        raise c.bad(f"the keys are {keys.dtype}, the input is {v.dtype}")
    codes = c.words.to_carrier(keys)
    x = v.tensor
    integers = codes.dtype.kind in "iu"
    low, high = (int(codes.min()), int(codes.max())) if integers and keys.size else (0, -1)
    if high - low < MAX_SPAN and integers:
        table = np.zeros(high - low + 3, np.int32)
        table[codes - low + 1] = np.arange(1, keys.size + 1)
        inside = o.clip(o.cast(x, i64), low - 1, high + 1)
        return o.gather(c.tensor(table), o.sub(inside, low - 1), 0)
    if x.size * keys.size > MAX_COMPARISONS:
        raise c.unsupported(f"{x.size} elements among {keys.size} keys of {keys.dtype} is too large")
    wide = o.expand_dims(x, (x.ndim,))
    same = o.equal(wide, c.tensor(codes.astype(x.dtype.np)))
    if keys.dtype.kind == "f":
        same = o.logical_or(same, o.logical_and(o.isnan(wide), c.tensor(np.isnan(keys))))
    numbers = c.tensor(np.arange(1, keys.size + 1, dtype=np.int32))
    return o.max(o.where(same, numbers, c.tensor(np.zeros((), np.int32))), -1)


def _looked_up(c: Call, v: Value, keys: Array, values: Array, default: Any) -> Value:
    if keys.ndim != 1 or keys.shape != values.shape:
        raise c.bad(f"{keys.shape} keys for {values.shape} values; expected as many")
    first = strings([default]) if values.dtype == STRING else np.asarray(default, values.dtype).reshape(1)
    table = c.constant(np.concatenate([first, values]))
    return Value(o.gather(table.tensor, _places(c, v, keys), 0), table.dtype)


def _given(c: Call, names: dict[str, Any], what: str) -> tuple[str, Array]:
    """The one of several attributes that is present: its name, and its value as an array."""
    present = [(n, d) for n, d in names.items() if c.attrs.get(n) is not None]
    if len(present) != 1:
        raise c.bad(f"{what} are given as {sorted(n for n, _ in present)}; expected one of {sorted(names)}")
    name, dtype = present[0]
    value: Sequence[Any] = c.attrs[name]
    return name, strings(value) if dtype is object else as_array(value, dtype).reshape(-1)


@op("LabelEncoder", domain=ML, since=2)
def label_encoder(c: Call) -> Result:
    kinds = {"strings": object, "int64s": np.int64, "floats": np.float32, "tensor": None}
    _, keys = _given(c, {f"keys_{k}": d for k, d in kinds.items()}, "keys")
    name, values = _given(c, {f"values_{k}": d for k, d in kinds.items()}, "values")
    kind = name.removeprefix("values_")
    if kind == "tensor":
        tensor = c.attrs.get("default_tensor")
        plain: Any = "_Unused" if values.dtype == STRING else -1 if values.dtype.kind in "iu" else -0.0
        if tensor is not None and (tensor.dtype != values.dtype or tensor.size != 1):
            raise c.bad(
                f"default_tensor has {tensor.size} elements of {tensor.dtype}; expected one of {values.dtype}"
            )
        default = plain if tensor is None else tensor.reshape(-1)[0]
    else:
        plain = {"strings": "_Unused", "int64s": -1, "floats": -0.0}[kind]
        default = c.attrs.get(f"default_{kind.removesuffix('s')}", plain)
    return _looked_up(c, c.value(0), keys, values, default)


def _between(c: Call, names: Array, numbers: Array) -> Value:
    """Strings to numbers or numbers to strings."""
    v = c.value(0)
    if v.dtype == STRING:
        return _looked_up(c, v, names, numbers, c.int("default_int64", -1))
    return _looked_up(c, v, numbers, names, c.str("default_string", "_Unused"))


@op("LabelEncoder", domain=ML, until=2)
def class_encoder(c: Call) -> Result:
    names = strings(c.ints("classes_strings", []))
    return _between(c, names, np.arange(len(names)))


@op("CategoryMapper", domain=ML)
def category_mapper(c: Call) -> Result:
    return _between(c, strings(c.ints("cats_strings", [])), np.asarray(c.ints("cats_int64s", []), np.int64))


@op("ZipMap", domain=ML)
def zip_map(c: Call) -> Result:
    """A map for each row, from the classes' names to its numbers."""
    v, keys = c.value(0), labels_of(c, "classlabels_int64s", "classlabels_strings")
    if v.tensor.ndim not in (1, 2) or v.tensor.shape[-1] != len(keys):
        raise c.bad(f"has {len(keys)} keys for {v.tensor.shape}")
    return Maps(keys, Value(o.reshape(v.tensor, (-1, len(keys))), v.dtype))


@op("OneHotEncoder", domain=ML)
def one_hot_encoder(c: Call) -> Result:
    v = c.value(0)
    _, categories = _given(c, {"cats_strings": object, "cats_int64s": np.int64}, "categories")
    if v.dtype != STRING:  # a category is a whole number
        v = Value(o.cast(v.tensor, i64), np.dtype(np.int64))
    places = _places(c, v, categories)
    if not c.int("zeros", 1) and not np.all(c.known_tensor(places)):
        raise c.bad("the input has a category that is not listed, and zeros is 0")
    checked_shape(c, [math.prod(places.shape), len(categories)])
    numbers = c.tensor(np.arange(1, len(categories) + 1, dtype=np.int32))
    return o.equal(o.expand_dims(o.cast(places, i32), (places.ndim,)), numbers)
