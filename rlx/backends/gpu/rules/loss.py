"""cross_entropy and its gradient: their kernels are printed from their row programs."""

from __future__ import annotations

from rlx.backends.gpu.program.kernel import ints
from rlx.backends.gpu.rules.rows import row_kernels

row_kernels("cross_entropy", "x label:i32 -> loss:f32", ints("ignore_index"), short=True)
row_kernels("cross_entropy_grad", "d:f32 x label:i32 -> dx", ints("ignore_index"), short=True)
