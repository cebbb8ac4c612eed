"""Constants to compile the kernels of select, scan and index with."""

from __future__ import annotations

CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "arg_reduce": ((1, 256, 4, 1, 0), (32, 8, 1, 2, 3)),
    "sort_rows": ((64, 4, 0, 3), (2048, 1, 1, 4)),
    "sort_merge": ((0,), (3,)),
    "top_k": ((2048, 4, 1, 0), (1024, 1, 0, 1)),
    "top_k_rows": ((4, 1, 4, 1, 3), (4, 0, 1, 8, 1), (4, 2, 8, 0, 2)),
    "scan": ((1, 256, 0, 0, 0, 0), (32, 8, 1, 3, 1, 1)),
    "log_softmax": ((32, 3, 1, 0), (256, 0, 0, 1)),
    "log_softmax_axis": ((32, 0), (4, 1)),
    "gather_elements": ((),),
    "scatter_set": ((0,), (1,)),
    "scatter_reduce": ((0, 0), (1, 3)),
    "dynamic_slice": ((),),
    "dynamic_update": ((),),
}
