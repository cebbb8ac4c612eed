"""Lowering of scatters."""

from __future__ import annotations

import math

from rlx.backends.gpu.elementwise.strided import View, launch_tree
from rlx.backends.gpu.program.casts import cast_ref, convert, groups_for, stores
from rlx.backends.gpu.program.kernel import UNITS, KernelDecl, declare, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.index import index_word, moves_bits, one_dtype, unit_of
from rlx.backends.gpu.rules.order import sorted_pairs
from rlx.dtypes import DType, i32
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex

SCATTER_SET = declare(
    KernelDecl(
        "scatter_set",
        about=(
            "y[o, index[j], t] = updates[o, j, t]: y (outer, n, trail), m updates; bits are copied in units "
            "of U."
        ),
        grid="a thread for each of `total` = outer * m * trail units",
        args=(*reads(updates="U", pairs="b8"), *writes(y="U"), *uints("total", "m", "n", "trail")),
        variants={"U": UNITS},
        constants={"ONE_LIST": True},
        trials=((False,), (True,)),
    )
)
SCATTER_REDUCE = declare(
    KernelDecl(
        "scatter_reduce",
        about="y[o, index[j], t] joined with updates[o, j, t]: y (outer, n, trail), m updates.",
        grid="a thread for each of `total` = outer * m * trail elements",
        args=(*reads(updates="T", pairs="b8"), *updates(y="T"), *uints("total", "m", "n", "trail")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16", "i32", "i64")},
        constants={"ONE_LIST": True, "KIND": 0},
        trials=((False, 0), (True, 3)),
    )
)

_UNITS = (16, 8, 4, 2, 1)
_FEATURE = {1: "8bit_storage", 2: "16bit_storage"}
_KINDS = {"add": 0, "mul": 1, "min": 2, "max": 3}


# -- scatter


def _scatters(node: Node, features: frozenset[str]) -> bool:
    indices, updates = node.inputs[:2]
    # The keys are made from the indices by a tree, which computes i64 only where the device does.
    return (
        stores(indices.dtype, features)
        and stores(updates.dtype, features, with_f64=True)
        and moves_bits(node, features)
    )


@lowers("scatter", "scatter_elements", when=_scatters)
def lower_scatter(ctx: Lowering, node: Node) -> None:
    """Indices are sorted stably, together with their numbers; then the thread at the first (or last) of equal indices
    finds the others beside it. Before, y is set to x or zeros."""
    indices, updates = node.inputs[:2]
    y, axis, n = node.output, node.attrs["axis"], node.attrs["length"]
    if y.size == 0:
        return
    reduction = node.attrs["reduction"]
    x = node.inputs[2] if len(node.inputs) == 3 else None
    stored = one_dtype(ctx, node, updates, y, *(() if x is None else (x,)))
    shared = node.op.name == "scatter"
    outer = math.prod(updates.shape[:axis])
    m = indices.size if shared else updates.shape[axis]
    trail = math.prod(y.shape[axis + 1 :])
    work = (
        stored if stored.itemsize > 1 or reduction == "none" else i32
    )  # bytes are joined in i32, which wraps alike
    target = ctx.ref(y) if work == stored else ctx.scratch(y.size * work.itemsize)
    _begin(ctx, y, None if x is None else ctx.ref(x), stored, target, work)
    if updates.size:
        pairs = _pairs(ctx, indices, n, (1, m, 1) if shared else (outer, m, trail))
        source = cast_ref(ctx, ctx.ref(updates), stored, work, updates.size)
        if reduction == "none":
            # If all rows share one list of indices, units may be larger than an element.
            unit = unit_of(trail * stored.itemsize, source, target) if shared else stored.itemsize
            run = trail * stored.itemsize // unit
            kernel = SCATTER_SET(U=f"b{unit}", ONE_LIST=shared)
        else:
            run = trail
            kernel = SCATTER_REDUCE(T=work.name, ONE_LIST=shared, KIND=_KINDS[reduction])
        total = outer * m * run
        ctx.launch(kernel, groups_for(ctx, total), [source, pairs, target, total, m, n, run])
    if work != stored:
        convert(ctx, target, work, ctx.ref(y), stored, y.size)


def _begin(ctx: Lowering, y: Tensor, x: Ref | None, stored: DType, target: Ref, work: DType) -> None:
    """Sets `target` to x or to zeros, as dtype `work`."""
    if x is None:
        launch_tree(ctx, [ex.lit(0, work)], (y.size,), [], [View(target, work, (1,))])
    elif work == stored:
        ctx.copy(x, target)
    else:
        convert(ctx, x, stored, target, work, y.size)


def _pairs(ctx: Lowering, indices: Tensor, n: int, dims: tuple[int, int, int]) -> Ref:
    """The sorted pairs (index counted from the front, position) of each line of indices; an index out of range becomes
    n."""
    stored = ctx.storage(indices)
    index_word(stored)
    index = ex.arg(0, stored)
    front = ex.call("select", ex.call("lt", index, 0), index + n, index)
    inside = ex.call("and", ex.call("ge", index, -n), ex.call("lt", index, n))
    key = ex.cast(ex.call("select", inside, front, n), i32)
    keys = ctx.scratch(indices.size * 4)
    launch_tree(ctx, [key], (indices.size,), [View(ctx.ref(indices), stored, (1,))], [View(keys, i32, (1,))])
    # Keys are ≥ 0, so that their bits compare as unsigned numbers: kind 0.
    return sorted_pairs(ctx, keys, "b4", 0, dims)
