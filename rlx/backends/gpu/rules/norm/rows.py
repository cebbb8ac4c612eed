"""layer_norm and rms_norm: their kernel is printed from their row program."""

from __future__ import annotations

from rlx.backends.gpu.rules.rows import row_kernels

row_kernels("layer_norm rms_norm", "x gamma:W beta:W? -> y", stem="row_norm", short=True)
