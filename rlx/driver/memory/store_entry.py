"""StoreEntry: a program's tensor in a store shared with other programs, as the program's arena sees it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlx.driver.memory.plan import Slot
from rlx.dtypes import DType


class StoreEntry(Protocol):
    """One weight or state. The store knows what a plan does not: its current slot, and how many bytes are valid."""

    @property
    def slot(self) -> Slot:
        """The current slot. After a change of dtype, a program recorded before still uses the old one."""
        ...

    @property
    def offset(self) -> int:
        """Bytes from the start of the store's region, whose chunks count as consecutive."""
        ...

    @property
    def length(self) -> int:
        """The number of leading bytes that are valid."""
        ...

    @length.setter
    def length(self, nbytes: int) -> None: ...

    @property
    def weight(self) -> bool:
        """Whether it is a weight, which may be stored in half precision, and not a state."""
        ...

    def read(self) -> npt.NDArray[np.uint8]:
        """A copy of its bytes as they are stored now."""
        ...

    def keep_half(self, dtype: DType, data: npt.ArrayLike) -> None:
        """Stores a weight as f16 or bf16 from now on. Raises: ShapeError, DTypeError, OutOfDeviceMemory."""
        ...
