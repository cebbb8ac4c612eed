"""Activations and biases of com.microsoft, as ONNX Runtime's optimizer fuses them."""

from __future__ import annotations

from rlx import ops as o
from rlx.onnx.ops.elementwise import swish
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import FLOATS, declared


@declared("Gelu", inputs="X:T", outputs="Y:T", types={"T": FLOATS})
def gelu(c: Call) -> Result:
    return o.gelu(c.x())


@declared("BiasGelu", inputs="A:T B:T", outputs="C:T", types={"T": FLOATS})
def bias_gelu(c: Call) -> Result:
    _check_row(c, 1)
    return o.gelu(o.add(c.x(0), c.x(1)))


@declared("FastGelu", inputs="X:T bias:T?", outputs="Y:T", types={"T": FLOATS})
def fast_gelu(c: Call) -> Result:
    if not c.has(1):
        return o.gelu(c.x(), "tanh")
    _check_row(c, 1)
    return o.gelu(o.add(c.x(0), c.x(1)), "tanh")


@declared("QuickGelu", inputs="X:T", outputs="Y:T", types={"T": FLOATS}, attributes={"alpha": 1.702})
def quick_gelu(c: Call) -> Result:
    return swish(c)


@declared("BiasAdd", inputs="X:T bias:T skip:T", outputs="Y:T", types={"T": "float16 float"})
def bias_add(c: Call) -> Result:
    _check_row(c, 1)
    if c.x(0).shape != c.x(2).shape:
        raise c.bad(f"X is {c.x(0).shape}, skip {c.x(2).shape}; expected one shape")
    return o.add(o.add(c.x(0), c.x(1)), c.x(2))


@declared("BiasSplitGelu", inputs="X:T bias:T", outputs="Y:T", types={"T": "float16 float"})
def bias_split_gelu(c: Call) -> Result:
    """The first half of the last axis times the gelu of the second."""
    _check_row(c, 1)
    both = o.add(c.x(0), c.x(1))
    half, odd = divmod(both.shape[-1], 2)
    if odd:
        raise c.bad(f"X is {both.shape}; expected a last dimension that is even")
    return o.mul(both[..., :half], o.gelu(both[..., half:]))


def _check_row(c: Call, i: int) -> None:
    x, bias = c.x(0), c.x(i)
    if x.ndim == 0 or bias.shape != x.shape[-1:]:
        raise c.bad(f"the bias is {bias.shape}; expected the last dimension of {x.shape}")
