"""Locks that are renewed in the child of a fork: the threads that may have held them do not exist there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_MADE: WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = WeakKeyDictionary()


def renewed(owner: Any, name: str, make: Callable[[], T]) -> T:
    """Calls `make` and returns its result, for attribute `name` of `owner`; a forked child gets a new one there.

    Without this a child would wait for ever for a lock that a thread of its parent held at the fork.
    """
    _MADE.setdefault(owner, {})[name] = make
    return make()


def _renew() -> None:
    for owner, locks in list(_MADE.items()):
        for name, make in locks.items():
            setattr(owner, name, make())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
