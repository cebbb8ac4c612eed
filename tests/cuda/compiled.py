"""Kernels compiled by NVRTC, cached between test runs."""

from __future__ import annotations

from rlx.backends.cuda.nvrtc import MAJORS, available, nvrtc
from rlx.backends.cuda.sources import Source
from tests.kept import kept

# Without most optimizations NVRTC tells in a third of the time whether a kernel compiles.
UNOPTIMIZED = "--Ofast-compile=max"
# Only the compiler's front end, which finds errors in a kernel's source; it makes no PTX.
CHECKED = "--fdevice-syntax-only"


def compiled(source: Source, arch: str, *options: str) -> bytes:
    """A kernel's machine code for an `arch` such as "sm_90", or its PTX for one such as "compute_90", by the newest
    compiler installed. `options` are added to the kernel's own.

    Raises: RlxError with the compiler's log; DeviceUnavailable where no compiler is installed."""
    compiler = nvrtc(next(iter(available()), MAJORS[-1]))
    key = (*source.key(compiler.identity, arch, compiler.include), *options)
    made = kept("nvrtc").get(key)
    if made is None:
        all_options = (*source.options, *options)
        made = compiler.compile(source.text, source.name, all_options, dict(source.headers), arch)
        kept("nvrtc").put(key, made)
    return made
