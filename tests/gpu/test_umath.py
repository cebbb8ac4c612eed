"""NumPy's own accuracy set on every backend: f32 rows within NumPy's limit in units of the last place.

Rows with subnormal arguments or results are treated apart: a device that flushes these may give the result for zero.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.runtime import Session
from tests.devices import session_here

FOLDER = Path(np.__file__).parent / "_core" / "tests" / "data"
TINY = np.float32(np.finfo(np.float32).tiny)
NAMES = {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
FILES = sorted(p.stem.removeprefix("umath-validation-set-") for p in FOLDER.glob("umath-validation-set-*.csv"))
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> Session:
    return session_here(request.param)


def rows_of(file: str) -> tuple[Floats, Floats, npt.NDArray[Any]]:
    """Arguments, results and limits."""
    with (FOLDER / f"umath-validation-set-{file}.csv").open(encoding="utf-8") as lines:
        rows = [r for r in csv.reader(lines) if len(r) == 4 and r[0] == "np.float32"]
    x, want = (np.array([int(r[k], 16) for r in rows], np.uint32).view(np.float32) for k in (1, 2))
    return x, want, np.array([int(r[3]) for r in rows])


def steps_apart(a: Floats, b: Floats) -> npt.NDArray[np.int64]:
    """The number of floats from a to b; zeros of either sign are one float."""
    places = []
    for x in (a, b):
        bits = x.view(np.int32).astype(np.int64)
        places.append(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))
    return np.abs(places[0] - places[1])


def subnormal(x: Floats) -> npt.NDArray[np.bool_]:
    return (np.abs(x) < TINY) & (x != 0)


def test_every_file_is_an_op() -> None:
    assert len(FILES) == 20
    assert all(hasattr(rlx, NAMES.get(f, f)) for f in FILES)
    assert sum(len(rows_of(f)[0]) for f in FILES) == 13_181


@pytest.mark.parametrize("file", FILES)
def test_within_numpys_limit(session: Session, file: str) -> None:
    x, want, limit = rows_of(file)
    g = rlx.Graph(file)
    g.output("y", getattr(rlx, NAMES.get(file, file))(g.input("x", x.shape, "f32")))
    exe = session.compile(g)
    assert [d.how for d in exe.report() if d.op not in ("input", "output")] == ["native"]
    got = exe.run({"x": x})["y"]
    ok = (np.isnan(got) & np.isnan(want)) | ((steps_apart(got, want) <= limit) & ~np.isnan(got) & ~np.isnan(want))
    small = subnormal(x) | subnormal(want)
    wrong = np.flatnonzero(~ok & ~small)
    assert not wrong.size, [(x[i], got[i], want[i], limit[i]) for i in wrong[:5]]
    # A device that flushes sets the argument or the result to zero.
    with np.errstate(all="ignore"):
        at_zero = np.asarray(getattr(np, file)(np.copysign(np.float32(0), x)))
    flushed = (got == 0) & subnormal(want)
    flushed |= subnormal(x) & ((steps_apart(got, at_zero) <= limit) | (np.isnan(got) & np.isnan(at_zero)))
    bad = np.flatnonzero(small & ~ok & ~flushed)
    assert not bad.size, [(x[i], got[i], want[i], limit[i]) for i in bad[:5]]
