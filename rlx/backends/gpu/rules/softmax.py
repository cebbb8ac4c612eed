"""softmax and its gradient; the kernels of log_softmax and logsumexp need no line."""

from __future__ import annotations

from rlx.backends.gpu.rules.rows import row_kernels

row_kernels("softmax", short=True)
row_kernels("softmax_grad", "d y -> dx", functions=False)
