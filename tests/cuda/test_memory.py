"""Moving overlapping bytes in pieces through a bounce buffer gives what memmove gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlx.backends.cuda.memory import memmove_pieces


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 100), st.integers(1, 110))
def test_pieces_are_memmove(source: int, target: int, nbytes: int, piece: int) -> None:
    memory = np.arange(180, dtype=np.uint8)
    expected = memory.copy()
    expected[target : target + nbytes] = memory[source : source + nbytes].copy()
    bounce = np.zeros(piece, np.uint8)
    for at, n in memmove_pieces(source, target, nbytes, piece):
        assert n <= piece
        bounce[:n] = memory[source + at : source + at + n]
        memory[target + at : target + at + n] = bounce[:n]
    np.testing.assert_array_equal(memory, expected)
