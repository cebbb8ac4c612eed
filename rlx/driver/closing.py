"""What objects that hold memory or names until they are closed have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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


class Held(ExitStack):
    """What an object has acquired. Each acquisition is followed by `callback(how to give it back)`; `close` makes these
    calls in reverse order, each once, the others too where one raises or is interrupted. Idempotent."""

    @contextmanager
    def unwound(self) -> Iterator[None]:
        """The block of a constructor: where it fails, or is interrupted, what was acquired is given back, and the
        reason is raised, whatever giving back may raise."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self.close()
            raise


def close_each(*closes: Callable[[], None]) -> None:
    """Makes every call, in order, the others too where one raises; then raises what the last that failed raised."""
    with ExitStack() as stack:
        for close in reversed(closes):
            stack.callback(close)
