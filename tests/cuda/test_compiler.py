"""The compiler of a device's kernels: several at a time, each once, on the driver of a stand-in."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlx.backends.cuda import compiler as module
from rlx.backends.cuda.compiler import Compiler
from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.program.steps import SourceKernel
from rlx.errors import RlxError
from rlx.host.diskcache import DiskCache


class Nvrtc:
    """Compiles to a text, and lets two compilations meet where `together` is set."""

    identity, include = "nvrtc", None

    def __init__(self, together: bool = False) -> None:
        self.barrier = threading.Barrier(2, timeout=60) if together else None
        self.names: list[str] = []

    def archs(self) -> list[int]:
        return [90]

    def processes(self) -> nullcontext[None]:
        return nullcontext()

    def compile(self, text: str, name: str, *rest: object) -> bytes:
        if self.barrier is not None:
            self.barrier.wait()
        self.names.append(name)
        if "wrong" in text:
            raise RlxError(f"{name} is wrong")
        return text.encode()


def kernel(name: str, text: str = "") -> SourceKernel:
    return SourceKernel(name, f'extern "C" __global__ void {name}() {{{text}}}', None, 32)


def compiler(nvrtc: Nvrtc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    driver: Any = SimpleNamespace(
        moduleLoadData=lambda code: code, moduleGetFunction=lambda code, entry: 1, funcGetAttribute=lambda *_: 0,
        moduleUnload=lambda code: None,
    )  # fmt: skip
    api: Any = SimpleNamespace(driver=driver, runtime=None, major=13)
    monkeypatch.setattr(module, "nvrtc", lambda major: nvrtc)
    monkeypatch.setattr(module, "available_threads", lambda: 2)
    return Compiler(api, 90, "driver", DiskCache("cuda", folder))


def test_kernels_are_compiled_at_a_time_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = Nvrtc(together=True)
    first = compiler(nvrtc, tmp_path, monkeypatch)
    kernels = [kernel(name) for name in "abcd"]
    first.get_all([*kernels, *kernels])
    first.get_all(kernels)
    assert len(nvrtc.names) == 4 and (first.compiled, first.from_disk) == (4, 0)
    loaded = [first.get(k) for k in kernels]
    again = compiler(nvrtc, tmp_path, monkeypatch)
    again.get_all(kernels)
    assert [again.get(k) for k in kernels] == loaded and (again.compiled, again.from_disk) == (0, 4)
    assert len(again.codes(kernels)) == 4


def test_one_processor_compiles_one_kernel_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the machine has more than the process may use."""
    nvrtc = Nvrtc()
    made = compiler(nvrtc, tmp_path, monkeypatch)
    monkeypatch.setattr(module, "available_threads", lambda: 1)
    monkeypatch.setattr(nvrtc, "processes", None)
    kernels = [kernel(name) for name in "abcdefgh"]
    made.get_all(kernels)
    assert nvrtc.names == [kernel_source(k).name for k in kernels]


def test_what_cannot_be_compiled_is_said_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = Nvrtc()
    made = compiler(nvrtc, tmp_path, monkeypatch)
    with pytest.raises(RlxError, match="is wrong"):
        made.get_all([kernel("a"), kernel("b", "wrong")])
    made.get_all([kernel("a"), kernel("c")])
    assert (made.compiled, made.from_disk) == (2, 1)
