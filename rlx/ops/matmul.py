"""Matrix multiplication with an epilogue: bias and activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, i32, i64, promote, u32, u64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import broadcast_shapes
from rlx.ops import batching, identities
from rlx.ops.base import TensorLike, cast_to, check_inputs, tensors, unbroadcast, written
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.numeric import Array, computed

# The name of each activation that an epilogue applies -> the op and attributes that compute it alone.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("relu", {}),
    "gelu": ("gelu", {"approximate": "none"}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "silu": ("silu", {}),
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
}


def activation_of(node: Node) -> str | None:
    """The name of the epilogue's activation that a node computes; None where no epilogue can apply it."""
    for name, (op, attrs) in ACTIVATIONS.items():
        if node.op.name == op and all(node.attrs.get(k) == v for k, v in attrs.items()):
            return name
    return None


def _swapped(shape: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("matmul", types, 2, 3)
    a, b = types[:2]
    for what, t in (("a", a), ("b", b)):
        if t.rank < 2:
            raise ShapeError(
                f"matmul: {what} is {t}; the op wants rank 2 or more (rlx.matmul reshapes vectors)"
            )
    for what in ("transpose_a", "transpose_b"):
        if not isinstance(attrs[what], bool):
            raise DTypeError(f"matmul: {what} is {attrs[what]!r}; expected a bool")
    left, right = _swapped(a.shape, attrs["transpose_a"]), _swapped(b.shape, attrs["transpose_b"])
    if left[-1] != right[-2]:
        raise ShapeError(f"matmul: {left} @ {right}: the inner dimensions {left[-1]} and {right[-2]} differ")
    dtype = promote(a.dtype, b.dtype)
    if a.dtype.is_float != b.dtype.is_float:
        raise DTypeError(f"matmul: {a.dtype} beside {b.dtype}; both float or both integer (rlx.matmul casts)")
    if not dtype.is_float and dtype not in (i32, i64):
        raise DTypeError(
            f"matmul: {a.dtype} beside {b.dtype}; integers must be i32 or i64 (rlx.matmul casts)"
        )
    activation = attrs["activation"]
    check_activation("matmul", activation)
    if activation is not None and not dtype.is_float:
        raise DTypeError(f"matmul: activation {activation!r} of {dtype}; activations take floats")
    if len(types) == 3:
        if types[2].shape != (right[-1],):
            raise ShapeError(f"matmul: bias is {types[2].shape}; expected ({right[-1]},)")
        if types[2].dtype.is_float != dtype.is_float:
            raise DTypeError(f"matmul: bias is {types[2].dtype} beside {dtype}; both float or both integer")
    batch = broadcast_shapes(left[:-2], right[:-2], op="matmul (batch axes)")
    return TensorType((*batch, left[-2], right[-1]), dtype)


def _result(dtypes: Sequence[DType]) -> DType:
    return promote(*dtypes[:2])


def _reference(*inputs: Array, transpose_a: bool, transpose_b: bool, activation: str | None) -> Any:
    a, b = inputs[:2]
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    common = np.result_type(a, b)
    out = np.matmul(a.astype(common, copy=False), b.astype(common, copy=False))
    if len(inputs) == 3:
        out = out + inputs[2].astype(out.dtype)
    return out if activation is None else NUMPY_ACTIVATIONS[activation](out)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The product, bias and activation as separate ops; f16 and bf16 are rounded after each of them."""
    plain = {**attrs, "activation": None}
    out = apply("matmul", *inputs[:2], **plain)
    if len(inputs) == 3:
        out = apply("add", out, cast_to(inputs[2], out.dtype))
    return activated(out, attrs["activation"])


def check_activation(op: str, activation: Any) -> None:
    """Raises: ShapeError for what is neither None nor the name of an activation."""
    if activation is not None and (not isinstance(activation, str) or activation not in ACTIVATIONS):
        raise ShapeError(f"{op}: activation {activation!r}; expected None or one of {', '.join(ACTIVATIONS)}")


def activated(x: Tensor, activation: str | None) -> Tensor:
    """The activation of that name applied to x; x itself for None."""
    if activation is None:
        return x
    op, attrs = ACTIVATIONS[activation]
    return apply(op, x, **attrs)


def _product(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return apply("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, activation=None)


def _rows(x: Tensor) -> Tensor:
    """The rows of all matrices as one matrix."""
    return apply("reshape", x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None or not d.dtype.is_float:
        return (None,) * len(node.inputs)
    a, b = node.inputs[:2]
    ta, tb, activation = (node.attrs[k] for k in ("transpose_a", "transpose_b", "activation"))
    if activation is not None:
        # The forward pass does not store the value before the activation, so it is recomputed.
        before = apply("matmul", *node.inputs, transpose_a=ta, transpose_b=tb, activation=None)
        act = activated(before, activation).node
        assert callable(act.op.vjp)
        d = act.op.vjp(act, [d])[0]
        assert d is not None
    # dA = d·Bᵀ and dB = Aᵀ·d, each transposed where its operand was.
    da = _product(b, d, tb, True) if ta else _product(d, b, False, not tb)
    rows = (a, d)
    if not ta and math.prod(a.shape[:-2]) > 1 == math.prod(b.shape[:-2]):
        # All matrices of a times one: a product of all rows sums what a product for each matrix would write first.
        rows = (_rows(a), _rows(d))
    db = _product(*rows[::-1], True, ta) if tb else _product(*rows, not ta, False)
    input_grads = [unbroadcast(da, a), unbroadcast(db, b)]
    if len(node.inputs) == 3:
        input_grads.append(unbroadcast(d, node.inputs[2]))
    return tuple(input_grads)


def product_cost(node: Node) -> Cost:
    """The cost of a matrix product: its multiplications, and for NumPy about a byte held for each of them."""
    shape = node.inputs[0].shape
    count = node.outputs[0].size * shape[-2 if node.attrs.get("transpose_a") else -1] if shape else 0
    return Cost(written(node), count, terms=count)


register(
    Op("matmul", "matmul", _infer, computed(_result)(_reference), "numpy.matmul", _vjp, kernel="matmul",
       decompose=_decompose, contracts=True, epilogue=-1, mixed=(1, 0, 2), rounds_once=True, identity=identities.matmul,
       cost=product_cost, batch=batching.matmul)
)  # fmt: skip


def matmul(
    a: TensorLike,
    b: TensorLike,
    bias: TensorLike | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: str | None = None,
) -> Tensor:
    """activation(a @ b + bias); transpose_a and transpose_b exchange the last two axes of a or b first.

    Shape: (..., m, k) @ (..., k, n) gives (..., m, n), leading axes broadcast; vectors as in NumPy; bias (n,).
    activation: None, "relu", "gelu", "gelu_tanh", "silu", "tanh" or "sigmoid".
    Dtype: promoted from a and b, so an f16 or bf16 weight beside f32 gives f32; small integers become i32.
    Gradient: d·bᵀ to a, aᵀ·d to b, the sum of d to bias. Numerics: products and sums in f32, rounded once; integers
    wrap.
    """
    a, b = tensors("matmul", a, b)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: {a.type} @ {b.type}: scalars have no matrix product; use `*`")
    dtype = promote(a.dtype, b.dtype)
    if dtype in (u32, u64):  # products of the signed integers have the same bits
        signed = i32 if dtype == u32 else i64
        left_part, right_part = (cast_to(t, signed) for t in (a, b))
        added = None if bias is None else cast_to(tensors("matmul", a, bias)[1], signed)
        product = matmul(left_part, right_part, added, transpose_a=transpose_a, transpose_b=transpose_b)
        return activated(cast_to(product, dtype), activation)
    if not dtype.is_float and dtype != i64:
        dtype = i32
    # Floats keep their dtypes, even different ones: the kernels read half-precision weights beside f32 directly.
    a = a if a.dtype.is_float else cast_to(a, dtype)
    b = b if b.dtype.is_float else cast_to(b, dtype)
    if (a.ndim == 1 and transpose_a) or (b.ndim == 1 and transpose_b):
        raise ShapeError(
            "matmul: a vector cannot be transposed; expected rank 2 or more with transpose_a, transpose_b"
        )
    left, right = a.ndim == 1, b.ndim == 1
    if left or right:  # The op does not see the shapes of these.
        inner = a.shape[-2 if transpose_a else -1], b.shape[0 if right else -1 if transpose_b else -2]
        if inner[0] != inner[1]:
            raise ShapeError(f"matmul: {a.shape} @ {b.shape}: the inner dimensions {inner[0]} and {inner[1]} differ")
    if left:
        a = apply("reshape", a, shape=(1, *a.shape))
    if right:
        b = apply("reshape", b, shape=(*b.shape, 1))
    inputs = [a, b]
    if bias is not None:
        bias_tensor = bias if isinstance(bias, Tensor) else a.graph.constant(bias)
        inputs.append(bias_tensor if bias_tensor.dtype.is_float and dtype.is_float else cast_to(bias_tensor, dtype))
    out = apply("matmul", *inputs, transpose_a=transpose_a, transpose_b=transpose_b, activation=activation)
    shape = list(out.shape)
    if right:
        del shape[-1]
    if left:
        del shape[-1 if right else -2]
    return out if len(shape) == out.ndim else apply("reshape", out, shape=tuple(shape))


__all__ = ["matmul"]
