"""Every CUDA kernel compiles, in every declared variant, on a machine without a GPU, and waits for what runs before."""

from __future__ import annotations

import re
from itertools import groupby, product

import pytest

from rlx.backends.cuda.nvrtc import available, compile_ptx_only, nvrtc
from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.steps import FileKernel
from rlx.errors import RlxError
from tests.cuda.compiled import CHECKED, UNOPTIMIZED, compiled
from tests.full import full, spread

load_rules()  # fills the table of kernels
# PTX does not tell u32 from i32 in parameters reliably; pointers, integers and floats it does.
_KINDS = {"u64": "ptr", "u32": "u32", "s32": "i32", "b32": "u32", "f32": "f32", "align": "map"}


def variants() -> list[FileKernel]:
    """Each declared variant with each trial of its constants."""
    found = []
    for stem, decl in sorted(KERNELS.items()):
        for values in product(*decl.variants.values()):
            defines = tuple(zip(decl.variants, values, strict=True))
            found += [FileKernel(stem, defines, constants) for constants in decl.trials]
    return found


def _kept() -> list[FileKernel]:
    """Of each kernel, every value of each define and every trial, though not with each other."""
    kept = []
    for _, group in groupby(variants(), key=lambda kernel: kernel.stem):
        kernels = list(group)
        numbers = [
            {name: KERNELS[k.stem].variants[name].index(value) for name, value in k.defines}
            | {"trial": KERNELS[k.stem].trials.index(k.constants)}
            for k in kernels
        ]
        kept += [kernels[at] for at in sorted(spread(numbers, 1))]
    return kept


_KEPT = _kept()
# A kernel's first variant becomes PTX. Where a run leaves variants out, the others are only checked, which takes two
# thirds of the time.
_WHOLE = {next(group) for _, group in groupby(_KEPT, key=lambda kernel: kernel.stem)}


def test_a_compiler_is_installed_here() -> None:
    assert available(), "the dev extra brings nvidia-cuda-nvrtc-cu12"
    assert all(nvrtc(major).include is not None for major in available())


def name_of(kernel: FileKernel) -> str:
    return "-".join([kernel.stem, *(value for _, value in kernel.defines), *map(str, kernel.constants)])


@pytest.mark.parametrize("kernel", variants(), ids=name_of)
@pytest.mark.full(kernel=set(variants()) - set(_KEPT))
@pytest.mark.late(kernel=set(_KEPT) - _WHOLE)
def test_kernel_compiles(kernel: FileKernel) -> None:
    source = kernel_source(kernel)
    arch = f"compute_90{'a' if source.specific else ''}"
    if kernel not in _WHOLE and not full():
        compiled(source, arch, CHECKED)
        return
    ptx = compiled(source, arch, UNOPTIMIZED).decode("ascii", "replace")
    assert "griddepcontrol.wait" in ptx, f"{source.name} may begin early, and does not wait for what runs before it"
    signature = re.search(rf"\.entry {source.entry}\((.*?)\)", ptx, re.DOTALL)
    assert signature, f'{source.name} has no extern "C" kernel named {source.entry}'
    params = [_KINDS[k] for k in re.findall(r"\.param \.(\w+)", signature[1])]
    declared = [a.kind for a in KERNELS[kernel.stem].args]
    assert [p.replace("i32", "u32") for p in params] == [d.replace("i32", "u32") for d in declared]
    block = re.search(r"\.maxntid (\d+), (\d+), (\d+)", ptx)
    assert block is None or tuple(map(int, block.groups())) == source.block


@pytest.mark.parametrize("stem", ["attention_stream", "matmul_rows", "matmul_vector"])
def test_kernel_waits_before_it_reads_or_writes(stem: str) -> None:
    """The compiler leaves the wait where it is, also before what it may take for constant (LOAD_ONCE)."""
    kernel = next(kernel for kernel in variants() if kernel.stem == stem)
    ptx = compiled(kernel_source(kernel), "compute_90").decode("ascii", "replace")
    before, waits, after = ptx[ptx.index(".entry ") :].partition("griddepcontrol.wait")
    accesses = re.compile(r"\b(call|(ld|st|atom|red|cp)\.(?!param)\S+)")
    assert waits and accesses.search(before) is None and accesses.search(after)


@pytest.mark.parametrize("major", available())
class TestCompiler:
    def test_cubin_and_ptx(self, major: int) -> None:
        text = '#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include "two.h"\n'
        text += 'extern "C" __global__ void k(float* x) { x[0] = two() * N; }'
        headers = {"two.h": "static __device__ float two() { return 2.0f; }"}
        cubin = compile_ptx_only(text, ["-DN=3"], "sm_90", headers=headers, major=major)
        assert cubin[:4] == b"\x7fELF"
        ptx = compile_ptx_only(text, ["-DN=3"], headers=headers, major=major)
        assert b".entry k" in ptx and b".target sm_90" in ptx

    def test_products_and_sums_are_not_contracted(self, major: int) -> None:
        text = 'extern "C" __global__ void k(float* x) { x[0] = x[1] * x[2] + x[3]; x[4] = x[5] / x[6]; }'
        ptx = compile_ptx_only(text, major=major)
        assert b"fma.rn.f32" not in ptx and b".ftz" not in ptx and b"div.rn.f32" in ptx
        fused = 'extern "C" __global__ void k(float* x) { x[0] = fmaf(x[1], x[2], x[3]); }'
        assert b"fma.rn.f32" in compile_ptx_only(fused, major=major)

    def test_an_error_gives_file_line_and_options(self, major: int) -> None:
        with pytest.raises(
            RlxError, match=r"(?s)wrong\.cu for compute_90.*-DN=3.*wrong\.cu\(2\): error"
        ) as caught:
            compile_ptx_only("\nint f( {", ["-DN=3"], name="wrong.cu", major=major)
        assert "\0" not in str(caught.value)

    def test_an_error_in_a_header_names_the_header(self, major: int) -> None:
        with pytest.raises(RlxError, match=r"part\.h\(1\): error"):
            compile_ptx_only('#include "part.h"', headers={"part.h": "int f( {"}, major=major)

    def test_an_unknown_option_is_a_typed_error(self, major: int) -> None:
        with pytest.raises(RlxError):
            compile_ptx_only("", ["--no-such-option"], major=major)

    def test_archs(self, major: int) -> None:
        archs = nvrtc(major).archs()
        assert 90 in archs and archs == sorted(archs)
