"""save: an rlx graph as an ONNX model."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper

from rlx.dtypes import as_dtype, f32
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError, UnsupportedOp
from rlx.ir import Graph, Tensor, TensorType
from rlx.ir.checks import visible
from rlx.ir.rewrite import copied
from rlx.onnx.writer.draft import CODES, Array, Draft, Value, info
from rlx.onnx.writer.quantized import unpacked
from rlx.onnx.writer.table import composed, write_nodes
from rlx.packed import PackedArray
from rlx.passes.rewriting import remove_dead
from rlx.runtime import CompiledGraph, Store
from rlx.runtime.jit import Jitted
from rlx.runtime.keywords import keywords

OLDEST = 18  # reductions take their axes as an input from here on
DEFAULT = 21
MAX_INSIDE_BYTES = (1 << 31) - (1 << 26)  # weights of this size fit a protobuf file beside the nodes
SMALL_BYTES = 1024  # a smaller tensor always stays inside: shapes and axes are read before external data
ALIGNMENT = 64  # the alignment of a tensor in the file of external data
Source = Graph | CompiledGraph | Callable[..., Any]
PAST, PRESENT = "past.", "present."


@keywords
def save(
    source: Source,
    path: str | os.PathLike[str],
    *,
    weights: Store | Mapping[str, Any] | None = None,
    args: Sequence[Any] = (),
    opset: int = DEFAULT,
    external_data: bool = False,
) -> None:
    """Writes a graph as an ONNX model: a Graph, a compiled one, or a function, traced for arrays like `args`.

    Inputs and outputs keep names, shapes and dtypes. Params become initializers, with the values of `weights`
    (a store, or arrays by name; a compiled graph has its own); one kept in f16 or bf16 stays so and is cast where it
    is used. Packed weights are written as the f32 numbers that they stand for. A state NAME becomes an input
    "past.NAME" and, where it is updated, an output "present.NAME". With `external_data`, and always where the weights
    do not fit a protobuf file, they go to one file beside the model, named after it with ".data". Both files are
    written under temporary names and then renamed.
    Opsets: 18 to the newest of the installed onnx.

    Raises: UnsupportedOp naming every node that cannot be written; GraphError naming every weight that has no value;
    ShapeError or DTypeError for one that does not fit; ModelFormatError when a file cannot be written. After an error
    nothing is written.
    """
    target = Path(os.fspath(path))
    data = target.with_name(f"{target.name}.data")
    model, tensors = _written(source, weights, args, opset)
    outside = external_data or sum(a.nbytes for a in tensors.values()) > MAX_INSIDE_BYTES
    for place in (target, data) if outside else (target,):
        if place.is_dir():  # found here, while the old model still exists
            raise ModelFormatError(f"{place}: cannot be written: a folder has this name")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            temporary = Path(folder)
            if outside:
                large = {n: a for n, a in tensors.items() if a.nbytes >= SMALL_BYTES}
                _write_outside(model, large, data.name, temporary / "data")
                tensors = {n: a for n, a in tensors.items() if n not in large}
            model.graph.initializer.extend(_tensor(n, a) for n, a in tensors.items())
            _write(temporary / "model", model.SerializeToString())
            if outside:
                target.unlink(missing_ok=True)  # the old model must not be seen beside the new data
                os.replace(temporary / "data", data)
            os.replace(temporary / "model", target)
    except OSError as error:
        raise ModelFormatError(f"{target}: cannot be written: {error.strerror or error}") from error


def to_model(
    source: Source,
    weights: Store | Mapping[str, Any] | None = None,
    *,
    args: Sequence[Any] = (),
    opset: int = DEFAULT,
) -> onnx.ModelProto:
    """The model that `save` writes, as an onnx.ModelProto that holds its weights. Raises: as `save`."""
    model, tensors = _written(source, weights, args, opset)
    model.graph.initializer.extend(_tensor(n, a) for n, a in tensors.items())
    return model


# -- the graph


def _traced(source: Source, args: Sequence[Any]) -> Graph:
    if isinstance(source, Graph):
        return source
    if isinstance(source, CompiledGraph):
        return source.graph
    if callable(source):
        try:
            inspect.signature(source).bind(*args)
        except TypeError as error:
            raise GraphError(f"save: {error}; give the function's arguments as args=(array, …)") from error
        return (source if isinstance(source, Jitted) else Jitted(source, "cpu", "f32")).graph_of_values(*args)
    raise GraphError(f"save: got a {type(source).__name__}; expected a Graph, a CompiledGraph or a function")


def _written(
    source: Source, weights: Store | Mapping[str, Any] | None, args: Sequence[Any], opset: int
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model without its tensors, and the tensors."""
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise UnsupportedOp(
            f"save: opset {opset}; rlx writes {OLDEST} to {newest}, what the installed onnx knows"
        )
    graph = _traced(source, args)
    if isinstance(source, CompiledGraph) and weights is None:
        weights = source.weights
    graph = composed(unpacked(remove_dead(_unchecked(graph))))
    names = [*graph.inputs, *graph.params, *(PAST + s for s in graph.states), *graph.outputs]
    names += [PRESENT + s for s in graph.updates]
    twice = sorted(n for n, count in Counter(names).items() if count > 1)
    if twice:
        raise GraphError(
            f"save: the model would have several values named {twice}; rename inputs, outputs or params"
        )
    draft = Draft(opset, names)
    tensors = _weights(graph, weights)
    values = {t.id: Value(n, t.dtype) for n, t in graph.inputs.items()}
    values |= {t.id: Value(PAST + n, t.dtype) for n, t in graph.states.items()}
    for name, t in graph.params.items():
        if name in tensors:
            draft.label = name
            values[t.id] = draft.cast(Value(name, as_dtype(tensors[name].dtype)), t.dtype)
    write_nodes(draft, graph, values)
    results = {**graph.outputs, **{PRESENT + n: t for n, t in graph.updates.items()}}
    draft.finish({n: values[t.id] for n, t in results.items()})
    inputs = {**graph.inputs, **{PAST + n: t for n, t in graph.states.items()}}
    graph_proto = helper.make_graph(draft.nodes, graph.name or "graph", _infos(inputs), _infos(results))
    imports = [helper.make_opsetid("", opset)]
    version = max(8, helper.find_min_ir_version_for(imports))
    model = helper.make_model(graph_proto, opset_imports=imports, ir_version=version, producer_name="rlx")
    return model, {**tensors, **draft.constants}


def _unchecked(graph: Graph) -> Graph:
    """The graph without the checks of its runs, which ONNX does not have."""
    if len(visible(graph.outputs)) < len(graph.outputs):
        graph = copied(graph)
        graph.outputs = visible(graph.outputs)
    return graph


def _infos(tensors: Mapping[str, Tensor]) -> list[Any]:
    return [info(n, t.type) for n, t in tensors.items()]


# -- weights


def _weights(graph: Graph, weights: Store | Mapping[str, Any] | None) -> dict[str, Array]:
    """The values of the params that the graph reads. Raises: GraphError naming all that are missing."""
    read = {t.id for n in graph.nodes for t in n.inputs} | {t.id for t in graph.results()}
    wanted = {n: t.type for n, t in graph.params.items() if t.id in read}
    held = set(weights.dtypes() if isinstance(weights, Store) else weights or ())
    missing = sorted(set(wanted) - held)
    if missing:
        raise GraphError(
            f"save: {len(missing)} weights of graph {graph.name!r} have no value: {missing}; give them with weights="
        )
    if isinstance(weights, Store):
        return {n: _checked(n, weights.get(n), t) for n, t in wanted.items()}
    return {n: _checked(n, (weights or {})[n], t) for n, t in wanted.items()}


def _checked(name: str, array: Any, declared: TensorType) -> Array:
    array = array.dequantize() if isinstance(array, PackedArray) else np.asarray(array)
    if array.shape != declared.shape:
        raise ShapeError(f"save: weight {name!r} is {array.shape}; the graph declares {declared}")
    dtype = as_dtype(array.dtype)
    if dtype != declared.dtype and not (declared.dtype == f32 and dtype.is_half):
        raise DTypeError(f"save: weight {name!r} is {dtype}; the graph declares {declared}")
    return np.ascontiguousarray(array).reshape(declared.shape)


# -- files


def _tensor(name: str, array: Array) -> TensorProto:
    result = TensorProto(name=name, data_type=CODES[as_dtype(array.dtype).name], dims=array.shape)
    result.raw_data = _little(array).tobytes()
    return result


def _little(array: Array) -> Array:
    """The array with its bytes in the order that ONNX stores."""
    return array if sys.byteorder == "little" else array.byteswap()


def _write_outside(model: onnx.ModelProto, tensors: Mapping[str, Array], location: str, path: Path) -> None:
    """Writes all tensors into one file, and their places in it into the model."""
    with open(path, "wb") as file:
        for name, array in tensors.items():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            proto = model.graph.initializer.add(
                name=name, data_type=CODES[as_dtype(array.dtype).name], dims=array.shape,
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
            entries = {"location": location, "offset": str(file.tell()), "length": str(array.nbytes)}
            for key, value in entries.items():
                proto.external_data.add(key=key, value=value)
            file.write(_little(array).reshape(-1).view(np.uint8).data)  # Python's buffer protocol has no bf16
        _settle(file)


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        _settle(file)


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
