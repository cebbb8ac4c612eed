"""A buffer's contents in another order: weights packed as the engine's matrix products read them.

A form has all bytes of its range, in memory of its own. Once it is filled, the pages of the range are given back to the
system, while the addresses stay reserved: so a weight is in memory once. Programs that bind the same weight in the same
order share the form. The buffer's methods restore the bytes before they read or write them. Code that holds addresses
of the bytes says so (`keep`), and then they stay in memory beside the form.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterable
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from rlx.driver import Buffer
from rlx.driver.device import Bytes, address
from rlx.host.locks import renewed

_LEAST_BYTES = 1 << 16  # a smaller range is not worth giving back
_NONE = np.empty(0, np.uint8)
_ALL: WeakValueDictionary[int, Forms] = WeakValueDictionary()


class Form:
    """The bytes start … end - 1 of a buffer in another order, in `memory`; `unpack` writes them back to the buffer.

    `fresh`: the form has the buffer's current bytes. `written`: the buffer was written since the form was last filled,
    or while it is being filled. `users`: how many programs read the form."""

    __slots__ = ("end", "fresh", "key", "memory", "start", "unpack", "users", "written")

    def __init__(
        self, key: Hashable, start: int, end: int, memory: Buffer, unpack: Callable[[], object]
    ) -> None:
        self.key, self.start, self.end, self.memory, self.unpack = key, start, end, memory, unpack
        self.fresh = self.written = False
        self.users = 0


class Forms:
    """The forms of one buffer's contents. Any thread may call."""

    def __init__(self, contents: Bytes, own: bool) -> None:
        """`own`: the memory is the buffer's own, so that its pages may be given back."""
        self._contents, self._own = contents, own and _madvise() is not None
        self.lock = renewed(self, "lock", threading.RLock)
        self._forms: dict[Hashable, Form] = {}
        self._gone: dict[tuple[int, int], Form] = {}  # ranges whose bytes only a form has
        self._kept: Counter[tuple[int, int]] = Counter()
        self._all_kept = False
        self._among_kept: list[Form] | None = None  # forms of kept bytes; None until they are looked up again
        self._bringing = 0  # calls of `_bring` under way: a signal handler may start one within another
        # Forms and kept ranges of programs that were dropped without `close`. Finalizers must not take the lock, so
        # they only add them here.
        self.abandoned: deque[Form | tuple[int, int]] = deque()
        _ALL[id(self)] = self

    @property
    def extra_bytes(self) -> int:
        """Bytes of the forms, less those given back to the system. Takes no lock, since that may be held for long."""
        return sum(f.memory.nbytes for f in tuple(self._forms.values())) - self.freed_bytes

    @property
    def freed_bytes(self) -> int:
        """Bytes of the buffer that were given back to the system."""
        return sum(last - first for first, last in (self._pages(*r) for r in tuple(self._gone)))

    # -- forms

    def use(
        self, key: Hashable, start: int, end: int, make: Callable[[], Buffer], unpack: Callable[[Buffer], object]
    ) -> Form:
        """The form with this key (range and order), which one more program now uses. `make` allocates a new one, which
        is not filled yet; `unpack` restores the buffer's bytes from it."""
        with self.lock:
            self._sweep()
            form = self._forms.get(key)
            if form is None:
                memory = make()
                form = self._forms[key] = Form(key, start, end, memory, lambda: unpack(memory))
                self._among_kept = None
            form.users += 1
            return form

    def leave(self, form: Form) -> None:
        """Ends a `use`. A form that has the only copy of its bytes stays until they are needed in the buffer."""
        with self.lock:
            form.users -= 1
            self._drop_unused([form])

    def fill(self, form: Form, pack: Callable[[], object], again: bool = False) -> None:
        """Makes a form current: `pack` writes it if the buffer's bytes have changed, or in any case with `again`."""
        if form.fresh and not again:
            return
        with self.lock:
            brought = self._bring(form.start, form.end)
            form.fresh = form.written = False
            try:
                pack()
                form.fresh = not form.written  # a signal handler may have written to the buffer meanwhile
            finally:
                self._settle([form, *brought])

    # -- uses of the contents

    def keep(self, start: int, end: int) -> None:
        """From now on these bytes stay in the buffer, since their addresses are in use."""
        with self.lock:
            self._sweep()
            self._kept[start, end] += 1  # first, so that the pages are not given back during `_bring`
            self._among_kept = None
            self._drop_unused(self._bring(start, end))

    def let_go(self, start: int, end: int) -> None:
        """Ends a `keep`."""
        with self.lock:
            self._kept[start, end] -= 1
            self._kept = +self._kept
            self._among_kept = None
            self._settle(list(self._forms.values()))

    def keep_all(self) -> None:
        """Keeps the whole contents until the buffer is closed."""
        with self.lock:
            if not self._all_kept:
                self.keep(0, len(self._contents))
                self._all_kept = True

    def read(self, start: int, end: int, work: Callable[[], object]) -> None:
        """Does work that reads a range."""
        with self.lock:
            brought = self._bring(start, end)
            try:
                work()
            finally:
                self._settle(brought)

    def write(self, start: int, end: int, work: Callable[[], object]) -> None:
        """Does work that writes a range. If it is broken off, bytes that only a form had have their old values."""
        with self.lock:
            covered = {r: form for r, form in self._gone.items() if start <= r[0] and r[1] <= end}
            self._bring(start, end, covered)
            outdated = self._outdate(start, end)
            try:
                for range_ in covered:
                    del self._gone[range_]
                work()
            except BaseException:
                self._gone.update(covered)
                raise
            self._drop_unused(outdated)

    def written(self) -> None:
        """Notes that kept bytes may have been written through their addresses."""
        with self.lock:
            if self._among_kept is None:
                kept = tuple(self._kept)
                self._among_kept = [f for f in self._forms.values() if any(a < f.end and f.start < b for a, b in kept)]
            for form in self._among_kept:
                form.fresh, form.written = False, True
            self._drop_unused(self._among_kept)

    def close(self) -> None:
        """The contents are not needed any more. Forms in use stay until they are left."""
        with self.lock:
            self._gone.clear()
            self._own, self._contents = False, _NONE
            self._drop_unused(list(self._forms.values()))

    # -- with the lock

    def _sweep(self) -> None:
        while self.abandoned:
            left = self.abandoned.popleft()
            if isinstance(left, Form):
                self.leave(left)
            else:
                self.let_go(*left)

    def _outdate(self, start: int, end: int) -> list[Form]:
        """Notes that a range is about to change or has changed. Returns the forms that had its bytes."""
        outdated = [f for f in self._forms.values() if f.start < end and start < f.end]
        for form in outdated:
            form.fresh, form.written = False, True
        return outdated

    def _bring(self, start: int, end: int, but: Container[tuple[int, int]] = ()) -> list[Form]:
        """Restores the bytes of a range that only forms have, except for the ranges `but`. Returns these forms."""
        missing = [(r, f) for r, f in self._gone.items() if r[0] < end and start < r[1] and r not in but]
        self._bringing += 1
        try:
            for range_, form in missing:
                form.unpack()
                self._gone.pop(range_, None)
        finally:
            self._bringing -= 1
        return [form for _, form in missing]

    def _settle(self, forms: list[Form]) -> None:
        """Gives the ranges of these forms back to the system, except for what is kept."""
        # Not within `_bring`, which would take the range for restored.
        for form in forms if self._own and not self._bringing else ():
            start, end = form.start, form.end
            taken = any(a < end and start < b for a, b in (*self._gone, *self._kept))
            if form.fresh and not taken and end - start >= _LEAST_BYTES:
                # The note comes first, since a signal handler may raise between the two. Where the system refuses, the
                # bytes are still in the buffer, which does no harm.
                self._gone[start, end] = form
                give_back(self._contents[start:end])
        self._drop_unused(forms)

    def _drop_unused(self, forms: Iterable[Form]) -> None:
        for form in forms:
            if form.users == 0 and self._forms.get(form.key) is form and form not in self._gone.values():
                del self._forms[form.key]
                self._among_kept = None
                form.memory.close()

    def _pages(self, start: int, end: int) -> tuple[int, int]:
        """The whole pages of a range."""
        first, last = _whole_pages(self._contents[start:end])
        return start + first, start + last


def _whole_pages(memory: Bytes) -> tuple[int, int]:
    """The bounds of the whole pages in the memory."""
    base, page = address(memory), mmap.PAGESIZE
    first = -base % page
    return first, max(first, (base + memory.nbytes) // page * page - base)


def give_back(memory: Bytes) -> None:
    """Gives whole pages back to the system where that is possible: they are zeros from then on. Finalizers may call
    it."""
    call, (first, last) = _madvise(), _whole_pages(memory)
    if call is not None and last > first:
        call(memory.ctypes.data + first, last - first, mmap.MADV_DONTNEED)


def freed_bytes() -> int:
    """Bytes of all buffers that were given back to the system."""
    alive = (ref() for ref in _ALL.valuerefs())
    return sum(forms.freed_bytes for forms in alive if forms is not None)


@cache
def _madvise() -> Any:
    """The system's `madvise`; None where no such call frees pages and leaves zeros."""
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return call
