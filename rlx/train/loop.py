"""Training: the loop around a loss and an optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rlx.driver.closing import Closing
from rlx.runtime.keywords import keywords
from rlx.runtime.session import Target

PyTree = Any


class Metrics(Mapping[str, float]):
    """The metrics of one step, read from the device when the first is asked for."""

    step: int


class Training(Closing):
    """A run of training, made by `rlx.training`."""

    steps: int
    parameters: PyTree
    optimizer_state: PyTree

    def step(self, batch: PyTree) -> Metrics:
        """Begins a step on a batch, a pytree of arrays of fixed shapes, and returns at once."""
        raise NotImplementedError

    def over(
        self,
        batches: Iterable[PyTree] | Callable[[int], Iterable[PyTree]],
        *,
        steps: int | None = None,
        prefetch: int = 2,
        save_every: int | None = None,
    ) -> Iterator[Metrics]:
        """A step for each batch, of which `prefetch` are taken ahead in a thread; yields the metrics of each step.

        `batches` is an iterable, or a function of the number of batches to leave out, which gives one. A resumed run
        leaves out those that it had taken. `steps`: batches at most, those left out included. With `save_every` a
        checkpoint is saved after each so many steps, and at the end."""
        raise NotImplementedError

    def evaluate(self, batches: Iterable[PyTree], loss: Callable[..., Any] | None = None) -> dict[str, float]:
        """The means of the metrics over batches, of `loss` or of the run's own, with the parameters of now."""
        raise NotImplementedError

    def save(self, folder: str | os.PathLike[str] | None = None) -> Any:
        """Saves a checkpoint in the run's folder, or another; returns its path."""
        raise NotImplementedError

    def load(self, folder: str | os.PathLike[str] | None = None) -> Training:
        """Goes back (or on) to the newest checkpoint of a folder, or to one file; returns the run itself."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@keywords
def training(
    loss: Callable[..., Any],
    parameters: PyTree,
    optimizer: Any,
    *,
    frozen: PyTree = None,
    key: Any = None,
    device: Target = "auto",
    precision: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    keep: int = 2,
    accumulate: int = 1,
    tokens: int | None = None,
    total: int | None = None,
    progress: bool | None = None,
    picture: bool = True,
    go_on: bool = False,
    shapes: int = 1,
) -> Training:
    """A run of training: `loss` of parameters and batches made small by `optimizer`, one program a step."""
    raise NotImplementedError
