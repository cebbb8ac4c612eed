"""Leaves out each barrier of a kernel's body in turn: the runs on the CPU must notice each."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rlx.backends
from tests.gpu import cuda_host

BODIES = Path(rlx.backends.__file__).parent / "device_code/bodies"
_IN_MACRO = re.compile(r"BARRIER;(?=.*\\$)")


def barriers_of(header: str) -> list[int]:
    """The lines of a kernel's body that are barriers."""
    lines = (BODIES / header).read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if "BARRIER;" in line]
    assert found and all(lines[number - 1].count("BARRIER;") == 1 for number in found)
    return found


@contextmanager
def _named_in_macros(header: str) -> Iterator[None]:
    """Within this context, a barrier in a macro is known by its own line, not by the lines that use the macro."""
    lines = (BODIES / header).read_text(encoding="utf-8").splitlines()
    named = [_IN_MACRO.sub(f'rlx_barrier("{header}", {n});', line) for n, line in enumerate(lines, 1)]
    if named == lines:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="rlx-barriers-") as folder, pytest.MonkeyPatch.context() as patch:
        shutil.copytree(BODIES, Path(folder) / "bodies")
        (Path(folder) / "bodies" / header).write_text("\n".join(named) + "\n", encoding="utf-8")
        patch.setattr(cuda_host, "planted", Path(folder))
        yield


def barrier_is_missed(header: str, line: int, run: Callable[[], object]) -> None:
    """`run` launches a kernel that includes `header`."""
    with cuda_host.without_barrier(header, line), pytest.raises(AssertionError, match="barrier"):
        run()


def every_barrier_is_missed(header: str, run: Callable[[], object]) -> None:
    """`run` launches kernels that together include all of `header`. Each is compiled once, for all of its barriers."""
    with _named_in_macros(header):
        for line in barriers_of(header):
            barrier_is_missed(header, line, run)
