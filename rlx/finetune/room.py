"""Whether a run fits into its device's memory, checked before it starts, and which options would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx import tree
from rlx.errors import OutOfDeviceMemory
from rlx.finetune.model import halves, to_train
from rlx.finetune.settings import Settings
from rlx.records import replace
from rlx.runtime import Session
from rlx.runtime.report import Report
from rlx.train.leaves import taken_apart
from rlx.train.program import Model, step_graph


def batch_of(settings: Settings, length: int) -> dict[str, Any]:
    """A batch of zeros with the shapes and dtypes of the run's batches."""
    shape = (settings.batch, length)
    names = ("ids", "targets", "segments") if settings.packed else ("ids", "targets")
    return {n: np.zeros(shape, np.int32) for n in names} | {"count": np.ones(settings.parts, np.float32)}


def named(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.2f} MiB"


def said(report: Report, frozen: Any, parameters: Any, state_nbytes: int, free: int, adapter: bool) -> str:
    """A line that says how much memory the run takes."""
    sizes = {
        "the frozen weights": _bytes(frozen), "the adapter" if adapter else "the weights": _bytes(parameters),
        "the optimizer": state_nbytes, "a step": report.plan.arena_bytes,
    }  # fmt: skip
    parts = ", ".join(f"{named(nbytes)} for {what}" for what, nbytes in sizes.items() if nbytes)
    return f"memory: {parts}; {named(free)} are free"


def _bytes(values: Any) -> int:
    return sum(int(getattr(x, "nbytes", 0)) for x in tree.leaves(values))


def refused(error: OutOfDeviceMemory, settings: Settings, length: int, session: Session) -> OutOfDeviceMemory:
    """The error with the first of the smaller settings that fits."""
    settings = replace(settings, batch=settings.batch // settings.ranks, ranks=1)  # a rank's own rows
    for what, other, shorter in _others(settings, length):
        if _fits(other, shorter, session):
            return OutOfDeviceMemory(f"{error}; it would fit with {what}")
    return OutOfDeviceMemory(
        f"{error}; nor would one row of 64 tokens at a time: try --quantize nf4, --dtype bf16, or another device"
    )


def _others(settings: Settings, length: int) -> Iterator[tuple[str, Settings, int]]:
    again = "" if settings.recompute else " --recompute"
    parts = settings.accumulate
    while parts < settings.batch:
        parts = next(n for n in range(parts + 1, settings.batch + 1) if settings.batch % n == 0)
        yield f"--accumulate {parts}", replace(settings, accumulate=parts), length
    least = replace(settings, accumulate=settings.batch, recompute=True)
    if again:
        yield f"--accumulate {settings.batch}{again}", least, length
    while length > 64:
        length = max(64, length // 2)
        yield f"--accumulate {settings.batch}{again} --length {length}", least, length


def _fits(settings: Settings, length: int, session: Session) -> bool:
    task = to_train(settings)
    optimizer = settings.optimizer(100, settings.lora is None and halves(task.parameters))
    theirs, _ = taken_apart(task.parameters, "parameters")
    state, _ = taken_apart(optimizer.init(task.parameters), "optimizer")
    frozen = None if task.frozen is None else taken_apart(task.frozen, "frozen")[0]
    model = Model(
        loss=task.loss, parameters=theirs, frozen=frozen, carried=None, optimizer=optimizer, state=state, keyed=False,
        parts=settings.accumulate, guarded=True,
    )
    try:
        session.compile(step_graph(model, taken_apart(batch_of(settings, length), "batch")[0], 0).graph).close()
    except OutOfDeviceMemory:
        return False
    return True
