"""The table of file kernels of the image family: convolution, pooling, resizing, sampling."""

from __future__ import annotations

from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

_FLOATS = ("f32", "f16", "bf16")
_PAIRS = ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16")
# Of the kernels that f64 has too.
_ALL_FLOATS = ("f32", "f64", "f16", "bf16")


def _args(read: str, write: str, scalars: str) -> tuple[ArgDecl, ...]:
    """Pointers read, then pointers written, then u32 scalars."""
    pointers = [ArgDecl(name, "ptr", "r") for name in read.split()]
    pointers += [ArgDecl(name, "ptr", "w") for name in write.split()]
    return (*pointers, *(ArgDecl(name, "u32") for name in scalars.split()))


_CONV = "x w bias taps places meta"
CONV = declare(
    KernelDecl(
        "conv",
        _args(_CONV, "y", "batch groups rows phases columns chunk splits"),
        defines=(("AB", _PAIRS),),
    )
)
CONV_DIRECT = declare(
    KernelDecl(
        "conv_direct",
        _args(_CONV, "y", "batch groups rows phases columns"),
        defines=(("AB", ("f32_f32", "f64_f64", *_PAIRS[1:])),),
    )
)
CONV_WEIGHT = declare(
    KernelDecl(
        "conv_weight",
        _args("x d meta", "y", "batch groups rows columns chunk splits"),
        defines=(("IO", ("f32_f32", "f16_f16", "bf16_bf16", "f16_f32", "bf16_f32")),),
    )
)
CONV_WEIGHT_DIRECT = declare(
    KernelDecl(
        "conv_weight_direct", _args("x d meta", "y", "batch groups rows columns"), defines=(("T", _ALL_FLOATS),)
    )
)
IM2COL = declare(
    KernelDecl("im2col", _args("x meta", "y", "total units"), defines=(("U", ("b1", "b2", "b4")),))
)
POOL = declare(KernelDecl("pool", _args("x meta", "y index", "total"), defines=(("T", _ALL_FLOATS),)))
POOL_BACK = declare(KernelDecl("pool_back", _args("d index meta", "y", "total"), defines=(("T", _ALL_FLOATS),)))
RESIZE = declare(
    KernelDecl(
        "resize",
        _args("x index weight meta", "y", "total"),
        defines=(("IO", ("f32_f32", "f64_f64", "f16_f16", "bf16_bf16", "f16_f32", "bf16_f32", "f32_f16", "f32_bf16")),),
    )
)
GRID_SAMPLE = declare(
    KernelDecl("grid_sample", _args("x grid meta", "y", "total"), defines=(("T", _FLOATS),))
)
