"""The ops and their public functions, one module or folder for each family.

Importing this package registers every op and gives Tensor its operators. A module's `__all__` lists its public
functions, which are `rlx.ops.<name>` and `rlx.<name>`.
"""

import importlib
from types import FunctionType
from typing import TYPE_CHECKING, Any

from rlx.ops import operators as operators
from rlx.ops import packed_int8 as _packed_int8  # noqa: F401  (registers the ops)
from rlx.ops.attention import grad as _attention_grad  # noqa: F401  (registers the op)
from rlx.ops.attention.forward import *
from rlx.ops.attention.step import *
from rlx.ops.complex_numbers import *
from rlx.ops.composed import LATER as LATER
from rlx.ops.composed import PLAIN as _PLAIN
from rlx.ops.composite import *
from rlx.ops.control import records as _control_records  # noqa: F401  (registers the ops)
from rlx.ops.control.functions import *
from rlx.ops.conv.convolution import *
from rlx.ops.conv.im2col import *
from rlx.ops.conv.integer import *
from rlx.ops.creation import *
from rlx.ops.cumulative import *
from rlx.ops.einsum import *
from rlx.ops.elementwise import fused as _fused  # noqa: F401  (registers the op)
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
from rlx.ops.fft import transform as _fft_transform  # noqa: F401  (registers the ops)
from rlx.ops.grid_sample import *
from rlx.ops.grouped import *
from rlx.ops.index.dynamic import *
from rlx.ops.index.gather import *
from rlx.ops.integer_matmul import *
from rlx.ops.linalg import lapack as _linalg_lapack  # noqa: F401  (registers the ops)
from rlx.ops.loops import *
from rlx.ops.loss.cross_entropy import *
from rlx.ops.loss.pointwise import *
from rlx.ops.matmul import *
from rlx.ops.movement.arrange import *
from rlx.ops.movement.strided import *
from rlx.ops.norm import grad as _norm_grad  # noqa: F401  (registers the ops)
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
from rlx.ops.public import make_public as _make_public
from rlx.ops.public import public as _public
from rlx.ops.quantized import *
from rlx.ops.random import bits as _random_bits  # noqa: F401  (registers the ops)
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
from rlx.ops.signal import blocks as _signal_blocks  # noqa: F401  (registers the op)
from rlx.ops.signal import frames as _signal_frames  # noqa: F401  (registers the ops)
from rlx.ops.signal import peaks as _signal_peaks  # noqa: F401  (registers the op)
from rlx.ops.signal import power as _signal_power  # noqa: F401  (registers the op)
from rlx.ops.signal import transforms as _signal_transforms  # noqa: F401  (registers the op)
from rlx.ops.softmax import *
from rlx.ops.splats import blend as _splats_blend  # noqa: F401  (registers the ops)
from rlx.ops.splats import tiles as _splats_tiles  # noqa: F401  (registers the op)

if TYPE_CHECKING:
    from rlx.ops.composed.aliases import *
    from rlx.ops.composed.arranging import *
    from rlx.ops.composed.products import *
    from rlx.ops.composed.selecting import *
    from rlx.ops.composed.statistics import *
    from rlx.ops.composed.types import *
else:
    # The functions alone: `from rlx.ops import *` would otherwise import the modules too.
    __all__ = sorted(
        name for name, value in globals().items() if isinstance(value, FunctionType) and not name.startswith("_")
    )
    _make_public(globals(), __all__)

    def __getattr__(name: str) -> Any:
        """A function of `rlx.ops.composed`, made public when it is first used."""
        if name not in LATER:
            raise AttributeError(f"module 'rlx.ops' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"rlx.ops.composed.{LATER[name]}"), name)
        value = value if LATER[name] == _PLAIN else _public(__name__, name, value)
        return globals().setdefault(name, value)

    for _name in operators.METHODS:
        setattr(operators.Tensor, _name, globals()[_name])
    for _name in operators.LATER_METHODS:
        setattr(operators.Tensor, _name, operators.later(_name))
