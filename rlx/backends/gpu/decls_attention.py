"""The file kernels of attention."""

from __future__ import annotations

from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

_SIZES = ("count", "heads", "kv_heads", "sq", "sk", "d", "mb", "mh", "mq", "mk", "each", "window")
_ROWS = (*_SIZES, "q_row", "k_row", "v_row")
_VARIANTS = (("T", ("f32", "f16", "bf16")), ("M", ("f32", "bool")))


def _args(
    reads: str, writes: str, sizes: tuple[str, ...] = _SIZES, floats: str = "scale cap"
) -> tuple[ArgDecl, ...]:
    """Pointers read, pointers written, u32, f32."""
    return (
        *(ArgDecl(name, "ptr", "r") for name in reads.split()),
        *(ArgDecl(name, "ptr", "w") for name in writes.split()),
        *(ArgDecl(name, "u32") for name in sizes),
        *(ArgDecl(name, "f32") for name in floats.split()),
    )


ATTENTION = declare(KernelDecl("attention", _args("q k v mask lengths", "y", _ROWS), defines=_VARIANTS))
ATTENTION_DQ = declare(
    KernelDecl("attention_dq", _args("dy q k v mask lengths", "dq rows"), defines=_VARIANTS)
)
ATTENTION_DKV = declare(
    KernelDecl("attention_dkv", _args("dy q k v mask lengths rows", "dk dv"), defines=_VARIANTS)
)
ATTENTION_DECODE = declare(
    KernelDecl(
        "attention_decode",
        _args("q k v mask lengths", "y parts", (*_ROWS, "splits")),
        defines=_VARIANTS,
    )
)
ATTENTION_COMBINE = declare(
    KernelDecl("attention_combine", _args("parts", "y", ("rows", "d", "splits"), ""), defines=_VARIANTS[:1])
)
ATTENTION_MMA = declare(
    KernelDecl(
        "attention_mma",
        ATTENTION.args,
        block=(128, 1, 1),
        defines=(
            (
                "SMO",
                (
                    "f16_f16_f16", "bf16_bf16_bf16", "f16_f16_f32", "bf16_bf16_f32", "f32_f16_f32", "f32_bf16_f32",
                ),
            ),
            _VARIANTS[1],
        ),
    )
)  # fmt: skip
