"""The file kernels of norms beyond rows, residual norms, rope, cross-entropy and the backward passes."""

from __future__ import annotations

from typing import Literal

from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

_FLOATS = ("f32", "f16", "bf16")
_T = (("T", _FLOATS),)
_TW = (("T", _FLOATS), ("W", _FLOATS))


def _args(read: str, written: str, scalars: str) -> tuple[ArgDecl, ...]:
    """Pointers read, pointers written, then scalars: u32 but for `eps` and `ignored`."""
    pointers = [ArgDecl(name, "ptr", "r") for name in read.split()]
    pointers += [ArgDecl(name, "ptr", "w") for name in written.split()]
    rest = [ArgDecl(name, _scalar(name)) for name in scalars.split()]
    return (*pointers, *rest)


def _scalar(name: str) -> Literal["u32", "i32", "f32"]:
    return "f32" if name == "eps" else "i32" if name == "ignored" else "u32"


GROUP_NORM = declare(
    KernelDecl("group_norm", _args("x gamma beta", "y", "rows n groups per inner eps"), defines=_TW)
)
NORM_AXIS = declare(KernelDecl("norm_axis", _args("x gamma beta", "y", "outer n inner eps"), defines=_TW))
ADD_NORM = declare(KernelDecl("add_norm", _args("x residual gamma beta", "s y", "rows n eps"), defines=_TW))
ROPE = declare(
    KernelDecl(
        "rope",
        _args("x cosine sine position", "y", "total seq inner d pairs per rows offset members"),
        defines=_T,
    )
)
NORM_GRAD = declare(
    KernelDecl("norm_grad", _args("d x gamma", "dx stats", "rows n groups per inner eps"), defines=_TW)
)
NORM_COLUMNS = declare(
    KernelDecl(
        "norm_columns",
        _args("d x stats", "dgamma dbeta", "outer n inner chunk splits channels length"),
        defines=_T,
    )
)
SOFTMAX_GRAD = declare(KernelDecl("softmax_grad", _args("d y", "dx", "rows n"), defines=_T))
SOFTMAX_GRAD_AXIS = declare(KernelDecl("softmax_grad_axis", _args("d y", "dx", "outer n inner"), defines=_T))
CROSS_ENTROPY = declare(KernelDecl("cross_entropy", _args("x label", "loss", "rows n ignored"), defines=_T))
CROSS_ENTROPY_GRAD = declare(
    KernelDecl("cross_entropy_grad", _args("d x label", "dx", "rows n ignored"), defines=_T)
)
