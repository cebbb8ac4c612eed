"""What objects that hold memory or names until they are closed have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Has `close`, which a `with` block calls when it ends, however it does."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the object holds. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
