"""Arrays exchanged with other libraries on CUDA: CuPy reads and makes DLPack's capsules, in order with our stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.driver.device import Borrowed

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice
    from rlx.backends.cuda.memory import CudaBuffer


class _Handle:
    """A stream of ours by the protocol that CuPy has read since version 14."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


@contextmanager
def _on_our_stream(device: CudaDevice) -> Iterator[Any]:
    """CuPy, whose current stream is the device's."""
    import cupy

    index = device.info.index
    with cupy.cuda.Device(index):
        known = hasattr(cupy.cuda.Stream, "from_external")
        ours = cupy.cuda.Stream.from_external if known else partial(cupy.cuda.ExternalStream, device_id=index)
        with ours(_Handle(device.stream) if known else device.stream):
            yield cupy


def borrow(device: CudaDevice, source: Any) -> Borrowed:
    """See Device.borrow. The producer makes our stream wait for its own; for an array that has only the CUDA array
    interface, CuPy waits for the stream named there."""
    with _on_our_stream(device) as cupy:
        array = cupy.from_dlpack(source) if hasattr(source, "__dlpack__") else cupy.asarray(source)
        held = cupy.ascontiguousarray(array).reshape(array.shape)
        copied = held.data.ptr != array.data.ptr
        return Borrowed(held.data.ptr, tuple(held.shape), np.dtype(held.dtype), held, copied)


def lend(
    device: CudaDevice,
    buffer: CudaBuffer,
    offset: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    options: Mapping[str, Any],
) -> object:
    """See Device.lend. The consumer's stream waits for ours. The memory returns to the pool once the consumer has
    released it and its work on that stream is done."""
    stream = options.get("stream")
    buffer.lend(1 if stream is None else int(stream))  # None: the legacy default stream
    nbytes = math.prod(shape) * dtype.itemsize
    with _on_our_stream(device) as cupy:
        memory = cupy.cuda.UnownedMemory(buffer.address + offset, max(nbytes, 1), buffer, device.info.index)
        array = cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
        try:
            return array.__dlpack__(**options)
        except TypeError:  # CuPy before 14 takes the stream alone
            return array.__dlpack__(stream=stream)
