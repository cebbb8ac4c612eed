"""Scalar expressions: a small tree that computes one element of an elementwise op's output.

One tree serves every device: NumPy evaluates it, CUDA and Vulkan print it as calls of the scalar functions in
`rlx/backends/device_code/prims.h` (`p_<primitive>_<class>`), and fusion composes trees by substitution. `Expr` is
immutable and hashable, so that equal trees share one kernel.

Classes of values: `f` float (f32 on a device; f16 and bf16 are computed in f32), `d` f64, `i` 32-bit and smaller
integers, `l` i64, `b` bool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rlx.dtypes import DType, bool_, f32, promote
from rlx.records import Record, field

# primitive -> number of arguments. Comparisons and predicates give bool; "gumbel" gives f32 and "index" i32; "cast"
# converts to the node's dtype; the rest have their arguments' dtype.
PRIMS: dict[str, int] = {
    "neg": 1, "abs": 1, "sign": 1, "sqrt": 1, "rsqrt": 1, "recip": 1, "exp": 1, "expm1": 1, "log": 1, "log1p": 1,
    "exp2": 1, "log2": 1, "log10": 1, "cbrt": 1, "asinh": 1, "acosh": 1, "atanh": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1, "erf": 1,
    "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "not": 1, "isnan": 1, "isinf": 1, "cast": 1,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2, "max": 2, "min": 2, "mod": 2, "fmod": 2, "floordiv": 2,
    "atan2": 2, "and": 2, "or": 2, "xor": 2, "shl": 2, "shr": 2,
    "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2,
    "select": 3,
    "multiply_high": 2, "gumbel": 1, "threefry": 4, "threefry_first": 4, "threefry_second": 4, "index": 0,
}  # fmt: skip
# Primitives that take only 32-bit words (rlx/ops/random/scalars.py). "index", the number of the element in the
# row-major order of the node's shape, has no arguments: its value depends on the shape over which a tree is computed.
WORDS = frozenset({"multiply_high", "gumbel", "threefry", "threefry_first", "threefry_second"})
PREDICATES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})


class Expr(Record):
    """A node of the tree: `prim` is a primitive's name, "arg" (value = input number) or "lit" (value = literal).

    `dtype` is the dtype of the node's value. f16 and bf16 nodes are computed in f32 and rounded only by "cast" and
    when stored; u8 and i8 nodes wrap after every operation.
    """

    prim: str
    args: tuple[Expr, ...]
    dtype: DType
    value: int | float | bool | None = None
    # The hash is kept, because trees share parts: hashing each part anew would take time exponential in the depth.
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.prim, self.args, self.dtype, self.value)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or self._hash != other._hash:
            return False
        return (self.prim, self.args, self.dtype, self.value) == (other.prim, other.args, other.dtype, other.value)

    def __reduce__(self) -> tuple[type[Expr], tuple[object, ...]]:
        # Each process hashes strings differently, so the kept hash is not pickled.
        return Expr, (self.prim, self.args, self.dtype, self.value)

    def __add__(self, other: Expr | float) -> Expr:
        return call("add", self, other)

    def __sub__(self, other: Expr | float) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Expr | float) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Expr | float) -> Expr:
        return call("mul", self, other)

    def __truediv__(self, other: Expr | float) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Expr | float) -> Expr:
        return call("div", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    __radd__ = __add__
    __rmul__ = __mul__


def arg(index: int, dtype: DType) -> Expr:
    """Input number `index`."""
    return Expr("arg", (), dtype, index)


def lit(value: bool | int | float, dtype: DType) -> Expr:
    """A literal of a dtype. -0.0 becomes neg(0.0), since Python finds them equal and equal trees share kernels."""
    if dtype.kind == "b":
        return Expr("lit", (), dtype, bool(value))
    if dtype.is_float and value == 0 and math.copysign(1.0, value) < 0:
        return Expr("neg", (Expr("lit", (), dtype, 0.0),), dtype)
    return Expr("lit", (), dtype, float(value) if dtype.is_float else int(value))


def cast(x: Expr, dtype: DType) -> Expr:
    """x converted to dtype; x itself when it has that dtype."""
    return x if x.dtype == dtype else Expr("cast", (x,), dtype)


def to_f32(source: DType, target: DType) -> Literal["odd", "cast"]:
    """The function that converts a value of another class to the f32 that is then rounded to `target`: p_odd_<class>_f
    (round to odd) where p_cast_ would round a first time and might create a tie. For f16 integers need no such care:
    those that f32 cannot hold are infinite in f16."""
    twice = target.is_half if source.is_float else target.name == "bf16" and source.itemsize >= 4
    return "odd" if twice else "cast"


def call(prim: str, *args: Expr | float) -> Expr:
    """A primitive applied to its arguments; Python numbers become literals and mixed dtypes are promoted."""
    dtypes = [a.dtype for a in args if isinstance(a, Expr)]
    if prim == "select":
        dtypes = [a.dtype for a in args[1:] if isinstance(a, Expr)] or [f32]
    common = promote(*dtypes)
    arguments = []
    for i, a in enumerate(args):
        if isinstance(a, Expr):
            arguments.append(a if prim == "select" and i == 0 else cast(a, common))
        else:
            arguments.append(lit(a, common))
    if len(arguments) != PRIMS[prim]:
        raise ValueError(f"primitive {prim} takes {PRIMS[prim]} arguments, got {len(arguments)}")
    gives = bool_ if prim in PREDICATES else f32 if prim == "gumbel" else common
    return Expr(prim, tuple(arguments), gives)


def substitute(tree: Expr, args: Sequence[Expr]) -> Expr:
    """The tree with input i replaced by args[i], by which fusion merges two nodes. Shared parts stay shared."""
    done: dict[int, Expr] = {}

    def walk(e: Expr) -> Expr:
        key = id(e)
        if key not in done:
            if e.prim == "arg":
                assert isinstance(e.value, int)
                done[key] = args[e.value]
            elif e.args:
                done[key] = Expr(e.prim, tuple(walk(a) for a in e.args), e.dtype, e.value)
            else:
                done[key] = e
        return done[key]

    return walk(tree)


def linearize(trees: Sequence[Expr]) -> list[Expr]:
    """Every distinct node of the trees, arguments before users: equal subtrees appear once."""
    order: dict[Expr, None] = {}

    def walk(e: Expr) -> None:
        if e not in order:
            for a in e.args:
                walk(a)
            order[e] = None

    for tree in trees:
        walk(tree)
    return list(order)
