"""The ops that random numbers are made of: Threefry's words, the upper half of a product, Gumbel's distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import f32, i32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Cost, Expr, Node, Op, TensorType, register
from rlx.ir import expr as ex
from rlx.ir.op import Infer
from rlx.ir.types import as_shape, broadcast_shapes
from rlx.ops import batching
from rlx.ops.base import check_inputs, written
from rlx.ops.elementwise.prims import value_of
from rlx.ops.numeric import Array
from rlx.ops.random import scalars

# Which of a block's two words is the result: their exclusive or, the first, or the second.
WORDS = {"xor": "threefry", "first": "threefry_first", "second": "threefry_second"}
_OFFSETS = 1 << 31  # elements that a draw may have: kernels count elements in 31 bits


def _words(op: str, types: Sequence[TensorType], n: int) -> tuple[int, ...]:
    """The shape to which the n inputs broadcast, which must be i32."""
    check_inputs(op, types, n)
    for t in types:
        if t.dtype != i32:
            raise DTypeError(f"{op}: takes words of 32 bits as i32, got {t.dtype}; cast it to i32 first")
    return broadcast_shapes(*(t.shape for t in types), op=op)


def _check_word(op: str, attrs: Attrs, *more: str) -> None:
    if attrs["word"] not in (*WORDS, *more):
        raise ShapeError(f"{op}: word is {attrs['word']!r}; expected one of {', '.join((*WORDS, *more))}")


def _infer(op: str, n: int, dtype: Any = i32) -> Infer:
    return lambda types, attrs: TensorType(_words(op, types, n), dtype)


def _threefry_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    _check_word("threefry", attrs)
    return TensorType(_words("threefry", types, 4), i32)


def _threefry_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call(WORDS[attrs["word"]], *args)


def _random_bits_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    shape = as_shape(attrs["shape"], "random_bits")
    batch = _words("random_bits", types, 3)
    _check_word("random_bits", attrs, "both")
    if broadcast_shapes(batch, shape, op="random_bits") != shape:
        raise ShapeError(f"random_bits: keys and offset of shape {batch} do not broadcast to {shape}")
    if math.prod(shape) >= _OFFSETS:
        raise ShapeError(f"random_bits: {shape} has 2**31 elements or more; draw them in parts, by offset")
    if not 0 <= attrs["axes"] <= len(shape):
        raise ShapeError(
            f"random_bits: axes is {attrs['axes']!r}; expected 0 to {len(shape)}, the rank of {shape}"
        )
    if attrs["word"] == "both" and (not attrs["axes"] or shape[-1] != 2):
        raise ShapeError(f"random_bits: both words, {attrs['axes']} axes of {shape}; expected a last axis of 2")
    return TensorType(shape, i32)


def _random_bits_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    """Threefry of the key and the counter (stream, offset + position), where a position counts elements of the last
    `axes` axes, in their row-major order; with both words it counts pairs of elements."""
    shape, axes = attrs["shape"], attrs["axes"]
    drawn = math.prod(shape[len(shape) - axes :])
    place = Expr("index", (), i32)
    if drawn != math.prod(shape):
        place = ex.call("mod", place, drawn)
    key0, key1, offset = args

    def word(prim: str, place: Expr) -> Expr:
        return ex.call(prim, key0, key1, attrs["stream"], ex.call("add", offset, place))

    if attrs["word"] != "both":
        return word(WORDS[attrs["word"]], place)
    words = (word(WORDS[name], ex.call("shr", place, 1)) for name in ("first", "second"))
    return ex.call("select", ex.call("eq", ex.call("and", place, 1), 0), *words)


def _random_bits(
    key0: Array, key1: Array, offset: Array, *, shape: Sequence[int], axes: int, word: str, stream: int
) -> Array:
    drawn = tuple(shape[len(shape) - axes :])
    place = np.arange(math.prod(drawn), dtype=np.int64).astype(np.int32).reshape(drawn)
    count = np.add(offset, place >> 1 if word == "both" else place, dtype=np.int32)
    first, second = scalars.threefry2x32(key0, key1, np.int32(stream), count)
    bits = {"xor": first ^ second, "first": first, "second": second}.get(word)
    if bits is None:
        bits = np.where(place & 1, second, first)
    return np.array(np.broadcast_to(bits, tuple(shape)))


def _cost(node: Node) -> Cost:
    """The cost of a node: about a hundred passes of NumPy over the words."""
    return Cost(50 * written(node))


def _multiply_high_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call("multiply_high", *args)


def _gumbel_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call("gumbel", *args)


register(
    Op("threefry", "random", _threefry_infer, value_of(_threefry_expr), "Salmon et al., rounds one by one",
       NOT_DIFFERENTIABLE, _threefry_expr, inplace=(0, 1, 2, 3), cost=_cost)
)  # fmt: skip
register(
    Op("random_bits", "random", _random_bits_infer, _random_bits, "Salmon et al., rounds one by one, counting",
       NOT_DIFFERENTIABLE, _random_bits_expr, inplace=(0, 1, 2), cost=_cost, batch=batching.random_bits)
)  # fmt: skip
register(
    Op("multiply_high", "random", _infer("multiply_high", 2), value_of(_multiply_high_expr), "Python's integers",
       NOT_DIFFERENTIABLE, _multiply_high_expr, inplace=(0, 1))
)  # fmt: skip
register(
    Op("gumbel", "random", _infer("gumbel", 1, f32), value_of(_gumbel_expr), "scipy.stats.gumbel_r.ppf",
       NOT_DIFFERENTIABLE, _gumbel_expr, cost=_cost)
)  # fmt: skip
