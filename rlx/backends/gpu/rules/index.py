"""Lowering of gather."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import fits, groups_for
from rlx.backends.gpu.program.kernel import INDICES, UNITS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg
from rlx.dtypes import DType, i32, i64
from rlx.errors import DTypeError
from rlx.ir import Node

GATHER = declare(
    KernelDecl(
        "gather",
        about=(
            "y[o, j, t] = x[o, index[j], t]: x (outer, axis, trail), m indices; bits are copied in units of "
            "U."
        ),
        grid="a thread for each of `total` = outer * m * trail units",
        args=(*reads(x="U", index="i32"), *writes(y="U"), *uints("total", "m", "axis", "trail")),
        variants={"U": UNITS, "I": INDICES},
    )
)

_UNITS = (16, 8, 4, 2, 1)
_FEATURE = {1: "8bit_storage", 2: "16bit_storage"}


def _native(node: Node, features: frozenset[str]) -> bool:
    # The elements' own size is the least unit there can be, and the one that a row of odd length asks for.
    need = _FEATURE.get(node.output.dtype.itemsize)
    return (need is None or need in features) and fits(*(t.type for t in (*node.inputs, *node.outputs)))


@lowers("gather", when=_native)
def lower_gather(ctx: Lowering, node: Node) -> None:
    """Copies slices (outer, axis, trail) in the largest unit that the slice and the addresses allow."""
    x, index = node.inputs
    y = node.output
    if y.size == 0:
        return
    axis = node.attrs["axis"]
    stored = ctx.storage(x)
    if stored != ctx.storage(y):
        raise DTypeError(
            f"gather: x is stored as {stored} and the result as {ctx.storage(y)}; expected one dtype"
        )
    outer, trail = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :]) * stored.itemsize
    source, target = ctx.ref(x), ctx.ref(y)
    unit = next(u for u in _UNITS if not (trail % u or source.offset % u or target.offset % u))
    total = outer * index.size * trail // unit
    kernel = GATHER(U=f"b{unit}", I=index_word(ctx.storage(index)))
    args: list[Arg] = [source, ctx.ref(index), target, total, index.size, x.shape[axis], trail // unit]
    ctx.launch(kernel, groups_for(ctx, total), args)


def index_word(dtype: DType) -> str:
    """What kernels call the dtype of indices."""
    if dtype not in (i32, i64):
        raise DTypeError(f"gather: the indices are stored as {dtype}; expected i32 or i64")
    return dtype.name
