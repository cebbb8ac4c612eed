"""PyTorch modules as rlx functions, read from the ATen graph that `torch.export` writes."""

from rlx.aten.module import TorchModule as TorchModule
from rlx.aten.module import from_torch as from_torch

__all__ = ["TorchModule", "from_torch"]
