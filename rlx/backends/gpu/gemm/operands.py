"""A GEMM in memory: its operands, its epilogue, and biases as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.gemm.choice import Problem
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import cast_ref, quads
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType, f32
from rlx.ir import Leaf, Node, Tensor


def never_written(weight: Tensor) -> bool:
    """Whether no step of a program writes the weight, so that a kernel may read it before earlier kernels have
    ended."""
    return weight.node.op.leaf in (Leaf.PARAM, Leaf.CONSTANT)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a product in memory; `kept`: no step of the program writes it."""

    ref: Ref
    dtype: DType
    kept: bool = False

    @staticmethod
    def of(ctx: Lowering, tensor: Tensor) -> Operand:
        return Operand(ctx.ref(tensor), ctx.storage(tensor), never_written(tensor))

    def vectors(self, pitch: int, count: int) -> int:
        """1 if `count` neighbouring elements (at most 16 bytes) may be read at once, as rows and start are multiples of
        them; else 0."""
        return int(pitch % count == 0) and quads(self.ref, itemsize=min(self.dtype.itemsize * count // 4, 4))

    def stored(self, ctx: Lowering, dtype: DType) -> Operand:
        """The operand as `dtype`: cast into workspace if it is stored in another."""
        n = self.ref.nbytes // self.dtype.itemsize
        return self if dtype == self.dtype else Operand(cast_ref(ctx, self.ref, self.dtype, dtype, n), dtype)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A bias of n elements and an activation, applied to a result. `step`: the stride, in elements, between the biases
    of consecutive matrices of a batch; 0 if all share one."""

    bias: Tensor | None = None
    activation: str | None = None
    step: int = 0

    @staticmethod
    def of(node: Node) -> Epilogue:
        return Epilogue(node.inputs[2] if len(node.inputs) == 3 else None, node.attrs["activation"])

    @property
    def plain(self) -> bool:
        return self.bias is None and self.activation is None


@dataclass(frozen=True, slots=True)
class ProductCall:
    """C = activation(op(A) op(B) + bias), and where each of them lies. C's dtype has no fewer bits than A's and B's."""

    product: Product
    a: Operand
    b: Operand
    c: Operand
    end: Epilogue
    label: str = ""

    def problem(self, precision: str, inside: frozenset[str] = frozenset()) -> Problem:
        """The record on which the choice of an algorithm depends; `inside`: activations that the library applies."""
        p, a, b = self.product, self.a, self.b
        aligned = all(o.vectors(pitch, 16 // o.dtype.itemsize) for o, pitch in zip((a, b), p.pitches, strict=True))
        apart = self.end.activation
        apart = None if apart in inside or not a.dtype.is_half else apart
        return Problem(p, a.dtype, b.dtype, self.c.dtype, precision, aligned=aligned, apart=apart)


def from_(ref: Ref, offset: int) -> Ref:
    """A range from `offset` to its end."""
    return Ref(ref.segment, ref.offset + offset, ref.nbytes - offset)


def bias_ref(ctx: Lowering, bias: Tensor | None, dtype: DType = f32) -> Ref | None:
    """The bytes of the bias that the kernels read."""
    return None if bias is None else cast_ref(ctx, ctx.ref(bias), ctx.storage(bias), dtype, bias.size)


def biases(ctx: Lowering, end: Epilogue, count: int, a: DType) -> tuple[Ref | None, int, int]:
    """The bytes of the biases, the kernels' constant BIAS (0 for none, 1 for f32, 2 for A's dtype), and the stride
    between the biases of consecutive matrices in words of four bytes. Biases with a stride have one of these dtypes,
    and start at whole words."""
    if end.bias is None:
        return None, 0, 0
    first, kind = ctx.ref(end.bias), ctx.storage(end.bias)
    if kind not in (f32, a):
        return bias_ref(ctx, end.bias), 1, 0
    apart = end.step * kind.itemsize
    whole = Ref(first.segment, first.offset, (count - 1) * apart + first.nbytes)
    return whole, 1 if kind == f32 else 2, apart // 4
