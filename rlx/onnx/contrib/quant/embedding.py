"""QEmbedLayerNormalization: the norm of embeddings whose tables and weights are 8-bit integers."""

from __future__ import annotations

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.onnx.contrib.norm import check_tables, counted, positions
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import declared

_TABLES = "word_embedding position_embedding segment_embedding gamma beta"


@declared(
    "QEmbedLayerNormalization",
    inputs="input_ids:T1 segment_ids:T1? word_embedding_quant:T2 position_embedding_quant:T2 "
    "segment_embedding_quant:T2? gamma_quant:T2 beta_quant:T2 mask:T1? word_embedding_scale:T "
    "position_embedding_scale:T segment_embedding_scale:T? gamma_scale:T beta_scale:T word_embedding_zero_point:T2 "
    "position_embedding_zero_point:T2 segment_embedding_zero_point:T2? gamma_zero_point:T2 beta_zero_point:T2",
    outputs="layernorm_out:T mask_index_out:T1",
    types={"T1": "int32", "T2": "int8 uint8", "T": "float"},
    attributes={"epsilon": 1e-12},
)
def quantized_embed_layer_norm(c: Call) -> tuple[Result, ...]:
    """Only the rows that are taken become floats. Each table has one scale and one zero point."""
    ids = c.x(0)
    check_tables(c, ids, c.x(5))
    for i, name in enumerate(_TABLES.split(), 2):
        if c.has(i) and not all(c.has(k) and c.x(k).size == 1 for k in (i + 6, i + 11)):
            raise c.bad(f"{name} has no scale, or no zero point; expected one of each, of one element")
    total = o.add(_real(c, 2, o.gather(c.x(2), ids, 0)), _real(c, 3, positions(c, ids, c.x(3))))
    if c.has(1):
        total = o.add(total, _real(c, 4, o.gather(c.x(4), c.x(1), 0)))
    gamma, beta = (_real(c, i, c.x(i)) for i in (5, 6))
    return o.layer_norm(total, gamma, beta, c.float("epsilon")), counted(c, ids)


def _real(c: Call, i: int, rows: Tensor) -> Tensor:
    """What integers of input i stand for."""
    scale, zero = (o.cast(o.reshape(c.x(k), ()), f32) for k in (i + 6, i + 11))
    return o.mul(o.sub(o.cast(rows, f32), zero), scale)
