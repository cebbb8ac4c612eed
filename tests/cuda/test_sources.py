"""What NVRTC is given, and what the disk cache's key covers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.cuda.sources import Source, headers_of, kernel_source
from rlx.backends.gpu.program import kernel
from rlx.backends.gpu.program.kernel import KernelDecl
from rlx.backends.gpu.program.steps import FileKernel
from rlx.errors import RlxError

SOURCE = Source(
    "k.cu", '#include "a.h"\nint x;', "k", (256, 1, 1), (*BASE_OPTIONS, "-DN=1"), (("a.h", "int y;"),)
)


def test_numeric_options_are_honest_f32() -> None:
    assert {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"} <= set(BASE_OPTIONS)


def test_headers_are_found_through_headers_and_beside_them(tmp_path: Path) -> None:
    (tmp_path / "bodies").mkdir()
    (tmp_path / "top.h").write_text('#include "deep.h"\n  # include  "bodies/b.h"\n#include <cuda_fp16.h>\n')
    (tmp_path / "deep.h").write_text('#include "top.h"\nint deep;')
    (tmp_path / "bodies" / "b.h").write_text('#include "c.h"')
    (tmp_path / "bodies" / "c.h").write_text("int c;")
    found = dict(headers_of('#include "top.h"\n#include "elsewhere.h"', (tmp_path,)))
    assert sorted(found) == ["bodies/b.h", "c.h", "deep.h", "top.h"]
    assert found["c.h"] == "int c;"


def test_one_name_for_two_headers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bodies").mkdir()
    (tmp_path / "a.h").write_text("")
    (tmp_path / "bodies" / "a.h").write_text("")
    (tmp_path / "bodies" / "b.h").write_text('#include "a.h"')
    with pytest.raises(RlxError, match=r'"a\.h" means both'):
        headers_of('#include "a.h"\n#include "bodies/b.h"', (tmp_path,))


@pytest.mark.parametrize(
    "other",
    [
        replace(SOURCE, text=SOURCE.text + " "),
        replace(SOURCE, headers=(("a.h", "int z;"),)),
        replace(SOURCE, headers=(("b.h", "int y;"),)),
        replace(SOURCE, options=(*BASE_OPTIONS, "-DN=2")),
        replace(SOURCE, name="other.cu"),
    ],
)
def test_the_key_covers_what_is_compiled(other: Source) -> None:
    assert SOURCE.key("nvrtc 13.0", "sm_90", None) != other.key("nvrtc 13.0", "sm_90", None)


def test_the_key_covers_compiler_architecture_and_system_headers(tmp_path: Path) -> None:
    source = replace(SOURCE, text="#include <cuda_fp16.h>\n")
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, body in ((old, "1"), (new, "2")):
        folder.mkdir()
        (folder / "cuda_fp16.h").write_text("same")
        (folder / "cuda_fp16.hpp").write_text(body)
    keys = {
        source.key("nvrtc 13.0", "sm_90", old),
        source.key("nvrtc 13.0", "sm_90", new),
        source.key("nvrtc 13.2", "sm_90", old),
        source.key("nvrtc 13.0", "compute_90", old),
    }
    assert len(keys) == 4


def test_architecture() -> None:
    specific = replace(SOURCE, specific=True)
    assert SOURCE.arch(90, [75, 80, 90]) == "sm_90"
    assert specific.arch(90, [75, 80, 90]) == "sm_90a"
    assert (
        SOURCE.arch(103, [75, 80, 90]) == "compute_90"
    )  # a device newer than the compiler: the driver translates
    with pytest.raises(RlxError, match=r"k\.cu.*103"):
        specific.arch(103, [75, 80, 90])
    with pytest.raises(RlxError, match="70"):
        SOURCE.arch(70, [75, 80, 90])


def test_variants_and_constants_become_macros(monkeypatch: pytest.MonkeyPatch) -> None:
    decl = KernelDecl(
        "probe", (), threads=128, variants={"T": ("f32", "f16")}, constants={"SPAN": 4, "LAST": False},
        specific=("SPAN", 8),
    )  # fmt: skip
    monkeypatch.setitem(kernel.KERNELS, "probe", decl)
    source = kernel_source(decl(T="f16", SPAN=32, LAST=True))
    assert source.entry == "probe" and source.block == (128, 1, 1) and not source.specific
    assert source.options[len(BASE_OPTIONS) :] == ("--define-macro=T=f16",)
    assert "#define SPAN 32u\n#define LAST true\n" in source.text
    assert kernel_source(decl(T="f16", SPAN=8, LAST=True)).specific
    with pytest.raises(RlxError, match="T=i8"):
        kernel_source(FileKernel("probe", (("T", "i8"),), (4, 0)))
    with pytest.raises(RlxError, match=r"got the constants \(4,\), expected \['SPAN', 'LAST'\]"):
        kernel_source(FileKernel("probe", (("T", "f16"),), (4,)))


def test_a_kernel_without_declaration_is_named() -> None:
    with pytest.raises(RlxError, match="'nowhere' is not declared"):
        kernel_source(FileKernel("nowhere"))
