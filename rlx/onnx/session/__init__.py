"""The same model behind the session interface that users of ONNX Runtime know."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.driver.registry import devices, find_device
from rlx.errors import DeviceUnavailable, GraphError, RlxError
from rlx.host.progress import Listener
from rlx.onnx.model import Model, TensorInfo
from rlx.onnx.reader.metadata import Metadata
from rlx.onnx.session.binding import IOBinding, OrtValue, fed
from rlx.onnx.session.options import (
    SessionOptions,
    check_options,
    check_run_options,
    dims_of,
    threads_of,
)
from rlx.runtime.dims import Dim, Otherwise
from rlx.runtime.launch import Launch
from rlx.runtime.outs import Out
from rlx.runtime.session import Session

PROVIDERS = {"CUDAExecutionProvider": "cuda", "VulkanExecutionProvider": "vulkan", "CPUExecutionProvider": "cpu"}
Providers = str | Sequence[str | tuple[str] | tuple[str, Mapping[str, Any]]]
Options = Sequence[Mapping[str, Any] | None]
_PROFILES = itertools.count()


class InferenceSession:
    """A model and the device it runs on. The first argument is a path, bytes or a ModelProto; `dims`, `threads`,
    `progress`, `strict`, `max_bytes`, `max_steps` and `otherwise` are those of rlx.onnx.load.

    As in ONNX Runtime, `sess_options` may name threads and lengths of dimensions (its SessionOptions or ours), and
    `providers` the device: the first that this machine has, `device_id` among its options. Providers that rlx lacks are
    left out with a warning; `disabled_optimizers` changes nothing.

    Raises: as rlx.onnx.load; GraphError for providers without a backend of rlx, DeviceUnavailable where none is here.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Providers | None = None,
        provider_options: Options | None = None,
        *,
        disabled_optimizers: Sequence[str] | None = None,
        device: str = "auto",
        precision: str = "f32",
        dims: Mapping[str, int | Dim] | None = None,
        threads: int | None = None,
        progress: Listener | None = None,
        strict: bool = False,
        max_bytes: int | None = None,
        max_steps: int | None = None,
        otherwise: Otherwise = "error",
    ) -> None:
        if providers and device != "auto":
            raise GraphError(f"both device={device!r} and providers={providers} are given; give one")
        check_options(sess_options)
        lengths = {**dims_of(sess_options), **(dims or {})}
        threads = threads_of(sess_options) if threads is None else threads
        self.model = Model(
            path_or_bytes, dims=lengths, threads=threads, progress=progress, strict=strict, max_bytes=max_bytes,
            max_steps=max_steps, otherwise=otherwise,
        )  # fmt: skip
        self.device = _device_of(providers, provider_options) if providers else device
        self.precision = precision
        self._options = SessionOptions() if sess_options is None else sess_options
        self._profile: list[dict[str, Any]] = []
        self._started = time.perf_counter_ns()
        self._threads = threads
        self._clock: Session | None = None

    # -- what the model is

    def get_inputs(self) -> list[TensorInfo]:
        """The model's inputs: `name`, `type`, `shape` of each."""
        return list(self.model.inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """The model's outputs: `name`, `type`, `shape` of each."""
        return list(self.model.outputs)

    def get_overridable_initializers(self) -> list[TensorInfo]:
        """The inputs that have a value in the file, which a run may replace."""
        return list(self.model.defaults)

    def get_modelmeta(self) -> Metadata:
        """What the file says of itself: producer, graph, domain, description, version, custom metadata."""
        return self.model.metadata

    def get_session_options(self) -> Any:
        return self._options

    # -- where it runs

    def get_providers(self) -> list[str]:
        """The provider of the session's device, and the CPU's."""
        kind = find_device(self.device).backend
        named = [name for name, backend in PROVIDERS.items() if backend == kind]
        return named if kind == "cpu" else [*named, "CPUExecutionProvider"]

    def set_providers(
        self, providers: Providers | None = None, provider_options: Options | None = None
    ) -> None:
        """Moves the session to the first of these that this machine has; without providers to the best device."""
        self.device = _device_of(providers, provider_options) if providers else "auto"

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        number = find_device(self.device).index
        return {name: {"device_id": str(number)} if not k else {} for k, name in enumerate(self.get_providers())}

    def enable_fallback(self) -> None:
        """Nothing changes: a session stays on its device."""

    disable_fallback = enable_fallback

    # -- runs

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The named outputs, all where None, in order: arrays, lists of them, None.

        Raises: GraphError for an unknown name; as Model.run.
        """
        return self._run(output_names, input_feed, run_options, "host")

    def launch(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> Launch[list[Any]]:
        """Begins a run and returns while the device is at work; `wait` gives the named outputs in order. ONNX Runtime
        has nothing like it. Raises: as `run`; results and waiting: as Model.launch."""
        names, input_feed = self._checked(output_names, input_feed, run_options)
        begun = self.model.launch(input_feed, self.device, self.precision)
        return begun.arranged(lambda results: [results[n] for n in names])

    def _checked(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any
    ) -> tuple[Sequence[str], Mapping[str, Any]]:
        """The names of the outputs, and the inputs. Raises: GraphError."""
        check_run_options(run_options)
        names = [o.name for o in self.model.outputs]
        if isinstance(output_names, str):
            raise GraphError(f"run: the output names are a string; expected a list, [{output_names!r}]")
        unknown = [n for n in output_names or () if n not in names]
        if unknown:
            raise GraphError(f"run: the model has no outputs {unknown}; it has {names}")
        if isinstance(input_feed, Mapping):
            here = find_device(self.device).id
            input_feed = {n: fed(v, here) for n, v in input_feed.items()}
        return output_names or names, input_feed

    def _run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any, out: Out
    ) -> list[Any]:
        names, input_feed = self._checked(output_names, input_feed, run_options)
        if not getattr(self._options, "enable_profiling", False):
            results = self.model.run(input_feed, self.device, self.precision, out)
            return [results[n] for n in names]
        timed = self._timed()
        start = time.perf_counter_ns()
        results = self.model.run(input_feed, timed, self.precision, out)
        took, begun = (time.perf_counter_ns() - start) // 1000, (start - self._started) // 1000
        self._profile.append({"cat": "Session", "name": "model_run", "ts": begun, "dur": took, "tid": 0, "args": {}})
        for step in self.model.programs[-1].graph.timings():
            args = {"op_name": step.name.partition(" ")[0], "provider": timed.info.id, "bytes": step.nbytes}
            when = {"ts": begun + round(step.start, 3), "dur": round(step.us, 3)}
            self._profile.append({"cat": "Node", "name": f"{step.name}_kernel_time", **when, "tid": 1, "args": args})
        return [results[n] for n in names]

    def _timed(self) -> Session:
        """The session of a model whose steps are timed, for its profile."""
        if self._clock is None:
            device = self.device.info.id if isinstance(self.device, Session) else self.device
            self._clock = Session(device, precision=self.precision, threads=self._threads, timings=True)
        return self._clock

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs as `run` does, on OrtValues; a sequence is a list of arrays."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(v) if isinstance(v, np.ndarray) else v for v in results]

    def run_async(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None], user_data: Any = None, run_options: Any = None,
    ) -> None:  # fmt: skip
        """Runs on a thread of its own, which then calls `callback(results, user_data, error)`; the error is empty where
        there is none."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:  # noqa: BLE001 - whatever it is, the caller waits for its callback
                named = str(raised) or type(raised).__name__
                results, error = [], named if isinstance(raised, RlxError) else f"{type(raised).__name__}: {raised}"
            callback(results, user_data, error)

        threading.Thread(target=work).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Runs on the inputs that are bound; `iobinding.get_outputs()` gives what came. Values of the session's device
        stay there, inputs and outputs. Raises: GraphError for what `io_binding()` has not made."""
        if not isinstance(iobinding, IOBinding):
            raise GraphError(f"run_with_iobinding: got a {type(iobinding).__name__}; session.io_binding() makes one")
        iobinding.run(lambda names, feeds, out: self._run(names, feeds, run_options, out))

    # -- profiles

    def get_profiling_start_time_ns(self) -> int:
        return self._started

    def end_profiling(self) -> str:
        """The name of a file with the time of each run and of its steps, in the format of Chrome's traces, which
        Perfetto opens; "" without enable_profiling. Of a model that is cut where shapes depend on values, only the
        steps before the first cut are in it."""
        if not getattr(self._options, "enable_profiling", False):
            return ""
        prefix = getattr(self._options, "profile_file_prefix", "") or "onnxruntime_profile_"
        path = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}_{next(_PROFILES)}.json"
        common = {"ph": "X", "pid": os.getpid()}
        with open(path, "x", encoding="utf-8") as file:
            json.dump([{**common, **each} for each in self._profile], file)
        self._profile.clear()
        return path


def get_available_providers() -> list[str]:
    """The providers for which this machine has a device."""
    here = {d.backend for d in devices()}
    return [name for name, backend in PROVIDERS.items() if backend in here]


def get_all_providers() -> list[str]:
    """The providers for which rlx has a backend, on this machine or not."""
    return list(PROVIDERS)


def get_device() -> str:
    """"GPU" where this machine has a GPU for CUDA or Vulkan, else "CPU": a software driver is none."""
    return "GPU" if any(d.kind not in ("cpu", "software") for d in devices()) else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Nothing changes: rlx logs nothing, it warns with Python's warnings."""


def _other(unknown: Sequence[str]) -> str:
    """Which provider does what some others are asked for."""
    gpus = ("ROCM", "MIGraphX", "Dml", "OpenVINO", "CoreML", "WebGpu", "JS", "XNNPACK")
    named = [name for name in unknown if name.removesuffix("ExecutionProvider") in gpus]
    return f" (VulkanExecutionProvider is for the GPUs of every maker, in place of {named[0]!r})" if named else ""


def _device_of(providers: Providers, options: Options | None = None) -> str:
    """The device of the first provider that this machine has; of the options only `device_id` is read."""
    providers = [providers] if isinstance(providers, str) else list(providers)
    apart = list(options or [{}] * len(providers))
    if len(apart) != len(providers):
        raise GraphError(f"providers: {providers!r} with {len(apart)} options; expected lists of equal length")
    pairs = [_pair(p, more) for p, more in zip(providers, apart, strict=True)]
    unknown = [n for n, _ in pairs if n not in PROVIDERS]
    if len(unknown) == len(pairs):
        raise GraphError(f"providers: rlx has nothing for {unknown}{_other(unknown)}; it has {list(PROVIDERS)}")
    if unknown:
        warnings.warn(f"providers: rlx has nothing for {unknown}, which are left out{_other(unknown)}", stacklevel=3)
    reasons = []
    for name, more in pairs:
        if name in PROVIDERS:
            number = more.get("device_id")
            try:
                return find_device(PROVIDERS[name] + (f":{number}" if number is not None else "")).id
            except DeviceUnavailable as error:
                reasons.append(str(error))
    raise DeviceUnavailable("; ".join(reasons))


def _pair(provider: Any, more: Any) -> tuple[str, Mapping[str, Any]]:
    """A provider's name and its options: its own where it is a tuple, else `more`. Raises: GraphError."""
    name, *own = provider if isinstance(provider, tuple | list) and provider else (provider,)
    options = (own[0] if own else more) or {}
    if not isinstance(name, str) or len(own) > 1 or not isinstance(options, Mapping):
        raise GraphError(f"providers: {provider!r} with {more!r}; expected a name, or a name and a dict of options")
    return name, options
