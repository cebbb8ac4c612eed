"""Attention over 8-bit keys and values by NumPy: only those that a query sees are dequantized to f32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.attention.cache import Piece, bind_cached
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.ir import Node
from rlx.ops.attention.parts import rest


class PackedRows:
    """Integers and their scales, which are sliced together."""

    def __init__(self, codes: Array, scales: Array) -> None:
        self.codes, self.scales = codes, scales
        self.shape, self.dtype = codes.shape, codes.dtype

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, where: Any) -> PackedRows:
        return PackedRows(self.codes[where], self.scales[where])


class PackedPiece(Piece):
    """A part of the keys and values, which are dequantized into `wide`."""

    def _wide(self, x: PackedRows) -> Array:
        assert self.wide is not None
        result = self.wide[: len(x)]
        blocks = (*x.scales.shape, -1)
        np.multiply(x.codes.reshape(blocks), x.scales[..., None], result.reshape(blocks), dtype=result.dtype)
        return result


@cpu_kernel("packed_attention")
def bind_packed_attention(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    mask, lengths = rest("packed_attention", node.inputs[5:])
    q, k, k_scales, v, v_scales = (x.swapaxes(1, 2) for x in ins[:5])
    ends = np.array([k.shape[2]], np.int32) if lengths is None else ins[-1]
    return bind_cached(
        node, q, PackedRows(k, k_scales), PackedRows(v, v_scales), None if mask is None else ins[5], ends,
        outs[0].swapaxes(1, 2), ctx, PackedPiece,
    )  # fmt: skip
