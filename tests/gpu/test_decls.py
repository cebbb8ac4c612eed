"""The table of kernels: their arguments fit, their bodies exist, and their modules are shipped."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import rlx.backends
import rlx.backends.vulkan
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.kernel import KERNELS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import MAX_ARG_BYTES
from rlx.backends.gpu.program.row_bodies import body_text

load_rules()  # fills the table of kernels

BODIES = Path(rlx.backends.__file__).parent / "device_code" / "bodies"
SPIRV = Path(rlx.backends.vulkan.__file__).parent / "spirv"
STEMS = sorted(KERNELS)


@pytest.mark.parametrize("stem", STEMS)
def test_arguments_fit_and_pointers_come_first(stem: str) -> None:
    args = KERNELS[stem].args
    kinds = [a.kind in ("ptr", "map") for a in args]
    assert kinds == sorted(kinds, reverse=True)
    assert sum(8 if p else 4 for p in kinds) <= MAX_ARG_BYTES
    assert all((a.access != "") == (a.element != "") == (a.kind in ("ptr", "map")) for a in args)


@pytest.mark.parametrize("stem", STEMS)
def test_a_kernel_says_what_it_is_and_has_a_body(stem: str) -> None:
    decl = KERNELS[stem]
    assert decl.about.endswith(".") and decl.grid and not decl.grid.endswith(".")
    if decl.rows is None:
        assert (BODIES / f"{stem}.h").read_text(encoding="utf-8").startswith("// ")
    else:
        assert f"void {stem}_body(" in body_text(decl)


@pytest.mark.parametrize("stem", STEMS)
def test_every_variant_is_shipped(stem: str) -> None:
    for chosen in itertools.product(*KERNELS[stem].variants.values()):
        assert (SPIRV / ("-".join((stem, *chosen)) + ".spv")).is_file() != KERNELS[stem].cuda_only


def test_variants_and_constants_are_chosen_by_name() -> None:
    args = (*reads(x="T"), *writes(y="T"), *uints("n"))
    decl = KernelDecl("probe", args, variants={"T": ("f32", "f16")}, constants={"SPAN": 4, "LAST": False})
    chosen = decl(LAST=True, T="f16", SPAN=8)
    assert (chosen.defines, chosen.constants) == ((("T", "f16"),), (8, 1))
    with pytest.raises(ValueError, match=r"probe: got \['SPAN', 'T'\], expected \['LAST', 'SPAN', 'T'\]"):
        decl(T="f16", SPAN=8)
    with pytest.raises(ValueError, match="T is 'i8', expected one of"):
        decl(T="i8", SPAN=8, LAST=False)


def test_a_stem_is_declared_once_and_trials_are_whole() -> None:
    with pytest.raises(ValueError, match="'reduce' is declared twice"):
        declare(KernelDecl("reduce", ()))
    with pytest.raises(ValueError, match=r"each trial gives the constants \['SPAN'\]"):
        declare(KernelDecl("probe", (), constants={"SPAN": 4}, trials=((1, 2),)))
