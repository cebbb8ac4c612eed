"""The file kernel of pad."""

from __future__ import annotations

from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

UNITS = ("b1", "b2", "b4", "b8", "b16")

PAD = declare(
    KernelDecl(
        "pad",
        (
            ArgDecl("x", "ptr", "r"),
            ArgDecl("meta", "ptr", "r"),
            ArgDecl("y", "ptr", "w"),
            *(ArgDecl(name, "u32") for name in ("total", "v0", "v1", "v2", "v3")),
        ),
        defines=(("U", UNITS),),
    )
)
