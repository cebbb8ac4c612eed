"""Training: a loop whose steps are one program each, checkpoints, the record of the metrics and its picture."""

from rlx.train.loop import Metrics as Metrics
from rlx.train.loop import Training as Training
from rlx.train.loop import training as training

__all__ = ["Metrics", "Training", "training"]
