"""How many steps loops may make together, wherever they run: on a device, or in the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rlx.errors import StepLimitExceeded

_THREAD = threading.local()  # .budget: of the loops on this thread, where there is one


@dataclass(slots=True)
class _Budget:
    steps: int
    left: int


@contextlib.contextmanager
def step_budget(steps: int | None) -> Iterator[None]:
    """Inside, loops on this thread make so many steps together, those of loops in loops counted one by one; the next
    one raises StepLimitExceeded. With None they may make as many as they like."""
    before = getattr(_THREAD, "budget", None)
    _THREAD.budget = None if steps is None else _Budget(steps, steps)
    try:
        yield
    finally:
        _THREAD.budget = before


def spend(name: str, steps: int) -> None:
    """Takes steps from the budget, if there is one. Raises: StepLimitExceeded."""
    budget = getattr(_THREAD, "budget", None)
    if budget is None:
        return
    if steps > budget.left:
        raise StepLimitExceeded(
            f"{name}: loops make more than {budget.steps:,} steps together, which is the limit here"
        )
    budget.left -= steps
