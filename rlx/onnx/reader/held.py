"""Held: an rlx.Array among a run's inputs, with the face of a NumPy array that the checks of inputs ask for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from rlx.driver.device import CUDA
from rlx.errors import DeviceUnavailable
from rlx.onnx.reader.elements import Array
from rlx.runtime.array import Array as DeviceArray
from rlx.runtime.exchange import adopted


class Held:
    """An rlx.Array: its shape, bytes and NumPy's dtype are known here, and its values where they are asked for."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.shape, self.nbytes, self.size, self.dtype = array.shape, array.nbytes, array.size, array.dtype.np

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array.numpy(), dtype)


def held(value: Any) -> Any:
    """The value, an array of a device (of another library in CUDA memory, too) as a Held."""
    with suppress(DeviceUnavailable):  # then it is read through the host, where its library can
        value = adopted(value, CUDA)
    return Held(value) if isinstance(value, DeviceArray) else value


def unheld(value: Any) -> Any:
    """The value, or the list of values, with an rlx.Array where a Held stood for it."""
    if isinstance(value, list):
        return [unheld(v) for v in value]
    return value.array if isinstance(value, Held) else value
