"""The CUDA backend: CuPy for memory and launches, NVRTC for kernels, cuBLAS for GEMMs, and recorded CUDA graphs.

Importing this loads no GPU library; probing or opening a device does.
"""

from rlx.backends.cuda.device import CudaBackend
from rlx.driver import Backend

backend: Backend = CudaBackend()
