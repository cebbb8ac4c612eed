"""Training: the loop around a loss and an optimizer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from rlx.driver.closing import Closing, Resources
from rlx.dtypes import i32
from rlx.errors import CheckpointError, DTypeError, GraphError, NotFinite, RlxError, ShapeError
from rlx.host.collector import paused
from rlx.host.files import written_whole
from rlx.host.other_attributes import explain
from rlx.ir import Graph, TensorType
from rlx.ops.pytree import flatten
from rlx.ops.random.draws import key as key_of
from rlx.optim import Optimizer
from rlx.ranks.place import PLACE
from rlx.runtime.arguments import is_any_array
from rlx.runtime.array import Array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.keywords import keywords
from rlx.runtime.report import Report
from rlx.runtime.saved.program import raw_of
from rlx.runtime.session import Session, Target, precision_for
from rlx.runtime.shard_map import device_of
from rlx.runtime.store import State
from rlx.runtime.version import VERSION
from rlx.train import checkpoint
from rlx.train.course import course_svg
from rlx.train.culprit import culprit
from rlx.train.leaves import Leaves, taken_apart
from rlx.train.prefetch import Prefetch
from rlx.train.program import ROWS, Model, evaluation_graph, kept_names, step_again, step_graph
from rlx.train.progress import Line
from rlx.train.ranks import Share, agree, gathered_rows, ranks_of, share_of
from rlx.train.record import NAME, Record
from rlx.train.settings import settings_of
from rlx.train.zero import Cut, cut_state, part_of, whole_of

PyTree = Any
PICTURE = "course.svg"
Batches = Iterable[PyTree] | Callable[[int], Iterable[PyTree]]


class Metrics(Mapping[str, float]):
    """The metrics of one step, "loss" and the others that the loss function returned, as Python floats.

    They stay on the device until one is read, or until ten steps have run; then those of all steps are read at once.
    Raises, when one is read: NotFinite if this step or one before it was not finite."""

    __slots__ = ("_failures", "_record", "_run", "step")

    def __init__(self, run: Training, step: int) -> None:
        self.step = step
        self._run, self._record, self._failures = run, run.record, len(run._failures)

    def __getitem__(self, name: str) -> float:
        if self._record is self._run.record:
            self._run._read(self.step)
        for failure in self._run._failures[self._failures :]:
            if failure.step <= self.step:  # this step was undone, and its number now belongs to another step
                raise failure
        if name not in self._record.names:
            raise KeyError(f"{name!r}; there are {', '.join(self._record.names)}")
        return self._record.value(self.step, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._record.names)

    def __len__(self) -> int:
        return len(self._record.names)

    def __repr__(self) -> str:
        return f"Metrics(step {self.step}: {', '.join(f'{n} {v:.6g}' for n, v in self.items())})"


class _Program:
    """A compiled step for batches of one set of types; `own` are the types of this rank's part of a batch."""

    def __init__(self, number: int, batch: Leaves, own: Leaves, compiled: CompiledGraph) -> None:
        self.number, self.batch, self.own, self.compiled = number, batch, own, compiled


class Training(Closing):
    """A run of training, made by `rlx.training`: parameters and the optimizer's state on one device.

    `steps` counts the steps done, `position` the batches that `over` has taken. One thread uses a run at a time. A
    `with` block closes it."""

    instead = "save() writes a checkpoint, which rlx.training(…, resume=folder) goes on from"

    def __init__(
        self, session: Session, model: Model, key: np.ndarray[Any, Any] | None, *, folder: Path | None, keep: int,
        tokens: int | None, total: int | None, progress: bool | None, picture: bool, shapes: int, cut: Cut | None,
    ) -> None:  # fmt: skip
        self.session, self.folder, self.total, self.steps, self.position = session, folder, total, 0, 0
        self._model, self._keep, self._tokens, self._shapes = model, keep, tokens, shapes
        self._progress, self._picture = progress, picture
        self._settings = settings_of(model.optimizer)
        self._held = Resources()
        self._store = State(session.device)
        self._held.callback(self._store.close)
        self._cut = frozenset[str]() if cut is None else cut.names  # states of which this rank holds a part
        # The types of what checkpoints hold, by name.
        self._saved = model.parameters.by_name | (model.state.by_name if cut is None else dict(cut.whole))
        self._saved |= {} if model.carried is None else model.carried.by_name
        self._programs: dict[Any, _Program] = {}
        self._evaluations: dict[Any, tuple[CompiledGraph, tuple[str, ...]]] = {}
        self._waiting = 0  # steps begun whose metrics were not read
        self._row = 0  # the next row of the record on the device
        self._failures: list[NotFinite] = []
        self._skip = 0  # batches that `over` still has to skip: the resumed run had taken them before
        self._ahead: Prefetch | None = None
        self.record = Record(None, 0)
        self._key, self._closed = key, False
        self._ranks = model.ranks
        if self._ranks is not None and not self._ranks.first:
            self._progress = False

    def _begin(self, states: Mapping[str, Any], frozen: Leaves | None, weights: list[Any]) -> None:
        """Puts everything on the device."""
        self._saved["steps"] = TensorType((), i32)
        if self._model.keyed:
            self._saved["key"] = TensorType((2,), i32)
        self._store.reserve(self._saved | self._model.state.by_name)
        for name, value in states.items():
            # Reserved memory holds zeros already, as most of an optimizer's states do at first.
            if isinstance(value, Array) or raw_of(value).any():
                self._store.set(name, value)
        if self._key is not None:
            self._store.set("key", self._key)
        if frozen is not None:
            self._store.declare(frozen.by_name)
            for name, value in zip(frozen.names, weights, strict=True):
                self._store.set(name, value.to(self.session) if isinstance(value, Array) else value)

    def _resume(self, resume: bool | str | os.PathLike[str], new_settings: bool) -> None:
        """Goes on from a checkpoint, or begins the record. Raises: CheckpointError if the folder holds a run and
        `resume` is False."""
        there = [] if self.folder is None else checkpoint.listed(self.folder)
        if self._ranks is not None:  # all ranks must have looked at the folder before the first one writes there
            begun = self.folder is not None and (self.folder / NAME).exists()
            agree(self._ranks, "the folder of a training run", [f"{resume} {begun} {[p.name for p in there]}"], [])
        if resume is True and self.folder is None:
            raise GraphError("training: resume=True goes on with what is in folder; give a folder, or resume=path")
        if not isinstance(resume, bool) or (resume and there):
            self.load(None if resume is True else resume, new_settings=new_settings)
            return
        if self.folder is not None and not resume and (there or (self.folder / NAME).exists()):
            raise CheckpointError(
                f"training: {self.folder} holds a run already{f', up to {there[-1].name}' if there else ''}: give "
                "resume=True to go on with it, another folder, or remove it"
            )
        self._begin_record()

    # -- steps

    @keywords
    def step(self, batch: PyTree) -> Metrics:
        """Begins a step on a batch, a pytree of arrays, NumPy's or rlx.Arrays, and returns without waiting for it.

        The first batch compiles the program; the next ones have its shapes and dtypes.
        Raises: ShapeError, DTypeError and GraphError for a batch of other types than before, NotFinite for one of the
        last ten steps, the errors of the device."""
        if self._waiting == ROWS:
            self._read()
        program, leaves = self._program(batch)
        launch = program.compiled.launch(dict(zip(program.own.names, leaves, strict=True)))
        if launch.failed:
            launch.wait()
        self._waiting += 1
        self.steps += 1
        return Metrics(self, self.steps)

    def _program(self, batch: PyTree) -> tuple[_Program, list[Any]]:
        leaves: list[Any] = []
        skeleton = flatten(batch, leaves, is_any_array)
        key = (skeleton, *[(x.shape, x.dtype) for x in leaves])
        program = self._programs.get(key)
        if program is None or self._model.ranks is not None:
            types, leaves = taken_apart(batch, "batch")
            share = share_of(self._model.ranks, types, leaves)
            leaves = share.leaves
        if program is None:
            program = next((p for p in self._programs.values() if p.batch == types), None)
            self._programs[key] = program = self._compiled(types, share) if program is None else program
        return program, leaves

    def _compiled(self, batch: Leaves, share: Share) -> _Program:
        there = {p.number: p.batch for p in self._programs.values()}
        if len(there) >= self._shapes:
            _refuse(batch, list(there.values()), self._shapes)
        number = len(there)
        with paused():
            with self._within(share.card):
                step = step_graph(self._model, share.types, number, share.weight)
            names = self.record.names or step.metrics
            if names != step.metrics:
                raise GraphError(f"training: the metrics of this batch are {list(step.metrics)}, before {list(names)}")
            compiled = self._compile(step.graph)
        self.record.names = names
        return _Program(number, batch, share.types, compiled)

    @contextmanager
    def _within(self, card: str | None = None) -> Iterator[None]:
        """Enters the mesh, if there is one. `card` is the text that identifies what is traced where the ranks' programs
        differ."""
        if self._ranks is None:
            yield
            return
        with self._ranks.mesh:
            before, PLACE.card = PLACE.card, card
            try:
                yield
            finally:
                PLACE.card = before

    def _compile(self, graph: Graph) -> CompiledGraph:
        compiled = self.session.compile(graph, weights=self._store, state=self._store)
        self._held.callback(compiled.close)
        return compiled

    def _read(self, step: int | None = None) -> None:
        """Reads the metrics of all steps begun, unless those of `step` were read before. Raises: NotFinite."""
        if not self._waiting or (step is not None and step <= self.steps - self._waiting):
            return
        rows = np.roll(self._value("record"), -self._row, axis=0)[: self._waiting]
        self._row = (self._row + self._waiting) % ROWS
        first = self.steps - self._waiting + 1
        self._waiting = 0
        failed = np.flatnonzero(rows[:, 0] == 0)
        fine = rows[: failed[0]] if failed.size else rows
        for i, row in enumerate(fine):
            self.record.add(first + i, row[1:])
        self.record.write()
        if failed.size:
            self.steps = first + len(fine) - 1
            self._failures.append(self._failed(rows[len(fine), 1]))
            raise self._failures[-1]

    def _failed(self, loss: float) -> NotFinite:
        """The error of the step after `steps`, whose batch was kept. Clears the failure, so that the run can go on."""
        kept = int(self._store.get("kept"))
        batch = next(p.own for p in self._programs.values() if p.number == kept)
        try:
            with self._within():
                again = step_again(self._model, batch, kept)
            count = 1 if self._ranks is None else self._ranks.size
            why = culprit(self.session, self._store, again, kept_names(kept, batch), count)
        except RlxError as error:  # the device may have too little memory for this search
            why = f"the node that made it cannot be found, {type(error).__name__}: {error}"
        finally:
            self._store.set("failed", np.bool_(False))
        value = "loss is " + str(float(loss)) if not math.isfinite(loss) else "gradients are not finite"
        failure = NotFinite(
            f"training: step {self.steps + 1}: its {value}: {why}. The run is as it was after step {self.steps}; "
            "go_on=True trains on in any case"
        )
        failure.step = self.steps + 1
        return failure

    def prepare(self, batch: PyTree) -> Report:
        """Compiles the step for batches of these types, without reading values. The report says how it runs and how
        much memory its plan takes. Raises: as `step`; OutOfDeviceMemory if it does not fit."""
        return self._program(batch)[0].compiled.report()

    # -- over batches

    def over(
        self, batches: Batches, *, steps: int | None = None, prefetch: int = 2, save_every: int | None = None
    ) -> Iterator[Metrics]:
        """Makes a step for each batch and yields its metrics; a thread takes up to `prefetch` batches ahead.

        `batches` is an iterable, or a function that returns one and is given the number of batches to skip. A resumed
        run skips those that it had taken before, so that the same program goes on where it was. `steps` limits the
        batches, skipped ones included. With `save_every` a checkpoint is saved every that many steps, and at the end.
        If the same iterator is given again, batches taken ahead are not lost.
        Raises: as `step` and `save`, the errors of the iterator, NotFinite for the last steps at the end."""
        if save_every is not None and self.folder is None:
            raise GraphError(f"over: save_every is {save_every!r}, and the run has no folder; give training one")
        _check_count("over: prefetch", prefetch, 0)
        for what, number, least in (("steps", steps, 0), ("save_every", save_every, 1)):
            if number is not None:
                _check_count(f"over: {what}", number, least)
        _check_several("over", batches, "or a function of how many to leave out")
        source, taken = self._begun(batches, steps, prefetch)
        line = Line(self._progress)
        end = self.total or (None if steps is None else self.steps - taken + steps)
        saved, count = self.steps, (0, "")
        try:
            while steps is None or taken < steps:
                try:
                    batch = next(source)
                except StopIteration:
                    self._ahead = None
                    break
                taken += 1
                self.position += 1
                metrics = self.step(batch)
                if line.shown:
                    count = self._count(batch)
                    line.step(self.steps, end, self.record.last, *count)
                yield metrics
                if save_every is not None and self.steps % save_every == 0:
                    self.save()
                    saved = self.steps
            self._read()
            if line.shown and taken:
                line.step(self.steps, end, self.record.last, *count, last=True)
            if save_every is not None and saved != self.steps:
                self.save()
            self._draw()
        finally:
            if isinstance(source, Prefetch) and source is not self._ahead:
                source.close()

    def _begun(self, batches: Batches, steps: int | None, prefetch: int) -> tuple[Iterator[PyTree], int]:
        """An iterator over the batches that come next, and how many of this call's batches were skipped."""
        if self._ahead is not None and self._ahead.source is batches:
            return self._ahead, 0
        self._leave_ahead()
        least = self._skip if steps is None else min(self._skip, steps)
        if callable(batches) and not isinstance(batches, Iterable):
            source, left = iter(batches(least)), least
        else:
            source, left = iter(batches), 0
            while left < least and next(source, self) is not self:
                left += 1
        self._skip -= left
        if prefetch < 1:
            return source, left
        ahead = Prefetch(source, prefetch)
        if source is batches:
            self._ahead = ahead
        return ahead, left

    def _leave_ahead(self) -> None:
        """Ends the thread that reads batches ahead."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _count(self, batch: PyTree) -> tuple[int, str]:
        """How many tokens or samples a batch has."""
        if self._tokens is not None:
            return self._tokens, "tokens"
        leaves: list[Any] = []
        flatten(batch, leaves, is_any_array)
        return next((x.shape[0] for x in leaves if x.shape), 0), "samples"

    def evaluate(self, batches: Iterable[PyTree], loss: Callable[..., Any] | None = None) -> dict[str, float]:
        """The means of the metrics over batches, equally weighted, with the current parameters; added to the record.

        `loss` is a function like the run's own (the default) but without a key; with the run's own, a run with `key`
        uses one key for all batches. Batches may have any shapes; each set of shapes compiles a program. New state
        that the function returns is ignored.
        Raises: as `step`; GraphError for no batches."""
        _check_several("evaluate", batches)
        model = self._model if loss is None else self._model._replace(loss=loss, keyed=False)
        rows: list[np.ndarray[Any, Any]] = []
        names: tuple[str, ...] = ()
        count, n, index = 0, 1, 0
        if self._ranks is not None:  # ranks take batches in turn; each also takes the first, to know the metrics' names
            n, index = self._ranks.size, self._ranks.place
        for count, batch in enumerate(batches, 1):
            if count > 1 and (count - 1) % n != index:
                continue
            types, leaves = taken_apart(batch, "batch")
            at = (model.loss, types)
            if at not in self._evaluations:
                with self._within():
                    step = evaluation_graph(model, types)
                self._evaluations[at] = self._compile(step.graph), step.metrics
            program, names = self._evaluations[at]
            rows.append(program.run(dict(zip(types.names, leaves, strict=True)))["values"])
        if not rows:
            raise GraphError("evaluate: there are no batches; give at least one")
        if self._ranks is not None:
            rows = gathered_rows(self._ranks, rows, count)
        means: list[float] = list(np.mean(np.stack(rows), axis=0, dtype=np.float64))
        result = {name: float(mean) for name, mean in zip(names, means, strict=True)}
        self._read()
        self.record.add_evaluation(self.steps, result)
        self.record.write()
        return result

    # -- what it has

    @property
    def parameters(self) -> PyTree:
        """The parameters as they are after the last step, as NumPy arrays."""
        return self._tree(self._model.parameters)

    @property
    def optimizer_state(self) -> PyTree:
        """The optimizer's state after the last step, as NumPy arrays. With zero=1 all ranks must call it."""
        if self._cut and self._ranks is not None:
            self._ranks.group().meet(lambda: "the whole of the optimizer's state")
        return self._tree(self._model.state)

    @property
    def optimizer_nbytes(self) -> int:
        """Bytes of the optimizer's state on this rank's device."""
        return sum(t.nbytes for t in self._model.state.types)

    @property
    def state(self) -> PyTree:
        """The new state that the loss function returned in the last step, as NumPy arrays; None without `state`."""
        return None if self._model.carried is None else self._tree(self._model.carried)

    def _tree(self, leaves: Leaves) -> PyTree:
        return leaves.tree([self._whole(name) for name in leaves.names])

    def _whole(self, name: str) -> np.ndarray[Any, Any]:
        """A value of the store. If each rank holds a part, it is gathered from all ranks, which must all call this."""
        value = self._value(name)
        if self._ranks is None or name not in self._cut:
            return value
        return whole_of(self._ranks, value, self._saved[name])

    def _value(self, name: str) -> np.ndarray[Any, Any]:
        """A value of the store. Raises: GraphError where the run is closed."""
        if self._closed:
            raise GraphError("training: the run is closed, and its values are gone; read them before close()")
        value: np.ndarray[Any, Any] = self._store.get(name)
        return value

    def __repr__(self) -> str:
        count = sum(t.numel for t in self._model.parameters.types)
        return f"Training({self.steps:,} steps, {count:,} parameters on {self.session.info.id})"

    # -- checkpoints

    def save(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Saves a checkpoint in the run's folder, or in another, where nothing is removed, and draws the course;
        returns the checkpoint's path.

        Of several ranks the first writes it. Raises: NotFinite; CheckpointError if it cannot be written, as on a full
        disk: earlier checkpoints stay, and the run can go on; GraphError for a run without a folder."""
        into = self._folder("save", folder)
        self._read()
        first = self._ranks is None or self._ranks.first
        if self._cut and self._ranks is not None:
            self._ranks.group().meet(lambda: f"the checkpoint of step {self.steps}")
        tensors = {name: self._whole(name) for name in self._saved if first or name in self._cut}
        if not first:
            return checkpoint.path_of(into, self.steps)
        try:
            self.record.write(whole=True)
        except OSError as error:
            raise CheckpointError(f"{self.record.path}: cannot be written: {error.strerror or error}") from error
        own = self.folder is not None and into.resolve() == self.folder.resolve()
        keep = self._keep if own else None
        path = checkpoint.write(into, tensors, self.steps, self.position, self._settings, keep)
        self._draw()
        return path

    def _draw(self) -> None:
        """Draws the course; a file that cannot be written is ignored."""
        if self.folder is None or not self._picture or (self._ranks is not None and not self._ranks.first):
            return
        text = course_svg(self.record.losses(), [(s, v["loss"]) for s, v in self.record.evaluations if "loss" in v])
        with suppress(OSError), written_whole(self.folder / PICTURE) as file:
            file.write(text.encode())

    def load(self, folder: str | os.PathLike[str] | None = None, *, new_settings: bool = False) -> Self:
        """Takes parameters, optimizer, step, key and data position from the newest checkpoint of a folder (the run's
        own by default), or from one file; returns the run. `over` then skips the batches that were taken before.

        Raises: CheckpointError if there is none, it is damaged, or it is of another model or optimizer (with
        `new_settings`, settings such as the rate may differ); nothing is changed then."""
        saved = checkpoint.read(self._folder("load", folder))
        checkpoint.check(saved, self._saved, self._settings if not new_settings else saved.settings)
        self._row, self._waiting = (self._row + self._waiting) % ROWS, 0
        if self._model.guarded and self._programs:  # a step whose metrics were not read may have failed
            self._store.set("failed", np.bool_(False))
        for name in self._saved:
            value = np.array(saved.tensors[name])
            self._store.set(name, part_of(self._ranks, value) if self._ranks and name in self._cut else value)
        if self._ranks is not None:
            arrays = [(name, np.array(saved.tensors[name])) for name in self._saved]
            agree(self._ranks, "a checkpoint", [f"step {saved.step}, position {saved.position}"], arrays)
        self.steps, self.position, self._skip = saved.step, saved.position, saved.position
        self._leave_ahead()
        self._begin_record()
        return self

    def _begin_record(self) -> None:
        names = self.record.names
        try:
            writes = self._ranks is None or self._ranks.first
            if self.folder is not None and writes:
                self.folder.mkdir(parents=True, exist_ok=True)
            self.record = Record(self.folder, self.steps, writes)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be used as a run's folder: {error}") from error
        self.record.names = names

    def _folder(self, what: str, asked: str | os.PathLike[str] | None) -> Path:
        folder = self.folder if asked is None else Path(asked)
        if folder is None:
            raise GraphError(f"{what}: the run has no folder; give one here, or folder= to rlx.training")
        return folder

    def close(self) -> None:
        """Frees the device's memory, and ends the thread that reads ahead. Idempotent."""
        self._leave_ahead()
        self._held.close()
        self._closed = True


def _check_count(what: str, number: Any, least: int) -> None:
    """Raises: GraphError for anything but an integer of at least `least`."""
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < least:
        raise GraphError(f"{what} is {number!r}; expected an int of at least {least}")


def _check_several(what: str, batches: Any, other: str = "") -> None:
    """Raises: GraphError for a single batch, or anything else that is not an iterable of batches."""
    one = isinstance(batches, Mapping | str | bytes)
    if one or not (isinstance(batches, Iterable) or (other and callable(batches))):
        came = "one batch" if isinstance(batches, Mapping) else f"a {type(batches).__name__}"
        raise GraphError(
            f"{what}: expected an iterable of batches{', ' * bool(other)}{other}; got {came}"
            + "; give [batch]" * isinstance(batches, Mapping)
        )


def _refuse(batch: Leaves, there: list[Leaves], limit: int) -> None:
    """Raises: GraphError, DTypeError or ShapeError for a batch whose types differ from those that are compiled."""
    before = there[-1]
    if batch.names != before.names or batch.skeleton != before.skeleton:
        why = "" if batch.names != before.names else ", in another structure, or beside other texts or flags"
        raise GraphError(f"training: the batch has {list(batch.names)}, those before had {list(before.names)}{why}")
    name, new, old = next(
        (n, a, b) for n, a, b in zip(batch.names, batch.types, before.types, strict=True) if a != b
    )
    if new.dtype != old.dtype:
        raise DTypeError(f"training: {name} is {new}, in the batches before {old}; give one dtype")
    raise ShapeError(
        f"training: {name} is {new}, in the batches before {old}: each new shape compiles another program. Leave out "
        f"or fill up a short batch, or give shapes={limit + 1} for programs of {limit + 1} shapes"
    )


@keywords
def training(
    loss: Callable[..., Any],
    parameters: PyTree,
    optimizer: Optimizer,
    *,
    frozen: PyTree = None,
    state: PyTree = None,
    key: Any = None,
    device: Target = "auto",
    precision: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    new_settings: bool = False,
    keep: int = 2,
    accumulate: int = 1,
    tokens: int | None = None,
    total: int | None = None,
    progress: bool | None = None,
    picture: bool = True,
    go_on: bool = False,
    shapes: int = 1,
    mesh: Any = None,
    zero: int = 0,
) -> Training:
    """A run of training: each step reduces `loss` by `optimizer`, in one program that works in place.

    >>> run = rlx.training(loss, parameters, rlx.optim.adamw(1e-3), folder="run", resume=True)
    >>> for metrics in run.over(batches, steps=1000, save_every=100):
    ...     if metrics.step % 100 == 0:
    ...         print(metrics["loss"])

    `loss(parameters, batch)` returns a float tensor of rank 0, or that and a dict of other metrics, each of rank 0.
    With `frozen`, a pytree of arrays and PackedArrays, it is `loss(parameters, frozen, batch)`: these are weights of
    the program, which no step copies or changes. With `state`, a pytree of arrays that each step replaces, such as
    batch norm's running statistics, it is `loss(parameters, state, batch)` (state follows frozen) and returns (loss,
    state) or (loss, state, metrics). With `key`, of `rlx.random.key` or a seed, it gets one more argument at the end:
    a key that is new in each step.

    `folder` is where checkpoints, metrics.jsonl and course.svg go; `keep` says how many checkpoints stay there.
    `resume=True` goes on with the newest checkpoint of the folder if there is one, `resume=path` with that of another
    folder or file; `new_settings` lets the optimizer's settings differ from its. `accumulate`: each batch is processed
    in that many equal parts along its first axis, and the step takes their mean gradient. `tokens` per step are for the
    rate in the progress line, `total` steps of the run for the time left. `progress`: whether that line is shown; None
    shows it if standard error is a terminal. `shapes`: how many sets of batch shapes may be compiled. A step whose loss
    or gradients are not finite stops the run with NotFinite, before it has changed anything; with `go_on` steps are not
    tested and all are taken. `mesh`: the ranks of an rlx.Mesh share each batch, along the mesh's axis "data" or its
    only one (docs/ranks.md). All are given the same batches, parameters and settings; each works on its rows, and the
    first writes the files. `zero=1` (ZeRO, stage 1) shards the optimizer's state over these ranks: each keeps and
    updates its part. It is for optimizers that work element by element: all of rlx.optim but adafactor, muon and
    adamw_8bit. All ranks must then call `save` and `optimizer_state`.

    Raises: GraphError for parameters that are no arrays or that the loss does not use (at the first step), DTypeError
    for parameters that are no floats, ShapeError for a loss of another rank (at the first step), CheckpointError, the
    errors of `Session`."""
    if not callable(loss):
        raise GraphError(f"training: expected a function first, got {loss!r}; then parameters, then an optimizer")
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise GraphError(f"training: the optimizer is {optimizer!r}; expected one of rlx.optim, such as adamw(1e-3)")
    for what, number in (("keep", keep), ("accumulate", accumulate), ("shapes", shapes)):
        if type(number) is not int or number < 1:
            raise GraphError(f"training: {what} is {number!r}; expected an int of at least 1")
    for what, given in (("total", total), ("tokens", tokens)):
        if given is not None:
            _check_count(f"training: {what}", given, 0)
    if zero not in (0, 1):
        raise GraphError(f"training: zero is {zero!r}; expected 0, or 1: a part of the optimizer's state on "
                         "each rank; there are no stages 2 and 3")  # fmt: skip
    theirs, held = taken_apart(parameters, "parameters")
    for name, t in theirs.by_name.items():
        if not t.dtype.is_float:
            raise DTypeError(
                f"training: {name} is {t}, which has no gradient; parameters are floats: give others as frozen"
            )
    if not held:
        raise GraphError(f"training: parameters are {parameters!r}; expected at least one array")
    ranks = ranks_of(mesh)
    if ranks is not None and not isinstance(device, Session):
        device = device_of(ranks.mesh, device)
    session = device if isinstance(device, Session) else Session(device, precision=precision_for(device, precision))
    held = [_host(p) for p in held]
    cut = cut_state(ranks, optimizer, theirs, held) if ranks is not None and zero else None
    own, values = (cut.state, cut.values) if cut else taken_apart(optimizer.init(theirs.tree(held)), "optimizer")
    carried, start = (None, []) if state is None else taken_apart(state, "state")
    weights, fixed = (None, []) if frozen is None else taken_apart(frozen, "frozen")
    seed = None if key is None else np.asarray(key_of(int(key)) if isinstance(key, int | np.integer) else _host(key))
    if seed is not None and (seed.shape, seed.dtype.kind, seed.dtype.itemsize) not in (((2,), k, 4) for k in "iu"):
        raise DTypeError(f"training: key is {key!r}; expected a seed, an int, or a key of rlx.random.key")
    model = Model(loss, theirs, weights, carried, optimizer, own, seed is not None, accumulate, not go_on, ranks,
                  cut is not None)  # fmt: skip
    into = None if folder is None else Path(folder)
    run = Training(
        session, model, seed, folder=into, keep=keep, tokens=tokens, total=total, progress=progress, picture=picture,
        shapes=shapes, cut=cut,
    )  # fmt: skip
    with run._held.unwound():
        names = (*theirs.names, *own.names, *(carried.names if carried else ()))
        if ranks is not None:
            settings = [f"rlx {VERSION}", f"optimizer {run._settings}",
                        f"accumulate {accumulate}, go_on {go_on}, zero {zero}"]  # fmt: skip
            settings += [f"{name}: {t}" for part in (theirs, weights) if part for name, t in part.by_name.items()]
            arrays = list(zip(names, (*held, *values, *map(_host, start)), strict=True))
            arrays += [] if weights is None else zip(weights.names, fixed, strict=True)
            arrays += [] if seed is None else [("key", seed)]
            arrays = [(name, x) for name, x in arrays if cut is None or name not in cut.names]
            agree(ranks, "the start of a training run", settings, arrays)
        run._begin(dict(zip(names, (*held, *values, *map(_host, start)), strict=True)), weights, fixed)
        run._resume(resume, new_settings)
    return run


def _host(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, Array) else np.asarray(leaf)


explain(Training)
explain(Metrics)
