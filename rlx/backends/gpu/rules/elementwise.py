"""Lowering of elementwise ops, fusion groups and casts: one launch for each. Where the device cannot access 16- or
8-bit elements, kernels unpack them from 32-bit words into f32 workspace before the launch, and pack the results after
it."""

from __future__ import annotations

import math

from rlx.backends.gpu.elementwise.strided import MAX_OPERANDS, View, broadcast, contiguous, launch_tree
from rlx.backends.gpu.elementwise.tree import computable
from rlx.backends.gpu.program.casts import THREADS, fits, stores
from rlx.backends.gpu.program.columns import TAKES, columns_for
from rlx.backends.gpu.program.images import last_shape, last_strides
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.reduce import narrowed_to, squares_of
from rlx.dtypes import DType, f32
from rlx.ir import Node, Op, Tensor
from rlx.ir import expr as ex
from rlx.ir.expr import substitute
from rlx.passes.trees import explicit, node_trees

PACKED = ("f16", "bf16", "i8", "u8")
WORDS_TO_F32 = declare(
    KernelDecl(
        "words_to_f32",
        about="y[i] = element i of the `n` elements of T that lie in the words x.",
        grid="a thread for each word",
        args=(*reads(x="u32"), *writes(y="f32"), *uints("n")),
        variants={"T": PACKED},
    )
)
F32_TO_WORDS = declare(
    KernelDecl(
        "f32_to_words",
        about="Element i of the `n` elements of T that lie in the words y is x[i]; bytes behind the last stay.",
        grid="a thread for each word",
        args=(*reads(x="f32"), *updates(y="u32"), *uints("n")),
        variants={"T": PACKED},
    )
)


def _packed(dtype: DType, features: frozenset[str]) -> bool:
    """Whether the device has to read and write the dtype in words of 32 bits."""
    return dtype.itemsize < 4 and not stores(dtype, features)


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    if len(tensors) > MAX_OPERANDS:
        return False
    for t in tensors:
        if not stores(t.dtype, features, with_f64=True) and not (_packed(t.dtype, features) and fits(t.type)):
            return False
    return computable(node_trees(node), features)


def load_elementwise(op: Op) -> None:
    """Registers `lower_elementwise` for an op."""
    lowers(op.name, when=_native)(lower_elementwise)


def lower_elementwise(ctx: Lowering, node: Node) -> None:
    """Computes every output element from the input elements that NumPy's broadcasting pairs with it; nothing for a cast
    that only sums read, since these read its input instead (`narrowed_to`), or for squares that a sum computes
    (`squares_of`)."""
    if len(node.outputs) == 1 and narrowed_to(ctx, node.output) is not node.output:
        return
    if len(node.outputs) == 1 and squares_of(ctx, node.output) is not None:
        return
    shape = node.outputs[0].shape
    strides = [broadcast(t.shape, shape) for t in node.inputs]
    if ctx.lies_last(node.outputs[0]):
        strides = [
            contiguous(last_shape(shape)) if t.shape == shape else last_strides(s)
            for t, s in zip(node.inputs, strides, strict=True)
        ]
        shape = last_shape(shape)
    inputs = [_view(ctx, node, t, s) for t, s in zip(node.inputs, strides, strict=True)]
    outputs = [View(ctx.ref(t), ctx.storage(t), contiguous(shape)) for t in node.outputs]
    trees = node_trees(node)
    if not any(_packed(v.storage, ctx.target.features) for v in (*inputs, *outputs)):
        launch_tree(ctx, trees, shape, inputs, outputs)
        return
    if math.prod(shape) == 0:
        return
    arguments = [ex.arg(k, t.dtype) for k, t in enumerate(node.inputs)]
    for k, t in enumerate(node.inputs):
        if _packed(inputs[k].storage, ctx.target.features):
            inputs[k] = View(_unpack(ctx, t), f32, inputs[k].strides)
            arguments[k] = ex.cast(ex.arg(k, f32), t.dtype)
    results = list(explicit([substitute(tree, arguments) for tree in trees]))
    for k, t in enumerate(node.outputs):
        if _packed(outputs[k].storage, ctx.target.features):
            outputs[k] = View(ctx.scratch(4 * t.size), f32, outputs[k].strides)
            results[k] = ex.cast(results[k], f32)
    launch_tree(ctx, results, shape, inputs, outputs)
    for t, view in zip(node.outputs, outputs, strict=True):
        if _packed(ctx.storage(t), ctx.target.features):
            _launch(ctx, F32_TO_WORDS, t, [view.slot, ctx.ref(t)])


def _view(ctx: Lowering, node: Node, t: Tensor, strides: tuple[int, ...]) -> View:
    """An input, or the matrix that it is some columns of."""
    whole = columns_for(ctx, node, t) if _reads_columns(ctx, node, t) else None
    if whole is None:
        return View(ctx.ref(t), ctx.storage(t), strides)
    x, first = whole
    return View(ctx.ref(x), ctx.storage(x), (x.shape[1], 1), first)


def _reads_columns(ctx: Lowering, node: Node, t: Tensor) -> bool:
    """Whether a fusion group may read t in the matrix that it is some columns of: with a result for each element, and
    no words to unpack."""
    features = ctx.target.features
    whole = "trees" in node.attrs and t.ndim == 2 and t.shape == node.outputs[0].shape
    return whole and not any(_packed(ctx.storage(x), features) for x in (*node.inputs, *node.outputs))


TAKES[lower_elementwise] = lambda ctx, node, t: _reads_columns(ctx, node, t) and columns_for(ctx, node, t) is not None


def _unpack(ctx: Lowering, t: Tensor) -> Ref:
    """The tensor in f32, in workspace."""
    result = ctx.scratch(4 * t.size)
    _launch(ctx, WORDS_TO_F32, t, [ctx.ref(t), result])
    return result


def _launch(ctx: Lowering, kernel: KernelDecl, t: Tensor, refs: list[Ref]) -> None:
    word = ctx.storage(t).name
    threads = math.ceil(t.size * t.dtype.itemsize / 4)
    chosen = kernel(T=word if word in PACKED else "u8")
    ctx.launch(chosen, ctx.groups(math.ceil(threads / THREADS)), [*refs, t.size])
