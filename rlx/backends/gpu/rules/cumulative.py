"""Lowering of cumsum and cumprod."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import THREADS, cast_ref, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.reduce import PLANES, REDUCE, partial_type
from rlx.backends.gpu.rules.rows import lines_of, power
from rlx.dtypes import DType, i32
from rlx.ir import Node

SCAN = declare(
    KernelDecl(
        "scan",
        about="Running sums or products along n of x (outer, n, inner), in `splits` parts of `chunk`.",
        grid="a group for each 256 / (ACROSS*ALONG) pairs (outer, part) and ACROSS places of inner",
        # x, offsets (outer, splits, inner), y, outer, n, inner, chunk, splits.
        args=(
            *reads(x="TI", offsets="TP"),
            *writes(y="TO"),
            *uints("outer", "n", "inner", "chunk", "splits"),
        ),
        headers=("body64",),
        variants={"IO": ("f32_f32", "f64_f64", "f16_f16", "bf16_bf16", "i32_i32", "i64_i64")},
        constants={"ACROSS": 1, "ALONG": 256, "PRODUCT": False, "FLAGS": 0, "BEGUN": False, "PARTS": False},
        trials=((1, 256, False, 0, False, False), (32, 8, True, 3, True, True)),
    )
)

_TILES = 4  # rounds of four elements per thread; longer lines are split
_WORKGROUPS_TO_FILL = 1024  # the number of workgroups that fills a device
_LONG = 1 << 16  # the longest part of one workgroup when there are enough lines to fill the device


def _native(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


@lowers("cumsum", "cumprod", when=_native)
def lower_scan(ctx: Lowering, node: Node) -> None:
    """Short lines take one launch. For long ones: reduce each part to its total, scan the totals, then scan each part
    starting from the total of all parts before it."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    product = int(node.op.joins == "mul")
    stored = ctx.storage(x)
    work = stored if stored.is_float or stored.name == "i64" else i32
    source = cast_ref(ctx, ctx.ref(x), stored, work, x.size)
    flags = int(node.attrs["exclusive"]) | 2 * int(node.attrs["reverse"])
    _scan(ctx, product, flags, source, work, ctx.ref(y), lines_of(x, node.attrs["axis"]))


def running_sum(ctx: Lowering, x: Ref, y: Ref, n: int) -> None:
    """The exclusive running sum of n 32-bit integers."""
    _scan(ctx, 0, 1, x, i32, y, (1, n, 1))


def _scan(
    ctx: Lowering, product: int, flags: int, x: Ref, dtype: DType, y: Ref, dims: tuple[int, int, int], parts: int = 0
) -> None:
    outer, n, inner = dims
    across = min(power(inner), 32)
    along = min(power(-(-n // 4)), THREADS // across)
    items = THREADS // (across * along)
    blocks = math.ceil(inner / across)
    chunk = along * 4 * _TILES
    if math.ceil(outer / items) * blocks >= _WORKGROUPS_TO_FILL:
        chunk = max(chunk, min(n, _LONG))
    splits = max(1, -(-n // chunk))
    chunk = -(-n // splits)
    splits = -(-n // chunk)
    offsets = x
    if splits > 1:
        part, planes = partial_type(dtype), PLANES if dtype.is_float else 1
        totals, offsets = (ctx.scratch(planes * outer * splits * inner * part.itemsize) for _ in range(2))
        kernel = REDUCE(
            IO=f"{dtype}_{part}", ACROSS=across, ALONG=along, KIND=product, READS=0, PARTS=parts | 2
        )
        groups = ctx.groups(math.ceil(outer * splits / items) * blocks)
        ctx.launch(kernel, groups, [x, totals, outer, n, inner, chunk, splits, 1.0])
        # The total of all before a part: an exclusive scan of the totals.
        _scan(ctx, product, flags | 1, totals, part, offsets, (outer, splits, inner), 1)
    kernel = SCAN(
        IO=f"{dtype}_{dtype}",
        ACROSS=across,
        ALONG=along,
        PRODUCT=product,
        FLAGS=flags,
        BEGUN=splits > 1,
        PARTS=parts,
    )
    groups = ctx.groups(math.ceil(outer * splits / items) * blocks)
    ctx.launch(kernel, groups, [x, offsets, y, outer, n, inner, chunk, splits])
