"""The ops and their public functions, one module for each family.

Importing this package registers every op and gives Tensor its operators.
"""

from rlx.ops import operators as operators
from rlx.ops.attention import grad as _attention_grad  # noqa: F401  (registers the op)
from rlx.ops.attention.forward import attention as attention
from rlx.ops.composite import all as all
from rlx.ops.composite import any as any
from rlx.ops.composite import expand_dims as expand_dims
from rlx.ops.composite import flatten as flatten
from rlx.ops.composite import full_like as full_like
from rlx.ops.composite import linear as linear
from rlx.ops.composite import moveaxis as moveaxis
from rlx.ops.composite import normalize as normalize
from rlx.ops.composite import ones_like as ones_like
from rlx.ops.composite import permute_dims as permute_dims
from rlx.ops.composite import split as split
from rlx.ops.composite import square as square
from rlx.ops.composite import squeeze as squeeze
from rlx.ops.composite import stack as stack
from rlx.ops.composite import std as std
from rlx.ops.composite import swapaxes as swapaxes
from rlx.ops.composite import unsqueeze as unsqueeze
from rlx.ops.composite import var as var
from rlx.ops.composite import zeros_like as zeros_like
from rlx.ops.control import records as _control_records  # noqa: F401  (registers the ops)
from rlx.ops.control.functions import cond as cond
from rlx.ops.control.functions import scan as scan
from rlx.ops.control.functions import while_loop as while_loop
from rlx.ops.conv.convolution import conv as conv
from rlx.ops.conv.convolution import conv_transpose as conv_transpose
from rlx.ops.conv.im2col import im2col as im2col
from rlx.ops.cumulative import cumprod as cumprod
from rlx.ops.cumulative import cumsum as cumsum
from rlx.ops.elementwise import fused as fused
from rlx.ops.elementwise.activation import elu as elu
from rlx.ops.elementwise.activation import hard_sigmoid as hard_sigmoid
from rlx.ops.elementwise.activation import hard_swish as hard_swish
from rlx.ops.elementwise.activation import leaky_relu as leaky_relu
from rlx.ops.elementwise.activation import mish as mish
from rlx.ops.elementwise.activation import prelu as prelu
from rlx.ops.elementwise.activation import relu6 as relu6
from rlx.ops.elementwise.activation import selu as selu
from rlx.ops.elementwise.activation import softplus as softplus
from rlx.ops.elementwise.binary import add as add
from rlx.ops.elementwise.binary import div as div
from rlx.ops.elementwise.binary import equal as equal
from rlx.ops.elementwise.binary import greater as greater
from rlx.ops.elementwise.binary import greater_equal as greater_equal
from rlx.ops.elementwise.binary import less as less
from rlx.ops.elementwise.binary import less_equal as less_equal
from rlx.ops.elementwise.binary import logical_and as logical_and
from rlx.ops.elementwise.binary import logical_or as logical_or
from rlx.ops.elementwise.binary import logical_xor as logical_xor
from rlx.ops.elementwise.binary import maximum as maximum
from rlx.ops.elementwise.binary import minimum as minimum
from rlx.ops.elementwise.binary import mul as mul
from rlx.ops.elementwise.binary import not_equal as not_equal
from rlx.ops.elementwise.binary import pow as pow
from rlx.ops.elementwise.binary import sub as sub
from rlx.ops.elementwise.bits import bitwise_and as bitwise_and
from rlx.ops.elementwise.bits import bitwise_not as bitwise_not
from rlx.ops.elementwise.bits import bitwise_or as bitwise_or
from rlx.ops.elementwise.bits import bitwise_xor as bitwise_xor
from rlx.ops.elementwise.bits import left_shift as left_shift
from rlx.ops.elementwise.bits import right_shift as right_shift
from rlx.ops.elementwise.division import floor_divide as floor_divide
from rlx.ops.elementwise.division import fmod as fmod
from rlx.ops.elementwise.division import mod as mod
from rlx.ops.elementwise.division import remainder as remainder
from rlx.ops.elementwise.fake_quant import fake_quantize as fake_quantize
from rlx.ops.elementwise.powers import cbrt as cbrt
from rlx.ops.elementwise.powers import exp2 as exp2
from rlx.ops.elementwise.powers import expm1 as expm1
from rlx.ops.elementwise.powers import log1p as log1p
from rlx.ops.elementwise.powers import log2 as log2
from rlx.ops.elementwise.powers import log10 as log10
from rlx.ops.elementwise.powers import trunc as trunc
from rlx.ops.elementwise.predicates import isfinite as isfinite
from rlx.ops.elementwise.predicates import isinf as isinf
from rlx.ops.elementwise.predicates import isnan as isnan
from rlx.ops.elementwise.select import cast as cast
from rlx.ops.elementwise.select import clip as clip
from rlx.ops.elementwise.select import where as where
from rlx.ops.elementwise.trig import acos as acos
from rlx.ops.elementwise.trig import acosh as acosh
from rlx.ops.elementwise.trig import asin as asin
from rlx.ops.elementwise.trig import asinh as asinh
from rlx.ops.elementwise.trig import atan as atan
from rlx.ops.elementwise.trig import atan2 as atan2
from rlx.ops.elementwise.trig import atanh as atanh
from rlx.ops.elementwise.trig import cosh as cosh
from rlx.ops.elementwise.trig import sinh as sinh
from rlx.ops.elementwise.trig import tan as tan
from rlx.ops.elementwise.unary import abs as abs
from rlx.ops.elementwise.unary import ceil as ceil
from rlx.ops.elementwise.unary import copy as copy
from rlx.ops.elementwise.unary import cos as cos
from rlx.ops.elementwise.unary import erf as erf
from rlx.ops.elementwise.unary import exp as exp
from rlx.ops.elementwise.unary import floor as floor
from rlx.ops.elementwise.unary import gelu as gelu
from rlx.ops.elementwise.unary import log as log
from rlx.ops.elementwise.unary import logical_not as logical_not
from rlx.ops.elementwise.unary import neg as neg
from rlx.ops.elementwise.unary import reciprocal as reciprocal
from rlx.ops.elementwise.unary import relu as relu
from rlx.ops.elementwise.unary import round as round
from rlx.ops.elementwise.unary import rsqrt as rsqrt
from rlx.ops.elementwise.unary import sigmoid as sigmoid
from rlx.ops.elementwise.unary import sign as sign
from rlx.ops.elementwise.unary import silu as silu
from rlx.ops.elementwise.unary import sin as sin
from rlx.ops.elementwise.unary import sqrt as sqrt
from rlx.ops.elementwise.unary import tanh as tanh
from rlx.ops.grid_sample import grid_sample as grid_sample
from rlx.ops.grouped import grouped_matmul as grouped_matmul
from rlx.ops.grouped import lora_matmul as lora_matmul
from rlx.ops.index.dynamic import dynamic_slice as dynamic_slice
from rlx.ops.index.dynamic import dynamic_update_slice as dynamic_update_slice
from rlx.ops.index.gather import gather as gather
from rlx.ops.index.gather import gather_elements as gather_elements
from rlx.ops.index.gather import gather_nd as gather_nd
from rlx.ops.index.gather import one_hot as one_hot
from rlx.ops.index.gather import take_along_axis as take_along_axis
from rlx.ops.loss import cross_entropy as cross_entropy
from rlx.ops.matmul import matmul as matmul
from rlx.ops.movement.arrange import diagonal as diagonal
from rlx.ops.movement.arrange import flip as flip
from rlx.ops.movement.arrange import repeat as repeat
from rlx.ops.movement.arrange import roll as roll
from rlx.ops.movement.arrange import tile as tile
from rlx.ops.movement.arrange import tril as tril
from rlx.ops.movement.arrange import triu as triu
from rlx.ops.movement.strided import broadcast_to as broadcast_to
from rlx.ops.movement.strided import concat as concat
from rlx.ops.movement.strided import concatenate as concatenate
from rlx.ops.movement.strided import expand as expand
from rlx.ops.movement.strided import reshape as reshape
from rlx.ops.movement.strided import slice as slice
from rlx.ops.movement.strided import transpose as transpose
from rlx.ops.norm import grad as _norm_grad  # noqa: F401  (registers the ops)
from rlx.ops.norm.channels import batch_norm as batch_norm
from rlx.ops.norm.channels import group_norm as group_norm
from rlx.ops.norm.channels import layer_norm_channels as layer_norm_channels
from rlx.ops.norm.residual import add_layer_norm as add_layer_norm
from rlx.ops.norm.residual import add_rms_norm as add_rms_norm
from rlx.ops.norm.rows import layer_norm as layer_norm
from rlx.ops.norm.rows import rms_norm as rms_norm
from rlx.ops.order import argmax as argmax
from rlx.ops.order import argmin as argmin
from rlx.ops.order import argsort as argsort
from rlx.ops.order import sort as sort
from rlx.ops.order import top_k as top_k
from rlx.ops.pad import pad as pad
from rlx.ops.pool import avg_pool as avg_pool
from rlx.ops.pool import global_avg_pool as global_avg_pool
from rlx.ops.pool import global_max_pool as global_max_pool
from rlx.ops.pool import max_pool as max_pool
from rlx.ops.pool import max_pool_grad as max_pool_grad
from rlx.ops.random import bits as _random_bits  # noqa: F401  (registers the ops)
from rlx.ops.random.sample import sample as sample
from rlx.ops.reduce import max as max
from rlx.ops.reduce import mean as mean
from rlx.ops.reduce import min as min
from rlx.ops.reduce import prod as prod
from rlx.ops.reduce import sum as sum
from rlx.ops.resize import resize as resize
from rlx.ops.resize import upsample2x as upsample2x
from rlx.ops.rope.rotate import axial_rope as axial_rope
from rlx.ops.rope.rotate import rope as rope
from rlx.ops.rope.table import axial_rope_table as axial_rope_table
from rlx.ops.rope.table import rope_scaling as rope_scaling
from rlx.ops.rope.table import rope_table as rope_table
from rlx.ops.scatter import put_along_axis as put_along_axis
from rlx.ops.scatter import scatter as scatter
from rlx.ops.scatter import scatter_add as scatter_add
from rlx.ops.scatter import scatter_elements as scatter_elements
from rlx.ops.scatter import scatter_nd as scatter_nd
from rlx.ops.scatter import segment_sum as segment_sum
from rlx.ops.softmax import log_softmax as log_softmax
from rlx.ops.softmax import logsumexp as logsumexp
from rlx.ops.softmax import softmax as softmax

__all__ = [  # without the modules, which `from rlx.ops import *` would import too
    "abs",
    "acos",
    "acosh",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "attention",
    "avg_pool",
    "axial_rope",
    "axial_rope_table",
    "batch_norm",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "cast",
    "cbrt",
    "ceil",
    "clip",
    "concat",
    "concatenate",
    "cond",
    "conv",
    "conv_transpose",
    "copy",
    "cos",
    "cosh",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "diagonal",
    "div",
    "dynamic_slice",
    "dynamic_update_slice",
    "elu",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand",
    "expand_dims",
    "expm1",
    "fake_quantize",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "fmod",
    "full_like",
    "gather",
    "gather_elements",
    "gather_nd",
    "gelu",
    "global_avg_pool",
    "global_max_pool",
    "greater",
    "greater_equal",
    "grid_sample",
    "group_norm",
    "grouped_matmul",
    "hard_sigmoid",
    "hard_swish",
    "im2col",
    "isfinite",
    "isinf",
    "isnan",
    "layer_norm",
    "layer_norm_channels",
    "leaky_relu",
    "left_shift",
    "less",
    "less_equal",
    "linear",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "lora_matmul",
    "matmul",
    "max",
    "max_pool",
    "max_pool_grad",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "moveaxis",
    "mul",
    "neg",
    "normalize",
    "not_equal",
    "one_hot",
    "ones_like",
    "pad",
    "permute_dims",
    "pow",
    "prelu",
    "prod",
    "put_along_axis",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "repeat",
    "reshape",
    "resize",
    "right_shift",
    "rms_norm",
    "roll",
    "rope",
    "rope_scaling",
    "rope_table",
    "round",
    "rsqrt",
    "sample",
    "scan",
    "scatter",
    "scatter_add",
    "scatter_elements",
    "scatter_nd",
    "segment_sum",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "slice",
    "softmax",
    "softplus",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "take_along_axis",
    "tan",
    "tanh",
    "tile",
    "top_k",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unsqueeze",
    "upsample2x",
    "var",
    "where",
    "while_loop",
    "zeros_like",
]  # fmt: skip
