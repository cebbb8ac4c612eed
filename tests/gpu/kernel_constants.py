"""The constants with which tests compile each kernel."""

from __future__ import annotations

import importlib
from pathlib import Path

# Values of C0, C1, … to compile each kernel with; the kernel's own ranges of them stand in its body.
CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "reduce": ((1, 256, 0, 0, 0), (1, 64, 0, 1, 0), (32, 8, 1, 0, 3), (32, 8, 2, 0, 0), (32, 8, 3, 2, 0)),
    "softmax": ((32, 3, 1), (128, 8, 2), (256, 0, 0)),
    "softmax_axis": ((32,),),
    "row_norm": ((32, 3, 1, 0, 1), (128, 8, 2, 0, 1), (256, 0, 0, 1, 0)),
    "gather": ((),),
    "transpose": ((),),
    "transpose_pairs": ((),),
    "transpose_wide": ((),),
    "matmul_int": ((0, 1, 1),),
}
# Families with kernels of their own: constants_<family>.py beside this file.
for _path in sorted(Path(__file__).parent.glob("constants_*.py")):
    CONSTANTS.update(importlib.import_module(f"tests.gpu.{_path.stem}").CONSTANTS)
