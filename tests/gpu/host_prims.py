"""prims.h compiled by the host's C++ compiler, as NumPy functions; and distances in units of the last place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.gpu.host_library import library

F32 = npt.NDArray[np.float32]
UNARY = (
    *(
        "neg",
        "abs",
        "sign",
        "sqrt",
        "rsqrt",
        "recip",
        "exp",
        "expm1",
        "log",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
    ),
    *("acos", "atan", "sinh", "cosh", "tanh", "erf", "floor", "ceil", "round", "trunc"),
    *("exp2", "log2", "log10", "cbrt", "asinh", "acosh", "atanh"),
)
SHORT = ("exp", "tanh", "one_plus_erf", "gelu", "recip")
BINARY = ["add", "sub", "mul", "div", "pow", "max", "min", "mod", "fmod", "floordiv", "atan2"]
INT_UNARY = ["neg", "abs", "sign", "not"]
INT_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "fmod",
    "mod",
    "floordiv",
    "pow",
    "max",
    "min",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
]
CASTS = {
    "f_i": ("float", "int"),
    "f_l": ("float", "rlx_i64"),
    "f_u8": ("float", "int"),
    "f_i8": ("float", "int"),
}


# After `flush(1)` an x86 processor treats subnormals as zeros. The instructions are written out here, since the system
# header for them takes longer to compile than all functions.
MODES = """
static int rlx_flushes;
extern "C" void flush(int on) { rlx_flushes = on; }
#ifdef __x86_64__
extern "C" unsigned rlx_begin() {
    const unsigned mode = __builtin_ia32_stmxcsr();
    if (rlx_flushes) __builtin_ia32_ldmxcsr(mode | 0x8040);
    return mode;
}
extern "C" void rlx_end(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#else
extern "C" unsigned rlx_begin() { return 0; }
extern "C" void rlx_end(unsigned) {}
#endif
"""


def _source(exact: bool, fused: bool) -> str:
    lines = [MODES, '#include "prelude_host.h"', "static inline float sqrt(float x) { return __builtin_sqrtf(x); }"]
    lines += ["#define RLX_EXACT_DIV 1"] if exact else []
    if exact or fused:
        lines += ["#define RLX_EXACT_FMA(a, b, c) __builtin_fmaf(a, b, c)"]
        lines += ["#undef RLX_MAD", "#define RLX_MAD(a, b, c) __builtin_fmaf(a, b, c)"]
    lines.append('#include "prims.h"')

    def loop(name: str, call: str, ins: list[str], out: str) -> str:
        args = ", ".join(f"const {t}* x{i}" for i, t in enumerate(ins))
        values = ", ".join(f"x{i}[k]" for i in range(len(ins)))
        return (f'extern "C" void v_{name}({args}, {out}* y, long n) '
                "{ const unsigned mode = rlx_begin(); "
                f"for (long k = 0; k < n; ++k) y[k] = {call}({values}); rlx_end(mode); }}")  # fmt: skip

    lines += [loop(f"{p}_f", f"p_{p}_f", ["float"], "float") for p in UNARY]
    lines += [loop(f"{p}_h", f"p_{p}_h", ["float"], "float") for p in SHORT]
    lines += [loop(f"{p}_h", f"p_{p}_h", ["float"] * 2, "float") for p in ("div", "logistic")]
    lines += [loop(f"{p}_f", f"p_{p}_f", ["float"] * 2, "float") for p in BINARY]
    for cls, c in (("i", "int"), ("l", "rlx_i64")):
        lines += [loop(f"{p}_{cls}", f"p_{p}_{cls}", [c], c) for p in INT_UNARY]
        lines += [loop(f"{p}_{cls}", f"p_{p}_{cls}", [c] * 2, c) for p in INT_BINARY]
    lines += [loop(f"{p}_i", f"p_{p}_i", ["int"] * 4, "int") for p in ("threefry", "threefry_first", "threefry_second")]
    lines += [loop("multiply_high_i", "p_multiply_high_i", ["int"] * 2, "int")]
    lines += [loop("gumbel_i", "p_gumbel_i", ["int"], "float")]
    lines += [loop(f"cast_{n}", f"p_cast_{n}", [a], b) for n, (a, b) in CASTS.items()]
    lines += [loop(f"{h}_bits", f"p_{h}_bits", ["float"], "uint") for h in ("f16", "bf16")]
    lines += [loop(f"round_{h}", f"p_round_{h}", ["float"], "float") for h in ("f16", "bf16")]
    return "\n".join(lines)


@cache
def _library(exact: bool, fused: bool) -> ctypes.CDLL:
    return library(_source(exact, fused), ("-O0",))


@cache
def build(exact: bool, flush: bool = False, fused: bool = False) -> Callable[..., npt.NDArray[Any]]:
    """Compiles the header: `exact` as for CUDA, with IEEE division and a fused multiply-add, else as for GLSL, there
    with `fused` with a fused multiply-add too; `flush` makes the CPU treat subnormals as zeros (x86 only).
    The result is called as prims("exp_f", x) or prims("pow_f", x, y, out=np.float32)."""
    loaded = _library(exact, fused)

    def call(name: str, *arrays: npt.NDArray[Any], out: Any = None) -> npt.NDArray[Any]:
        given = [np.ascontiguousarray(a) for a in arrays]
        made = np.empty(given[0].shape, out if out is not None else given[0].dtype)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*given, made)]
        loaded.flush(flush)
        getattr(loaded, f"v_{name}")(*pointers, ctypes.c_long(made.size))
        return made

    return call


def ulps(got: npt.NDArray[Any], want: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Distance of f32 results from float64 truth in units of the last place of f32; infinite where one is NaN or
    infinite and the other is not. A truth that rounds to infinity counts as infinite."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        spacing = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1)).astype(np.float32)).astype(
            np.float64
        )
        away = np.abs(got.astype(np.float64) - want) / spacing
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        odd = ~np.isfinite(got) | ~np.isfinite(rounded)
    return np.where(
        same, np.where(np.isfinite(want) & np.isfinite(got), away, 0.0), np.where(odd, np.inf, away)
    )
