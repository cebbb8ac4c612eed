"""Launches of the kernels that multiply one row by a packed weight, with the norm before and the bias and gate
after."""

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
    """One product: m rows of x stored as `stored`, the weight, y, and the ops that are fused with the product. `gamma`
    (f32) and `eps`: the norm of x; `gate`: the activation of the result's first half, which is then multiplied by the
    second; `bias_kind`: the kernel's constant BIAS; `kept`: no step writes the weight."""

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
    """Appends a launch of packed_digits. Constants that a call does not need are set as other calls have them, so that
    the products of a layer share one pipeline: the less code they have in all, the sooner each begins."""
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
    """Appends a launch of packed_line. If all of x fits into shared memory, there are only as many workgroups as run at
    once and each computes several tiles of rows, so that x is loaded once per resident workgroup."""
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
