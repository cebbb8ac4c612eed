"""Compiles the kernels to the SPIR-V that the wheel ships, and checks that the modules shipped match their sources.

    shaders/build.py [STEM …]    compile changed modules (or the named kernels) with glslangValidator or glslang
    shaders/build.py --check     compare the hashes in manifest.json with the files; needs no compiler
    shaders/build.py --text STEM print the GLSL of a declared kernel

A declared kernel's GLSL is written from its declaration (rlx/backends/gpu/program/kernel.py), which names its variants:
a module for each combination, stem-f32-f32.spv, … (-DT=f32 -DT_f32=1 …), and with `subgroups` a second one,
<name>.subgroup.spv (-DRLX_SUBGROUPS). Kernels of cooperative matrices of bfloat16 need glslang 16 or newer: $GLSLANG or
.tools/bin/glslang. Templates of elementwise trees are shaders/*.comp; a comment `// flags: …` gives compiler flags.

`#include` looks in shaders/include and rlx/backends/device_code. Float additions and multiplications are decorated
NoContraction afterwards, so that no driver fuses them: only fma() fuses, as with NVRTC's -fmad=false.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

try:
    from rlx.backends.gpu.elementwise.spirv import Inst, Module, Op, no_contraction, text_of
    from rlx.backends.gpu.program.entry import glsl_text
    from rlx.backends.gpu.program.executable import load_rules
    from rlx.backends.gpu.program.kernel import KERNELS, KernelDecl
except ModuleNotFoundError as error:
    sys.exit(
        f"{error}: this script uses rlx and what it needs; `make venv`, then .venv/bin/python shaders/build.py"
    )

SHADERS = ROOT / "shaders"
INCLUDE = (SHADERS / "include", ROOT / "rlx" / "backends" / "device_code")
SPIRV = ROOT / "rlx" / "backends" / "vulkan" / "spirv"
MANIFEST = SPIRV / "manifest.json"
TARGET = "vulkan1.2"
# Versions of this file's output. Raise the one, or for modules that are unrolled the other, when this file compiles the
# same source to other words.
RECIPE, UNROLLED = 1, 2

# Macros of the second module of a shader with subgroups.
_SUBGROUPS = {f"RLX_{word}": "1" for word in ("SUBGROUPS",)}

_FLAGS = re.compile(r"^// flags: (.+)$", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


# The passes of spirv-opt for `unroll`. _UNROLL stands there twice: an outer loop unrolls once its inner loops have.
_SPLIT = ("--scalar-replacement=0", "--ssa-rewrite", "--ccp")
_UNROLL = (*_SPLIT, "--loop-unroll", "--simplify-instructions", "--merge-blocks")
_PASSES = (
    "--eliminate-dead-branches", *_UNROLL, *_UNROLL, *_SPLIT, "--eliminate-dead-branches", "--simplify-instructions",
    "--merge-blocks", "--eliminate-dead-code-aggressive", "--strip-debug", "--compact-ids",
)  # fmt: skip


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Shader:
    """A GLSL text to compile: of a declared kernel, or of a template in `shaders/`."""

    stem: str
    text: str
    decl: KernelDecl | None = None

    def modules(self) -> dict[str, dict[str, str]]:
        """Module file name -> macros."""
        made = {}
        variants = self.decl.variants if self.decl else {}
        for chosen in itertools.product(*variants.values()):
            name, defines = "-".join((self.stem, *chosen)), dict(zip(variants, chosen, strict=True))
            made[f"{name}.spv"] = defines
            if self.decl and self.decl.subgroups:
                made[f"{name}.subgroup.spv"] = {**defines, **_SUBGROUPS}
        return made

    @functools.cached_property
    def includes(self) -> list[Path]:
        """Every file that the text includes, directly or not, each once."""
        found: list[Path] = []
        texts = [(SHADERS, self.text)]
        for beside, text in texts:  # grows while it is walked
            for name in _INCLUDE.findall(text):
                places = (folder / name for folder in (beside, *INCLUDE))
                path = next((p.resolve() for p in places if p.is_file()), None)
                if path is None:
                    raise SystemExit(f"{self.stem}: cannot find the include {name!r}")
                if path not in found:
                    found.append(path)
                    texts.append((path.parent, path.read_text(encoding="utf-8")))
        return found

    @functools.cached_property
    def key(self) -> str:
        """One hash over all that a module is made from: the text, its includes and this recipe."""
        recipe = UNROLLED if self.decl and self.decl.unroll else RECIPE
        parts = [f"{recipe} {TARGET}", f"{self.stem} {sha256(self.text.encode())}"]
        parts += sorted(f"{p.relative_to(ROOT)} {sha256(p.read_bytes())}" for p in self.includes)
        return sha256("\n".join(parts).encode())

    def compiler(self) -> str:
        """The path of the compiler that this shader needs."""
        if self.decl and self.decl.new_compiler:
            for name in (os.environ.get("GLSLANG", ""), str(ROOT / ".tools/bin/glslang"), "glslang"):
                if name and shutil.which(name):
                    return name
            raise SystemExit(f"{self.stem} needs glslang 16 or newer: set GLSLANG to its path")
        for name in ("glslangValidator", "glslang"):
            if shutil.which(name):
                return name
        raise SystemExit("no glslangValidator here; Debian, Ubuntu: tools/system.sh glslang")


@functools.cache
def shaders() -> tuple[Shader, ...]:
    """Every shader that is compiled."""
    load_rules()  # declares the kernels
    found = [Shader(stem, glsl_text(decl), decl) for stem, decl in KERNELS.items() if not decl.cuda_only]
    found += [Shader(p.stem, p.read_text(encoding="utf-8")) for p in SHADERS.glob("*.comp")]
    return tuple(sorted(found, key=lambda s: s.stem))


def spirv_tool(name: str) -> str | None:
    """The path of a SPIR-V tool, first of the one beside the new compiler; None when there is none."""
    return shutil.which(str(ROOT / ".tools/bin" / name)) or shutil.which(name)


def unrolled(raw: Path) -> str | None:
    """Rewrites a module with its marked loops unrolled. Returns: the optimizer's message when it fails, else None."""
    tool = spirv_tool("spirv-opt")
    if tool is None:
        raise SystemExit("no spirv-opt here; Debian, Ubuntu: apt install spirv-tools")
    # Decorated first: the optimizer must not fold arithmetic that may not be contracted.
    module = no_contraction(Module.parse(raw.read_bytes()))
    brain = as_f16(module)
    raw.write_bytes(module.encode())
    command = [tool, f"--target-env={TARGET}", *_PASSES, str(raw), "-o", str(raw)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    module = Module.parse(raw.read_bytes())
    if brain:
        as_bf16(module, brain)
    raw.write_bytes(casts_through_words(module).encode())
    return None


def casts_through_words(module: Module) -> Module:
    """The module with every cast of an address from one pointer type to another by way of two words, as the sources
    write it. The optimizer removes the words, and SwiftShader crashes on the direct cast."""
    pointers = {i.words[0] for i in module.insts if i.op == Op.TypePointer}
    other = (Op.TypePointer, Op.TypeForwardPointer, Op.Name, Op.Decorate)
    typed = {i.words[1] for i in module.insts if len(i.words) > 1 and i.words[0] in pointers and i.op not in other}
    uint = next(i.words[0] for i in module.insts if i.op == Op.TypeInt and i.words[1:] == [32, 0])
    two = next((i.words[0] for i in module.insts if i.op == Op.TypeVector and i.words[1:] == [uint, 2]), None)
    if two is None:
        raise SystemExit("a module without uvec2 casts no addresses by way of it")
    made = []
    for inst in module.insts:
        if inst.op == Op.Bitcast and inst.words[0] in pointers and inst.words[2] in typed:
            made.append(Inst(Op.Bitcast, [two, module.bound, inst.words[2]]))
            inst.words[2] = module.bound
            module.bound += 1
        made.append(inst)
    module.insts = made
    return module


# bfloat16 in SPIR-V (SPV_KHR_bfloat16): its capabilities, the word after the type's width, its extension.
_BF16_CAPABILITIES, _BF16, _BF16_EXTENSION = (5116, 5117, 5118), 0, "SPV_KHR_bfloat16"
_F16_CAPABILITY = 9


def as_f16(module: Module) -> list[Inst]:
    """Replaces bfloat16 by f16 for the optimizer, which leaves modules with unknown extensions unchanged. Returns: the
    capabilities and extensions taken out, none where there is no bfloat16. A module with bfloat16 has no f16."""
    taken = [
        i
        for i in module.insts
        if (i.op == Op.Capability and i.words[0] in _BF16_CAPABILITIES)
        or (i.op == Op.Extension and text_of(i.words) == _BF16_EXTENSION)
    ]
    if taken:
        module.insts = [Inst(Op.Capability, [_F16_CAPABILITY]), *(i for i in module.insts if i not in taken)]
        for i in module.insts:
            if i.op == Op.TypeFloat and i.words[1:] == [16, _BF16]:
                del i.words[2]
    return taken


def as_bf16(module: Module, taken: list[Inst]) -> None:
    """Undoes as_f16."""
    capabilities = [i for i in taken if i.op == Op.Capability]
    extensions = [i for i in taken if i.op == Op.Extension]
    kept = [i for i in module.insts if i.op != Op.Capability or i.words[0] != _F16_CAPABILITY]
    last = max(k for k, i in enumerate(kept) if i.op == Op.Capability)
    module.insts = [*capabilities, *kept[: last + 1], *extensions, *kept[last + 1 :]]
    for i in module.insts:
        if i.op == Op.TypeFloat and i.words[1:] == [16]:
            i.words.append(_BF16)


def version(tool: str) -> str:
    """The first line of the compiler's version text."""
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].strip()


def compile_one(shader: Shader, defines: dict[str, str], target: Path) -> str | None:
    """Writes one module. Returns: the compiler's or the validator's message when it fails, else None."""
    with tempfile.TemporaryDirectory() as folder:
        raw, source = Path(folder) / "raw.spv", Path(folder) / f"{shader.stem}.comp"
        source.write_text(shader.text, encoding="utf-8")
        command = [shader.compiler(), "-V", "--quiet", "--target-env", TARGET, "-o", str(raw)]
        command += [f"-I{path}" for path in INCLUDE]
        for name, value in defines.items():
            command += [f"-D{name}={value}", f"-D{name}_{value}=1"]
        command += " ".join(_FLAGS.findall(shader.text)).split()
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        if shader.decl and shader.decl.unroll:
            problem = unrolled(raw)
            if problem:
                return problem
        made = Path(folder) / "made.spv"
        made.write_bytes(no_contraction(Module.parse(raw.read_bytes())).encode())
        validator = spirv_tool("spirv-val")
        if validator:
            check = [validator, "--target-env", TARGET, "--scalar-block-layout", str(made)]
            valid = subprocess.run(check, capture_output=True, text=True, check=False)
            if valid.returncode != 0:
                return f"{' '.join(check)}\n{valid.stdout}{valid.stderr}"
        beside = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, beside)
        os.replace(beside, target)
    return None


def read_manifest() -> dict[str, Any]:
    """The manifest of the last build; empty when there is none."""
    if not MANIFEST.is_file():
        return {"modules": {}, "sources": {}}
    loaded: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return loaded


def manifest_text(record: Mapping[str, Any]) -> str:
    """The manifest as JSON with one line for each source and each module, so that a change of one changes one line."""

    def table(name: str) -> str:
        return ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record[name].items())

    target, sources, modules = json.dumps(record["target"]), table("sources"), table("modules")
    return f'{{"target": {target},\n"sources": {{\n{sources}\n}},\n"modules": {{\n{modules}\n}}}}\n'


def expected() -> dict[str, tuple[Shader, dict[str, str]]]:
    """Every module that the sources declare: file name -> (shader, macros)."""
    return {name: (shader, defines) for shader in shaders() for name, defines in shader.modules().items()}


def all_sources() -> dict[str, str]:
    """The hash of every source of a module: of files by path, of texts written from declarations by stem."""
    made = {f"{s.stem}.comp": sha256(s.text.encode()) for s in shaders()}
    files = {p for shader in shaders() for p in shader.includes}
    return made | {str(p.relative_to(ROOT)): sha256(p.read_bytes()) for p in sorted(files)}


def build(stems: list[str]) -> int:
    """Compiles the modules whose sources changed. Returns: the number of modules that failed."""
    SPIRV.mkdir(parents=True, exist_ok=True)
    wanted = expected()
    before = read_manifest()["modules"]
    modules: dict[str, Any] = {}
    failed = made = 0
    for name, (shader, defines) in wanted.items():
        key, target, old = shader.key, SPIRV / name, before.get(name)
        fresh = (
            old and old["key"] == key and target.is_file() and sha256(target.read_bytes()) == old["sha256"]
        )
        if fresh or (stems and shader.stem not in stems):
            if old:
                modules[name] = old
            continue
        problem = compile_one(shader, defines, target)
        if problem:
            print(problem, file=sys.stderr)
            failed += 1
            continue
        made += 1
        data = target.read_bytes()
        modules[name] = {
            "source": shader.stem,
            "key": key,
            "sha256": sha256(data),
            "capabilities": Module.parse(data).capabilities(),
            "compiler": version(shader.compiler()),
        }
    for stale in {p.name for p in SPIRV.glob("*.spv")} - set(wanted):
        (SPIRV / stale).unlink()
    record = {"target": TARGET, "sources": all_sources(), "modules": dict(sorted(modules.items()))}
    beside = MANIFEST.with_suffix(f".{os.getpid()}")
    beside.write_text(manifest_text(record), encoding="utf-8")
    os.replace(beside, MANIFEST)
    print(f"shaders: {made} compiled, {len(modules) - made} up to date, {failed} failed")
    return failed


def check() -> list[str]:
    """The differences between the sources, the manifest and the modules, one a line; empty when there are none."""
    manifest, wanted = read_manifest(), expected()
    problems = []
    for path in sorted(set(manifest["sources"]) ^ set(all_sources())):
        problems.append(f"{path}: only in the {'manifest' if path in manifest['sources'] else 'tree'}")
    for path, digest in all_sources().items():
        if manifest["sources"].get(path, digest) != digest:
            problems.append(f"{path}: changed since the modules were compiled")
    for name in sorted(set(wanted) | set(manifest["modules"]) | {p.name for p in SPIRV.glob("*.spv")}):
        entry, target = manifest["modules"].get(name), SPIRV / name
        if name not in wanted:
            problems.append(f"{name}: no kernel makes it")
        elif entry is None or not target.is_file():
            problems.append(f"{name}: not compiled")
        elif sha256(target.read_bytes()) != entry["sha256"]:
            problems.append(f"{name}: not the file that was compiled")
        elif entry["key"] != wanted[name][0].key:
            problems.append(f"{name}: compiled from other sources")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stems", nargs="*", help="compile only these kernels")
    parser.add_argument("--check", action="store_true", help="compare hashes; compile nothing")
    parser.add_argument("--text", metavar="STEM", help="print the GLSL of a declared kernel")
    args = parser.parse_args()
    if args.text:
        print(next((s.text for s in shaders() if s.stem == args.text), f"no kernel named {args.text}"))
        return 0
    if args.check:
        problems = check()
        for line in problems:
            print(line, file=sys.stderr)
        if problems:
            print("run: make shaders", file=sys.stderr)
        return 1 if problems else 0
    return 1 if build(args.stems) else 0


if __name__ == "__main__":
    sys.exit(main())
