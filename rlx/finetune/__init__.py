"""Fine-tuning of loaded models: data files to examples, adapters or all weights, and the files that hold them."""

from rlx.finetune.run import finetune as finetune
from rlx.finetune.settings import Settings as Settings

__all__ = ["Settings", "finetune"]
