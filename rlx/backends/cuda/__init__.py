"""NVIDIA GPUs: CuPy for memory and launches, NVRTC for the kernels, cuBLAS for products, one CUDA graph a run.

Importing this loads no GPU library; probing or opening a device does.
"""

from rlx.backends.cuda.device import CudaBackend
from rlx.driver import Backend

backend: Backend = CudaBackend()
