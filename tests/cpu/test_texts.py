"""The text of a kernel is the same in every process: the cache of machine code finds by it what was compiled before."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from rlx.backends.cpu import choice, program
from rlx.backends.cpu.compile import KernelSpec, canonical
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.step import ENGINE_BINDERS, load_binders
from rlx.conformance.case import all_cases
from rlx.conformance.runner import pick, sample
from rlx.ir import REGISTRY
from rlx.runtime import Session

pytestmark = pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}")
ROOT = Path(__file__).resolve().parents[2]
MIN_KERNELS = 60


class _Known(Exception):
    """Raised once a program's kernels are known, so that none is compiled."""


def texts() -> dict[str, str]:
    """A digest of the text of each kernel of a case: of every binder's first op, and of every op with a row program."""
    known: dict[str, str] = {}

    def addresses(specs: list[KernelSpec], machine: Machine) -> list[int]:
        known.update({canonical(s): hashlib.sha256(s.ir().encode()).hexdigest() for s in specs})
        raise _Known

    load_binders()
    firsts = {binders[0]: op for op, binders in reversed(ENGINE_BINDERS.items()) if op in REGISTRY}
    ops = {*firsts.values(), *(op for op, record in REGISTRY.items() if record.rows is not None), "gelu", "sin", "pow"}
    session = Session("cpu", threads=1, engine="compiled")
    with patch.object(program, "addresses", addresses):
        for case in sample(pick(all_cases(), sorted(ops)), 1):
            with suppress(_Known):
                session.compile(case.graph()).prepare()
    return known


@pytest.mark.late
def test_texts_are_the_same_in_every_process() -> None:
    """Beside this process, one in which sets of strings and of expressions have other orders."""
    code = (
        "import json; from rlx.ir import Expr; Expr.__hash__ = lambda e: ~e._hash\n"
        "from tests.cpu.test_texts import texts; print(json.dumps(texts()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    here, there = texts(), json.loads(done.stdout)
    assert len(here) >= MIN_KERNELS and here.keys() == there.keys()
    assert [name for name, text in here.items() if there[name] != text] == []
