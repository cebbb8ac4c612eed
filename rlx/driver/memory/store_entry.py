"""StoreEntry: a tensor of a program that lies in a store shared with other programs, as the program's arena sees it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlx.driver.memory.plan import Slot
from rlx.dtypes import DType


class StoreEntry(Protocol):
    """One weight or state. The store knows more of it than a plan does: where it lies now, and how much is valid."""

    @property
    def slot(self) -> Slot:
        """Where it is kept now, which after a change of dtype is not where the program has it that still runs."""
        ...

    @property
    def offset(self) -> int:
        """Bytes from the start of the store's region, its chunks counted one after the other."""
        ...

    @property
    def length(self) -> int:
        """Valid bytes, from the start."""
        ...

    @length.setter
    def length(self, nbytes: int) -> None: ...

    @property
    def weight(self) -> bool:
        """Whether it is a weight, which may be kept in half precision, and no state."""
        ...

    def read(self) -> npt.NDArray[np.uint8]:
        """A copy of its bytes as they are kept now."""
        ...

    def keep_half(self, dtype: DType, data: npt.ArrayLike) -> None:
        """Keeps a weight as f16 or bf16 from now on. Raises: ShapeError, DTypeError, OutOfDeviceMemory."""
        ...
