"""The contenders of `rlx bench`: a model on a device, a sentence encoder on a device, and ONNX Runtime."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.cli.devices import full_name
from rlx.errors import RlxError
from rlx.records import Record, field

if TYPE_CHECKING:
    from rlx.driver import DeviceInfo
    from rlx.models import SentenceEncoder
    from rlx.onnx.model import Model
    from rlx.runtime import CompiledGraph

_SIZES = {"batch": 1, "sequence": 16}  # an encoder's defaults for --dim


class Contender(Record, frozen=False):
    """One way to run the inputs that all contenders share. `call` runs them once; `first_ms` is the time of the first
    call, compiling and writing the weights included; `times` are the seconds of the measured calls."""

    name: str
    says: str
    call: Callable[[], Mapping[str, Any]]
    first_ms: float = 0.0
    results: Mapping[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)

    def start(self) -> Contender:
        """Runs for the first time, which compiles the model."""
        begin = time.perf_counter()
        self.results = self.call()
        self.first_ms = (time.perf_counter() - begin) * 1e3
        return self

    def percentiles(self) -> dict[str, float]:
        """Milliseconds: min, p50, p90, p99."""
        p50, p90, p99 = (float(v) * 1e3 for v in np.percentile(self.times, (50, 90, 99)))
        return {"min_ms": min(self.times) * 1e3, "p50_ms": p50, "p90_ms": p90, "p99_ms": p99}


def of_model(model: Model, feeds: Mapping[str, Any], device: str, precision: str) -> Contender:
    """An ONNX model on a device, run as `Model.run` runs it."""
    result = Contender(device, "", lambda: model.run(feeds, device, precision)).start()
    _name(result, model.programs[-1].graph.device.info)
    return result


def of_encoder(encoder: SentenceEncoder, feeds: Mapping[str, Any]) -> Contender:
    """A sentence encoder on its device, from token ids to embeddings."""
    result = Contender("", "", lambda: encoder.compiled(*feeds["ids"].shape).run(feeds)).start()
    _name(result, encoder.session.info)
    return result


def of_program(program: CompiledGraph, feeds: Mapping[str, Any]) -> Contender:
    """A saved program on its device."""
    result = Contender("", "", lambda: program.run(feeds)).start()
    _name(result, program.device.info)
    return result


def encoder_feeds(encoder: SentenceEncoder, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Random tokens of this batch and sequence, none of them padding. Raises: RlxError for another dimension."""
    unknown = sorted(set(dims) - set(_SIZES))
    if unknown:
        raise RlxError(f"--dim: a sentence encoder has no dimensions {unknown}; it has {sorted(_SIZES)}")
    sizes = {**_SIZES, **dims}
    shape = (sizes["batch"], sizes["sequence"])
    if not 0 < shape[1] <= encoder.max_length or not shape[0]:
        raise RlxError(
            f"--dim: batch {shape[0]} × sequence {shape[1]}: expected at least 1 of each, and at most "
            f"{encoder.max_length} tokens"
        )
    ids = np.random.default_rng(seed).integers(0, encoder.config.vocab_size, shape, np.int32)
    return {"ids": ids, "mask": np.ones(shape, np.bool_)}


def of_onnxruntime(file: Path, feeds: Mapping[str, Any], names: Sequence[str], threads: int) -> Contender:
    """ONNX Runtime's CPU provider, with `threads`. Raises: RlxError with its message where it refuses the model."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    found = [v for v in vars(native).values() if isinstance(v, type) and issubclass(v, Exception)]
    errors: tuple[type[Exception], ...] = (RuntimeError, TypeError, ValueError, *found)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    begin = time.perf_counter()
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        making = (time.perf_counter() - begin) * 1e3
        version = importlib.metadata.version("onnxruntime")
        result = Contender(
            "onnxruntime",
            f"{version}, CPU provider",
            lambda: dict(zip(names, session.run(list(names), dict(feeds)), strict=True)),
        ).start()
    except errors as error:
        raise RlxError(f"onnxruntime: {str(error).splitlines()[0]}") from error
    result.first_ms += making
    return result


def has_onnxruntime() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """The largest difference of two results, relative to each output's largest value; infinite where shapes differ, or
    only one of two numbers is NaN or infinite; None where nothing can be compared."""
    found: list[float] = []
    for name, value in a.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufV" and value.size:
            x, y = value.astype(np.float64), np.asarray(b[name]).astype(np.float64)
            if x.shape != y.shape:  # rounding may decide the number of elements, as in NonMaxSuppression
                return math.inf
            with np.errstate(all="ignore"):
                same = (x == y) | (np.isnan(x) & np.isnan(y))
                scale = np.max(np.abs(y), where=np.isfinite(y), initial=1e-38)
                apart = float(np.max(np.where(same, 0, np.abs(x - y)) / scale))
                found.append(math.inf if math.isnan(apart) else apart)
    return max(found, default=None)


def _name(made: Contender, info: DeviceInfo) -> None:
    made.name, made.says = info.id, full_name(info)
