"""The same model behind the session interface that users of ONNX Runtime know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.driver.progress import Listener
from rlx.errors import GraphError
from rlx.formats.onnx.model import Model, TensorInfo


class InferenceSession:
    """A model and the device it runs on. `source`: a path, bytes or a ModelProto; `dims`, `threads` and `progress` as
    of rlx.onnx.load. As there, outputs may come out in other shapes than the file declares, unless `strict`.

    Raises: as rlx.onnx.load.
    """

    def __init__(
        self,
        source: Any,
        *,
        device: str = "auto",
        precision: str = "f32",
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        progress: Listener | None = None,
        strict: bool = False,
    ) -> None:
        self.model = Model(source, dims=dims, threads=threads, progress=progress, strict=strict)
        self.device = device
        self.precision = precision

    def get_inputs(self) -> list[TensorInfo]:
        """What the model takes: `name`, `type`, `shape`."""
        return list(self.model.inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """What the model gives: `name`, `type`, `shape`."""
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
