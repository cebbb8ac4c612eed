"""The weights that a program reads in another order than that of their tensors.

Each is a form of the buffer that holds the weight (`cpu/forms.py`), which programs share and which takes the place of
the weight's own bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from rlx.backends.cpu.arena import CpuBuffer
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.forms import Form, Forms
from rlx.backends.cpu.reads import Range, memory_of
from rlx.driver import Buffer
from rlx.driver.device import Bytes

Write = Callable[[Bytes], object]


class _Packed(NamedTuple):
    forms: Forms
    form: Form
    pack: Callable[[], object]
    range: Range


class PackedWeights:
    """The forms of one program's weights; `buffers` are those that hold them, `acquire` gives memory."""

    def __init__(self, buffers: Sequence[CpuBuffer], acquire: Callable[[int], Buffer]) -> None:
        self._buffers, self._acquire = list(buffers), acquire
        self._made: list[_Packed] = []

    def __len__(self) -> int:
        return len(self._made)

    def pack(self, weight: Array, order: Hashable, nbytes: int, pack: Write, unpack: Write) -> Bytes | None:
        """Memory of `nbytes` for a weight in another order, which `order` names: `pack` writes it from the weight's
        array, `unpack` writes the array from it. None for a weight whose bytes are not all in the array."""
        found = self._range(weight)
        if found is None:
            return None
        forms = found.buffer.forms
        key = found.start, found.end, weight.shape, weight.strides, weight.dtype.str, order

        def restore(memory: Buffer) -> None:
            unpack(memory_of(memory))

        form = forms.use(key, found.start, found.end, lambda: self._acquire(nbytes), restore)
        memory = memory_of(form.memory)
        self._made.append(_Packed(forms, form, lambda: pack(memory), found))
        return memory

    def since(self, count: int) -> list[Range]:
        """The ranges that were packed after the first `count`."""
        return [p.range for p in self._made[count:]]

    def take_back(self, count: int) -> None:
        """Leaves all forms but the first `count`."""
        while len(self._made) > count:
            packed = self._made.pop()
            packed.forms.leave(packed.form)

    def refresh(self, again: bool) -> None:
        """Fills the forms whose weights have changed, or all of them `again`."""
        for forms, form, pack, _ in self._made:
            forms.fill(form, pack, again)

    def _range(self, weight: Array) -> Range | None:
        """Where the array lies, if its elements are all bytes between its first and its last."""
        step = weight.itemsize
        for stride, n in sorted((s, n) for s, n in zip(weight.strides, weight.shape, strict=True) if n > 1):
            if stride != step:
                return None
            step *= n
        at = int(weight.__array_interface__["data"][0])
        for buffer in self._buffers:
            start = at - buffer.memory().ctypes.data
            if start >= 0 and start + step <= buffer.nbytes:
                return Range(buffer, start, start + step)
        return None
