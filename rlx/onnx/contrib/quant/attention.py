"""QAttention: com.microsoft's Attention of 8-bit inputs and weights; only its first product is in integers."""

from __future__ import annotations

from rlx import ops as o
from rlx.dtypes import f32, i32
from rlx.onnx.contrib.attention import answered, check_nothing
from rlx.onnx.contrib.quant.elementwise import one
from rlx.onnx.contrib.quant.matmul import per_column
from rlx.onnx.ops.quant import same_shape, shifted
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import declared


@declared(
    "QAttention",
    inputs="input:T1 weight:T2 bias:T3 input_scale:T3 weight_scale:T3 mask_index:T4? input_zero_point:T1? "
    "weight_zero_point:T2? past:T3?",
    outputs="output:T3 present:T3?",
    types={"T1": "int8 uint8", "T2": "int8 uint8", "T3": "float float16", "T4": "int32"},
    attributes={
        "do_rotary": int, "mask_filter_value": float, "num_heads": int, "past_present_share_buffer": int,
        "scale": float, "unidirectional": 0,
    },
    required="num_heads",
)  # fmt: skip
def qattention(c: Call) -> tuple[Result, ...]:
    check_nothing(c, {}, "do_rotary", "past_present_share_buffer")
    x, w, bias = c.x(0), c.x(1), c.x(2)
    fits = x.ndim == 3 and w.ndim == 2 and x.shape[2] == w.shape[0] and w.shape[1] % 3 == 0
    if not fits or bias.shape != w.shape[1:]:
        raise c.bad(
            f"the input is {x.shape}, weight {w.shape}, bias {bias.shape}; expected (batch, length, inner), "
            "(inner, 3 · size) and (3 · size,)"
        )
    steps = o.sub(o.cast(x, i32), o.cast(one(c, 6), i32)) if c.has(6) else o.cast(x, i32)
    whole = o.matmul(steps, shifted(c, 1, 7, False))
    scale = o.mul(o.cast(one(c, 3), f32), o.cast(per_column(c.x(4)), f32))
    real = same_shape(c, o.mul(o.cast(whole, f32), scale), whole)
    projected = o.add(o.cast(real, bias.dtype), bias)
    return answered(c, projected, [w.shape[1] // 3] * 3, c.opt(5), c.opt(8), None)
