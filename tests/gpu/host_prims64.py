"""prims64.h compiled by the host's C++ compiler, beside the same functions in long double, as NumPy functions."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.gpu.host_library import library
from tests.gpu.host_prims import MODES

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
# primitive -> the C++ expression of it in long double
ORACLES = {
    "neg": "-x", "abs": "fabsl(x)", "sqrt": "sqrtl(x)", "rsqrt": "1 / sqrtl(x)", "recip": "1 / x",
    "exp": "expl(x)", "expm1": "expm1l(x)", "log": "logl(x)", "log1p": "log1pl(x)",
    "exp2": "exp2l(x)", "log2": "log2l(x)", "log10": "log10l(x)", "cbrt": "cbrtl(x)",
    "sin": "sinl(x)", "cos": "cosl(x)", "tan": "tanl(x)", "asin": "asinl(x)", "acos": "acosl(x)",
    "atan": "atanl(x)", "sinh": "sinhl(x)", "cosh": "coshl(x)", "tanh": "tanhl(x)",
    "asinh": "asinhl(x)", "acosh": "acoshl(x)", "atanh": "atanhl(x)", "erf": "erfl(x)",
    "floor": "floorl(x)", "ceil": "ceill(x)", "round": "nearbyintl(x)", "trunc": "truncl(x)",
    "add": "x + y", "sub": "x - y", "mul": "x * y", "div": "x / y", "pow": "powl(x, y)",
    "fmod": "fmodl(x, y)", "atan2": "atan2l(x, y)",
}  # fmt: skip
_LIBRARY = sorted({name for text in ORACLES.values() for name in re.findall(r"(\w+)l\(", text)})
_SQRT = (("float", "f"), ("double", ""))
BINARY = ("add", "sub", "mul", "div", "pow", "fmod", "atan2", "max", "min", "mod", "floordiv")
CASTS = {
    "cast_f_d": ("float", "double"), "cast_i_d": ("int", "double"), "cast_l_d": ("rlx_i64", "double"),
    "cast_d_f": ("double", "float"), "odd_d_f": ("double", "float"), "odd_i_f": ("int", "float"),
    "odd_l_f": ("rlx_i64", "float"), "cast_d_i": ("double", "int"),
    "cast_d_l": ("double", "rlx_i64"), "cast_d_u8": ("double", "int"), "cast_d_i8": ("double", "int"),
}  # fmt: skip


def _source(exact: bool) -> str:
    # Functions of long double by the compiler's own declarations: <cmath> takes longer to compile than they do.
    lines = [MODES, '#include "prelude_host.h"', *(f"#define {n}l __builtin_{n}l" for n in _LIBRARY)]
    lines += [f"static inline {t} sqrt({t} x) {{ return __builtin_sqrt{s}(x); }}" for t, s in _SQRT]
    if exact:  # the macros of the CUDA build
        lines += ["#define RLX_EXACT_DIV 1", "#define RLX_EXACT_FMA(a, b, c) __builtin_fmaf(a, b, c)"]
        lines += ["#define RLX_EXACT_FMA64(a, b, c) __builtin_fma(a, b, c)", "#undef RLX_MAD64"]
        lines += ["#define RLX_MAD64(a, b, c) __builtin_fma(a, b, c)"]
    lines += ['#include "prims64.h"', '#include "odd.h"']

    def loop(name: str, call: str, ins: list[str], out: str) -> str:
        args = ", ".join(f"const {t}* x{i}" for i, t in enumerate(ins))
        values = ", ".join(f"x{i}[k]" for i in range(len(ins)))
        return (f'extern "C" void v_{name}({args}, {out}* r, long n) '
                "{ const unsigned mode = rlx_begin(); "
                f"for (long k = 0; k < n; ++k) r[k] = {call}({values}); rlx_end(mode); }}")  # fmt: skip

    names = dict.fromkeys([*ORACLES, "sign", *BINARY])
    lines += [loop(p, f"p_{p}_d", ["double"] * (1 + (p in BINARY)), "double") for p in names]
    lines += [loop(n, f"p_{n}", [a], b) for n, (a, b) in CASTS.items()]
    for p, text in ORACLES.items():  # the value as the sum of two doubles
        y = ", const double* b" if p in BINARY else ""
        read = "const long double x = a[k]; " + ("const long double y = b[k]; " if y else "")
        lines.append(f'extern "C" void o_{p}(const double* a{y}, double* r, double* rest, long n) {{ '
                     f"for (long k = 0; k < n; ++k) {{ {read}const long double v = {text}; "
                     "r[k] = double(v); rest[k] = double(v - (long double)(r[k])); } }")  # fmt: skip
    return "\n".join(lines)


@cache
def _library(exact: bool) -> ctypes.CDLL:
    return library(_source(exact), ("-O0",))


class Prims:
    """`prims("exp", x)` gives the function's results, `prims.error("exp", x)` also their distances from the truth."""

    def __init__(self, exact: bool, flush: bool = False) -> None:
        self._library, self._flush = _library(exact), flush

    def _call(self, name: str, given: list[Array], made: list[Array]) -> None:
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*given, *made)]
        self._library.flush(self._flush)
        getattr(self._library, name)(*pointers, ctypes.c_long(made[0].size))

    def __call__(self, name: str, *arrays: Array, out: Any = np.float64) -> Array:
        made = np.empty(arrays[0].shape, out)
        self._call(f"v_{name}", [np.ascontiguousarray(a) for a in arrays], [made])
        return made

    def error(self, name: str, *arrays: F64) -> tuple[F64, F64, F64]:
        """(results, truth, distance in units of the last place of f64); infinite where one is NaN or infinite and the
        other is not."""
        got = self(name, *arrays)
        want, rest = np.empty(got.shape), np.empty(got.shape)
        self._call(f"o_{name}", [np.ascontiguousarray(a) for a in arrays], [want, rest])
        with np.errstate(all="ignore"):
            finite = np.isfinite(want) & np.isfinite(got)
            spacing = np.spacing(np.abs(np.where(finite, want, 1.0)))
            away = np.abs((got - want) / spacing - rest / spacing)
            same = (got == want) | (np.isnan(got) & np.isnan(want))
        return got, want, np.where(finite, away, np.where(same, 0.0, np.inf))
