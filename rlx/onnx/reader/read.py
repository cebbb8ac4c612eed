"""From a path, bytes or ModelProto to a checked model: sizes, names, order and depth, before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

from rlx.errors import ModelFormatError, UnsupportedOp
from rlx.formats.files import plain, read_bytes, shown
from rlx.formats.kinds import other_kind
from rlx.onnx.blocks import without_blocks
from rlx.onnx.reader.wire import check_parsable
from rlx.onnx.ready import Content
from rlx.runtime.saved.container import MAGIC

MAX_BYTES = (1 << 31) - 1  # the largest protobuf file; larger models keep their weights in files beside it
MAX_DEPTH = 32
OLDEST = 1

Attribute = onnx.AttributeProto


def parse(source: Any, blocks: dict[int, memoryview] | None = None) -> tuple[Any, Path | None]:
    """The ModelProto of a path, bytes or ModelProto, and the folder its external data lies in. The long raw_data of
    initializers goes to `blocks`, by their numbers, instead of into the message.

    Raises: ModelFormatError.
    """
    if isinstance(source, onnx.ModelProto):
        return source, None
    folder = None
    if isinstance(source, Content):
        content, what, folder = source.content, source.what, Path(source.folder)
    elif isinstance(source, bytes | bytearray | memoryview):
        content, what = bytes(source), "the model"
    elif isinstance(source, str | os.PathLike):
        path = Path(os.fspath(source))
        content, what, folder = read_bytes(path, MAX_BYTES), str(path), path.parent
    else:
        raise ModelFormatError(
            f"a {type(source).__name__} is no model; give a path, the bytes of a file, or an onnx.ModelProto"
        )
    if len(content) > MAX_BYTES:
        raise ModelFormatError(f"{what}: larger than {MAX_BYTES:,} bytes, which no such file can be")
    if content.startswith(MAGIC):  # some of these bytes would parse as a message
        raise ModelFormatError(f"{what}: is not an ONNX file: {other_kind(content)}")
    check_parsable(content, what)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content if blocks is None else without_blocks(content, blocks))
    except (DecodeError, RuntimeError, ValueError) as error:
        kind = other_kind(content) or f"{error}; one that was cut short looks so too: is its size the source's?"
        raise ModelFormatError(f"{what}: is not an ONNX file: {kind}") from error
    if not model.HasField("graph"):
        raise ModelFormatError(f"{what}: has no graph: {other_kind(content) or 'it is not an ONNX model'}")
    return model, folder


def without_initializers(model: Any) -> Any:
    """A copy with the parts that programs are built from, without the initializers, which are arrays by then. As a copy
    it is safe from later changes to the caller's ModelProto."""
    result = onnx.ModelProto()
    for field in ("opset_import", "functions"):
        getattr(result, field).extend(getattr(model, field))
    name = model.graph.name
    result.graph.name = name if isinstance(name, str) else ""  # protobuf gives bytes where the name is no UTF-8
    for field in ("input", "output", "node"):
        getattr(result.graph, field).extend(getattr(model.graph, field))
    return result


def opsets(imports: Any, what: str) -> dict[str, int]:
    """Domain to version. Raises: ModelFormatError for a domain imported twice or without a sensible version."""
    numbers: dict[str, int] = {}
    for entry in imports:
        check_text(what, entry.domain)
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if domain in numbers and numbers[domain] != entry.version:
            raise ModelFormatError(f"{what}: imports the operators of {shown(domain)} twice")
        if not 1 <= entry.version < 1 << 31:
            raise ModelFormatError(f"{what}: imports {shown(domain)} at version {entry.version}")
        numbers[domain] = entry.version
    newest = onnx.defs.onnx_opset_version()
    if "" in numbers and not OLDEST <= numbers[""] <= newest:
        raise UnsupportedOp(
            f"{what}: uses opset {numbers['']}; rlx reads {OLDEST} to {newest}, what the installed onnx knows (a newer "
            "one may know more: pip install -U onnx)"
        )
    return numbers


def check_text(what: str, *values: Any) -> None:
    """Raises: ModelFormatError for a string that is no UTF-8, which protobuf returns as bytes."""
    for value in values:
        if not isinstance(value, str):
            raise ModelFormatError(f"{what}: {shown(value)} is not valid UTF-8 text")


def subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.type == Attribute.GRAPH:
            yield attribute.g
        elif attribute.type == Attribute.GRAPHS:
            yield from attribute.graphs


def reads(node: Any) -> set[str]:
    """The names that a node reads, those that the graphs inside it take from around them included."""
    result = {n for n in node.input if n}
    for graph in subgraphs(node):
        own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
        inside = {n for inner in graph.node for n in reads(inner)} | {o.name for o in graph.output}
        result |= inside - own - {n for inner in graph.node for n in inner.output}
    return result


def node_name(node: Any, index: int | None = None) -> str:
    """The name of a node in errors."""
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    place = f" number {index}" if index is not None and not node.name else ""
    return (
        f"node {shown(node.name)} ({kind})"
        if node.name
        else f"node{place} ({kind}) making {shown(_first(node))}"
    )


def label_of(node: Any, depth: int) -> str:
    """The name of a node in reports: its name in the file. A node without one is called by its outputs, except in
    functions, where readers of the file know the calling node better."""
    name = node.name or ("" if depth else f"{node.op_type} making {_first(node)}")
    return plain(name)


def _first(node: Any) -> str:
    return next((o for o in node.output if o), "nothing")


def check_model(model: Any, whole: Any) -> None:
    """Raises: ModelFormatError naming the node, for a model that is not well-formed; `whole` has its initializers."""
    if not whole.HasField("graph"):
        raise ModelFormatError("the model has no graph")
    if not model.opset_import:
        raise ModelFormatError("the model does not say which opset it uses")
    names: set[Called] = set()
    for function in model.functions:
        check_text("a function", *called(function), *function.output, *function.attribute)
        if called(function) in names:
            raise ModelFormatError(f"function {shown(function.name)}: defined twice")
        names.add(called(function))
        what = f"function {shown(function.name)}"
        opsets(function.opset_import, what)
        known = _distinct(function.input, f"{what}: input")
        _check_nodes(function.node, known, function.output, what, 1)
    _check_functions(model)
    _check_graph(model.graph, (), "the graph", 1, whole.graph)


def _distinct(names: Any, what: str) -> set[str]:
    result: set[str] = set()
    for name in names:
        check_text(what, name)
        if not name:
            raise ModelFormatError(f"{what}: one has no name")
        if name in result:
            raise ModelFormatError(f"{what} {shown(name)}: named twice")
        result.add(name)
    return result


def _check_graph(graph: Any, outer: tuple[set[str], ...], what: str, depth: int, whole: Any = None) -> None:
    if depth > MAX_DEPTH:
        raise ModelFormatError(f"{what}: graphs are nested more than {MAX_DEPTH} deep")
    whole = graph if whole is None else whole
    if len(whole.sparse_initializer):
        raise UnsupportedOp(f"{what}: sparse initializers are not supported")
    known = _distinct([i.name for i in graph.input], f"{what}: input")
    known |= _distinct([i.name for i in whole.initializer], f"{what}: initializer")
    results = [o.name for o in graph.output]
    _check_nodes(graph.node, known, results, what, depth, outer)
    _distinct(set(results), f"{what}: output")  # one value may be listed as several results


def _check_nodes(
    nodes: Any, known: set[str], results: Any, what: str, depth: int, outer: tuple[set[str], ...] = ()
) -> None:
    for index, node in enumerate(nodes):
        check_text(f"{what}: node number {index}", *called(node), node.name, *node.input, *node.output)
        check_text(f"{what}: node number {index}", *(a.ref_attr_name for a in node.attribute))
        for name in node.input:
            if name and name not in known and not any(name in around for around in outer):
                raise ModelFormatError(
                    f"{what}: {node_name(node, index)}: takes {shown(name)}, which nothing makes"
                )
        _distinct([a.name for a in node.attribute], f"{what}: {node_name(node, index)}: attribute")
        for inner in subgraphs(node):
            _check_graph(inner, (*outer, known), f"a graph in {node_name(node, index)}", depth + 1)
        for name in node.output:
            if name and name in known:
                raise ModelFormatError(
                    f"{what}: {node_name(node, index)}: makes {shown(name)}, which is there already"
                )
            if name:
                known.add(name)
    for name in results:
        if name not in known and not any(name in around for around in outer):
            raise ModelFormatError(f"{what}: the output {shown(name)} is made by nothing")


Called = tuple[str, str, str]


def called(proto: Any) -> Called:
    """The key of a function: of a FunctionProto its own, of a node that of the function it calls, if it calls one."""
    return (
        proto.domain,
        proto.name if isinstance(proto, onnx.FunctionProto) else proto.op_type,
        proto.overload,
    )


def _check_functions(model: Any) -> None:
    """Raises: ModelFormatError for functions that call themselves, directly or through others, or too deeply."""
    names = {called(f) for f in model.functions}
    depths: dict[Called, int] = {}
    left = {called(f): {called(n) for n in all_nodes(f.node)} & names for f in model.functions}
    while left:
        if len(set(depths.values())) >= MAX_DEPTH:
            raise ModelFormatError(f"functions call each other more than {MAX_DEPTH} deep")
        ready = [f for f, inner in left.items() if all(c in depths for c in inner)]
        if not ready:
            raise ModelFormatError(
                f"function {shown(sorted(left)[0][1])}: calls itself, directly or through others"
            )
        for f in ready:
            depths[f] = 1 + max((depths[c] for c in left.pop(f)), default=0)


def all_nodes(nodes: Any) -> Iterator[Any]:
    """Every node, including those of graphs in attributes."""
    for node in nodes:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner.node)
