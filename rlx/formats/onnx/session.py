"""The same model behind the session interface that users of ONNX Runtime know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.driver.progress import Listener
from rlx.driver.registry import find_device
from rlx.errors import DeviceUnavailable, GraphError
from rlx.formats.onnx.model import Model, TensorInfo

PROVIDERS = {"CUDAExecutionProvider": "cuda", "VulkanExecutionProvider": "vulkan", "CPUExecutionProvider": "cpu"}


class InferenceSession:
    """A model and the device it runs on. `source`: a path, bytes or a ModelProto; `dims`, `threads`, `progress`,
    `max_bytes` and `max_steps` as of rlx.onnx.load. As in ONNX Runtime, outputs may have other shapes than the
    file declares, unless `strict`, and `providers` may name the device: the first that this machine has.

    Raises: as rlx.onnx.load; GraphError for providers without a backend of rlx, DeviceUnavailable where none is here.
    """

    def __init__(
        self,
        source: Any,
        *,
        device: str = "auto",
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        precision: str = "f32",
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        progress: Listener | None = None,
        strict: bool = False,
        max_bytes: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.model = Model(
            source, dims=dims, threads=threads, progress=progress, strict=strict, max_bytes=max_bytes,
            max_steps=max_steps,
        )  # fmt: skip
        if providers and device != "auto":
            raise GraphError(f"both device={device!r} and providers={list(providers)} are given; give one")
        self.device = _device_of(providers) if providers else device
        self.precision = precision

    def get_inputs(self) -> list[TensorInfo]:
        """The model's inputs: `name`, `type`, `shape` of each."""
        return list(self.model.inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """The model's outputs: `name`, `type`, `shape` of each."""
        return list(self.model.outputs)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The named outputs, all where None, in order: arrays, lists of them, None.

        Raises: GraphError for an unknown name; as Model.run.
        """
        made = [o.name for o in self.model.outputs]
        if isinstance(output_names, str):
            raise GraphError(f"run: the output names are a string; expected a list, [{output_names!r}]")
        unknown = [n for n in output_names or () if n not in made]
        if unknown:
            raise GraphError(f"run: the model has no outputs {unknown}; it has {made}")
        results = self.model.run(input_feed, self.device, self.precision)
        return [results[n] for n in (output_names or made)]


def _device_of(providers: Sequence[str | tuple[str, Mapping[str, Any]]]) -> str:
    """The device of the first provider that this machine has; the options given with a name are ignored."""
    names = [p if isinstance(p, str) else p[0] for p in providers]
    unknown = [n for n in names if n not in PROVIDERS]
    if unknown:
        raise GraphError(f"providers: rlx has nothing for {unknown}; it has {list(PROVIDERS)}")
    reasons = []
    for name in names:
        try:
            return find_device(PROVIDERS[name]).id
        except DeviceUnavailable as error:
            reasons.append(str(error))
    raise DeviceUnavailable("; ".join(reasons))
