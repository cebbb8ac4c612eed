"""Differentiation, in reverse and forward mode, over op records. It names no op but `expand`: ops may import it."""

from rlx.autodiff.gradients import gradients as gradients
from rlx.autodiff.pullback import pullback as pullback
from rlx.autodiff.pushforward import pushforward as pushforward
