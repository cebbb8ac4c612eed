"""OnnxFunction: an ONNX model as a function of its weights, to differentiate and to train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, GraphError, ShapeError, UnsupportedOp, meant
from rlx.ir import TensorType
from rlx.ir.rewrite import inline
from rlx.onnx.reader.call import NeedsValues
from rlx.runtime.functions import Function, tensor_of
from rlx.runtime.trees import home

if TYPE_CHECKING:
    from rlx.onnx.model import Model

Array = npt.NDArray[Any]


class OnnxFunction(Function):
    """An ONNX model as a function: `function(weights, inputs) -> outputs`.

    `weights` are those that `rlx.models.trainable` gives beside it, or others of these names, types and shapes: the
    file's initializers of floats and rank 1 or more, but for those that decide shapes or steps. `inputs` is a dict by
    name, or the only input; the result is the only output, or a dict of them. Operators compute as when the model runs:
    normalizations by the file's statistics, no dropout.
    Raises: GraphError for weights or inputs that are missing or unknown, ShapeError and DTypeError for those of other
    types; UnsupportedOp for a model whose shapes depend on values, that draws random numbers, or whose inputs and
    outputs are no tensors of numbers.
    """

    def __init__(self, model: Model, weights: Mapping[str, TensorType]) -> None:
        super().__init__(repr(model).partition(":")[0].removeprefix("Model(").strip("'\"") or "model")
        self.model, self._types = model, dict(weights)

    @staticmethod
    def of(model: Model, dims: Mapping[str, int]) -> tuple[OnnxFunction, dict[str, Array]]:
        """The function of a model, and its weights. It is tried with inputs of these dimensions; others have length
        1."""
        held = {n: a for n, a in model.weights.items() if a.ndim and _dtype(a) is not None and _dtype(a).is_float}
        inputs = {}
        for info in model.inputs:
            if info.around or info.dtype is None or _dtype(np.empty(0, info.dtype)) is None or info.shape is None:
                raise UnsupportedOp(f"input {info.name!r} is {info.type}; a function takes tensors of numbers")
            shape = tuple(n if isinstance(n, int) else dims.get(str(n), 1) for n in info.shape)
            inputs[info.name] = TensorType(shape, as_dtype(info.dtype))
        fixed = _fixed(model, inputs, {n: _type(a) for n, a in held.items()})
        weights = {n: a for n, a in held.items() if n not in fixed}
        return OnnxFunction(model, {n: _type(a) for n, a in weights.items()}), weights

    def apply(self, weights: Mapping[str, Any], inputs: Any) -> Any:
        """The outputs within a traced function."""
        names = [info.name for info in self.model.inputs]
        values = dict(inputs) if isinstance(inputs, Mapping) else {names[0]: inputs} if len(names) == 1 else None
        if values is None:
            raise GraphError(f"{self.name}: takes the inputs {names}; give a dict of them by name")
        self._same("inputs", names, values)
        self._same("weights", self._types, weights)
        g = home(self.name, [*values.values(), *weights.values()])
        tensors = {n: tensor_of(g, v) for n, v in {**values, **weights}.items()}
        for n, t in self._types.items():
            if tensors[n].shape != t.shape:
                raise ShapeError(f"{self.name}: weight {n!r} is {tensors[n].type}; expected shape {t.shape}")
            if not tensors[n].dtype.is_float:
                raise DTypeError(f"{self.name}: weight {n!r} is {tensors[n].type}; expected {t}")
        graph, outputs = _graph(self.model, {n: tensors[n].type for n in names}, {n: tensors[n].type for n in weights})
        if graph is None:
            raise UnsupportedOp(f"{self.name}: {outputs}; give that as a constant of the file")
        by_output = dict(zip(graph.outputs, inline(graph, g, [tensors[n] for n in graph.inputs]), strict=True))
        results = {name: by_output[output] for name, output in outputs.items()}
        return next(iter(results.values())) if len(results) == 1 else results

    def _same(self, what: str, wanted: Any, values: Mapping[str, Any]) -> None:
        missing, extra = [n for n in wanted if n not in values], [n for n in values if n not in wanted]
        if missing or extra:
            odd = missing or extra
            raise GraphError(
                f"{self.name}: the {what} {'have no' if missing else 'have'} {odd[0]!r}"
                f"{meant(odd[0], values if missing else wanted)}; expected {', '.join(list(wanted)[:8])}"
                + f"; got {', '.join(map(str, extra[:8]))}" * bool(missing and extra)
            )


def _fixed(model: Model, inputs: Mapping[str, TensorType], weights: Mapping[str, TensorType]) -> set[str]:
    """The weights whose values the graph needs: these stay constants. Raises: UnsupportedOp."""
    fixed: set[str] = set()
    while True:
        graph, why = _graph(model, inputs, {n: t for n, t in weights.items() if n not in fixed})
        if graph is not None:
            return fixed
        names = why.names & weights.keys()
        if not names:
            raise UnsupportedOp(f"{why}: a function has shapes that its inputs' shapes decide") from None
        fixed |= names


def _graph(model: Model, inputs: Mapping[str, TensorType], weights: Mapping[str, TensorType]) -> Any:
    """The graph for tensors of these types and the names of its outputs; or None, and what value it needs."""
    try:
        return model.as_graph({**inputs, **weights})
    except NeedsValues as need:
        return None, need


def _dtype(array: Array) -> Any:
    try:
        return as_dtype(array.dtype)
    except DTypeError:
        return None


def _type(array: Array) -> TensorType:
    return TensorType(array.shape, as_dtype(array.dtype))
