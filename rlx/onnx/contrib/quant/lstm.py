"""DynamicQuantizeLSTM: an LSTM of 8-bit weights, which quantizes the input and each state before their products."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, i32
from rlx.ir import Tensor
from rlx.onnx.contrib.quant.matmul import quantized_bytes
from rlx.onnx.ops.quant import multiplied
from rlx.onnx.ops.recurrent import Product, lstm
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.declared import declared


@declared(
    "DynamicQuantizeLSTM",
    inputs="X:T W:T2 R:T2 B:T? sequence_lens:T1? initial_h:T? initial_c:T? P:T? W_scale:T W_zero_point:T2 R_scale:T "
    "R_zero_point:T2",
    outputs="Y:T? Y_h:T? Y_c:T?",
    types={"T": "float", "T1": "int32", "T2": "uint8 int8"},
    attributes={
        "activation_alpha": list[float], "activation_beta": list[float], "activations": list[str], "clip": float,
        "direction": "forward", "hidden_size": int, "input_forget": 0,
    },
)  # fmt: skip
def dynamic_quantize_lstm(c: Call) -> list[Result]:
    """The whole input has one scale, and each step's state has one for all its rows. ONNX Runtime takes a state's scale
    from the rows that one of its threads works on: with several threads and rows its results depend on their number."""
    if c.x(1).ndim != 3 or c.x(2).ndim != 3 or c.x(0).ndim != 3:
        raise c.bad(f"X {c.x(0).shape}, W {c.x(1).shape}, R {c.x(2).shape}; expected three dimensions each")
    weights = {i: _weights(c, i, 6 + 2 * i) for i in (1, 2)}
    for i in (1, 2):  # as LSTM has them: the gates first
        c.inputs[i] = Value(o.transpose(c.x(i), (0, 2, 1)), c.dtype(i))

    lengths = c.opt(4)

    def looked_at(x: Tensor) -> Tensor:
        """The input without the steps after the end of the longest sequence."""
        if lengths is None or x.size == 0:
            return x
        t = c.tensor(np.arange(x.shape[0], dtype=np.int32).reshape(-1, 1, 1))
        return o.where(o.less(t, o.max(lengths)), x, 0.0)

    def products(k: int) -> tuple[Product, Product]:
        return _product(c, weights[1], k, looked_at), _product(c, weights[2], k, lambda h: h)

    return lstm(c, products)


def _weights(c: Call, i: int, scale: int) -> tuple[Tensor, Tensor, Tensor]:
    """(directions, 4·hidden, rows) in 8 bits, (directions, 1 or 4·hidden) zero points and scales."""
    whole = o.transpose(c.x(i), (0, 2, 1))
    count, columns, _ = whole.shape
    for j in (scale, scale + 1):
        if c.x(j).shape not in ((count,), (count, columns)):
            raise c.bad(f"input {j} is {c.x(j).shape}; expected {(count,)} or {(count, columns)}")
    zero = o.reshape(o.cast(c.x(scale + 1), i32), (count, -1))
    return whole, zero, o.reshape(c.x(scale), (count, -1))


def _product(c: Call, weights: tuple[Tensor, Tensor, Tensor], k: int, looked_at: Product) -> Product:
    matrix, zero, scale = (w[k] for w in weights)
    # What the zero point of x takes from each sum is known before the first step, but for that number.
    whole = o.sum(o.sub(o.cast(matrix, i32), o.reshape(zero, (-1, 1))), axis=1)

    def product(x: Tensor) -> Tensor:
        if x.size == 0:
            return o.cast(o.matmul(o.cast(x, i32), o.transpose(o.cast(matrix, i32))), f32)
        q, below, step = quantized_bytes(c, x, looked_at(x))
        sums = o.sub(multiplied(c, q, matrix, (None, zero), True), o.mul(below, whole))
        return o.mul(o.cast(sums, f32), o.mul(step, scale))

    return product
