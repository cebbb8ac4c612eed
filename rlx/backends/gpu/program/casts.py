"""Functions that the lowering rules of several families share: casts into workspace, features, alignment."""

from __future__ import annotations

import math

from rlx.backends.gpu.elementwise.strided import View, launch_tree
from rlx.backends.gpu.elementwise.tree import eight_bytes
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType
from rlx.ir import Node, expr
from rlx.ir.types import TensorType

THREADS = 256  # threads of a workgroup, in the kernels whose rules use this
_NEEDS = {8: "i64", 2: "16bit_storage", 1: "8bit_storage"}  # the feature that kernels need for dtypes, by itemsize
MAX_ELEMENTS = 1 << 31  # kernels index the elements of one matrix, row or slab with 31 bits


def groups_for(ctx: Lowering, n: int) -> tuple[int, int, int]:
    """The grid that gives each of n elements a thread."""
    return ctx.groups(math.ceil(n / THREADS))


def cast_ref(ctx: Lowering, ref: Ref, source: DType, target: DType, n: int) -> Ref:
    """n elements of dtype `source` as `target`: `ref` itself where the dtypes are equal, else a copy in workspace."""
    if source == target:
        return ref
    result = ctx.scratch(n * target.itemsize)
    convert(ctx, ref, source, result, target, n)
    return result


def convert(ctx: Lowering, source: Ref, from_: DType, target: Ref, to: DType, n: int) -> None:
    """Converts n elements at `source` into n of another dtype at `target`."""
    tree = expr.cast(expr.arg(0, from_), to)
    launch_tree(ctx, [tree], (n,), [View(source, from_, (1,))], [View(target, to, (1,))])


def stores(dtype: DType, features: frozenset[str], with_f64: bool = False) -> bool:
    """Whether kernels on a device with these features read and write this dtype. f64 counts only if `with_f64` is set,
    which suits elementwise trees and the few file kernels into which other ops are decomposed."""
    if dtype.name == "f64":
        return with_f64 and eight_bytes(dtype) <= features
    need = _NEEDS.get(dtype.itemsize)
    return need is None or need in features


def fits(*types: TensorType) -> bool:
    """Whether every tensor is small enough to be indexed with 31 bits."""
    return all(t.numel < MAX_ELEMENTS for t in types)


def native(node: Node, features: frozenset[str], with_f64: bool = False) -> bool:
    """Whether kernels read and write every tensor of the node, and 31 bits count its elements."""
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features, with_f64) for t in tensors) and fits(*(t.type for t in tensors))


def quads(*refs: Ref, itemsize: int) -> int:
    """1 if all these addresses are aligned for loads of four elements, else 0."""
    return int(all(ref.offset % (4 * itemsize) == 0 for ref in refs))
