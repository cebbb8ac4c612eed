"""Launch: a run that the device may still be at work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlx.driver import Mark
from rlx.errors import CapacityExceeded, RlxError
from rlx.runtime.array import Array, again, stored
from rlx.runtime.outs import Out, check_out

if TYPE_CHECKING:
    from rlx.runtime.checks import Unread

T = TypeVar("T")
U = TypeVar("U")


class Launch(Generic[T]):
    """A run under way, made by `CompiledGraph.launch`, or by that of a jitted function or an ONNX model.

    `results` are its outputs as rlx.Arrays, by name, or what a call of the jitted function returns. They may feed other
    runs at once, without the host waiting, since the device runs them in order. Reading a result waits for it. If the
    run failed, using a result raises its error, as `wait` does.
    """

    def __init__(
        self, arrays: Mapping[str, Array], mark: Mark | None, error: Exception | None = None,
        arrange: Callable[[Mapping[str, Any]], Any] = dict, unread: Unread | None = None,
    ) -> None:  # fmt: skip
        self._arrays = dict(arrays)
        self._arrange = arrange
        self.results: T = arrange(self._arrays)
        self._mark = mark
        self._error = error
        self._unread = unread

    def arranged(self, arrange: Callable[[T], U]) -> Launch[U]:
        """The same run, with `arrange` applied to its results, which are rlx.Arrays or NumPy's."""
        return Launch(self._arrays, self._mark, self._error, lambda arrays: arrange(self._arrange(arrays)),
                      self._unread)  # fmt: skip

    def __repr__(self) -> str:
        ended = self.done()
        state = "failed" if self._error is not None else "done" if ended else "under way"
        return f"Launch({state}: {', '.join(f'{n}: {a.type}' for n, a in self._arrays.items())})"

    @property
    def failed(self) -> bool:
        """Whether the run is known to have failed; `wait` raises its error. Never waits."""
        return self._error is not None

    def done(self) -> bool:
        """Whether the run is complete, or has failed; never waits."""
        mark = self._mark  # read once: another thread may find that it is done
        if mark is None:
            return True
        try:
            ended = mark.done()
        except RlxError as error:
            self._failed(error)
            return True
        if ended:
            self._mark = None
            self._check()
        return ended

    def wait(self, out: Out = "device") -> T:
        """The results once the run is complete: rlx.Arrays, or with `out="host"` NumPy arrays.

        Raises: the error of the run, at each call."""
        check_out("wait", out)
        mark = self._mark
        if mark is not None:
            try:
                mark.wait()
            except RlxError as error:
                self._failed(error)
            self._mark = None  # not set earlier: if the wait is interrupted, the run is still under way
        self._check()
        if self._error is not None:
            raise again(self._error)
        arrays = {n: a.numpy() for n, a in self._arrays.items()} if out == "host" else self._arrays
        result: T = self._arrange(arrays)
        return result

    def _check(self) -> None:
        """Reads the unread checks of the run and of earlier ones. Requires: the run is complete."""
        unread, self._unread = self._unread, None
        if unread is not None and self._error is None:
            try:
                unread.read()
            except CapacityExceeded as error:
                self._failed(error)

    def _failed(self, error: RlxError) -> None:
        self._error, self._mark = stored(error), None
        for result in self._arrays.values():
            result._end(error)
