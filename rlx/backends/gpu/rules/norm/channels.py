"""Residual norms, group_norm and layer_norm_channels: their kernels are printed from their row programs."""

from __future__ import annotations

from rlx.backends.gpu.rules.rows import row_kernels

row_kernels("add_layer_norm add_rms_norm", "x residual gamma:W beta:W? -> s? y", stem="add_norm", early=1,
            attrs={"keep_sum": True})  # fmt: skip
row_kernels("group_norm", "x gamma:W beta:W -> y", channels=True)
row_kernels("layer_norm_channels", "x gamma:W beta:W -> y", stem="norm", along=False)
