"""Complex numbers: a view of pairs of floats, the real tensors with a last axis of 2 that rlx.fft takes and gives.

`Complex` is a pytree of one leaf, its pairs: so programs, loops, vmap and derivatives know only real tensors, and no
device needs a complex dtype. complex64 and complex128 arrays of NumPy become one where an argument is taken apart, and
results on the host are such arrays again.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import f32, f64, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import as_items, broadcast_shapes, normalize_axes, normalize_axis
from rlx.ops import composite, reduce
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.elementwise import select, trig
from rlx.ops.fft import pairs as of_pairs
from rlx.ops.matmul import matmul as real_matmul
from rlx.ops.movement import strided as movement
from rlx.ops.public import Complexes, any_complex, public
from rlx.ops.pytree import flatten, is_number, register_node, unflatten
from rlx.ops.reduce import Axis

_TYPES = {"f32": np.dtype(np.complex64), "f64": np.dtype(np.complex128)}


class Complex:
    """Complex numbers: `pairs` is a real array or tensor (..., 2) of f32 or f64.

    It has +, -, *, /, @, ==, abs, indexing, .real, .imag, .T, conj, reshape, sum and mean; other functions refuse it.
    numpy.asarray gives complex64 or complex128; a tensor of a traced function has no values yet.
    """

    __slots__ = ("pairs",)
    views_pairs = True
    __array_priority__ = 1000
    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pairs.shape[:-1])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's complex64 or complex128."""
        return np.dtype(np.complex128 if "64" in str(self.pairs.dtype) else np.complex64)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a single complex number has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        if isinstance(self.pairs, Tensor):
            return f"rlx.Complex({self.pairs!r})"
        return f"rlx.Complex({np.asarray(self)!r})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.pairs, Tensor):
            raise DTypeError(
                f"complex numbers {self.pairs!r}, which a run does not know yet, as an array; use the operators and "
                "functions of complex numbers, or rlx.real and rlx.imag"
            )
        result = viewed(np.asarray(self.pairs))
        return result if dtype is None else result.astype(dtype)

    def __complex__(self) -> builtins.complex:
        return builtins.complex(np.asarray(self))

    def __getitem__(self, key: Any) -> Complex:
        parts = key if isinstance(key, tuple) else (key,)
        if not any(p is Ellipsis for p in parts):
            parts = (*parts, Ellipsis)
        return Complex(self.pairs[(*parts, slice(None))])

    def __add__(self, other: Any) -> Complex:
        return add(self, other)

    def __sub__(self, other: Any) -> Complex:
        return subtract(self, other)

    def __rsub__(self, other: Any) -> Complex:
        return subtract(other, self)

    def __mul__(self, other: Any) -> Complex:
        return multiply(self, other)

    def __truediv__(self, other: Any) -> Complex:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Complex:
        return divide(other, self)

    def __matmul__(self, other: Any) -> Complex:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Complex:
        return matmul(other, self)

    def __neg__(self) -> Complex:
        return Complex(-self.pairs)

    def __abs__(self) -> Any:
        return _ABS(self.pairs)

    def __eq__(self, other: object) -> Any:
        return _EQUAL(*_both(self, other))

    def __ne__(self, other: object) -> Any:
        return _NOT_EQUAL(*_both(self, other))

    def _refused(self, *args: Any) -> Any:
        raise DTypeError(
            f"an operator of {self.dtype}: complex numbers have +, -, *, /, @, == and abs; take rlx.real and rlx.imag"
        )

    __radd__, __rmul__ = __add__, __mul__
    __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __invert__ = _refused
    __hash__ = None  # type: ignore[assignment]

    @property
    def real(self) -> Any:
        return _REAL(self.pairs)

    @property
    def imag(self) -> Any:
        return _IMAG(self.pairs)

    @property
    def T(self) -> Complex:
        return transpose(self)

    def conj(self) -> Complex:
        return Complex(_CONJ(self.pairs))

    def reshape(self, *shape: Any) -> Complex:
        return reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Complex:
        return _sum(self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Complex:
        return _mean(self, axis, keepdims)

    def numpy(self) -> Any:
        """complex64 or complex128."""
        return np.asarray(self)

    def block_until_ready(self) -> Complex:
        if hasattr(self.pairs, "block_until_ready"):
            self.pairs.block_until_ready()
        return self


def viewed(pairs: Any) -> Any:
    """A NumPy array of pairs as complex numbers."""
    kind = np.complex128 if pairs.dtype == np.float64 else np.complex64
    return np.ascontiguousarray(pairs).view(kind).reshape(pairs.shape[:-1])


def of_numpy(z: Any) -> Complex:
    """NumPy's complex numbers. Raises: DTypeError for other than complex64 and complex128."""
    array = np.asarray(z)
    if array.dtype not in _TYPES.values():
        raise DTypeError(f"complex numbers of {array.dtype}; expected complex64 or complex128")
    return Complex(np.stack([array.real, array.imag], -1))


def _whole(_: Any, children: Any) -> Any:
    """NumPy's complex numbers where a program gave its results on the host, else a view."""
    (pairs,) = children
    return viewed(pairs) if isinstance(pairs, np.ndarray) and pairs.dtype.kind == "f" else Complex(pairs)


register_node(Complex, lambda z: ((z.pairs,), None), _whole)
Complexes.type, Complexes.of_numpy = Complex, of_numpy


def conjugated(tree: Any) -> Any:
    """A pytree whose complex numbers are conjugated: the gradient of a real function in JAX's convention, from that
    with respect to pairs."""
    leaves: list[Any] = []
    skeleton = flatten(tree, leaves, lambda v: isinstance(v, Complex) or is_number(v))
    if not any(isinstance(x, Complex) or _is_complex(x) for x in leaves):
        return tree
    result = [_as(x).conj() if isinstance(x, Complex) or _is_complex(x) else x for x in leaves]
    return unflatten(skeleton, result)


def complex_leaves(skeleton: Any) -> list[bool]:
    """Whether each leaf of a structure is the pairs of complex numbers."""
    if skeleton[0] == "leaf":
        return [False]
    if skeleton[0] == "static":
        return []
    inside = getattr(skeleton[0], "type", None) is Complex
    parts = [complex_leaves(part[1] if skeleton[0] == "dict" else part) for part in skeleton[1]]
    return [inside or flag for part in parts for flag in part]


def beside_pairs(axes: Sequence[int | None], skeleton: Any, ranks: Sequence[int]) -> list[int | None]:
    """The leaves' axes for arrays of pairs: axes are counted without the last axis, of pairs. An axis out of range
    stays out of range."""
    result: list[int | None] = []
    for axis, pairs, rank in zip(axes, complex_leaves(skeleton), ranks, strict=True):
        if pairs and axis is not None:
            axis = axis - 1 if axis < 0 else axis if axis < rank - 1 else rank + axis
        result.append(axis)
    return result


def refuse_complex(what: str, where: str, skeleton: Any) -> None:
    """Raises: DTypeError where a structure holds complex numbers."""
    if any(complex_leaves(skeleton)):
        raise DTypeError(f"{what}: {where} is complex; give its pairs (rlx.view_as_real), or use jvp, vjp and grad")


def _is_complex(x: Any) -> bool:
    return isinstance(x, builtins.complex) or (isinstance(x, np.ndarray | np.generic) and x.dtype.kind == "c")


def _as(x: Any, beside: Any = None) -> Complex:
    """Real or complex numbers as a view; Python's complex number takes the dtype beside it."""
    if isinstance(x, Complex):
        return x
    if type(x) is builtins.complex:
        kind = beside.dtype if isinstance(beside, Complex) else np.dtype(np.complex64)
        return of_numpy(np.asarray(x, kind))
    return of_numpy(x) if _is_complex(x) else Complex(_PAIR(x))


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    return _as(x, y).pairs, _as(y, x).pairs


# -- functions of pairs


def _sums(op: str) -> Callable[[TensorLike, TensorLike], Tensor]:
    def run(x: TensorLike, y: TensorLike) -> Tensor:
        a, b = _same(x, y)
        shape = (*broadcast_shapes(a.shape[:-1], b.shape[:-1], op=op), 2)
        return apply(op, movement.expand(_ranked(a, len(shape)), shape), movement.expand(_ranked(b, len(shape)), shape))

    return run


def _ranked(t: Tensor, rank: int) -> Tensor:
    return t if t.ndim == rank else movement.reshape(t, (*(1,) * (rank - t.ndim), *t.shape))


def _same(x: TensorLike, y: TensorLike) -> tuple[Tensor, ...]:
    operands = tensors("a complex operator", x, y)
    dtype = f64 if promote(*(t.dtype for t in operands)) == f64 else f32
    return tuple(cast_to(t, dtype) for t in operands)


def _divide(x: TensorLike, y: TensorLike) -> Tensor:
    """The quotient by Smith's method, which divides by y's greater part first: squares could overflow or vanish."""
    a, b = _same(x, y)
    (a_re, a_im), (b_re, b_im) = ((of_pairs.real(t), of_pairs.imag(t)) for t in (a, b))
    wide = apply("greater_equal", apply("abs", b_re), apply("abs", b_im))
    one, other = select.where(wide, b_re, b_im), select.where(wide, b_im, b_re)
    ratio = select.where(one == 0.0, other * 0.0, other / select.where(one == 0.0, 1.0, one))
    under = one + other * ratio
    re = select.where(wide, a_re + a_im * ratio, a_re * ratio + a_im)
    im = select.where(wide, a_im - a_re * ratio, a_im * ratio - a_re)
    return of_pairs.pair(re / under, im / under)


def _matmul(x: TensorLike, y: TensorLike) -> Tensor:
    a, b = _same(x, y)
    (a_re, a_im), (b_re, b_im) = ((of_pairs.real(t), of_pairs.imag(t)) for t in (a, b))
    re = real_matmul(a_re, b_re) - real_matmul(a_im, b_im)
    return of_pairs.pair(re, real_matmul(a_re, b_im) + real_matmul(a_im, b_re))


def _angle(z: TensorLike) -> Tensor:
    return trig.atan2(of_pairs.imag(z), of_pairs.real(z))


def _exp(z: TensorLike) -> Tensor:
    re, im = of_pairs.real(z), of_pairs.imag(z)
    size = apply("exp", re)
    return of_pairs.pair(size * apply("cos", im), size * apply("sin", im))


def _log(z: TensorLike) -> Tensor:
    return of_pairs.pair(apply("log", of_pairs.absolute(z)), _angle(z))


def _sqrt(z: TensorLike) -> Tensor:
    """The root whose real part is not negative: of the larger of its parts from |z| + |re|, which loses no digits."""
    re, im, size = of_pairs.real(z), of_pairs.imag(z), of_pairs.absolute(z)
    twice = (size + apply("abs", re)) * 0.5
    some = twice > 0.0
    large = apply("sqrt", select.where(some, twice, 1.0))
    small = im / (large * 2.0)
    right = re >= 0.0
    back = select.where(im < 0.0, -large, large)
    made = of_pairs.pair(select.where(right, large, apply("abs", small)), select.where(right, small, back))
    there = movement.reshape(some, (*some.shape, 1))
    return select.where(there, made, tensors("sqrt", z)[0] * 0.0)


def _where(cond: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    a, b = _same(x, y)
    mask = tensors("where", cond, a)[0]
    rank = max(mask.ndim + 1, a.ndim, b.ndim)
    return select.where(_ranked(movement.reshape(mask, (*mask.shape, 1)), rank), _ranked(a, rank), _ranked(b, rank))


def _pairs_equal(op: str) -> Callable[[TensorLike, TensorLike], Tensor]:
    compared = _sums("equal")

    def run(x: TensorLike, y: TensorLike) -> Tensor:
        same = compared(x, y)
        both = apply("logical_and", *(movement.reshape(t, t.shape[:-1]) for t in composite.split(same, 2, -1)))
        return both if op == "equal" else apply("logical_not", both)

    return run


def _now(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on arrays too, where it computes at once."""
    result: Callable[..., Any] = public(__name__, function.__name__, function)
    return result


_ABS, _REAL, _IMAG, _CONJ, _PAIR, _ANGLE = (
    _now(f) for f in (of_pairs.absolute, of_pairs.real, of_pairs.imag, of_pairs.conj, of_pairs.pair, _angle)
)
_ADD, _SUB, _MUL, _DIV, _MATMUL, _EQUAL, _NOT_EQUAL = (
    _now(f)
    for f in (_sums("add"), _sums("sub"), of_pairs.multiply, _divide, _matmul, _pairs_equal("equal"), _pairs_equal(""))
)
_RESHAPE, _TRANSPOSE, _SUM, _MEAN = (
    _now(f) for f in (movement.reshape, movement.transpose, reduce.sum, reduce.mean)
)
_EXP, _LOG, _SQRT, _WHERE, _CONCAT, _STACK = (
    _now(f) for f in (_exp, _log, _sqrt, _where, movement.concat, composite.stack)
)


def _binary(function: Callable[..., Any]) -> Callable[[Any, Any], Complex]:
    def run(a: Any, b: Any) -> Complex:
        return Complex(function(*_both(a, b)))

    return run


add, subtract, multiply, divide, matmul = (_binary(f) for f in (_ADD, _SUB, _MUL, _DIV, _MATMUL))


def reshape(z: Any, shape: Any) -> Complex:
    return Complex(_RESHAPE(_as(z).pairs, (*as_items(shape, "reshape: shape"), 2)))


def transpose(z: Any, perm: Any = None) -> Complex:
    complex_z = _as(z)
    rank = complex_z.ndim
    order = range(rank)[::-1] if perm is None else [normalize_axis(a, rank, "transpose") for a in perm]
    return Complex(_TRANSPOSE(complex_z.pairs, (*order, rank)))


def _unary(function: Callable[..., Any]) -> Callable[[Any], Complex]:
    return lambda z: Complex(function(_as(z).pairs))


def _of_several(function: Callable[..., Any], more: int) -> Callable[..., Complex]:
    """concat and stack; `more`: the axes that the result has beside those of its parts."""

    def run(xs: Sequence[Any], axis: int = 0) -> Complex:
        parts = [_as(x, next((z for z in xs if isinstance(z, Complex)), None)) for x in xs]
        rank = parts[0].ndim + more
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is out of range for complex numbers of rank {rank}")
        return Complex(function([z.pairs for z in parts], axis % rank))

    return run


def where(cond: Any, x: Any, y: Any) -> Complex:
    return Complex(_WHERE(cond, *_both(x, y)))


def _reduced(function: Callable[..., Any], name: str) -> Callable[..., Complex]:
    def run(x: Any, axis: Axis = None, keepdims: bool = False) -> Complex:
        z = _as(x)
        return Complex(function(z.pairs, normalize_axes(axis, z.ndim, name), keepdims))

    return run


_sum, _mean = _reduced(_SUM, "sum"), _reduced(_MEAN, "mean")


# -- what public functions do of complex numbers, by name; those of rlx.fft get the pairs

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add",), add), **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply"), multiply), **dict.fromkeys(("div", "divide", "true_divide"), divide),
    "exp": _unary(_EXP), "log": _unary(_LOG), "sqrt": _unary(_SQRT), "square": lambda z: multiply(z, z),
    "where": where, "stack": _of_several(_STACK, 1),
    **dict.fromkeys(("concat", "concatenate"), _of_several(_CONCAT, 0)),
    "matmul": matmul, **dict.fromkeys(("neg", "negative"), lambda x: -_as(x)), "reshape": reshape,
    **dict.fromkeys(("transpose", "permute_dims"), transpose), "sum": _sum, "mean": _mean,
    "equal": lambda x, y: _as(x, y) == y, "not_equal": lambda x, y: _as(x, y) != y,
    **dict.fromkeys(("abs", "absolute"), lambda x: abs(_as(x))),
}  # fmt: skip
_OF_PAIRS = {
    "rlx.fft": {
        **dict.fromkeys(("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "conj", "multiply"), True),
        **dict.fromkeys(("fftshift", "ifftshift"), True),
        **dict.fromkeys(("irfft", "irfft2", "irfftn", "hfft", "real", "imag", "absolute", "power"), False),
    },
    "rlx.signal": {"istft": False}, "rlx.ops.signal.short_time": {"_istft": False},
}  # fmt: skip
# Functions with an argument that says whether a last axis of length 2 holds complex numbers.
_SAYING_PAIRS = frozenset(
    ("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "fftshift", "ifftshift", "irfft", "irfft2", "irfftn", "hfft")
)


def _dispatched(module: str, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A public function of complex numbers; NotImplemented where it is called as ever. Raises: DTypeError naming a
    function that has none."""
    if module in ("rlx.ops", "rlx") and name in _FUNCTIONS:
        return _FUNCTIONS[name](*args, **kwargs)
    if name == "stop_gradient":
        return Complex(call(_as(args[0]).pairs))
    gives = _OF_PAIRS.get(module, {}).get(name)
    signals = (*args, *(kwargs[n] for n in ("x", "y", "zi") if n in kwargs))
    data = any(any_complex((x,)) and (isinstance(x, Complex) or np.ndim(x) > 0) for x in signals)
    if module != "rlx.ops" and not data:
        return NotImplemented  # what is no signal is checked by the function itself
    if gives is None:
        every = [y for x in (*args, *kwargs.values()) for y in (x if isinstance(x, list) else [x])]
        kinds = sorted(str(_as(x).dtype) for x in every if isinstance(x, Complex) or _is_complex(x)) or ["complex"]
        raise DTypeError(
            f"{name}: an argument is {kinds[0]}, and it takes real numbers; complex numbers have +, -, *, /, @, abs, "
            "angle, conj, real, imag, exp, log, sqrt, square, sum, mean, reshape, transpose, stack, concat, where, ==, "
            "and rlx.fft: take them apart by rlx.real and rlx.imag"
        )
    arguments = [_as(x).pairs if isinstance(x, Complex) or _is_complex(x) else x for x in (*args, *kwargs.values())]
    said = {"pairs": True} if name in _SAYING_PAIRS else {}
    result = call(*arguments[: len(args)], **dict(zip(kwargs, arguments[len(args) :], strict=True)), **said)
    return Complex(result) if gives else result


Complexes.dispatch = _dispatched


# -- public functions


def complex(x: TensorLike, y: TensorLike | None = None) -> Any:
    """The complex numbers x + i y.

    Shape: the broadcast of both. Dtype: complex128 where one is f64, else complex64. Gradient: to both."""
    return Complex(_PAIR(x, y))


def view_as_complex(pairs: TensorLike) -> Any:
    """Pairs (..., 2), as rlx.fft gives them, as complex numbers (...). Raises: ShapeError."""
    if tuple(np.shape(pairs) if not hasattr(pairs, "shape") else pairs.shape)[-1:] != (2,):
        raise ShapeError("view_as_complex: expected pairs (real, imaginary) along a last axis of 2")
    return Complex(pairs)


def view_as_real(z: Any) -> Any:
    """Complex numbers (...) as pairs (..., 2), which every function takes."""
    return _as(z).pairs


def real(x: Any) -> Any:
    """The real parts; of real numbers themselves. Follows numpy.real."""
    return _as(x).real if isinstance(x, Complex) or _is_complex(x) else _COPY(x)


def imag(x: Any) -> Any:
    """The imaginary parts; of real numbers zeros. Follows numpy.imag."""
    return _as(x).imag if isinstance(x, Complex) or _is_complex(x) else _ZEROS(x)


def conj(x: Any) -> Any:
    """The conjugates; of real numbers themselves. Follows numpy.conj."""
    return _as(x).conj() if isinstance(x, Complex) or _is_complex(x) else _COPY(x)


def angle(x: Any, deg: bool = False) -> Any:
    """The arguments of complex numbers, from -π to π, or in degrees. Follows numpy.angle."""
    result = _ANGLE(_as(x).pairs)
    return result * (180 / np.pi) if deg else result


def _copy(x: TensorLike) -> Tensor:
    return tensors("real", x)[0]


_COPY, _ZEROS = _now(_copy), _now(composite.zeros_like)

__all__ = ["angle", "complex", "conj", "imag", "real", "view_as_complex", "view_as_real"]
