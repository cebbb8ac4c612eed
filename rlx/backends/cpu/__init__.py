"""The CPU backend: an engine of kernels written as LLVM IR, and `host`, the NumPy kernels behind it, which are also the
GPUs' host steps. `step` has the registry of the engine's binders, `host.kernels` that of NumPy's."""

from typing import TYPE_CHECKING

from rlx.backends.cpu.arena import CpuArena as CpuArena
from rlx.backends.cpu.device import CpuBackend
from rlx.backends.cpu.device import CpuDevice as CpuDevice
from rlx.lazy import by_need as _by_need

if TYPE_CHECKING:
    from rlx.backends.cpu.executable import bind_node as bind_node

backend = CpuBackend()
_by_need(__name__, {"bind_node": "rlx.backends.cpu.executable"})
