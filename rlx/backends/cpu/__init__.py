"""The CPU backend: NumPy, with a thread pool and a BLAS of its own. Also the GPUs' host fallback."""

from rlx.backends.cpu.arena import CpuArena as CpuArena
from rlx.backends.cpu.device import CpuBackend
from rlx.backends.cpu.device import CpuDevice as CpuDevice
from rlx.backends.cpu.executable import bind_node as bind_node

backend = CpuBackend()
