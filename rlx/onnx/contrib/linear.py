"""Products and convolutions of com.microsoft with the operators that ONNX Runtime's optimizer fuses into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.ops.conv import conv
from rlx.onnx.ops.linalg import gemm
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import FLOATS, declared

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": o.relu, "Tanh": o.tanh, "Sigmoid": o.sigmoid, "Silu": o.silu, "Softplus": o.softplus,
    "HardSwish": o.hard_swish, "Softsign": lambda x: o.div(x, o.add(o.abs(x), 1)),
}  # fmt: skip
# Parameters of the activations, with onnx's defaults.
_PARAMETERS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "LeakyRelu": (o.leaky_relu, (0.01,)),
    "Elu": (o.elu, (1.0,)),
    "Selu": (o.selu, (1.67326319217681884765625, 1.05070102214813232421875)),
    "HardSigmoid": (o.hard_sigmoid, (0.2, 0.5)),
    "ThresholdedRelu": (lambda x, alpha: o.where(o.greater(x, alpha), x, 0), (1.0,)),
    "Clip": (lambda x, low, high: o.clip(x, low, high), ()),
}


def _activated(c: Call, x: Tensor, numbers: Sequence[float | None]) -> Tensor:
    """The activation that the node names; None in `numbers` is a parameter that is left out."""
    name = c.str("activation", "")
    if not name:
        return x
    if name in _PLAIN:
        return _PLAIN[name](x)
    if name not in _PARAMETERS:
        raise c.unsupported(f"the activation {name!r} is not supported")
    function, defaults = _PARAMETERS[name]
    count = len(defaults) or 2
    parameters = [*numbers, *(None,) * count][:count]
    filled = [*(defaults[i] if v is None and defaults else v for i, v in enumerate(parameters))]
    if None in filled or any(v is not None for v in numbers[count:]):
        raise c.bad(f"{name} is given {list(numbers)}; expected {count} numbers")
    return function(x, *filled)


def _numbers(c: Call) -> list[float | None]:
    return [c.float("activation_alpha"), c.float("activation_beta")]


WINDOWS = {
    "auto_pad": "NOTSET",
    **dict.fromkeys(("kernel_shape", "dilations", "strides", "pads"), list[int]),
    "group": 1,
}
_TRANSPOSED = {"transA": 0, "transB": 0, "alpha": 1.0}
_BATCHED = {**_TRANSPOSED, "transBatchA": 0, "transBatchB": 0}
_ACTIVATION = {
    "activation": str,
    "activation_alpha": float,
    "activation_beta": float,
    "activation_gamma": float,
}


def _batch_first(c: Call, name: str, x: Tensor) -> Tensor:
    """(rows, batch …, columns) as (batch …, rows, columns), where the attribute says so."""
    if not c.int(name, 0):
        return x
    if x.ndim < 3:
        raise c.bad(f"{name} for {x.shape}; expected three dimensions or more")
    return o.transpose(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))


@declared("FusedMatMul", inputs="A:T B:T", outputs="Y:T", types={"T": FLOATS}, attributes=_BATCHED)
@declared("TransposeMatMul", inputs="A:T B:T", outputs="Y:T", types={"T": FLOATS}, attributes=_TRANSPOSED)
def fused_matmul(c: Call) -> Tensor:
    a, b = _batch_first(c, "transBatchA", c.x(0)), _batch_first(c, "transBatchB", c.x(1))
    alpha = c.float("alpha", 1.0)
    early = a.dtype.is_half and abs(alpha) < 1  # a product in f16 may overflow before it is scaled
    y = o.matmul(
        o.mul(a, alpha) if early else a,
        b,
        transpose_a=bool(c.int("transA")) and a.ndim > 1,
        transpose_b=bool(c.int("transB")) and b.ndim > 1,
    )
    return y if early or alpha == 1.0 else o.mul(y, alpha)


@declared(
    "FusedMatMulActivation",
    inputs="A:T B:T",
    outputs="Y:T",
    types={"T": FLOATS},
    attributes={**_BATCHED, **_ACTIVATION, "activation_axis": int},
    required="activation",
)
def fused_matmul_activation(c: Call) -> Result:
    return _activated(c, fused_matmul(c), _numbers(c))


@declared(
    "FusedGemm",
    inputs="A:T B:T C:T?",
    outputs="Y:T",
    types={"T": "float16 float double uint32 uint64 int32 int64"},
    attributes={**_TRANSPOSED, "beta": 1.0, **_ACTIVATION},
)
def fused_gemm(c: Call) -> Result:
    return _activated(c, gemm(c), _numbers(c))


@declared("GemmFastGelu", inputs="X:T W:T bias:T?", outputs="Y:T", types={"T": "float float16 bfloat16"})
def gemm_fast_gelu(c: Call) -> Result:
    return o.matmul(c.x(0), c.x(1), c.opt(2), activation="gelu_tanh")


@declared(
    "FusedConv",
    inputs="X:T W:T B:T? Z:T?",
    outputs="Y:T",
    types={"T": "float16 float double"},
    attributes={**WINDOWS, "activation": str, "activation_params": list[float]},
)
def fused_conv(c: Call) -> Result:
    """The activation of the convolution plus Z."""
    y, z = conv(c), c.opt(3)
    if z is not None:
        if z.shape != y.shape:
            raise c.bad(f"Z is {z.shape}; expected the result's {y.shape}")
        y = o.add(y, z)
    return _activated(c, y, c.floats("activation_params", []))
