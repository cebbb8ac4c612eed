"""block_convolution: the convolution of a long signal with a short filter, block by block, by one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops import batching
from rlx.ops.base import check_inputs, written
from rlx.ops.composite import expand_dims
from rlx.ops.fft.functions import irfft, rfft
from rlx.ops.fft.pairs import multiply
from rlx.ops.fft.transform import TYPES
from rlx.ops.movement import strided as movement
from rlx.ops.numeric import Array
from rlx.ops.pad import pad
from rlx.ops.signal.power import LENGTHS
from rlx.ops.windows import MAX_STEP


def countable(n: int, nfft: int) -> bool:
    """Whether n samples plus two blocks fit in 31 bits, as the op requires."""
    return n + 2 * nfft <= MAX_STEP


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "block_convolution"
    check_inputs(op, types, 2)
    x, filters = types
    nfft = attrs["nfft"]
    if x.dtype not in TYPES or filters.dtype != x.dtype:
        raise DTypeError(f"{op}: the inputs are {x} and {filters}; expected both f32 or both f64")
    if x.rank == 0 or x.shape[-1] == 0:
        raise ShapeError(f"{op}: the signal is {x}; expected samples along its last axis")
    taps = filters.shape[-1] if filters.rank else 0
    if nfft not in LENGTHS or not 1 <= taps <= nfft or not countable(x.shape[-1], nfft):
        raise ShapeError(
            f"{op}: {x}, a filter {filters} and transforms of {nfft!r}; expected one of {LENGTHS} that is at least as "
            f"long as the filter, and at most {MAX_STEP} samples with two blocks; rlx.signal.oaconvolve takes any"
        )
    if filters.shape not in ((taps,), (*x.shape[:-1], taps)):
        raise ShapeError(f"{op}: the filter is {filters} for {x}; expected one axis, or one filter for each row")
    return TensorType((*x.shape[:-1], x.shape[-1] + taps - 1), x.dtype)


def _reference(x: Array, filters: Array, *, nfft: int) -> Array:
    """Blocks transformed, times the filter's transform, and added up."""
    taps = filters.shape[-1]
    step = nfft - taps + 1
    count = -(-x.shape[-1] // step)
    wide = np.zeros((*x.shape[:-1], count * step))
    wide[..., : x.shape[-1]] = x
    with np.errstate(all="ignore"):
        z = np.fft.rfft(wide.reshape(*x.shape[:-1], count, step), nfft)
        parts = np.fft.irfft(z * np.fft.rfft(filters.astype(np.float64), nfft)[..., None, :], nfft)
        result = np.zeros((*x.shape[:-1], count * step + taps - 1))
        for i in range(count):
            result[..., i * step : i * step + nfft] += parts[..., i, :]
    return result[..., : x.shape[-1] + taps - 1].astype(x.dtype)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    return by_blocks(inputs[0], inputs[1], attrs["nfft"])


def by_blocks(x: Tensor, filters: Tensor, nfft: int) -> Tensor:
    """The overlap-add method along the last axis, with a tensor for each step; the other axes broadcast."""
    n, taps = x.shape[-1], filters.shape[-1]
    step = nfft - taps + 1
    count = -(-n // step)
    x = pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * step - n)])
    blocks = movement.reshape(x, (*x.shape[:-1], count, step))
    signal = irfft(multiply(rfft(blocks, nfft), expand_dims(rfft(filters, nfft), -3)), nfft)
    signal = apply("overlap_add", signal, hop=step, size=(count - 1) * step + nfft)
    return signal[..., : n + taps - 1]


def _cost(node: Node) -> Cost:
    nfft = node.attrs["nfft"]
    numbers = node.output.type.numel * nfft // (nfft - node.inputs[1].shape[-1] + 1)
    work = 8 * nfft.bit_length() * numbers
    return Cost(2 * written(node), multiplications=work, tables=16 * nfft, terms=64 * numbers)


register(
    Op("block_convolution", "signal", _infer, _reference, "scipy.signal.oaconvolve",
       vjp_by_parts(_decompose), kernel="block_convolution", decompose=_decompose, cost=_cost, batch=batching.filters)
)  # fmt: skip


def block_length(taps: int) -> int | None:
    """The transform length of blocks: about eight times the filter's length, so that most of each block is new samples,
    or the longest that one kernel takes if the filter fits in a quarter of it. None for a longer filter."""
    length = max(LENGTHS[0], 1 << (8 * taps - 1).bit_length())
    return min(length, LENGTHS[-1]) if taps <= LENGTHS[-1] // 4 else None


def block_convolution(x: Tensor, filters: Tensor, nfft: int) -> Tensor:
    """The convolution of x (..., n) with a filter, (taps,), or one for each row, (..., taps): (..., n + taps - 1)."""
    return apply("block_convolution", x, filters, nfft=nfft)
