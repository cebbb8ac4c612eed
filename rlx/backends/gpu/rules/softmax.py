"""softmax, its gradient, log_softmax and logsumexp: their kernels are printed from their row programs."""

from __future__ import annotations

from rlx.backends.gpu.rules.rows import row_kernels

row_kernels("softmax", "x -> y", short=True)
row_kernels("softmax_grad", "d y -> dx", functions=False)
row_kernels("log_softmax", "x -> y")
row_kernels("logsumexp", "x -> y")
