"""Launches of the kernels that compute a product of one row with a packed weight and what stands around it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlx.backends.gpu.gemm.launch import CODE
from rlx.backends.gpu.gemm.packed import PackedDigits, PackedLine
from rlx.backends.gpu.gemm.packed_kernels import PACKED_DIGITS, PACKED_LINE, Weight
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.dtypes import DType


@dataclass(frozen=True, slots=True)
class RowCall:
    """A call: x stored as `stored`, m rows of it, the weight, y, and what the product is fused with.
    `gamma` (f32) and `eps`: of the norm of x; `gate`: the activation of the first half of the result, which the other
    is multiplied by; `bias`: of the kind that the kernel's BIAS says; `kept`: no step writes the weight."""

    x: Ref
    stored: DType
    m: int
    weight: Weight
    y: Ref
    gamma: Ref | None = None
    eps: float = 0.0
    gate: str | None = None
    bias: Ref | None = None
    bias_kind: int = 0
    kept: bool = False


def row_launch(ctx: Lowering, chosen: PackedLine | PackedDigits, call: RowCall) -> None:
    """Appends a launch of the chosen kernel."""
    if isinstance(chosen, PackedLine):
        line_launch(ctx, chosen, call)
    else:
        digits_launch(ctx, chosen, call)


def digits_launch(ctx: Lowering, chosen: PackedDigits, call: RowCall) -> None:
    """Appends a launch of packed_digits. Constants that a call does not need are those of other calls, so that the
    products of a layer are one pipeline: their code together decides how soon each of them begins."""
    w, sides = call.weight, 1 if call.gate is None else 2
    n = w.rows // sides
    kernel = PACKED_DIGITS(
        T=call.stored.name, HIGH=str(chosen.high), DOT="packed", **w.constants, SLAB=chosen.slab, PARTS=chosen.parts,
        ACTIVATION=CODE[call.gate or "silu"], BIAS=call.bias_kind or 2,
        HALVES="half_subnormals" in ctx.target.features,
    )  # fmt: skip
    tiles = math.ceil(n / (8 * chosen.high // chosen.parts // sides))
    step = min(tiles, chosen.resident * ctx.target.units) if w.blocks * w.units <= chosen.slab else tiles
    args: list[Arg] = [call.x, call.gamma or call.x, w.ref, call.bias or call.x, call.y]
    around = call.gamma is not None, call.gate is not None, call.bias is not None
    ctx.launch(kernel, ctx.groups(step * call.m), [*args, call.m, n, w.blocks, w.pitch, step, *around, call.eps])


def line_launch(ctx: Lowering, chosen: PackedLine, call: RowCall) -> None:
    """Appends a launch of packed_line. Where all of x lies in shared memory, a workgroup takes several tiles of rows,
    so that x is placed there as often as there are workgroups on the device at once."""
    w, sides = call.weight, 1 if call.gate is None else 2
    n = w.rows // sides
    kernel = PACKED_LINE(
        T=call.stored.name, HIGH=str(chosen.high), **w.constants, SLAB=chosen.slab, PARTS=chosen.parts,
        SUBNORMALS="denorm_preserve" in ctx.target.features, NORMED=call.gamma is not None, GATED=call.gate is not None,
        ACTIVATION=CODE[call.gate], BIAS=call.bias_kind, EARLY=call.kept, BLOCKS=w.blocks, PITCH=w.pitch,
        WHOLE=n % (chosen.high // sides) == 0, LIMBS=chosen.limbs,
    )  # fmt: skip
    tiles = math.ceil(n / (8 * chosen.high // chosen.parts // sides))
    step = min(tiles, chosen.resident * ctx.target.units) if w.blocks * w.units <= chosen.slab else tiles
    args: list[Arg] = [call.x, call.gamma or call.x, w.ref, call.bias or call.x, call.y]
    ctx.launch(kernel, ctx.groups(step * call.m), [*args, call.m, n, step, call.eps])
