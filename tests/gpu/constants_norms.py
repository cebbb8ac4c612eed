"""Constants of the kernels of norms, rope, cross-entropy and the backward passes."""

from __future__ import annotations

CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "group_norm": ((32, 3, 1, 1), (256, 0, 0, 0)),
    "norm_axis": ((32,),),
    "add_norm": ((32, 3, 1, 0, 1, 1), (256, 0, 0, 1, 0, 0)),
    "rope": ((1, 0, 0, 0), (1, 1, 3, 1), (0, 1, 2, 0)),
    "norm_grad": ((32, 3, 1, 0, 2), (256, 0, 0, 1, 0), (64, 2, 1, 0, 1)),
    "norm_columns": ((32, 8, 1), (1, 256, 0)),
    "softmax_grad": ((32, 3, 1), (256, 0, 0)),
    "softmax_grad_axis": ((32,),),
    "cross_entropy": ((32, 3, 1), (256, 0, 0)),
    "cross_entropy_grad": ((32, 3, 1), (256, 0, 0)),
}
