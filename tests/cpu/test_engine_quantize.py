"""The compiled searches of packed formats give the bytes of NumPy's, whatever the number of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu import compile as compiler
from rlx.backends.cpu.machine import Machine, this_machine
from rlx.backends.cpu.quantize import finder, kernel_text
from rlx.dtypes import PACKED
from rlx.errors import DTypeError
from rlx.packed.lanes import find_blocks
from rlx.packed.search import SEARCHES

pytestmark = pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}")
_QUICK = ("q8_0", "q4_1", "fp8_e5m2")  # to compile


def numbers(blocks: int, elements: int, seed: int) -> Any:
    """Weights, some blocks of which are zeros of both signs, equal, tiny, huge, or have one large element."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, (blocks, elements)) * 0.02).astype(np.float32)
    if blocks > 8:
        x[0], x[1], x[2], x[3] = 0.0, 0.5, 1e-42, np.where(np.arange(elements) % 2, 1e30, -1e30)
        x[4], x[5], x[6] = x[3] * 3e8, x[7] * 0, -x[7] * 0  # a range beyond f32; zeros of both signs
    x[-1, 3] = -3.0
    return x


@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.late) for n in [*SEARCHES, "nf4_64", "int4_128"]]
)
def test_the_bytes_are_numpys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = PACKED[name]
    search, size = SEARCHES[kind.family], kind.storage.elements
    monkeypatch.setenv("RLX_CPU", "compiled")
    compiled = finder(kind.family, size)
    assert compiled is not None
    for blocks in (1, 2, 17, 40):
        x = numbers(blocks, size, blocks)
        with np.errstate(all="ignore"):
            for ours, theirs in zip(compiled(search, x), find_blocks(search, x), strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("machine", ["avx2", "aarch64"])
def test_other_processors_have_the_kernels(machine: str) -> None:
    here = this_machine()
    assert here is not None
    kind = here.without("avx512f") if machine == "avx2" and here.arch == "x86_64" else Machine("aarch64", frozenset())
    text = kernel_text(SEARCHES["nvfp4"], 64, kind.lanes(32))
    assert compiler.machine_code(text, kind)


def test_large_arrays_take_the_compiled_search(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(900, 96, 3)
    x[20:] *= np.random.default_rng(0).random((880, 96)) < 0.02  # blocks of zeros of both signs
    expected = rlx.quantize(x, "q8_0").tobytes()
    monkeypatch.setenv("RLX_CPU", "compiled")
    monkeypatch.setattr("rlx.runtime.quantize._COMPILED_ELEMENTS", 1)
    monkeypatch.setattr("rlx.packed.quantize._ELEMENTS_AT_ONCE", 4096)
    assert rlx.quantize(x, "q8_0").tobytes() == expected
    x[700, 5] = np.nan
    with pytest.raises(DTypeError, match="NaN or infinities"):
        rlx.quantize(x, "q8_0")
