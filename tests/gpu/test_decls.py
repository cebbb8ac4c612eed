"""Both sources of every file kernel against the table: names, kinds and order of arguments, block, variants, heads."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import rlx.backends.cuda
import rlx.backends.vulkan
from rlx.backends.gpu.executable import load_rules
from rlx.backends.gpu.lowering import MAX_ARG_BYTES
from rlx.backends.gpu.steps import KERNELS, ArgDecl, KernelDecl
from tests.gpu.kernel_constants import CONSTANTS

load_rules()  # fills the table of kernels

ROOT = Path(__file__).resolve().parent.parent.parent
KERNEL_FOLDER = Path(rlx.backends.cuda.__file__).parent / "kernels"
SPIRV = Path(rlx.backends.vulkan.__file__).parent / "spirv"
STEMS = sorted(KERNELS)
_KINDS = {"uint": "u32", "int": "i32", "float": "f32"}


def _arguments(listed: list[str]) -> list[tuple[str, str]]:
    """(kind, name) of declarations such as `PTR(T) x` or `uint n`."""
    found = []
    for text in listed:
        kind, name = text.replace("const ", "").strip().rsplit(" ", 1)
        found.append(("ptr" if kind.startswith("PTR(") or kind.endswith("*") else _KINDS[kind.strip()], name))
    return found


def _cuda(decl: KernelDecl) -> str:
    return (KERNEL_FOLDER / f"{decl.stem}.cu").read_text(encoding="utf-8")


def _glsl(decl: KernelDecl) -> str:
    return (ROOT / "shaders" / f"{decl.stem}.comp").read_text(encoding="utf-8")


def _declared(args: tuple[ArgDecl, ...]) -> list[tuple[str, str]]:
    return [(a.kind, a.name) for a in args]


@pytest.mark.parametrize("stem", STEMS)
def test_arguments(stem: str) -> None:
    decl = KERNELS[stem]
    signature = re.search(rf"\b{stem}\(((?:[^()]|\([^()]*\))*)\)\s*\{{", _cuda(decl))
    assert signature is not None
    assert _arguments(signature[1].replace("\n", " ").split(",")) == _declared(decl.args)
    block = re.search(r"layout\(push_constant[^)]*\)\s*uniform\s+\w+\s*\{([^}]*)\}", _glsl(decl))
    assert block is not None
    assert _arguments([line for line in block[1].split(";") if line.strip()]) == _declared(decl.args)


@pytest.mark.parametrize("stem", STEMS)
def test_arguments_fit_and_pointers_come_first(stem: str) -> None:
    args = KERNELS[stem].args
    kinds = [a.kind == "ptr" for a in args]
    assert kinds == sorted(kinds, reverse=True)
    assert sum(8 if p else 4 for p in kinds) <= MAX_ARG_BYTES
    assert all((a.access != "") == (a.kind == "ptr") for a in args)


@pytest.mark.parametrize("stem", STEMS)
def test_block_and_constants(stem: str) -> None:
    decl = KERNELS[stem]
    size = re.search(r"layout\(local_size_x = (\d+)\) in;", _glsl(decl))
    bounds = re.search(r"__launch_bounds__\((\d+)\)", _cuda(decl))
    assert size is not None and bounds is not None
    assert decl.block == (int(size[1]), 1, 1) == (int(bounds[1]), 1, 1)
    ids = re.findall(r"constant_id = (\d+)\) const uint C(\d+)", _glsl(decl))
    assert ids == [(str(i), str(i)) for i in range(len(CONSTANTS[stem][0]))]


@pytest.mark.parametrize("stem", STEMS)
def test_variants(stem: str) -> None:
    decl = KERNELS[stem]
    line = re.search(r"^// variants: (.+)$", _glsl(decl), re.MULTILINE)
    listed = [part.split("=") for part in line[1].split(";")] if line else []
    assert tuple((name.strip(), tuple(values.split(","))) for name, values in listed) == decl.defines


@pytest.mark.parametrize("stem", STEMS)
def test_both_files_open_with_what_the_kernel_is(stem: str) -> None:
    for text in (_cuda(KERNELS[stem]), _glsl(KERNELS[stem]).removeprefix("#version 460\n")):
        first, grid, arguments = text.splitlines()[:3]
        assert (
            first.startswith("// ")
            and grid.startswith("// Grid: ")
            and arguments.startswith("// Arguments: ")
        )
        named = re.sub(r"\([^()]*\)", "", arguments.removeprefix("// Arguments: "))
        names = [n for n in re.findall(r"[A-Za-z_]\w*", named) if n not in ("mask", "strides") or n == "mask"]
        assert [a.name for a in KERNELS[stem].args if a.name in names] == [
            a.name for a in KERNELS[stem].args
        ], arguments


def test_every_file_is_declared() -> None:
    assert {p.stem for p in KERNEL_FOLDER.glob("*.cu")} == set(KERNELS)
    assert {p.stem for p in (ROOT / "shaders").glob("*.comp")} - {"tree", "tree64", "tree_fused"} == set(KERNELS)


@pytest.mark.parametrize("stem", STEMS)
def test_every_variant_is_shipped(stem: str) -> None:
    for chosen in itertools.product(*(values for _, values in KERNELS[stem].defines)):
        assert (SPIRV / ("-".join((stem, *chosen)) + ".spv")).is_file()
