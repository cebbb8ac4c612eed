"""The processor of this process as LLVM needs to know it: architecture and features, read from the system."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from typing import Literal

from rlx.errors import RlxError
from rlx.host.files import system_text
from rlx.records import Record, replace

Lookup = Literal["avx512", "avx2", "neon"] | None
FEATURES_ENV = "RLX_CPU_FEATURES"
# Flags in /proc/cpuinfo that differ from LLVM's name of the feature.
_RENAMED = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "abm": "lzcnt", "bmi1": "bmi", "avx_vnni": "avxvnni",
    "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "avx512_bitalg":
    "avx512bitalg", "avx512_vbmi2": "avx512vbmi2", "avx512_vpopcntdq": "avx512vpopcntdq", "amx_tile": "amx-tile",
    "amx_int8": "amx-int8", "amx_bf16": "amx-bf16", "asimddp": "dotprod", "asimdhp": "fullfp16",
}  # fmt: skip
# What kernels may be compiled for; other features of a processor change no kernel.
_KNOWN = frozenset({
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "avxvnni",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi", "avx512vbmi2", "avx512vnni",
    "avx512bf16", "avx512fp16", "avx512bitalg", "avx512vpopcntdq", "amx-tile", "amx-int8", "amx-bf16",
    "dotprod", "fullfp16", "i8mm", "bf16",
})  # fmt: skip
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


class Machine(Record):
    """An architecture, "x86_64" or "aarch64", and LLVM's names of the features that kernels may use. `looks_ahead`:
    the hardware prefetcher runs far enough ahead of sequential reads to make prefetch instructions useless, as on AMD's
    processors."""

    arch: str
    features: frozenset[str]
    looks_ahead: bool = False

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest vector: 64 with AVX-512, 32 with AVX2, else 16."""
        if self.arch == "x86_64":
            return 64 if self.features >= _AVX512 else 32 if {"avx2", "fma"} <= self.features else 16
        return 16

    def lanes(self, bits: int = 32) -> int:
        """Elements of so many bits in a vector."""
        return 8 * self.vector_bytes // bits

    @property
    def registers(self) -> int:
        """Vector registers."""
        return 32 if self.arch == "aarch64" or self.vector_bytes == 64 else 16

    @property
    def has_lookup(self) -> bool:
        """Whether 16 floats can be looked up in a register."""
        return self.arch == "x86_64" and self.vector_bytes == 64

    @property
    def lookup(self) -> Lookup:
        """How 16 floats are looked up in registers."""
        if self.arch == "aarch64":
            return "neon"
        return "avx512" if self.vector_bytes == 64 else "avx2" if self.vector_bytes == 32 else None

    @property
    def has_tiles(self) -> bool:
        """Whether there is a matrix unit for bf16."""
        return self.has_lookup and {"amx-tile", "amx-bf16"} <= self.features

    @property
    def has_byte_dots(self) -> bool:
        """Whether products with f32's precision are made of products of bytes, four of which an instruction adds up:
        on AMD's processors. On an Intel Xeon floats were faster."""
        return self.looks_ahead and self.has_lookup and "avx512vnni" in self.features

    @property
    def llvm_features(self) -> str:
        """The features as LLVM's target machine takes them, with the full vector width of the processor."""
        named = [f"+{f}" for f in sorted(self.features)]
        return ",".join([*named, "-prefer-256-bit"] if self.arch == "x86_64" else named)

    @property
    def triple(self) -> str:
        return f"{self.arch}-unknown-linux-gnu"

    def without(self, *features: str) -> Machine:
        """The machine without these features and those that build on them: "avx512f" takes all of AVX-512 away."""
        gone = {
            f
            for f in self.features
            for w in features
            if f == w or (w == "avx512f" and f.startswith("avx512")) or (w == "amx-tile" and f.startswith("amx"))
        }
        return replace(self, features=self.features - gone)


@cache
def this_machine() -> Machine | None:
    """The processor of this process; None where the engine has no code for it. The environment's RLX_CPU_FEATURES, such
    as "avx2,fma,f16c", limits it to the features named there. Raises: RlxError for an unknown feature."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if arch not in ("x86_64", "aarch64") or not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return None
    words, vendor = set[str](), ""
    for line in (system_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("vendor_id"):
            vendor = line.partition(":")[2].strip()
        if line.startswith(("flags", "Features")):
            words = set(line.partition(":")[2].split())
            break
    features = frozenset(_RENAMED.get(w, w) for w in words) & _KNOWN
    if "amx-tile" in features and not _may_use_tiles():
        features = frozenset(f for f in features if not f.startswith("amx"))
    asked = os.environ.get(FEATURES_ENV)
    if asked is not None:
        named = frozenset(asked.replace(" ", "").split(",")) - {""}
        if unknown := sorted(named - _KNOWN):
            raise RlxError(
                f"{FEATURES_ENV} names {', '.join(map(repr, unknown))}; kernels know {', '.join(sorted(_KNOWN))}"
            )
        features &= named
    machine = Machine(arch, features, vendor == "AuthenticAMD")
    least = {"avx2", "fma", "f16c"} if arch == "x86_64" else frozenset[str]()
    return machine if machine.features >= least else None


def _may_use_tiles() -> bool:
    """Asks the system for permission to use the matrix unit's registers, for which it then makes room in each thread's
    state."""
    try:
        return bool(ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
    except (OSError, AttributeError):
        return False
