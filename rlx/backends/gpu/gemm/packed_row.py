"""Launches of the kernels that compute a product of one row with a packed weight and what stands around it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlx.backends.gpu.gemm.launch import CODE
from rlx.backends.gpu.gemm.packed import PackedDirect, PackedVector
from rlx.backends.gpu.gemm.packed_kernels import PACKED_DIRECT, PACKED_VECTOR, Weight
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.dtypes import DType, bf16, f16, f32
from rlx.ir import Leaf, Tensor


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


def never_written(weight: Tensor) -> bool:
    """Whether no step of a program writes the weight, so that a kernel may read it before others have ended."""
    return weight.node.op.leaf in (Leaf.PARAM, Leaf.CONSTANT)


def vector_launch(ctx: Lowering, chosen: PackedVector, call: RowCall) -> None:
    """Appends a launch of packed_vector. Where all of x lies in shared memory, a workgroup takes several tiles of rows,
    so that x is placed there as often as there are workgroups on the device at once."""
    w, sides = call.weight, 1 if call.gate is None else 2
    n = w.rows // sides
    kernel = PACKED_VECTOR(
        T=call.stored.name, **w.constants, SLAB=chosen.slab, PARTS=chosen.parts,
        SUBNORMALS="denorm_preserve" in ctx.target.features, NORMED=call.gamma is not None, GATED=call.gate is not None,
        ACTIVATION=CODE[call.gate], BIAS=call.bias_kind, EARLY=call.kept,
    )  # fmt: skip
    tiles = math.ceil(n / (32 // chosen.parts // sides))
    step = min(tiles, chosen.resident * ctx.target.units) if w.blocks * w.units <= chosen.slab else tiles
    args: list[Arg] = [call.x, call.gamma or call.x, w.ref, call.bias or call.x, call.y]
    ctx.launch(kernel, ctx.groups(step * call.m), [*args, call.m, n, w.blocks, w.pitch, step, call.eps])


def direct_launch(ctx: Lowering, chosen: PackedDirect, call: RowCall) -> None:
    """Appends a launch of packed_direct for a row that each workgroup makes halves of."""
    w, sides = call.weight, 1 if call.gate is None else 2
    n, k = w.rows // sides, w.columns
    kernel = PACKED_DIRECT(
        T="f16", COLS="8", **w.constants, PARTS=chosen.parts, TILES=chosen.tiles, TERMS=2, GROUPED=False,
        RESIDENT=chosen.resident, ALONE=w.dtype.name in ("q4_k", "q5_k"), STAGED=True,
        X_TYPE=(f16, bf16, f32).index(call.stored), X_UNITS=k // 4, NORMED=call.gamma is not None,
        GATED=call.gate is not None, ACTIVATION=CODE[call.gate], BIAS=call.bias_kind, EARLY=call.kept,
    )  # fmt: skip
    x = call.x
    args: list[Arg] = [x, call.gamma or x, w.ref, call.bias or x, x, x, call.y, 1, n, w.blocks, w.pitch, 0, call.eps]
    ctx.launch(kernel, ctx.groups(math.ceil(n / (128 * chosen.tiles // chosen.parts // sides))), args)
