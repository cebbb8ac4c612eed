"""Kernels compiled in processes: the same machine code and the same errors as in this process, whatever happens to
one."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlx.backends.cuda import nvrtc as module
from rlx.backends.cuda import nvrtc_process
from rlx.backends.cuda.libraries import library_path
from rlx.backends.cuda.nvrtc import BASE_OPTIONS, available, nvrtc
from rlx.backends.cuda.processes import Processes, is_python
from rlx.errors import RlxError
from rlx.host.threads import Threads

GOOD = 'extern "C" __global__ void {name}(float* x) {{ x[threadIdx.x] = sinf(x[{n}]); }}'
HEADERS = {"part.h": "#define ONE 1.0f\n"}


def compile_with(processes: Processes | None, text: str, arch: str = "sm_90") -> bytes:
    return nvrtc(available()[0]).compile(text, "k.cu", BASE_OPTIONS, HEADERS, arch, processes)


@pytest.mark.parametrize("arch", ["sm_90", "compute_90"])
def test_processes_give_the_code_that_this_process_compiles(arch: str) -> None:
    texts = ['#include "part.h"\n' + GOOD.format(name=f"k{n}", n=n) for n in range(4)]
    with nvrtc(available()[0]).processes() as processes, Threads(2) as threads:
        codes = list(threads.map(lambda text: compile_with(processes, text, arch), texts))
        assert 1 <= len(processes._started) <= 2
    assert all(process.returncode is not None for process in processes._started)
    assert codes == [compile_with(None, text, arch) for text in texts]


def test_an_error_in_a_process_says_the_line_and_the_process_compiles_on() -> None:
    with nvrtc(available()[0]).processes() as processes:
        with pytest.raises(RlxError, match=r"k\.cu\(2\): error"):
            compile_with(processes, 'extern "C" __global__ void k() {\n  missing(); }')
        compile_with(processes, GOOD.format(name="k", n=1))
        assert len(processes._started) == 1


def test_a_process_that_ended_is_done_without() -> None:
    text = GOOD.format(name="k", n=1)
    with nvrtc(available()[0]).processes() as processes:
        compile_with(processes, text)
        processes._started[0].kill()
        processes._started[0].wait()
        assert compile_with(processes, text) == compile_with(None, text)
        assert compile_with(processes, text) == compile_with(None, text)
        assert len(processes._started) == 1


@pytest.mark.parametrize("executable", ["", None, "/nowhere/python3", "/usr/bin/some-app"])
def test_a_program_that_is_not_python_starts_none(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    text = GOOD.format(name="k", n=1)
    with nvrtc(available()[0]).processes() as processes:
        assert compile_with(processes, text) == compile_with(None, text)
        assert processes._started == []


def test_what_python_is() -> None:
    assert is_python(str(Path("/venv/bin/python3.11"))) and not is_python("/usr/bin/uwsgi")


def test_a_process_ends_where_a_copy_of_its_pipe_is_open() -> None:
    """As in a fork that another thread makes meanwhile: the process never sees the end of its input."""
    with nvrtc(available()[0]).processes() as processes:
        compile_with(processes, GOOD.format(name="k", n=1))
        stdin = processes._started[0].stdin
        assert stdin is not None
        copy = os.dup(stdin.fileno())
    os.close(copy)
    assert processes._started[0].returncode is not None


def test_a_library_found_under_its_bare_name_is_given_to_processes_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    path = nvrtc(available()[0])._lib._name
    bare = ctypes.CDLL(os.path.basename(path))
    assert os.path.samefile(library_path(bare, "nvrtcVersion"), path)
    monkeypatch.setattr(module, "load_library", lambda *_: bare)
    found = module.Nvrtc(available()[0])
    request: Any = ("", "k.cu", {}, [], "PTX")
    assert found.identity == nvrtc(available()[0]).identity
    with found.processes() as processes:
        assert processes.compiled(*request) is not None
    with Processes(bare._name) as processes:  # a process might find another library
        assert processes.compiled(*request) is None and processes._started == []


def test_what_a_process_lacks_this_process_may_have() -> None:
    lacking: Any = SimpleNamespace(compiled=lambda *_: ("nvrtcCompileProgram", 1, b""))
    text = GOOD.format(name="k", n=1)
    assert compile_with(lacking, text) == compile_with(None, text)


def test_what_a_library_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, os, runpy\n"
        "load = ctypes.CDLL\n"
        "ctypes.CDLL = lambda path: (os.write(1, b'None'), load(path))[1]\n"
        f"runpy.run_path({nvrtc_process.__file__!r}, run_name='__main__')\n"
    )
    expected = compile_with(None, GOOD.format(name="k", n=1))
    monkeypatch.setattr(nvrtc_process, "__file__", str(script))
    with nvrtc(available()[0]).processes() as processes:
        assert compile_with(processes, GOOD.format(name="k", n=1)) == expected
        assert processes._idle.qsize() == 1
    script.write_text("print('True, or so')")  # marshal reads T as True
    with nvrtc(available()[0]).processes() as processes:
        assert compile_with(processes, GOOD.format(name="k", n=1)) == expected
        assert len(processes._started) == 1 and processes._idle.qsize() == 0


def test_a_frozen_program_starts_none_nor_one_without_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD.format(name="k", n=1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        with nvrtc(available()[0]).processes() as processes:
            assert compile_with(processes, text) and processes._started == []
    monkeypatch.setattr(nvrtc_process, "__file__", "/app.pyz/rlx/backends/cuda/nvrtc_process.py")
    with nvrtc(available()[0]).processes() as processes:
        assert compile_with(processes, text) and processes._started == []


def test_a_library_that_was_replaced_is_not_loaded_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code would be kept under the key of the library that this process has loaded."""
    text = GOOD.format(name="k", n=1)
    monkeypatch.setattr(module, "_file_size", lambda path: 1)
    with nvrtc(available()[0]).processes() as processes:
        assert compile_with(processes, text) and processes._started == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_processes_end_with_a_parent_that_was_killed() -> None:
    program = (
        "from tests.cuda.test_processes import *\n"
        "with nvrtc(available()[0]).processes() as processes:\n"
        "    compile_with(processes, GOOD.format(name='k', n=1))\n"
        "    print(processes._started[0].pid, flush=True)\n"
        "    input()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([descriptor], [], [], 60)[0]  # it has ended
    os.close(descriptor)
