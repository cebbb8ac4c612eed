"""Small ONNX models, written in one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str | None] | None


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; names separated by blanks, `_` for one that is left out."""

    def split(names: str) -> list[str]:
        return ["" if n == "_" else n for n in names.split()]

    domain = attributes.pop("domain", "")
    name = attributes.pop("name", "")
    return helper.make_node(kind, split(inputs), split(outputs), name, domain=domain, **attributes)


def info(name: str, dims: Dims, code: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, code, dims)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; inputs and outputs are dims, or (dims, element type)."""

    def infos(named: Mapping[str, Any]) -> list[Any]:
        return [info(n, *d) if isinstance(d, tuple) else info(n, d) for n, d in named.items()]

    constants = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), constants)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


I64 = TensorProto.INT64
