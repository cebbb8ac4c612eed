"""The entry points of a declared kernel, in CUDA C++ and in GLSL, written from its declaration.

Each text is the prelude of its language, the constants, the body (`bodies/<stem>.h`, or one printed from a row
program), and a function that hands the arguments to it. In CUDA constants are macros with their values; in GLSL
specialization constants 0, 1, … with defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu.program.kernel import ArgDecl, KernelDecl

# The header that each name in `KernelDecl.headers` includes, in CUDA C++ and in GLSL.
HEADERS: dict[str, tuple[str | None, str | None]] = {
    "prims": ("prims.h", "prims.h"),
    "body64": ("bodies/body64.h", "body64.glsl"),
    "mma": ("bodies/mma.h", "mma.glsl"),
    "attention_words": ("bodies/attention_words.h", "attention_words.glsl"),
    "map": ("bodies/map.h", None),
    "rounding": (None, "rounding.glsl"),  # CUDA C++ rounds with instructions that the prelude names
}
_SCALARS = {"u32": "uint", "i32": "int", "f32": "float"}


def cuda_text(decl: KernelDecl, constants: Sequence[int]) -> str:
    """The CUDA C++ text for NVRTC; variants are macros on its command line."""
    values = zip(decl.constants.items(), constants, strict=True)
    resident = f", {decl.resident}" if decl.resident != "1" else ""
    together = dict(zip(decl.constants, constants, strict=True)).get(str(decl.cluster), decl.cluster)
    cluster = f" __cluster_dims__({together}, 1, 1)" if together != 1 else ""
    return "\n".join(
        (
            *_about(decl),
            '#include "bodies/body.h"',
            '#include "bodies/begin.h"',
            *_includes(decl, 0),
            *(f"#define {name} {_value(default, value)}" for (name, default), value in values),
            *_body(decl),
            "",
            f'extern "C" __global__ void{cluster} __launch_bounds__({decl.threads}{resident})',
            f"    {decl.stem}({', '.join(f'{_type(a)} {a.name}' for a in decl.args)}) {{",
            *(() if decl.begins else ("    BEGIN;",)),
            f"    {_call(decl)}",
            "}",
            "",
        )
    )


def glsl_text(decl: KernelDecl) -> str:
    """The GLSL text for glslang; variants are macros on its command line."""
    return "\n".join(
        (
            "#version 460",
            *_about(decl),
            "#extension GL_GOOGLE_include_directive : require",
            f"layout(local_size_x = {decl.threads}) in;",
            *(
                f"layout(constant_id = {i}) const {'bool' if isinstance(default, bool) else 'uint'} {name} = "
                f"{_value(default, default)};"
                for i, (name, default) in enumerate(decl.constants.items())
            ),
            '#include "body.glsl"',
            *_includes(decl, 1),
            *_body(decl),
            "",
            "layout(push_constant, scalar) uniform Args {",
            *(f"    {_type(a)} {a.name};" for a in decl.args),
            "};",
            "",
            f"void main() {{ {_call(decl)} }}",
            "",
        )
    )


def _about(decl: KernelDecl) -> tuple[str, str]:
    return f"// {decl.about}", f"// Grid: {decl.grid}; X folds into Y."


def _body(decl: KernelDecl) -> list[str]:
    if decl.rows is None:
        return [f'#include "bodies/{decl.stem}.h"']
    from rlx.backends.gpu.program.row_bodies import body_text

    return [body_text(decl)]


def _includes(decl: KernelDecl, language: int) -> list[str]:
    names = (HEADERS[word][language] for word in decl.headers)
    return [f'#include "{name}"' for name in names if name is not None]


def _type(arg: ArgDecl) -> str:
    return f"PTR({arg.element})" if arg.kind == "ptr" else "MAP" if arg.kind == "map" else _SCALARS[arg.kind]


def _value(default: int, value: int) -> str:
    """A constant as both languages write it: a bool where its default is one, else an unsigned integer."""
    return str(bool(value)).lower() if isinstance(default, bool) else f"{value}u"


def _call(decl: KernelDecl) -> str:
    return f"{decl.function or decl.stem + '_body'}({', '.join(a.name for a in decl.args)});"
