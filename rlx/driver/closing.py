"""Base and tools of objects that hold memory, or other resources, until they are closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from rlx.errors import GraphError


class Closing(ABC):
    """An object with `close`, which a `with` block calls at its end, also after an error."""

    instead = "make another of what it was made of"  # what to do where someone pickles or copies it

    @abstractmethod
    def close(self) -> None:
        """Releases the object's resources. Idempotent."""

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__name__
        raise GraphError(f"a {kind} cannot be pickled or copied: it holds memory of its process; {self.instead}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Resources(ExitStack):
    """The resources that an object has acquired.

    After each acquisition, `callback` registers the call that releases it. `close` makes these calls in reverse
    order, once each, also the rest after one raises or is interrupted. Idempotent."""

    @contextmanager
    def unwound(self) -> Iterator[None]:
        """The context of a constructor, which releases what was acquired if the constructor fails.

        The error or interrupt is raised again, whatever errors the releases raise."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self.close()
            raise


def close_each(*closes: Callable[[], None]) -> None:
    """Makes every call, in order, also after one has raised; then raises the error of the last one that failed."""
    with ExitStack() as stack:
        for close in reversed(closes):
            stack.callback(close)
