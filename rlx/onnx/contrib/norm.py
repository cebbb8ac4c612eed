"""Normalizations of com.microsoft, of residual sums and embeddings too; those ONNX Runtime adds to onnx's domain."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import FLOATS, declared

_NORM = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
_ROOTS = {"T": FLOATS, "V": FLOATS, "U": "float double"}


def _spread(x: Tensor, axis: int, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    """The mean over the axes from `axis` on, and 1 / sqrt(v + eps), v the variance or mean square; axes are kept."""
    wide = o.cast(x, f32) if x.dtype.is_half else x
    axes = tuple(range(axis, x.ndim))
    mean = o.mean(wide, axes, keepdims=True)
    spread = o.var(wide, axes, keepdims=True) if centred else o.mean(o.square(wide), axes, keepdims=True)
    return mean, o.reciprocal(o.sqrt(o.add(spread, eps)))


@declared("SimplifiedLayerNormalization", inputs="X:T scale:V", outputs="Y:V inv_std_var:U?", types=_ROOTS,
          attributes=_NORM)  # fmt: skip
@declared("SimplifiedLayerNormalization", inputs="X:T scale:V", outputs="Y:V inv_std_var:U?", types=_ROOTS,
          attributes=_NORM, domain="")  # fmt: skip
def simplified_layer_norm(c: Call) -> tuple[Result, ...]:
    x, scale, eps = c.x(0), c.x(1), c.float("epsilon")
    axis = axis_of(c, c.int("axis"), x.ndim)
    lead, tail = x.shape[:axis], x.shape[axis:]
    if math.prod(scale.shape) != math.prod(tail):
        raise c.bad(f"the scale is {scale.shape}; expected one for each of {tail}")
    rows = o.reshape(x, (math.prod(lead), math.prod(tail)))
    y = o.reshape(o.rms_norm(rows, o.reshape(scale, (-1,)), eps=eps), x.shape)
    return (y,) if c.n_outputs < 2 else (y, _spread(x, axis, eps, False)[1])


def _summed(c: Call, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The input with its bias, and the skip in the input's shape."""
    x, skip, gamma = c.x(0), c.x(1), c.x(2)
    if x.ndim not in (2, 3) or skip.shape not in (x.shape, x.shape[1:], (1, *x.shape[1:])):
        raise c.bad(
            f"the input is {x.shape}, the skip {skip.shape}; expected (batch, sequence, hidden), or no batch"
        )
    rows = [t for t in (gamma, bias, c.opt(3)) if t is not None]
    if any(t.shape != x.shape[-1:] for t in rows):
        raise c.bad(f"weights are {[t.shape for t in rows]}; expected the last dimension of {x.shape}")
    return (x if bias is None else o.add(x, bias)), o.expand(skip, x.shape)


_SUMS = "output:T mean:U? inv_std_var:U? input_skip_bias_sum:T?"
_HALVES = {"T": "float float16 bfloat16", "U": "float"}


@declared("SkipLayerNormalization", inputs="input:T skip:T gamma:T beta:T? bias:T?", outputs=_SUMS, types=_HALVES,
          attributes={"epsilon": 1e-12})  # fmt: skip
def skip_layer_norm(c: Call) -> tuple[Result, ...]:
    x, skip = _summed(c, c.opt(4))
    gamma, beta, eps = c.x(2), c.opt(3), c.float("epsilon")
    if beta is None:
        beta = c.tensor(np.zeros(gamma.shape, gamma.dtype.np))
    total, y = o.add_layer_norm(x, skip, gamma, beta, eps)
    return (y, *_spread(total, x.ndim - 1, eps, True), total) if c.n_outputs > 1 else (y,)


@declared("SkipSimplifiedLayerNormalization", inputs="input:T skip:T gamma:T bias:T?", outputs=_SUMS, types=_HALVES,
          attributes={"epsilon": 1e-12})  # fmt: skip
def skip_simplified_layer_norm(c: Call) -> tuple[Result, ...]:
    x, skip = _summed(c, c.opt(3))
    eps = c.float("epsilon")
    total, y = o.add_rms_norm(x, skip, c.x(2), eps=eps)
    return (y, *_spread(total, x.ndim - 1, eps, False), total) if c.n_outputs > 1 else (y,)


@declared(
    "EmbedLayerNormalization",
    inputs="input_ids:T1 segment_ids:T1? word_embedding:T position_embedding:T segment_embedding:T? gamma:T beta:T "
    "mask:T1? position_ids:T1?",
    outputs="output:T mask_index:T1? embedding_sum:T?",
    types={"T1": "int32", "T": "float float16"},
    attributes={"epsilon": 1e-12, "mask_index_type": int},
)
def embed_layer_norm(c: Call) -> tuple[Result, ...]:
    """The norm of the sum of word, position and segment embeddings; and the number of ones in each row of the mask."""
    ids, gamma, beta = c.x(0), c.x(5), c.x(6)
    check_tables(c, ids, gamma)
    total = o.add(o.gather(c.x(2), ids, 0), positions(c, ids, c.x(3), c.opt(8)))
    if c.has(1):
        total = o.add(total, o.gather(c.x(4), c.x(1), 0))
    return o.layer_norm(total, gamma, beta, c.float("epsilon")), counted(c, ids), total


def check_tables(c: Call, ids: Tensor, gamma: Tensor) -> None:
    """Raises: ModelFormatError where inputs 0 to 4 are no words and segments with tables as wide as gamma."""
    tables = [c.x(i) for i in (2, 3, 4) if c.has(i)]
    if ids.ndim != 2 or any(t.ndim != 2 or t.shape[1:] != gamma.shape for t in tables):
        raise c.bad(f"input_ids are {ids.shape}, the embeddings {[t.shape for t in tables]}, gamma {gamma.shape}; "
                    "expected (batch, length), and tables as wide as gamma")  # fmt: skip
    if c.has(1) != c.has(4):
        raise c.bad("has segment_ids or a segment_embedding without the other")
    if c.has(1) and c.x(1).shape != ids.shape:
        raise c.bad(f"segment_ids are {c.x(1).shape}, input_ids {ids.shape}; expected one shape")


def positions(c: Call, ids: Tensor, places: Tensor, at: Tensor | None = None) -> Tensor:
    """The rows of the table of positions for each word: those that are given, else 0, 1, 2, …"""
    length = ids.shape[1]
    if at is not None:
        return o.gather(places, o.expand(at, ids.shape), 0)
    if length > places.shape[0]:
        raise c.bad(f"{length} words, but {places.shape[0]} positions")
    return places[:length]


def counted(c: Call, ids: Tensor) -> Tensor:
    """The number of ones in each row of the mask, input 7; zeros without one."""
    if not c.has(7):
        return c.tensor(np.zeros((ids.shape[0],), np.int32))
    if c.x(7).shape != ids.shape:
        raise c.bad(f"the mask is {c.x(7).shape}, input_ids {ids.shape}; expected one shape")
    return o.sum(o.cast(o.equal(c.x(7), 1), "i32"), (1,))
