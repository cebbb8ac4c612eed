"""Where CUDA cannot be used, the reason is one readable message, and nothing is loaded to find out."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys

import pytest

from rlx.backends.cuda import api, backend
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RlxError

WITHOUT_CUPY = importlib.util.find_spec("cupy") is None


class Raised(RuntimeError):
    """An error as CuPy raises it: a text and the CUDA status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def test_importing_the_backend_loads_no_gpu_library() -> None:
    code = (
        "import sys, rlx.backends.cuda\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('cupy', 'cupy_backends', 'cuda', 'nvmath')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not WITHOUT_CUPY, reason="CuPy is installed here")
@pytest.mark.parametrize("call", [backend.probe, lambda: backend.open(0)], ids=["probe", "open"])
def test_without_cupy_the_reason_says_what_to_install(call: object) -> None:
    assert callable(call)
    with pytest.raises(DeviceUnavailable, match=r"CuPy is not installed.*rlx\[cuda13x\].*rlx\[cuda12x\]"):
        call()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on: forking beside threads
def test_a_forked_child_is_told_so() -> None:
    def child(parent: int) -> None:
        try:
            api.check_process(parent, "cuda:0")
        except DeviceUnavailable as error:
            os._exit(7 if "cuda:0" in str(error) and "spawn" in str(error) else 1)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child, args=(os.getpid(),))
    process.start()
    process.join()
    assert process.exitcode == 7
    api.check_process(os.getpid(), "cuda:0")


def test_errors_are_typed_by_what_the_caller_can_do() -> None:
    full = api.translate(Raised(2, "cudaErrorMemoryAllocation: out of memory"), "cuda:0", "acquiring 8 bytes")
    assert isinstance(full, OutOfDeviceMemory) and "acquiring 8 bytes" in str(full)
    dead = api.translate(Raised(700, "cudaErrorIllegalAddress: an illegal access"), "cuda:1", "running")
    assert isinstance(dead, DeviceLost) and "cuda:1" in str(dead) and "new process" in str(dead)
    assert api.is_fatal(Raised(719, "cudaErrorLaunchFailure")) and not api.is_fatal(Raised(2, ""))
    other = api.translate(Raised(9, "cudaErrorInvalidConfiguration: bad grid"), "cuda:0", "capturing step a")
    assert type(other) is RlxError and "capturing step a" in str(other) and "bad grid" in str(other)


def test_version_text() -> None:
    assert (api.version_text(13020), api.version_text(12090)) == ("13.2", "12.9")
