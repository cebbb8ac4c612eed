"""Which words of a bound program are taken for addresses."""

from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu import choice

if choice.why_not() is not None:
    pytest.skip(str(choice.why_not()), allow_module_level=True)

from rlx.backends.cpu import frozen
from rlx.backends.cpu.frozen import _Declined, _Layout, _Piece
from rlx.driver.device import address


def laid(first: Any, second: Any, words: tuple[int, int]) -> tuple[list[int], list[int]]:
    """The words of the data, and the places of those that are addresses, of two bindings of one piece each."""
    bindings: list[Any] = [SimpleNamespace(pieces=[_Piece(memory, 0, True)]) for memory in (first, second)]
    layout = _Layout(*bindings)
    place = layout.put(*(np.array([word], np.int64) for word in words))
    layout.lay()
    return np.frombuffer(layout.data(), np.int64)[place // 8 :][:1].tolist(), layout.addresses


def mapped() -> Any:
    """Memory of a mapping of its own, whose address no heap has."""
    memory = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)[:64]
    memory[:] = range(64)
    return memory


def test_numbers_and_addresses() -> None:
    first, second = mapped(), mapped()
    assert laid(first, second, (7, 7)) == ([7], [])
    assert laid(first, second, (-7, -7)) == ([-7], [])
    assert laid(first, second, (address(first) + 8, address(second) + 8)) == ([72], [0])
    assert laid(first, first, (address(first) + 8,) * 2) == ([72], [0])


@pytest.mark.parametrize("number", [0x7F12_3456_7890, 0x5555_1234_5678, 0xAAAA_1234_5678, 0xFFFF_8000_1000])
def test_a_number_that_may_be_an_address_elsewhere_is_not_frozen(number: int) -> None:
    first, second = np.arange(64, dtype=np.uint8), np.arange(64, dtype=np.uint8)
    with pytest.raises(_Declined, match="looks like an address"):
        laid(first, second, (number, number))


def test_a_word_that_is_an_address_in_one_binding_alone_is_not_frozen() -> None:
    first, second = mapped(), mapped()
    for words in ((address(first), address(first)), (address(second), address(second)), (address(first), 3),
                  (address(first), address(second) + 8)):  # fmt: skip
        with pytest.raises(_Declined):
            laid(first, second, words)


def test_an_address_of_a_heap_that_lies_low_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Python is no position-independent program."""
    monkeypatch.setattr(frozen, "_heap", lambda: range(0x1234_0000, 0x1235_0000))
    first, second = mapped(), mapped()
    assert laid(first, second, (0x1235_0000, 0x1235_0000)) == ([0x1235_0000], [])
    with pytest.raises(_Declined, match="looks like an address"):
        laid(first, second, (0x1234_5678, 0x1234_5678))
