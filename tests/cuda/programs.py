"""What tests run on a CUDA device: an arena of one slot, a kernel that scales, steps recorded and run."""

from __future__ import annotations

from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.memory import CudaArena
from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.cuda.sources import Source
from rlx.backends.gpu.program.steps import FileKernel, Launch, Ref, Step
from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import f32

SCALE = FileKernel("test_scale")
SCALE_SOURCE = Source(
    "test_scale.cu",
    'extern "C" __global__ void test_scale(const float* x, float* y, unsigned n, float s) {'
    " unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * s; }",
    "test_scale",
    (256, 1, 1),
    BASE_OPTIONS,
    (),
)


def arena(device: CudaDevice, nbytes: int) -> CudaArena:
    """One slot a segment byte range is enough here: node 0 is the whole of arena0."""
    return CudaArena(MemoryPlan("bump", {0: Slot("arena0", 0, nbytes, f32)}, {"arena0": nbytes}), device)


def scaled(x: Ref, y: Ref, factor: float) -> Launch:
    n = x.nbytes // 4
    return Launch(SCALE, (-(-n // 256), 1, 1), (x, y, n, factor), (x,), (y,), "scale")


def run(device: CudaDevice, made: list[Step], memory: CudaArena, times: int = 1) -> None:
    recorded = device.record(made, memory)
    for _ in range(times):
        recorded.launch()
        recorded.wait()
    recorded.close()
