"""Reverse-mode differentiation over op records. It needs no op by name but `expand`, so the ops may use it too."""

from rlx.autodiff.gradients import gradients as gradients
from rlx.autodiff.pullback import pullback as pullback
