"""The weights that a program reads in another order than their tensors'.

Each is a form of the buffer that holds the weight (`cpu/forms.py`), which programs share and which takes the place of
the weight's own bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.cpu.arena import CpuBuffer
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.fixed_ranges import Range, memory_of
from rlx.backends.cpu.forms import Form, Forms
from rlx.driver import Buffer
from rlx.driver.device import Bytes, address
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.backends.cpu.step import EngineStep


def _unfinished() -> None:
    raise AssertionError("a weight is packed before its program is finished")


class Packed(Record, frozen=False):
    """One packed weight: `form` holds the bytes of `range` in another order. `pack`, which the program sets, runs
    `steps`, which write it."""

    forms: Forms
    form: Form
    range: Range
    steps: Sequence[EngineStep] = ()
    pack: Callable[[], object] = _unfinished


class PackedWeights:
    """The packed weights of one program, in `made`. `buffers` hold the weights as they were given; `acquire` allocates
    memory."""

    def __init__(self, buffers: Sequence[CpuBuffer], acquire: Callable[[int], Buffer]) -> None:
        self._buffers, self._acquire = list(buffers), acquire
        self.made: list[Packed] = []

    def __len__(self) -> int:
        return len(self.made)

    def pack(
        self, weight: Array, order: Hashable, nbytes: int, steps: Callable[[Bytes], Sequence[EngineStep]],
        unpack: Callable[[Bytes], object],
    ) -> Bytes | None:  # fmt: skip
        """Memory of `nbytes`, zeroed at first, for a weight in another order, which `order` identifies. The steps that
        `steps` returns fill it from the weight's array, `unpack` restores the array from it. None for a weight whose
        array is not a gapless range of memory."""
        held = self._range(weight)
        if held is None:
            return None
        forms = held.buffer.forms
        key = held.start, held.end, weight.shape, weight.strides, weight.dtype.str, order

        def restore(memory: Buffer) -> None:
            unpack(memory_of(memory))

        form = forms.use(key, held.start, held.end, lambda: self._acquire(nbytes), restore)
        memory = memory_of(form.memory)
        packed = Packed(forms, form, held)
        self.made.append(packed)
        packed.steps = steps(memory)
        return memory

    def since(self, count: int, kept: Sequence[object]) -> list[Range]:
        """The bytes that the packed weights after the first `count` replace, without ranges that share memory with an
        array in `kept`."""
        arrays = [x for x in kept if isinstance(x, np.ndarray)]
        return [p.range for p in self.made[count:] if not any(np.may_share_memory(p.range.bytes, x) for x in arrays)]

    def take_back(self, count: int) -> None:
        """Ends the use of all forms but the first `count`."""
        while len(self.made) > count:
            packed = self.made.pop()
            packed.forms.leave(packed.form)

    def __del__(self) -> None:
        for packed in getattr(self, "made", ()):
            packed.forms.abandoned.append(packed.form)

    def refresh(self, again: bool) -> None:
        """Fills the forms whose weights have changed, or all of them `again`."""
        for packed in self.made:
            packed.forms.fill(packed.form, packed.pack, again)

    def _range(self, weight: Array) -> Range | None:
        """The array's range; None where its elements leave gaps."""
        step = weight.itemsize
        for stride, n in sorted((s, n) for s, n in zip(weight.strides, weight.shape, strict=True) if n > 1):
            if stride != step:
                return None
            step *= n
        at = address(weight)
        for buffer in self._buffers:
            start = at - address(buffer.memory())
            if start >= 0 and start + step <= buffer.nbytes:
                return Range(buffer, start, start + step)
        return None
