"""The CPU backend: NumPy, with its own thread pool and direct calls of BLAS. It also runs the GPUs' host steps."""

from rlx.backends.cpu.arena import CpuArena as CpuArena
from rlx.backends.cpu.device import CpuBackend
from rlx.backends.cpu.device import CpuDevice as CpuDevice
from rlx.backends.cpu.executable import bind_node as bind_node

backend = CpuBackend()
