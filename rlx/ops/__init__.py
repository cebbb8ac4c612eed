"""The ops and their public functions, one module or folder for each family.

A module's `__all__` lists its public functions, which are `rlx.ops.<name>` and `rlx.<name>`. It is imported when one of
them, or one of the ops that it registers, is first used: `places.py` says which module has what.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlx.host.other_attributes import explain as _explain
from rlx.ir.graph import Tensor as _Tensor
from rlx.ir.op import HOST as _HOST
from rlx.ir.op import REGISTRY as _REGISTRY
from rlx.lazy import attach_later as _attach_later
from rlx.lazy import by_need as _by_need
from rlx.ops.composed import LATER as LATER
from rlx.ops.composed import PLAIN as _PLAIN
from rlx.ops.places import FUNCTIONS as FUNCTIONS
from rlx.ops.places import LATER_METHODS as _LATER_METHODS
from rlx.ops.places import METHODS as _METHODS
from rlx.ops.places import OPERATORS as _OPERATORS
from rlx.ops.places import OPS as _OPS
from rlx.ops.public import public as _public

if TYPE_CHECKING:
    from rlx.ops.attention.forward import *
    from rlx.ops.attention.step import *
    from rlx.ops.attention.update import *
    from rlx.ops.collectives.functions import *
    from rlx.ops.complex_numbers import *
    from rlx.ops.composed.aliases import *
    from rlx.ops.composed.arranging import *
    from rlx.ops.composed.products import *
    from rlx.ops.composed.selecting import *
    from rlx.ops.composed.statistics import *
    from rlx.ops.composed.types import *
    from rlx.ops.composite import *
    from rlx.ops.control.functions import *
    from rlx.ops.conv.convolution import *
    from rlx.ops.conv.im2col import *
    from rlx.ops.conv.integer import *
    from rlx.ops.creation import *
    from rlx.ops.cumulative import *
    from rlx.ops.einsum import *
    from rlx.ops.elementwise.activation import *
    from rlx.ops.elementwise.binary import *
    from rlx.ops.elementwise.bits import *
    from rlx.ops.elementwise.division import *
    from rlx.ops.elementwise.fake_quant import *
    from rlx.ops.elementwise.floats import *
    from rlx.ops.elementwise.powers import *
    from rlx.ops.elementwise.predicates import *
    from rlx.ops.elementwise.select import *
    from rlx.ops.elementwise.special_functions import *
    from rlx.ops.elementwise.trig import *
    from rlx.ops.elementwise.unary import *
    from rlx.ops.grid_sample import *
    from rlx.ops.grouped import *
    from rlx.ops.index.dynamic import *
    from rlx.ops.index.gather import *
    from rlx.ops.integer_matmul import *
    from rlx.ops.loops import *
    from rlx.ops.loss.cross_entropy import *
    from rlx.ops.loss.pointwise import *
    from rlx.ops.matmul import *
    from rlx.ops.movement.arrange import *
    from rlx.ops.movement.strided import *
    from rlx.ops.norm.channels import *
    from rlx.ops.norm.residual import *
    from rlx.ops.norm.rows import *
    from rlx.ops.normed_linear import *
    from rlx.ops.order import *
    from rlx.ops.packed_attention import *
    from rlx.ops.packed_linear import *
    from rlx.ops.pad import *
    from rlx.ops.paged_attention import *
    from rlx.ops.pool import *
    from rlx.ops.quantized import *
    from rlx.ops.random.sample import *
    from rlx.ops.recurrent import *
    from rlx.ops.reduce import *
    from rlx.ops.resize import *
    from rlx.ops.rope.rotate import *
    from rlx.ops.rope.table import *
    from rlx.ops.scans.conv import *
    from rlx.ops.scans.delta import *
    from rlx.ops.scans.selective import *
    from rlx.ops.scatter import *
    from rlx.ops.softmax import *
else:
    __all__ = sorted(FUNCTIONS)

    def _made(name: str, value: Any) -> Any:
        return value if LATER.get(name) == _PLAIN else _public(__name__, name, value)

    def _attach(name: str) -> None:
        setattr(_Tensor, name, getattr(import_module(__name__), name))

    _by_need(__name__, {**FUNCTIONS, **{name: f"rlx.ops.composed.{module}" for name, module in LATER.items()}}, _made)
    _attach_later(_Tensor, (*_METHODS, *_LATER_METHODS), _attach)
    _attach_later(_Tensor, _OPERATORS, lambda name: import_module("rlx.ops.operators"))
    _explain(_Tensor)
    _REGISTRY.places = _HOST.places = _OPS
