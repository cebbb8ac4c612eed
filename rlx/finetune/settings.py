"""Settings of a fine-tuning run, checked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from rlx.errors import RlxError
from rlx.models import Lora
from rlx.optim import Optimizer, adamw, chain, clip_by_global_norm, with_masters
from rlx.records import Record, field, names_of

Say = Callable[[str], None]
SCHEDULES = ("linear", "cosine", "constant")
OPTIONS = {"evaluation": "--eval", "evaluate_every": "--eval-every", "packed": "--pack"}  # named unlike settings
PLACES = ("model", "data", "out", "device", "resume", "save_every", "steps", "epochs", "merge", "progress",
          "ranks", "zero")  # fmt: skip


def share(part: float, count: int) -> int:
    """A part of a count, rounded up, by the digits of the part as it is written: 0.07 of 100 is 7, where the product
    of floats is just above 7."""
    return math.ceil(Fraction(str(part)) * count)


def option(name: str) -> str:
    """How the command line names a setting."""
    return OPTIONS.get(name, "--" + name.replace("_", "-"))


class Settings(Record, kw_only=True, slots=False):
    """What `rlx finetune` takes.

    `lora` says what is adapted; None trains all weights. `epochs` passes over the data, or `steps` of `batch` rows;
    each batch is worked through in `accumulate` parts. `length`: the longest example, in tokens. The rate rises for the
    part `warmup` of the steps and falls by the `schedule`; gradients are clipped to the norm `clip`. Examples share
    rows where they are `packed`. `quantize` is a packed dtype for the base's matrices, `dtype` a float one; with
    `recompute` layers are computed again for the gradient. `evaluation` is a data file, or the part of the examples
    that is kept for it: every `evaluate_every` steps (an epoch by default); after `patience` evaluations that are no
    better than the best the run stops. What is best is kept. `progress` and `zero` as in `rlx.training`; `ranks` is how
    many processes share each batch, which `finetune` sets.
    Raises: RlxError for a setting out of range.
    """

    model: Path
    data: Path
    out: Path
    lora: Lora | None = field(default_factory=Lora)
    epochs: float = 1.0
    steps: int | None = None
    batch: int = 8
    accumulate: int = 1
    length: int = 2048
    rate: float = 2e-4
    schedule: str = "linear"
    warmup: float = 0.03
    decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    packed: bool = True
    dtype: str | None = None
    quantize: str | None = None
    activations: str | None = None
    recompute: bool = False
    evaluation: Path | float | None = None
    evaluate_every: int | None = None
    patience: int | None = None
    save_every: int = 100
    resume: bool = False
    skip_broken: bool = False
    device: str = "auto"
    merge: Path | None = None
    progress: bool | None = None
    ranks: int = 1  # that share each batch
    zero: int = 0

    def __post_init__(self) -> None:
        for name in ("model", "data", "out", "merge", "evaluation"):
            value = getattr(self, name)
            if isinstance(value, str | os.PathLike):
                object.__setattr__(self, name, Path(value))
            elif name in ("model", "data", "out") or (name == "merge" and value is not None):
                self._wrong(name, "a path")
        whole = {"steps": 1, "batch": 1, "accumulate": 1, "length": 2, "evaluate_every": 1, "patience": 1,
                 "save_every": 1, "seed": 0}  # fmt: skip
        for name, least in whole.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                self._wrong(name, f"an integer from {least}")
        for name, low, high in (
            ("epochs", 0, 1e6), ("rate", 0, 1e3), ("decay", None, 1e3), ("clip", 0, 1e9), ("warmup", None, 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high or value == low:
                self._wrong(name, f"a number {'from 0' if low is None else 'above 0'}, at most {high:g}")
        for name in ("packed", "recompute", "resume", "skip_broken"):
            if not isinstance(getattr(self, name), bool):
                self._wrong(name, "True or False")
        if self.schedule not in SCHEDULES:
            self._wrong("schedule", f"one of {', '.join(SCHEDULES)}")
        if self.zero not in (0, 1):
            self._wrong("zero", "0 or 1: there are no stages 2 and 3")
        if self.batch % self.accumulate:
            self._wrong("accumulate", f"a number of equal parts of the batch of {self.batch}")
        if self.batch % self.parts:
            self._wrong("batch", f"a multiple of {self.parts}: {self.ranks} ranks have {self.accumulate} parts each")
        part = self.evaluation
        if not (part is None or isinstance(part, Path) or (isinstance(part, float) and 0 < part < 1)):
            self._wrong("evaluation", "a data file, or a part between 0 and 1")
        if self.evaluation is None and (self.patience or self.evaluate_every):
            self._wrong("evaluation", "a data file or a part of the examples, beside --patience and --eval-every")
        if self.quantize is not None and self.lora is None:
            self._wrong("quantize", "nothing beside --full: packed weights have no gradient")
        if self.merge is not None and self.lora is None:
            self._wrong("merge", "nothing beside --full, which writes the whole model as it is")
        lora: Any = self.lora
        if not isinstance(lora, Lora | None):
            self._wrong("lora", "an rlx.models.Lora, or None to train all weights")

    @property
    def parts(self) -> int:
        """In how many a batch is worked through, by all ranks."""
        return self.accumulate * self.ranks

    def _wrong(self, name: str, expected: str) -> None:
        raise RlxError(f"finetune: {option(name)} is {getattr(self, name)!r}; expected {expected}")

    def kept(self) -> dict[str, Any]:
        """What a run that is resumed must have in common with it, for JSON."""
        values: dict[str, Any] = {name: getattr(self, name) for name in names_of(self) if name not in PLACES}
        lora = self.lora and {name: getattr(self.lora, name) for name in names_of(self.lora)}
        if lora and not isinstance(lora["targets"], str):
            lora["targets"] = list(lora["targets"])
        evaluation = values["evaluation"]
        return {**values, "lora": lora, "evaluation": str(evaluation) if isinstance(evaluation, Path) else evaluation}

    def optimizer(self, total: int, halves: bool) -> Optimizer:
        """AdamW behind a clipped norm; of parameters in halves with masters."""
        optimizer = chain(clip_by_global_norm(self.clip), adamw(self.rates(total), weight_decay=self.decay))
        return with_masters(optimizer) if halves else optimizer

    def rates(self, total: int) -> Any:
        """The rate of each step, a function of the count of steps done."""
        from rlx import ops
        from rlx.dtypes import f32

        rate, schedule, rise = self.rate, self.schedule, share(self.warmup, total)

        def at(count: Any) -> Any:
            done = ops.cast(count, f32)
            part = ops.clip((done - rise) / max(1, total - rise), 0.0, 1.0)
            if schedule == "linear":
                fall = 1.0 - part
            elif schedule == "cosine":
                fall = 0.5 * (1.0 + ops.cos(part * math.pi))
            else:
                fall = ops.ones_like(part)
            return rate * (ops.minimum((done + 1.0) / rise, fall) if rise else fall)

        return at
