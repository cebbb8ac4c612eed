"""The input of NVRTC for a kernel: text, headers, options, entry point and block. It needs no GPU and no CuPy."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.gpu.program.entry import cuda_text
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.steps import FileKernel, Kernel, SourceKernel
from rlx.errors import RlxError

# The folders in which `#include "name"` is looked up, in this order.
HEADER_FOLDERS = (Path(__file__).parent, Path(__file__).parent.parent / "device_code")
TREE_ENTRY = "tree"
TREE_BLOCK = (256, 1, 1)
# A kernel that uses dynamic shared memory defines a variable of this name with its size in bytes:
# extern "C" __device__ unsigned int rlx_dynamic_shared = sizeof(Tiles);
SHARED_SYMBOL = "rlx_dynamic_shared"
_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ANGLED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel ready to compile. `headers` are (name, text) of every file that it includes with quotes, directly or
    not; `specific` says that it must be compiled for the device's exact architecture ("sm_90a")."""

    name: str
    text: str
    entry: str
    block: tuple[int, int, int]
    options: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    specific: bool = False

    @property
    def dynamic_shared(self) -> bool:
        return SHARED_SYMBOL in self.text or any(SHARED_SYMBOL in text for _, text in self.headers)

    def arch(self, capability: int, supported: Sequence[int]) -> str:
        """The architecture to compile for on a device of this compute capability (90 for 9.0).

        It is the device's own machine code. Where the compiler is older than the device, it is PTX of the newest
        capability that the compiler supports, which the driver translates.

        Raises: RlxError when the compiler supports no architecture that the device runs.
        """
        if capability in supported:
            return f"sm_{capability}{'a' if self.specific else ''}"
        older = [c for c in supported if c < capability]
        if not older or self.specific:
            raise RlxError(
                f"{self.name}: this NVRTC compiles for {sorted(supported)}, not for the device's {capability}; "
                "install the CUDA version that matches the device"
            )
        return f"compute_{max(older)}"

    def key(self, compiler: str, arch: str, include: Path | None) -> tuple[str, ...]:
        """The key in the disk cache: everything that the compiled code depends on."""
        texts = [self.text, *(text for _, text in self.headers)]
        used = sorted(frozenset().union(*map(_system_headers, texts)))
        system = [f"{name} {_digest(include / name)}" for name in used] if include is not None else []
        flat = [part for name, text in self.headers for part in (name, _text_digest(text))]
        return (self.name, self.text, *flat, *self.options, *system, compiler, arch)


def kernel_source(kernel: Kernel) -> Source:
    """The source of a file kernel (its variant as macro definitions), a source kernel or a tree kernel.

    Raises: RlxError for a file kernel without a declaration, or with variants or constants that are not declared.
    """
    if isinstance(kernel, SourceKernel):
        text = kernel.cuda or ""
        block = (kernel.threads, 1, 1)
        return Source(f"{kernel.name}.cu", text, kernel.name, block, BASE_OPTIONS, headers_of(text))
    if not isinstance(kernel, FileKernel):
        from rlx.backends.gpu.elementwise.emit_cuda import emit_cuda

        text = emit_cuda(kernel)
        return Source("tree.cu", text, TREE_ENTRY, TREE_BLOCK, BASE_OPTIONS, headers_of(text))
    decl = KERNELS.get(kernel.stem)
    if decl is None:
        raise RlxError(f"CUDA kernel {kernel.stem!r} is not declared in the kernel table")
    for name, value in kernel.defines:
        if value not in decl.variants.get(name, ()):
            raise RlxError(
                f"CUDA kernel {kernel.stem!r}: {name}={value} is not among its variants {decl.variants.get(name, ())}"
            )
    if len(kernel.constants) != len(decl.constants):
        raise RlxError(
            f"CUDA kernel {kernel.stem!r}: got the constants {kernel.constants}, expected {list(decl.constants)}"
        )
    text = cuda_text(decl, kernel.constants)
    options = (*BASE_OPTIONS, *(f"--define-macro={name}={value}" for name, value in kernel.defines))
    chosen = dict(zip(decl.constants, kernel.constants, strict=True))
    specific = decl.specific is not None and chosen[decl.specific[0]] == decl.specific[1]
    return Source(f"{kernel.stem}.cu", text, kernel.stem, decl.block, options, headers_of(text), specific)


def headers_of(text: str, folders: Sequence[Path] = HEADER_FOLDERS) -> tuple[tuple[str, str], ...]:
    """(name, text) of every file that `text` includes with quotes, directly or not, by the name it is included under.

    A name is looked up beside the file that includes it, then in `folders`. One that is in none of these is left to the
    compiler to find or to report.

    Raises: RlxError when one name means two files, which a list of headers by name cannot express.
    """
    headers: dict[str, str] = {}
    texts: dict[str, str] = {}
    bases = [os.fspath(folder) for folder in folders]
    todo: list[tuple[str, str | None]] = [(name, None) for name in _QUOTED.findall(text)]
    seen = set(todo)
    while todo:
        name, beside = todo.pop()
        path, changed = _place(name, bases if beside is None else [beside, *bases])
        if path is None or headers.get(name) == path:
            continue
        if name in headers:
            raise RlxError(f'#include "{name}" means both {headers[name]} and {path}; rename one')
        headers[name] = path
        texts[name], included = _header(path, changed)
        inner = dict.fromkeys((n, os.path.dirname(path)) for n in included)
        todo += [each for each in inner if each not in seen]
        seen.update(inner)
    return tuple(sorted(texts.items()))


def _place(name: str, folders: Iterable[str]) -> tuple[str | None, int]:
    """The path of the first file of this name, and when it was changed. With pathlib it takes five times as long, and a
    program's kernels look for hundreds."""
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            return path, status.st_mtime_ns
    return None, 0


@lru_cache(256)
def _header(path: str, changed: int) -> tuple[str, tuple[str, ...]]:
    """The text of a file, and what it includes with quotes. Cached, since most kernels include the same files."""
    text = Path(path).read_text(encoding="utf-8")
    return text, tuple(_QUOTED.findall(text))


@lru_cache(256)
def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(256)
def _system_headers(text: str) -> frozenset[str]:
    return frozenset(_ANGLED.findall(text))


@cache
def _digest(path: Path) -> str:
    """The hash of a system header, so that an updated toolkit does not find kernels cached for the old one."""
    digest = hashlib.sha256()
    for part in (path, path.with_suffix(".hpp")):
        if part.is_file():
            digest.update(part.read_bytes())
    return digest.hexdigest()
