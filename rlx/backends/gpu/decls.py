"""The table of file kernels: what each takes, which pointers it reads and writes, which variants there are.

Tests hold both sources of every kernel against it.
"""

from __future__ import annotations

import importlib
import pkgutil

import rlx.backends.gpu
from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

_FLOATS = ("f32", "f16", "bf16")


def _read(*names: str) -> tuple[ArgDecl, ...]:
    return tuple(ArgDecl(name, "ptr", "r") for name in names)


def _write(*names: str) -> tuple[ArgDecl, ...]:
    return tuple(ArgDecl(name, "ptr", "w") for name in names)


def _u32(*names: str) -> tuple[ArgDecl, ...]:
    return tuple(ArgDecl(name, "u32") for name in names)


def _f32(*names: str) -> tuple[ArgDecl, ...]:
    return tuple(ArgDecl(name, "f32") for name in names)


REDUCE = declare(
    KernelDecl(
        "reduce",
        _read("x") + _write("y") + _u32("outer", "n", "inner", "chunk", "splits") + _f32("divisor"),
        defines=(
            (
                "IO",
                (
                    "f32_f32", "f64_f64", "f16_f32", "bf16_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16",
                    "i32_i32", "i64_i64",
                ),
            ),
        ),
    )
)  # fmt: skip
SOFTMAX = declare(
    KernelDecl("softmax", _read("x") + _write("y") + _u32("rows", "n"), defines=(("T", _FLOATS),))
)
SOFTMAX_AXIS = declare(
    KernelDecl(
        "softmax_axis", _read("x") + _write("y") + _u32("outer", "n", "inner"), defines=(("T", _FLOATS),)
    )
)
ROW_NORM = declare(
    KernelDecl(
        "row_norm",
        _read("x", "gamma", "beta") + _write("y") + _u32("rows", "n") + _f32("eps"),
        defines=(("T", _FLOATS), ("W", _FLOATS)),
    )
)
GATHER = declare(
    KernelDecl(
        "gather",
        _read("x", "index") + _write("y") + _u32("total", "m", "axis", "trail"),
        defines=(("U", ("b1", "b2", "b4", "b8", "b16")), ("I", ("i32", "i64"))),
    )
)
TRANSPOSE = declare(
    KernelDecl(
        "transpose",
        _read("x") + _write("y") + _u32("tiles", "rows", "cols", "pitch", "batch"),
        defines=(("U", ("b1", "b2", "b4", "b8")),),
    )
)
TRANSPOSE_PAIRS = declare(
    KernelDecl("transpose_pairs", _read("x") + _write("y") + _u32("tiles", "rows", "cols", "pitch", "batch"))
)
TRANSPOSE_WIDE = declare(
    KernelDecl(
        "transpose_wide",
        _read("x") + _write("y") + _u32("tiles", "rows", "cols", "pitch", "batch"),
        defines=(("U", ("b2", "b4")),),
    )
)
_PLACES = ("d1", "d2", "a0", "a1", "a2", "b0", "b1", "b2")
_PAIRS = ("AB", ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16"))
MATMUL = declare(
    KernelDecl(
        "matmul",
        _read("a", "b", "bias") + _write("c") + _u32("m", "n", "k", "batch", "parts", *_PLACES, "bias_step"),
        defines=(_PAIRS, ("TILE", ("s", "t", "w", "l"))),
    )
)
_WHOLE = _read("a", "b", "bias") + _write("c") + _u32("m", "n", "k", "batch", *_PLACES)
MATMUL_ROWS = declare(
    KernelDecl("matmul_rows", _WHOLE + _u32("bias_step"), defines=(_PAIRS, ("ROWS", ("1", "4", "8", "16"))))
)
MATMUL_INT = declare(KernelDecl("matmul_int", _WHOLE, defines=(("T", ("i32", "i64", "f64")),)))

# Families with tables of their own: decls_<family>.py beside this file.
for _module in pkgutil.iter_modules(rlx.backends.gpu.__path__):
    if _module.name.startswith("decls_"):
        importlib.import_module(f"rlx.backends.gpu.{_module.name}")
