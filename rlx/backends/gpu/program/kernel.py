"""Declarations of the kernels whose bodies are files: arguments, constants, variants. Entry points are written from
them.

A kernel's arithmetic is `bodies/<stem>.h`, or what `row_bodies.py` prints: one function `<stem>_body` over the declared
arguments, read as CUDA C++ and as GLSL. Everything around it (the entry points of both languages, the numbers of
specialization constants, what tests compile) comes from the declaration, by `entry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlx.backends.gpu.program.steps import FileKernel

FLOATS = ("f32", "f16", "bf16")
# Units of kernels that move bits without interpreting them: b1 is one byte, b16 is sixteen bytes.
UNITS = ("b1", "b2", "b4", "b8", "b16")
INDICES = ("i32", "i64")


@dataclass(frozen=True, slots=True)
class ArgDecl:
    """One argument of a kernel, of kind "ptr", "map", "u32", "i32" or "f32". A pointer also has an `access` ("r", "w"
    or "rw") and an `element` type: a type of the bodies' language, or the name of a variant word that stands for one. A
    "map" (CUDA) is a pointer that becomes a tensor map, by which tiles are copied to shared memory: `tile` names the
    arguments that give the rows and columns of the matrix of halves at this address, and the rows of a tile."""

    name: str
    kind: Literal["ptr", "map", "u32", "i32", "f32"]
    access: Literal["", "r", "w", "rw"] = ""
    element: str = ""
    tile: tuple[str, str, str] | None = None


def reads(**elements: str) -> tuple[ArgDecl, ...]:
    """Pointers that a kernel only reads, by name with the type of their elements."""
    return tuple(ArgDecl(name, "ptr", "r", element) for name, element in elements.items())


def writes(**elements: str) -> tuple[ArgDecl, ...]:
    """Pointers that a kernel only writes."""
    return tuple(ArgDecl(name, "ptr", "w", element) for name, element in elements.items())


def updates(**elements: str) -> tuple[ArgDecl, ...]:
    """Pointers that a kernel reads and writes."""
    return tuple(ArgDecl(name, "ptr", "rw", element) for name, element in elements.items())


def maps(**tiles: tuple[str, str, str]) -> tuple[ArgDecl, ...]:
    """Matrices of halves that a kernel reads by tiles, by name with the arguments that describe them (ArgDecl.tile)."""
    return tuple(ArgDecl(name, "map", "r", "T", tile) for name, tile in tiles.items())


def uints(*names: str) -> tuple[ArgDecl, ...]:
    """Unsigned integers."""
    return tuple(ArgDecl(name, "u32") for name in names)


def ints(*names: str) -> tuple[ArgDecl, ...]:
    """Signed integers."""
    return tuple(ArgDecl(name, "i32") for name in names)


def floats(*names: str) -> tuple[ArgDecl, ...]:
    """Floats."""
    return tuple(ArgDecl(name, "f32") for name in names)


@dataclass(frozen=True, slots=True)
class RowBody:
    """A body that is printed from the row program of an op: over rows along memory, or `columns`. `short`: rows of
    16-bit elements may be read eight at a time, with less exact exponentials. `attrs`: the attribute values that the
    body is printed for. `early`: the number of weights that are loaded into registers before the reduction's
    barrier."""

    op: str
    columns: bool = False
    short: bool = False
    attrs: tuple[tuple[str, object], ...] = ()
    early: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class KernelDecl:
    """A kernel whose body is a file, or printed from a row program (`rows`).

    `about` says what it computes, `grid` what each workgroup does. `args`: pointers first, then scalars, at most 128
    bytes. `threads`: the size of a workgroup, along x. `variants`: the words fixed when SPIR-V is compiled, each with
    its allowed values, in the order of the module's file name. `constants`: the numbers and switches fixed when a
    pipeline is created, with their defaults. `trials`: values of the constants that tests compile the kernel with.
    `resident`: the workgroups that a multiprocessor should hold at once, a constant of CUDA C++ in terms of the body's
    macros: the compiler keeps registers few enough for that. `headers`: the parts of the shared device code that the
    body uses. `function`: the name of the body's function, if several kernels share it. `specific`: (constant, value)
    for which the CUDA text uses architecture-specific instructions and is compiled for sm_90a instead of sm_90.
    `cluster`: so many consecutive workgroups run at the same time and reach each other's shared memory (CUDA, compute
    capability 9.0); a number, or the constant that is it. The grid is a multiple of it.
    `begins`: the body marks by BEGIN (`bodies/begin.h`) the point from which on it reads what earlier kernels wrote.

    For the SPIR-V: `unroll`: spirv-opt unrolls the loops marked for it and splits local arrays, since some drivers
    would otherwise keep the arrays in memory. `subgroups`: each module exists twice; the second exchanges values within
    subgroups. `new_compiler`: the kernel needs a glslang that supports cooperative matrices of bfloat16. `cuda_only`:
    the kernel has no SPIR-V.
    """

    stem: str
    args: tuple[ArgDecl, ...]
    about: str = ""
    grid: str = ""
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    trials: tuple[tuple[int, ...], ...] = ((),)
    threads: int = 256
    resident: str = "1"
    headers: tuple[str, ...] = ()
    function: str = ""
    specific: tuple[str, int] | None = None
    cluster: int | str = 1
    begins: bool = False
    unroll: bool = False
    subgroups: bool = False
    new_compiler: bool = False
    cuda_only: bool = False
    rows: RowBody | None = None

    @property
    def block(self) -> tuple[int, int, int]:
        return self.threads, 1, 1

    def __call__(self, **chosen: str | int) -> FileKernel:
        """The kernel of one variant with these constants, all by name.

        Raises: ValueError for a name that is missing or unknown, or a variant that is not declared.
        """
        names = {*self.variants, *self.constants}
        if chosen.keys() != names:
            raise ValueError(f"kernel {self.stem}: got {sorted(chosen)}, expected {sorted(names)}")
        for name, allowed in self.variants.items():
            if chosen[name] not in allowed:
                raise ValueError(f"kernel {self.stem}: {name} is {chosen[name]!r}, expected one of {allowed}")
        defines = tuple((name, str(chosen[name])) for name in self.variants)
        return FileKernel(self.stem, defines, tuple(int(chosen[name]) for name in self.constants))


KERNELS: dict[str, KernelDecl] = {}


def declare(decl: KernelDecl) -> KernelDecl:
    """Adds a kernel to the table.

    Raises: ValueError when the stem is taken, or a trial does not give every constant.
    """
    if decl.stem in KERNELS:
        raise ValueError(f"kernel {decl.stem!r} is declared twice")
    if any(len(values) != len(decl.constants) for values in decl.trials):
        raise ValueError(
            f"kernel {decl.stem!r}: each trial gives the constants {list(decl.constants)}, in this order"
        )
    KERNELS[decl.stem] = decl
    return decl
