"""Fine-tuning of loaded models: data files to examples, adapters or all weights, and the files that hold them."""

from typing import TYPE_CHECKING

from rlx.finetune.run import finetune as finetune
from rlx.finetune.settings import Settings as Settings
from rlx.lazy import listed_in as _listed_in
from rlx.lazy import unknown_in as _unknown_in

__all__ = ["Settings", "finetune"]

if not TYPE_CHECKING:  # type checkers would then take any name
    __getattr__, __dir__ = _unknown_in(__name__), _listed_in(__name__)
