"""Values of C0, C1, … that the image family's kernels are compiled with."""

from __future__ import annotations

import rlx.backends.gpu.decls_image  # noqa: F401 - declares the kernels

CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "conv": ((64, 64, 0, 1, 1, 1, 1), (128, 128, 1, 0, 0, 0, 0)),
    "conv_direct": ((0, 1, 2), (1, 0, 0)),
    "conv_weight": ((64, 128), (128, 64)),
    "conv_weight_direct": ((),),
    "im2col": ((),),
    "pool": ((0, 0), (1, 1), (2, 0)),
    "pool_back": ((),),
    "resize": ((1, 2, 2), (4, 4, 1)),
    "grid_sample": ((0, 0, 0, 3), (1, 1, 1, 2), (2, 2, 0, 2)),
}
