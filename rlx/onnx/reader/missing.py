"""The operators of a model that rlx cannot build: all of them at once, before anything is built."""

from __future__ import annotations

from typing import Any

from rlx.formats.files import shown
from rlx.onnx.reader.control import CONTROL
from rlx.onnx.reader.read import all_nodes, called, node_name, opsets
from rlx.onnx.reader.schemas import Schemas
from rlx.onnx.reader.table import find

NCHWC = "com.microsoft.nchwc"


Operator = tuple[str, str, int | None]  # its domain, "" for ONNX's own, its name, and its version where it has one


def missing_operators(model: Any) -> list[str]:
    """Every operator of the model that has neither a builder nor a function of onnx's: domain, name, version, node."""
    operators = lacking(model)
    if any(domain == NCHWC for domain, _, _ in operators):
        return [
            f"{NCHWC}: ONNX Runtime saved this file at its highest optimization level, for the memory layout of one "
            "kind of CPU; save it with graph_optimization_level = ORT_ENABLE_EXTENDED, or give the model that it was "
            "made from",
            *(said for (domain, _, _), said in operators.items() if domain != NCHWC),
        ]  # fmt: skip
    return list(operators.values())


def lacking(model: Any) -> dict[Operator, str]:
    """The operators that rlx cannot build, and a line on each with the first node that has it."""
    functions = {called(f) for f in model.functions}
    operators: dict[Operator, str] = {}
    schemas, runs = Schemas(), set[Operator]()
    parts = [(model.graph.node, opsets(model.opset_import, "the model"))]
    parts += [(f.node, opsets(f.opset_import, f"function {shown(f.name)}")) for f in model.functions]
    for nodes, imports in parts:
        for node in all_nodes(nodes):
            domain = "" if node.domain == "ai.onnx" else node.domain
            if called(node) in functions:
                continue
            opset = imports.get(domain)
            schema = schemas.of(domain, node.op_type, opset) if opset is not None else None
            version = schema.since_version if schema is not None else opset
            key = (domain, node.op_type, version)
            if key in operators or key in runs:
                continue
            if schema is not None and _runs(schema, domain, node.op_type):
                runs.add(key)
                continue
            said = "of a domain that is not imported" if version is None else f"version {version}"
            operators[key] = f"{domain or 'ai.onnx'} {shown(node.op_type)} {said} at {node_name(node)}"
    return operators


def _runs(schema: Any, domain: str, name: str) -> bool:
    registered = find(domain, name, schema.since_version) is not None or (not domain and name in CONTROL)
    return registered or schema.has_function or schema.has_context_dependent_function
