"""Removes each barrier of a kernel's body in turn: the runs on the CPU must notice each."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rlx.backends.gpu
from tests.gpu import cuda_host

BODIES = Path(rlx.backends.gpu.__file__).parent / "device_code/bodies"


def every_barrier_is_missed(header: str, run: Callable[[], object], folder: Path) -> None:
    """`run` launches a kernel that includes `header`; the changed copies of the header are written into `folder`."""
    text = (BODIES / header).read_text(encoding="utf-8")
    places = [m.span() for m in re.finditer("BARRIER;", text)]
    assert places
    for start, end in places:
        changed = folder / str(start)
        shutil.copytree(BODIES, changed / "bodies")
        (changed / "bodies" / header).write_text(text[:start] + text[end:], encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_host, "planted", changed)
            with pytest.raises(AssertionError, match="barrier"):
                run()
