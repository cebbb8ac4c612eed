"""Strided iteration: which elements an operand touches, dimensions merged, and the launch of a tree over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends.gpu.lowering import Lowering
from rlx.backends.gpu.steps import Ref, TreeKernel, TreeOperand
from rlx.dtypes import DType
from rlx.ir import Expr

MAX_INDEX = 1 << 31  # element indices in a kernel are 31 bits
MAX_OPERANDS = 14  # their addresses, that of the meta block and n are 124 bytes
_THREADS = 256
_SPREAD = 1 << 18  # elements up to which every element gets a thread of its own


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a slot: element (i, j, …) of the iteration is `start + i strides[0] + j strides[1] + …` of the slot,
    counted in elements of `storage`."""

    slot: Ref
    storage: DType
    strides: tuple[int, ...]
    start: int = 0

    def span(self, shape: Sequence[int]) -> tuple[int, int]:
        """The lowest and the highest element touched."""
        reach = [(n - 1) * s for n, s in zip(shape, self.strides, strict=True)]
        return self.start + sum(r for r in reach if r < 0), self.start + sum(r for r in reach if r > 0)

    def ref(self, shape: Sequence[int]) -> Ref:
        """The bytes touched."""
        low, high = self.span(shape)
        size = self.storage.itemsize
        return Ref(self.slot.segment, self.slot.offset + low * size, (high - low + 1) * size)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def broadcast(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of `shape` seen as `to`, as NumPy broadcasts."""
    own = contiguous(shape)
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(shape, own, strict=True))


def collapse(shape: Sequence[int], views: Sequence[View]) -> tuple[tuple[int, ...], list[View]]:
    """The same elements with the fewest dimensions: those of one element dropped, neighbours merged where every operand
    steps through both as through one."""
    dims: list[int] = []
    steps: list[list[int]] = [[] for _ in views]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        here = [v.strides[d] for v in views]
        if dims and all(s[-1] == n * h for s, h in zip(steps, here, strict=True)):
            dims[-1] *= n
            for s, h in zip(steps, here, strict=True):
                s[-1] = h
        else:
            dims.append(n)
            for s, h in zip(steps, here, strict=True):
                s.append(h)
    return tuple(dims), [replace(v, strides=tuple(s)) for v, s in zip(views, steps, strict=True)]


def launch_tree(
    ctx: Lowering, trees: Sequence[Expr], shape: Sequence[int], inputs: Sequence[View], outputs: Sequence[View]
) -> None:
    """Evaluates trees for every element of `shape`. Nothing for no elements; several launches where 31 bits are too
    few to count the elements."""
    if 0 in shape:
        return
    dims, views = collapse(shape, [*inputs, *outputs])
    low_high = [v.span(dims) for v in views]
    if math.prod(dims) >= MAX_INDEX or any(high - low >= MAX_INDEX for low, high in low_high):
        _halves(ctx, trees, dims, views, len(inputs))
        return
    flat = contiguous(dims)
    operands, block = [], list(dims)
    for k, (v, (low, _)) in enumerate(zip(views, low_high, strict=True)):
        if v.strides == flat:
            operands.append(TreeOperand(v.storage, "flat"))
        elif k < len(inputs) and not any(v.strides):
            operands.append(TreeOperand(v.storage, "scalar"))
        else:
            operands.append(TreeOperand(v.storage, "strided"))
            block += [v.start - low, *v.strides]
    strided = len(block) > len(dims)
    kernel = TreeKernel(
        tuple(trees), tuple(operands[: len(inputs)]), tuple(operands[len(inputs) :]), len(dims) if strided else 0
    )
    n = math.prod(dims)
    each = 1 if n <= _SPREAD else 4
    refs = [v.ref(dims) for v in views]
    meta = [ctx.block(block)] if strided else []
    ctx.launch(kernel, ctx.groups(math.ceil(n / (_THREADS * each))), [*meta, *refs, n])


def _halves(
    ctx: Lowering, trees: Sequence[Expr], dims: tuple[int, ...], views: Sequence[View], n_in: int
) -> None:
    first = dims[0] // 2
    for start, n in ((0, first), (first, dims[0] - first)):
        moved = [replace(v, start=v.start + start * v.strides[0]) for v in views]
        launch_tree(ctx, trees, (n, *dims[1:]), moved[:n_in], moved[n_in:])
