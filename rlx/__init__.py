"""rlx: one tensor program, any device, the same answer.

Try functions on an `array`, which computes at once; build a graph of them (a function under `jit`, or `Graph`), which
a `Session` compiles and runs on NumPy arrays. `devices()` lists the devices of this machine; `models.load` reads a
model folder, `onnx.load` an ONNX model. Submodules load when first used.
"""

# First, since Ctrl-C may come while the others load.
from rlx import interrupted as _interrupted  # noqa: F401 # isort: skip
from typing import TYPE_CHECKING, Any

from rlx import errors as errors
from rlx import lazy as _lazy
from rlx import ops as ops
from rlx.dtypes import bf16 as bf16
from rlx.dtypes import bool_ as bool_
from rlx.dtypes import f16 as f16
from rlx.dtypes import f32 as f32
from rlx.dtypes import f64 as f64
from rlx.dtypes import i8 as i8
from rlx.dtypes import i16 as i16
from rlx.dtypes import i32 as i32
from rlx.dtypes import i64 as i64
from rlx.dtypes import u8 as u8
from rlx.dtypes import u16 as u16
from rlx.dtypes import u32 as u32
from rlx.dtypes import u64 as u64
from rlx.errors import RlxError as RlxError
from rlx.ir import Graph as Graph
from rlx.ir import Tensor as Tensor

if TYPE_CHECKING:
    from rlx import bulk as bulk
    from rlx import conformance as conformance
    from rlx import fft as fft
    from rlx import formats as formats
    from rlx import linalg as linalg
    from rlx import models as models
    from rlx import nn as nn
    from rlx import onnx as onnx
    from rlx import optim as optim
    from rlx import random as random
    from rlx import signal as signal
    from rlx import splats as splats
    from rlx import tree as tree
    from rlx.aten import from_torch as from_torch
    from rlx.autodiff import gradients as gradients
    from rlx.driver.registry import devices as devices
    from rlx.ops import *
    from rlx.ops.complex_numbers import Complex as Complex
    from rlx.packed import PackedArray as PackedArray
    from rlx.ranks import Mesh as Mesh
    from rlx.runtime import Array as Array
    from rlx.runtime import CompiledGraph as CompiledGraph
    from rlx.runtime import P as P
    from rlx.runtime import PartitionSpec as PartitionSpec
    from rlx.runtime import Session as Session
    from rlx.runtime import State as State
    from rlx.runtime import Weights as Weights
    from rlx.runtime import array as array
    from rlx.runtime import array as asarray
    from rlx.runtime import checkpoint as checkpoint
    from rlx.runtime import custom_jvp as custom_jvp
    from rlx.runtime import custom_op as custom_op
    from rlx.runtime import custom_vjp as custom_vjp
    from rlx.runtime import eval_shape as eval_shape
    from rlx.runtime import from_dlpack as from_dlpack
    from rlx.runtime import grad as grad
    from rlx.runtime import hessian as hessian
    from rlx.runtime import hvp as hvp
    from rlx.runtime import jacfwd as jacfwd
    from rlx.runtime import jacrev as jacrev
    from rlx.runtime import jit as jit
    from rlx.runtime import jvp as jvp
    from rlx.runtime import linearize as linearize
    from rlx.runtime import shard_map as shard_map
    from rlx.runtime import value_and_grad as value_and_grad
    from rlx.runtime import vjp as vjp
    from rlx.runtime import vmap as vmap
    from rlx.runtime.dims import Dim as Dim
    from rlx.runtime.quantize import quantize as quantize
    from rlx.runtime.saved.load import load_program as load_program
    from rlx.runtime.version import VERSION as __version__  # noqa: F401 - a public name
    from rlx.train import training as training

# NumPy's names of dtypes.
_DTYPES = {
    "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_MODULES = (
    "bulk", "conformance", "fft", "formats", "linalg", "models", "nn", "onnx", "optim", "random", "signal", "splats",
    "tree",
)  # fmt: skip
_PLACES = {
    "Complex": "rlx.ops.complex_numbers",
    "Dim": "rlx.runtime.dims",
    "Mesh": "rlx.ranks",
    "PackedArray": "rlx.packed",
    "__version__": "rlx.runtime.version:VERSION",
    "asarray": "rlx.runtime:array",
    "devices": "rlx.driver.registry",
    "from_torch": "rlx.aten",
    "gradients": "rlx.autodiff",
    "load_program": "rlx.runtime.saved.load",
    "quantize": "rlx.runtime.quantize",
    "training": "rlx.train",
    **dict.fromkeys(
        ("Array", "CompiledGraph", "P", "PartitionSpec",
         "Session", "State", "Weights", "array", "checkpoint", "custom_jvp", "custom_op",
         "custom_vjp", "eval_shape", "from_dlpack", "grad", "hessian", "hvp", "jacfwd", "jacrev", "jit", "jvp",
         "linearize", "shard_map", "value_and_grad", "vjp", "vmap"), "rlx.runtime",
    ),
    **dict.fromkeys((*ops.FUNCTIONS, *ops.LATER), "rlx.ops"),
    **{name: f"rlx.dtypes:{own}" for name, own in _DTYPES.items()},
    **{name: f"rlx.{name}:." for name in _MODULES},
}  # fmt: skip
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = [  # what `help` shows; the modules stay out, since `from rlx import *` would load them
        "Array", "CompiledGraph", "Dim", "Graph", "Mesh", "P", "PackedArray",
        "PartitionSpec", "RlxError", "Session", "State", "Tensor", "Weights",
        "Complex", "array", "asarray", "bf16", "bool_", "checkpoint", "custom_jvp", "custom_op", "custom_vjp",
        "devices", "errors", "eval_shape", "f16", "f32", "f64", "from_dlpack", "from_torch", "grad", "gradients",
        "hessian", "hvp", "i8", "i16", "i32", "i64", "jacfwd", "jacrev", "jit", "jvp", "linearize", "quantize",
        "shard_map", "training", "u8", "u16", "u32", "u64", "value_and_grad", "vjp", "vmap", *ops.FUNCTIONS, *ops.LATER,
    ]  # fmt: skip


def _compute(*call: Any) -> Any:
    """Computes a call outside a trace, by what the first one loads."""
    from rlx.runtime.eager import compute  # it takes the place of this function

    return compute(*call)


ops.public.Outside.compute = _compute
_lazy.by_need(__name__, _PLACES)
