"""GLSL text to a SPIR-V module, by the glslang that is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from rlx.errors import RlxError, UnsupportedOp

_PLACE = re.compile(r"^ERROR: .*?\.comp:(\d+): (?!'' : compilation terminated)(.*?)\s*$")
_OTHER = re.compile(r"^ERROR: (.*)$", re.M)


def spirv_of(name: str, text: str) -> bytes:
    """The module of a compute shader, compiled without contraction into fused multiply-adds, as NVRTC is told for CUDA.

    Raises: UnsupportedOp where no glslang is installed; RlxError for text that it does not compile, with the line of
    each mistake.
    """
    from rlx.backends.gpu.elementwise.spirv import Module, no_contraction

    names = (os.environ.get("GLSLANG", ""), "glslangValidator", "glslang")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise UnsupportedOp(
            f"custom_op {name}: `glsl` is compiled by glslangValidator, which is not installed (Debian, Ubuntu: apt "
            "install glslang-tools); or compile it elsewhere and give the module as `spirv`"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, module = Path(folder) / f"{name}.comp", Path(folder) / f"{name}.spv"
        source.write_text(text, encoding="utf-8")
        command = [compiler, "-V", "--target-env", "vulkan1.2", str(source), "-o", str(module)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RlxError(f"custom_op {name}: its GLSL does not compile:\n{_mistakes(done.stdout, text)}")
        return no_contraction(Module.parse(module.read_bytes())).encode()


def _mistakes(said: str, text: str) -> str:
    """The compiler's messages, each with its line number and the text of that line."""
    lines, shown = text.splitlines(), []
    for match in filter(None, map(_PLACE.match, said.splitlines())):
        number = int(match[1])
        shown.append(f"line {number}: {match[2]}")
        if 1 <= number <= len(lines):
            shown.append(f"    {lines[number - 1].strip()}")
    return "\n".join(shown or _OTHER.findall(said) or [said.strip()])
