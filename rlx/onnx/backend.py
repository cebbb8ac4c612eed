"""The interface of onnx.backend, which `onnx.backend.test` and other tools of ONNX call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx.backend import base

from rlx.driver.registry import devices, open_device
from rlx.errors import GraphError
from rlx.onnx.model import Model


class Prepared(base.BackendRep):  # type: ignore[misc,unused-ignore]
    """A model ready to run; `run` compiles it, since shapes may depend on the values of inputs."""

    def __init__(self, model: Model, device: str) -> None:
        self.model = model
        self.device = device

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in order, for inputs in order, or by name in a dict; NumPy scalars count as arrays."""
        if not isinstance(inputs, Mapping):
            names = [i.name for i in self.model.inputs]
            arrays = list(inputs) if isinstance(inputs, Sequence) else [inputs]
            if len(arrays) > len(names):
                raise GraphError(f"run: {len(arrays)} inputs came; the model takes {names}")
            inputs = dict(zip(names, arrays, strict=False))
        results = self.model.run(inputs, self.device)
        return tuple(results[o.name] for o in self.model.outputs)


class Backend(base.Backend):  # type: ignore[misc,unused-ignore]
    """rlx behind `onnx.backend.base.Backend`. Devices: "CPU", "CUDA", "VULKAN"; ":1" after one picks the second."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Raises: as rlx.onnx.load; DeviceUnavailable."""
        open_device(device.lower())
        return Prepared(Model(model), device.lower())

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Runs one node at the newest opset, or the one named by `opset_version`."""
        opset = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        names = [n for n in node.input if n]
        graph = onnx.helper.make_graph(
            [node], "node", [onnx.ValueInfoProto(name=n) for n in names],
            [onnx.ValueInfoProto(name=n) for n in node.output if n],
        )  # fmt: skip
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, opset)])
        return cls.run_model(model, inputs, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this machine has such a device."""
        wanted = device.lower().split(":")[0]
        return wanted == "cpu" or any(d.id.split(":")[0] == wanted for d in devices())
