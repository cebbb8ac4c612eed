"""The runtime: sessions, compiled graphs, stores of weights and state, jit, calls outside a trace."""

from typing import TYPE_CHECKING

from rlx.lazy import by_need as _by_need

if TYPE_CHECKING:
    from rlx.runtime.array import Array as Array
    from rlx.runtime.array import array as array
    from rlx.runtime.checkpoint import checkpoint as checkpoint
    from rlx.runtime.compiled import CompiledGraph as CompiledGraph
    from rlx.runtime.custom import custom_op as custom_op
    from rlx.runtime.custom_rules import custom_jvp as custom_jvp
    from rlx.runtime.custom_rules import custom_vjp as custom_vjp
    from rlx.runtime.exchange import from_dlpack as from_dlpack
    from rlx.runtime.jit import grad as grad
    from rlx.runtime.jit import jit as jit
    from rlx.runtime.jit import value_and_grad as value_and_grad
    from rlx.runtime.session import Session as Session
    from rlx.runtime.shard_map import P as P
    from rlx.runtime.shard_map import PartitionSpec as PartitionSpec
    from rlx.runtime.shard_map import shard_map as shard_map
    from rlx.runtime.store import State as State
    from rlx.runtime.store import Store as Store
    from rlx.runtime.store import Weights as Weights
    from rlx.runtime.transforms import eval_shape as eval_shape
    from rlx.runtime.transforms import hessian as hessian
    from rlx.runtime.transforms import hvp as hvp
    from rlx.runtime.transforms import jacfwd as jacfwd
    from rlx.runtime.transforms import jacrev as jacrev
    from rlx.runtime.transforms import jvp as jvp
    from rlx.runtime.transforms import linearize as linearize
    from rlx.runtime.transforms import vjp as vjp
    from rlx.runtime.transforms import vmap as vmap

_NAMES = {
    "array": "Array array",
    "checkpoint": "checkpoint",
    "compiled": "CompiledGraph",
    "custom": "custom_op",
    "custom_rules": "custom_jvp custom_vjp",
    "exchange": "from_dlpack",
    "jit": "grad jit value_and_grad",
    "session": "Session",
    "shard_map": "P PartitionSpec shard_map",
    "store": "State Store Weights",
    "transforms": "eval_shape hessian hvp jacfwd jacrev jvp linearize vjp vmap",
}
_by_need(__name__, {name: f"rlx.runtime.{module}" for module, names in _NAMES.items() for name in names.split()})
