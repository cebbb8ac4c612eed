"""Lowering of pad: one kernel, which finds the source of each unit of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.gpu.program.casts import fits
from rlx.backends.gpu.program.kernel import UNITS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.ir import Node
from rlx.ops.pad import Pads, filling

PAD = declare(
    KernelDecl(
        "pad",
        about="y = x with its axes padded; bits are copied in units of U.",
        grid="a group for each 1024 of `total` units of y",
        # x, meta, y, total, v0, v1, v2, v3 (the value).
        args=(*reads(x="U", meta="u32"), *writes(y="U"), *uints("total", "v0", "v1", "v2", "v3")),
        variants={"U": UNITS},
        constants={"MODE": 0, "AXES": 1},
        trials=((0, 1), (1, 4), (2, 3)),
    )
)

_UNITS = (16, 8, 4, 2, 1)
_NEEDS = {1: "8bit_storage", 2: "16bit_storage"}
_PER_GROUP = 1024
_CODES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 2, "wrap": 2}


def _native(node: Node, features: frozenset[str]) -> bool:
    need = _NEEDS.get(node.output.dtype.itemsize)
    return (need is None or need in features) and fits(node.inputs[0].type, node.output.type)


def merged(shape: Sequence[int], pads: Pads, mode: str) -> list[tuple[int, int, int]]:
    """The axes as (size, before, after), merged where possible: adjacent unpadded axes become one; so do a padded axis
    and the unpadded one behind it, where the padding is one constant."""
    axes: list[tuple[int, int, int]] = []
    for n, (before, after) in zip(shape, pads, strict=True):
        plain = before == after == 0
        if axes and plain and (mode == "constant" or axes[-1][1:] == (0, 0)):
            axes[-1] = (axes[-1][0] * n, axes[-1][1] * n, axes[-1][2] * n)
        elif not (plain and n == 1):
            axes.append((n, before, after))
    return axes


@lowers("pad", when=_native)
def lower_pad(ctx: Lowering, node: Node) -> None:
    """Copies each unit of the output from its place in the input, or from the padding value."""
    x, y = node.inputs[0], node.output
    pads, mode = node.attrs["pads"], node.attrs["mode"]
    if y.size == 0:
        return
    source, target, stored = ctx.ref(x), ctx.ref(y), ctx.storage(y)
    if not any(map(any, pads)):
        ctx.copy(source, target)
        return
    axes = merged(x.shape, pads, mode) if x.size else [(0, y.size, 0)]
    unit = _unit(axes[-1], mode, stored.itemsize, source, target)
    size, before, after = (n * stored.itemsize // unit for n in axes.pop())
    if not axes or (size, before, after) != (1, 0, 0):
        axes.append((size, before, after))
    value = filling(node.attrs["value"], stored).tobytes()
    mask = (1 << 8 * min(unit, 4)) - 1
    words = [int(w) & mask for w in np.frombuffer(value * (16 // len(value)), np.uint32)]
    total = y.size * stored.itemsize // unit
    kernel = PAD(U=f"b{unit}", MODE=_CODES[mode], AXES=len(axes))
    args: list[Arg] = [source, ctx.block(_meta(axes, mode)), target, total, *words]
    ctx.launch(kernel, ctx.groups(math.ceil(total / _PER_GROUP)), args)


def _unit(axis: tuple[int, int, int], mode: str, itemsize: int, *refs: Ref) -> int:
    """The largest number of bytes, up to 16, that divides the innermost axis, its pads and every address; one element
    where the padding repeats the input's elements in another order."""
    if mode != "constant" and any(axis[1:]):
        return itemsize
    whole = (u for u in _UNITS if not any(n * itemsize % u for n in axis))
    return next(u for u in whole if not any(ref.offset % u for ref in refs))


def _meta(axes: Sequence[tuple[int, int, int]], mode: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    words: list[int] = []
    stride = 1
    for n, before, after in reversed(axes):
        size = before + n + after
        period = max({"reflect": 2 * n - 2, "symmetric": 2 * n}.get(mode, n), 1)
        lift = -(-before // period) * period
        fold = period - 1 if mode == "symmetric" else period
        words += [size, *_divider(size), before, n, stride, period, lift, fold]
        stride *= n
    return np.asarray(words, np.uint32)


def _divider(d: int) -> tuple[int, int]:
    """(m, s) such that i // d is the upper half of the 64-bit product i·m shifted right by s, for i < 2³¹."""
    if d < 2:
        return 0, 0  # never divided by: only the outermost axis can be of size 1
    bits = (d - 1).bit_length()
    return ((1 << 31 + bits) // d + 1 & 0xFFFFFFFF, bits - 1)
