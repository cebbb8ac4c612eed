"""The shader build: variants, includes, hashes; the modules shipped match their sources."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlx.backends.gpu.elementwise.spirv import Inst, Module, Op, float_modes, no_contraction
from rlx.backends.gpu.program.kernel import KernelDecl
from rlx.errors import UnsupportedOp

needs_compiler = pytest.mark.skipif(
    shutil.which("glslangValidator") is None and shutil.which("glslang") is None, reason="no glslang"
)
MAGIC = b"\x03\x02\x23\x07"
SHADER = """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_GOOGLE_include_directive : require
#include "types.glsl"
layout(local_size_x = 64) in;
layout(push_constant, scalar) uniform Args { PTR(T) x; PTR(T) y; uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x;
#ifdef OP_add
    if (i < n) STORE(T, y, i, LOAD(T, x, i) + 1.0);
#else
    if (i < n) STORE(T, y, i, LOAD(T, x, i) * 3.0);
#endif
}
"""
DECLARED = {"scale": KernelDecl("scale", args=(), variants={"T": ("f32", "f16"), "OP": ("add", "mul")})}


@pytest.fixture
def build(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """build.py over a temporary tree with one shader."""
    shutil.copytree(repo / "shaders" / "include", tmp_path / "shaders" / "include")
    (tmp_path / "rlx/backends/device_code").mkdir(parents=True)
    for header in (repo / "rlx/backends/device_code").glob("*.h"):
        shutil.copy(header, tmp_path / "rlx/backends/device_code")
    (tmp_path / "shaders/scale.comp").write_text(SHADER, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shader_build", repo / "shaders" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    spirv = tmp_path / "rlx/backends/vulkan/spirv"
    include = (tmp_path / "shaders/include", tmp_path / "rlx/backends/device_code")
    for name, value in {"ROOT": tmp_path, "SHADERS": tmp_path / "shaders", "SPIRV": spirv,
                        "MANIFEST": spirv / "manifest.json", "INCLUDE": include}.items():  # fmt: skip
        setattr(module, name, value)

    def shaders() -> tuple[object, ...]:
        sources = sorted(module.SHADERS.glob("*.comp"))
        return tuple(module.Shader(p.stem, p.read_text(encoding="utf-8"), DECLARED.get(p.stem)) for p in sources)

    monkeypatch.setattr(module, "shaders", shaders)
    return module


def test_shipped_modules_match_the_sources(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repo / "shaders/build.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_manifest_has_a_line_for_each_source_and_module(repo: Path, build: ModuleType) -> None:
    text = (repo / "rlx/backends/vulkan/spirv/manifest.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert text == build.manifest_text(record)
    for name in (*record["modules"], *record["sources"]):
        assert text.count(f'\n"{name}": ') == 1


@needs_compiler
def test_each_combination_of_variants_is_a_module(build: ModuleType) -> None:
    assert build.build([]) == 0
    names = {p.name for p in build.SPIRV.glob("*.spv")}
    assert names == {"scale-f32-add.spv", "scale-f32-mul.spv", "scale-f16-add.spv", "scale-f16-mul.spv"}
    assert build.check() == []
    capabilities = build.read_manifest()["modules"]["scale-f16-add.spv"]["capabilities"]
    assert "StorageBuffer16BitAccess" in capabilities and "Int64" not in capabilities


@needs_compiler
def test_only_what_changed_is_compiled(build: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    build.build([])
    build.build([])
    assert "0 compiled, 4 up to date" in capsys.readouterr().out
    (build.SPIRV / "scale-f32-add.spv").write_bytes(b"damaged")
    build.build([])
    assert "1 compiled, 3 up to date" in capsys.readouterr().out


@needs_compiler
def test_check_names_what_differs(build: ModuleType) -> None:
    build.build([])
    include = build.SHADERS / "include/types.glsl"
    include.write_text(include.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")
    assert any("types.glsl: changed" in line for line in build.check())
    build.build([])
    (build.SPIRV / "scale-f32-mul.spv").write_bytes(b"damaged")
    assert build.check() == ["scale-f32-mul.spv: not the file that was compiled"]
    (build.SPIRV / "scale-f32-mul.spv").unlink()
    assert build.check() == ["scale-f32-mul.spv: not compiled"]
    build.build([])
    (build.SHADERS / "scale.comp").unlink()
    assert any("no kernel makes it" in line for line in build.check())
    build.build([])
    assert build.check() == [] and not list(build.SPIRV.glob("*.spv"))


@needs_compiler
def test_a_shader_that_does_not_compile_is_reported_and_the_others_are_built(
    build: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (build.SHADERS / "broken.comp").write_text("#version 460\nvoid main() { nonsense; }\n", encoding="utf-8")
    assert build.build([]) == 1
    assert "nonsense" in capsys.readouterr().err
    assert len(list(build.SPIRV.glob("scale-*.spv"))) == 4
    assert build.check() == ["broken.spv: not compiled"]


@needs_compiler
def test_no_float_arithmetic_is_left_to_be_fused(build: ModuleType) -> None:
    build.build([])
    for path in build.SPIRV.glob("*.spv"):
        module = Module.parse(path.read_bytes())
        arithmetic = {i.words[1] for i in module.insts if i.op in (Op.FAdd, Op.FSub, Op.FMul)}
        decorated = {i.words[0] for i in module.insts if i.op == Op.Decorate and i.words[1] == 42}
        assert arithmetic and arithmetic <= decorated
        assert no_contraction(Module.parse(path.read_bytes())).encode() == path.read_bytes()


def test_modules_are_read_and_written_alike(repo: Path) -> None:
    for path in sorted((repo / "rlx/backends/vulkan/spirv").glob("*.spv"))[:5]:
        data = path.read_bytes()
        assert Module.parse(data).encode() == data
        twice = float_modes(float_modes(data, frozenset({"float_controls"})), frozenset({"float_controls"}))
        assert Module.parse(twice).capabilities().count("SignedZeroInfNanPreserve") == 1


@pytest.mark.parametrize(
    "data",
    [b"", bytes(20), MAGIC + bytes(16) + b"\x11\0\x09\0", MAGIC + bytes(17), MAGIC + bytes(20)],
    ids=["empty", "no magic", "too long an instruction", "odd size", "no instruction"],
)
def test_damaged_modules_are_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedOp, match="SPIR-V"):
        Module.parse(data)


def test_instructions_keep_their_length() -> None:
    assert Inst(Op.Capability, [1]).encode() == [2 << 16 | 17, 1]
