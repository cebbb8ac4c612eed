"""Small copies on the device by a kernel of words: cudaMemcpyAsync takes the host about twice as long as a launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlx.backends.cuda.call import bind
from rlx.backends.gpu.program.steps import Launch, Ref, TreeKernel, TreeOperand
from rlx.driver import Buffer
from rlx.dtypes import i32
from rlx.ir import expr as ex

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice

MAX_BYTES = 64 << 10
_WORD, _THREADS = 4, 256
_KERNEL = TreeKernel((ex.arg(0, i32),), (TreeOperand(i32, "flat"),), (TreeOperand(i32, "flat"),), 0)
_KNOWN = 256  # sizes whose launches are kept


class Copies:
    """The launches of a device's copies, by their size."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._known: dict[int, Callable[[list[int]], list[Buffer]]] = {}

    def of(self, address: int, nbytes: int) -> Buffer | None:
        """A copy of bytes of the device, which later work finds written; None where these are no few whole words."""
        begin = self._known.get(nbytes)
        if address % _WORD:
            return None
        if begin is None:
            if nbytes % _WORD or not 0 < nbytes <= MAX_BYTES:
                return None
            begin = self._begin(nbytes)
        return begin([address])[0]

    def _begin(self, nbytes: int) -> Callable[[list[int]], list[Buffer]]:
        source, target, words = Ref("source", 0, nbytes), Ref("target", 0, nbytes), nbytes // _WORD
        step = Launch(
            _KERNEL, (math.ceil(words / _THREADS), 1, 1), (source, target, words), (source,), (target,), "a copy"
        )
        enqueued = bind(self._device, [step], None, ["source", "target"])
        assert not isinstance(enqueued, str) and enqueued.fresh is not None
        if len(self._known) >= _KNOWN:
            self._known.clear()
        begin = self._known[nbytes] = enqueued.fresh([nbytes])
        return begin
