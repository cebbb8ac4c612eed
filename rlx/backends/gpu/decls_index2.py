"""The file kernels of select, scan and index."""

from __future__ import annotations

from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

_FLOATS = ("f32", "f16", "bf16")
_ELEMENTS = ("b1", "b2", "b4", "b8")
_UNITS = (*_ELEMENTS, "b16")
_INDICES = ("i32", "i64")


def _args(pointers: str, scalars: str) -> tuple[ArgDecl, ...]:
    """Arguments from "x:r y:w" and "n m"."""
    made = []
    for word in pointers.split():
        name, _, access = word.partition(":")
        made.append(ArgDecl(name, "ptr", "r" if access == "r" else "w" if access == "w" else "rw"))
    return (*made, *(ArgDecl(name, "u32") for name in scalars.split()))


ARG_REDUCE = declare(
    KernelDecl(
        "arg_reduce",
        _args("x:r parts:r made:w y:w", "outer n inner chunk splits"),
        defines=(("U", _ELEMENTS),),
    )
)
SORT_ROWS = declare(
    KernelDecl(
        "sort_rows",
        _args("x:r pairs:w y:w index:w", "lines n inner keep blocks"),
        defines=(("U", _ELEMENTS),),
    )
)
SORT_MERGE = declare(
    KernelDecl(
        "sort_merge",
        _args("x:r source:r pairs:w y:w index:w", "lines n inner keep run"),
        defines=(("U", _ELEMENTS),),
    )
)
TOP_K = declare(
    KernelDecl(
        "top_k",
        _args("x:r list:r made:w y:w index:w", "lines n listed inner k chunk splits"),
        defines=(("U", _ELEMENTS),),
    )
)
TOP_K_ROWS = declare(
    KernelDecl("top_k_rows", _args("x:r y:w index:w", "lines n k"), defines=(("U", ("b2", "b4")),))
)
SCAN = declare(
    KernelDecl(
        "scan",
        _args("x:r offsets:r y:w", "outer n inner chunk splits"),
        defines=(("IO", ("f32_f32", "f64_f64", "f16_f16", "bf16_bf16", "i32_i32", "i64_i64")),),
    )
)
LOG_SOFTMAX = declare(KernelDecl("log_softmax", _args("x:r y:w", "rows n"), defines=(("T", _FLOATS),)))
LOG_SOFTMAX_AXIS = declare(
    KernelDecl("log_softmax_axis", _args("x:r y:w", "outer n inner"), defines=(("T", _FLOATS),))
)
GATHER_ELEMENTS = declare(
    KernelDecl(
        "gather_elements",
        _args("x:r index:r y:w", "total m axis trail"),
        defines=(("U", _ELEMENTS), ("I", _INDICES)),
    )
)
SCATTER_SET = declare(
    KernelDecl("scatter_set", _args("updates:r pairs:r y:w", "total m n trail"), defines=(("U", _UNITS),))
)
SCATTER_REDUCE = declare(
    KernelDecl(
        "scatter_reduce",
        _args("updates:r pairs:r y:rw", "total m n trail"),
        defines=(("T", ("f32", "f64", "f16", "bf16", *_INDICES)),),
    )
)
DYNAMIC_SLICE = declare(
    KernelDecl(
        "dynamic_slice",
        _args("x:r starts:r meta:r y:w", "total axes"),
        defines=(("U", _UNITS), ("I", _INDICES)),
    )
)
DYNAMIC_UPDATE = declare(
    KernelDecl(
        "dynamic_update",
        _args("update:r starts:r meta:r y:w", "total axes"),
        defines=(("U", _UNITS), ("I", _INDICES)),
    )
)
