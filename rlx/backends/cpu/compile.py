"""Kernels from specs to addresses: from the disk's cache, or compiled by llvmlite into position-independent code."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rlx.backends.cpu.code_memory import map_code
from rlx.backends.cpu.elf import link
from rlx.backends.cpu.ir import Arguments
from rlx.backends.cpu.machine import Machine
from rlx.errors import UnsupportedOp
from rlx.host.diskcache import Part, shared
from rlx.host.locks import renewed
from rlx.host.progress import report
from rlx.ir import Expr
from rlx.ir.expr import linearize
from rlx.records import Record, names_of

KIND = "cpu"  # the kind of these files in the disk's cache
# LLVM's default pipeline takes five times as long and made no kernel faster: they are written as they should run.
_PASSES = (
    "always_inliner", "sroa", "instruction_combine", "simplify_cfg", "new_gvn", "instruction_combine", "simplify_cfg",
    "aggressive_dce",
)  # fmt: skip
_TOGETHER = 6  # a program with so many kernels or more has a record of its own
SYMBOL = "kernel"  # the function that each module defines
LEAST_LLVM = 22  # its intrinsics for byte products are the ones used here; llvmlite 0.48 is the first with it


class KernelSpec(Protocol):
    """What a kernel is specialized for: a frozen record of numbers, names, dtypes, expressions, tuples and such."""

    @property
    def args(self) -> Arguments:
        """The kernel's arguments."""
        ...

    def ir(self) -> str:
        """The LLVM module with the function `kernel` (`ir.Kernel("kernel", self.args)`)."""
        ...


class _Loaded:
    """The kernels in this process's memory."""

    def __init__(self) -> None:
        self.lock = renewed(self, "lock", threading.Lock)
        self.addresses: dict[tuple[KernelSpec, Machine], int] = {}
        self.sizes: dict[tuple[KernelSpec, Machine], int] = {}


_LOADED = _Loaded()


def addresses(specs: Sequence[KernelSpec], machine: Machine) -> list[int]:
    """The address of each kernel; those not in memory yet are loaded from the cache or compiled for the machine. They
    stay until the process ends."""
    with _LOADED.lock:
        known = _LOADED.addresses
        missing = [s for s in dict.fromkeys(specs) if (s, machine) not in known]
        if missing:
            made = images(missing, machine)
            for spec, place, image in zip(missing, map_code(made), made, strict=True):
                known[spec, machine] = place
                _LOADED.sizes[spec, machine] = len(image)
        return [known[s, machine] for s in specs]


def code_bytes(specs: Iterable[KernelSpec], machine: Machine) -> int:
    """Bytes of the machine code of kernels that are loaded."""
    return sum(_LOADED.sizes.get((s, machine), 0) for s in set(specs))


def images(specs: Sequence[KernelSpec], machine: Machine) -> list[bytes]:
    """The machine code of each kernel, from the cache or compiled. The kernels of a larger program are also in one
    record."""
    store = shared(KIND)
    keys = [key_parts(s, machine) for s in specs]
    together: list[Part] = ["together", *(part for key in keys for part in key)]
    record = store.get(together) if len(keys) >= _TOGETHER else None
    if record is not None:
        return _apart(record, len(keys))
    found = [store.get(key) for key in keys]
    missing = [n for n, image in enumerate(found) if image is None]
    for done, n in enumerate(missing):
        report("kernels", done, len(missing))
        text = specs[n].ir()
        # A spec's key changes with every edit of the engine's sources; the text of its kernel seldom does.
        by_text: list[Part] = [_digest("compile.py", "elf.py"), machine.arch, machine.llvm_features, text]
        made = store.get(by_text)
        if made is None:
            made = machine_code(text, machine)
            store.put(by_text, made)
        found[n] = made
        store.put(keys[n], made)
    result = [image for image in found if image is not None]
    if len(result) >= _TOGETHER:
        store.put(together, b"".join([struct.pack(f"<{len(result)}Q", *map(len, result)), *result]))
    return result


def _apart(record: bytes, count: int) -> list[bytes]:
    """The images in a record, whose lengths stand before them."""
    at, result = 8 * count, []
    for nbytes in struct.unpack_from(f"<{count}Q", record):
        result.append(record[at : at + nbytes])
        at += nbytes
    return result


def key_parts(spec: KernelSpec, machine: Machine) -> list[Part]:
    """What a kernel's machine code depends on."""
    return [_digest(), machine.arch, machine.llvm_features, canonical(spec)]


@cache
def _digest(*names: str) -> bytes:
    """A digest of llvmlite's version and of the sources that make kernels: the named files of this folder, or, without
    names, the whole folder and the headers of the formulas. It is cached by these files' sizes and times, since reading
    them takes longer than loading a program's kernels."""
    found = find_spec("llvmlite")
    assert found is not None and found.origin is not None
    # Read from this file, since importlib.metadata would take a third of the whole time here.
    stated = os.path.join(os.path.dirname(found.origin), "_version.py")
    sources = [(path, os.stat(path)) for path in ([stated] if os.path.exists(stated) else [])] + _sources(names)
    kept: list[Part] = ["sources", *names]
    for path, status in sources:
        kept += [path, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    store = shared(f"{KIND}-sources")
    known = store.get(kept)
    if known is not None:
        return known
    digest = hashlib.sha256()
    if not os.path.exists(stated):
        from importlib.metadata import version

        digest.update(version("llvmlite").encode())
    for path, _ in sources:
        text = Path(path).read_bytes()
        digest.update(os.path.basename(path).encode() + b"\0" + hashlib.sha256(text).digest())
    store.put(kept, digest.digest())
    return digest.digest()


def _sources(names: Collection[str]) -> list[tuple[str, os.stat_result]]:
    """The files that make kernels, in a fixed order."""
    own = os.path.dirname(__file__)
    found: list[tuple[str, os.stat_result]] = []
    folders = [own] + ([] if names else [os.path.join(os.path.dirname(own), "device_code")])
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.endswith((".py", ".h")):
                    if not names or entry.name in names:
                        found.append((entry.path, entry.stat()))
                elif not names and not entry.name.startswith(("__", "host")) and entry.is_dir():
                    folders.append(entry.path)
    return found


def canonical(x: Any) -> str:
    """A text that is the same for equal specs only. Expressions are written as lists of their nodes, since subtrees are
    shared."""
    if isinstance(x, Expr):
        order = linearize([x])
        number = {e: n for n, e in enumerate(order)}
        nodes = (f"{e.prim}:{e.dtype}:{e.value!r}:{[number[a] for a in e.args]}" for e in order)
        return f"[{';'.join(nodes)}]"
    if isinstance(x, Record):
        inside = (f"{name}={canonical(getattr(x, name))}" for name in names_of(x))
        return f"{type(x).__module__}.{type(x).__qualname__}({','.join(inside)})"
    if isinstance(x, tuple | list):
        return f"({','.join(map(canonical, x))})"
    if isinstance(x, frozenset):
        return f"{{{','.join(sorted(map(canonical, x)))}}}"
    return repr(x)


def machine_code(text: str, machine: Machine) -> bytes:
    """The position-independent image of a module; its function `kernel` is at the image's start."""
    binding, target = _target(machine)
    module = binding.parse_assembly(text)
    module.verify()
    module.triple = machine.triple
    builder = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=2))
    passes = binding.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    return link(target.emit_object(module), SYMBOL)


@cache
def too_old() -> str | None:
    """Why llvmlite cannot compile the kernels, if its LLVM is older than they need; None where it can."""
    import llvmlite
    import llvmlite.binding as binding  # imported where it is used: what the cache holds needs no compiler

    version = binding.llvm_version_info[0]
    if version >= LEAST_LLVM:
        return None
    held = f"llvmlite {llvmlite.__version__} has LLVM {version}"
    return f"{held}, and kernels need {LEAST_LLVM} (pip install -U llvmlite)"


@cache
def _target(machine: Machine) -> tuple[Any, Any]:
    import llvmlite.binding as binding

    if why := too_old():
        raise UnsupportedOp(why)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # `runner`'s system calls need it
    generic = "x86-64" if machine.arch == "x86_64" else "generic"
    target = binding.Target.from_triple(machine.triple)
    made = target.create_target_machine(
        cpu=generic, features=machine.llvm_features, opt=3, reloc="pic", codemodel="small"
    )
    return binding, made
