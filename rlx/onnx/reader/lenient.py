"""Accepts what exporters get wrong and ONNX Runtime accepts: nodes out of order, domains that are not imported, wrong
declarations. It warns of each departure from the format, and `strict` refuses it."""

from __future__ import annotations

import heapq
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from rlx.errors import ModelFormatError, ModelWarning
from rlx.formats.files import shown
from rlx.onnx.reader.read import MAX_DEPTH, all_nodes, called, node_name, subgraphs
from rlx.onnx.reader.table import MICROSOFT, ML
from rlx.onnx.reader.wire import MAX_NODES
from rlx.onnx.ready import DEPARTED


def departs(said: str, taken: str, strict: bool) -> None:
    """Warns that a file departs from its format, and how it is read. Raises: ModelFormatError if `strict`."""
    if strict:
        raise ModelFormatError(f"{said}; rlx.onnx.load(…, strict=False), or --no-strict, {taken}")
    DEPARTED.append(said)
    warnings.warn(f"{said}; rlx {taken}, and strict=True refuses it", ModelWarning, stacklevel=2)


# -- domains that are not imported


def import_used(model: Any, strict: bool) -> None:
    """Adds the imports that a model and its functions lack: the only version of com.microsoft, the newest of the
    others. Raises: ModelFormatError where `strict`."""
    newest = {"": onnx.defs.onnx_opset_version(), ML: onnx.defs.onnx_ml_opset_version(), MICROSOFT: 1}
    if not model.opset_import:
        return
    versions = {_domain(i.domain): i.version for i in model.opset_import}
    functions = {called(f) for f in model.functions}
    for part, nodes in ((model, model.graph.node), *((f, f.node) for f in model.functions)):
        there = {_domain(i.domain) for i in part.opset_import}
        used: dict[str, Any] = {}
        for node in all_nodes(nodes):
            if called(node) not in functions:
                used.setdefault(_domain(node.domain), node)
        for domain in (d for d in newest if d in used and d not in there):
            version = versions.get(domain, newest[domain])
            departs(
                f"{node_name(used[domain])}: its domain {domain or 'ai.onnx'!r} is not imported",
                f"takes version {version} of it", strict,
            )  # fmt: skip
            part.opset_import.add(domain=domain, version=version)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


# -- nodes out of order


def put_in_order(model: Any) -> None:
    """Sorts the nodes of a model, of its functions and of inner graphs topologically, otherwise keeping their order.
    Raises: ModelFormatError naming the nodes of a cycle, or for too many nodes."""
    budget = [MAX_NODES]
    for function in model.functions:
        _sort(function.node, set(function.input), f"function {shown(function.name)}", budget, 1)
    graph = model.graph
    _sort(graph.node, {i.name for i in graph.input}, "the graph", budget, 1)


def _sort(nodes: Any, known_names: set[str], what: str, budget: list[int], depth: int) -> set[str]:
    """Sorts nodes and those of inner graphs. Returns: the names that they read from outer scopes."""
    budget[0] -= len(nodes)
    if budget[0] < 0:
        raise ModelFormatError(f"the model has more than {MAX_NODES:,} nodes")
    if depth > MAX_DEPTH:
        raise ModelFormatError(f"{what}: graphs are nested more than {MAX_DEPTH} deep")
    makers: dict[str, int] = {}
    needs = []
    for index, node in enumerate(nodes):
        needed = set(node.input)
        for inner in subgraphs(node):
            known = {i.name for i in (*inner.input, *inner.initializer)}
            outer = _sort(inner.node, known, f"a graph in {node_name(node, index)}", budget, depth + 1)
            produced = known.union(*(n.output for n in inner.node))
            needed |= outer | {o.name for o in inner.output if o.name not in produced}
        needs.append(needed - known_names)
        for name in node.output:
            makers.setdefault(name, index)
    makers.pop("", None)
    before = [{makers[n] for n in needed if n in makers} for needed in needs]
    if any(max(wanted, default=-1) >= index for index, wanted in enumerate(before)):
        order = _order(before)
        if len(order) < len(nodes):
            ring = " → ".join(
                node_name(nodes[i], i) for i in _cycle(before, set(range(len(nodes))) - set(order))
            )
            raise ModelFormatError(f"{what}: its nodes form a cycle: {ring}")
        copies = [_copy(nodes[i]) for i in order]
        del nodes[:]
        nodes.extend(copies)
    return set().union(*needs) - set(makers)


def _copy(node: Any) -> Any:
    result = onnx.NodeProto()
    result.CopyFrom(node)
    return result


def _order(before: list[set[int]]) -> list[int]:
    """The nodes in topological order by Kahn's algorithm, the first ready one next; without nodes behind a cycle."""
    after: list[list[int]] = [[] for _ in before]
    for index, wanted in enumerate(before):
        for w in wanted:
            after[w].append(index)
    left = Counter({index: len(wanted) for index, wanted in enumerate(before)})
    ready = [index for index, wanted in enumerate(before) if not wanted]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for later in after[index]:
            left[later] -= 1
            if not left[later]:
                heapq.heappush(ready, later)
    return order


def _cycle(before: list[set[int]], blocked: set[int]) -> Iterable[int]:
    """A cycle among the blocked nodes, its first node again at the end; of a long one the first nodes."""
    path = list(_walk(before, blocked))
    start = path.index(path[-1])
    ring = path[start:][::-1]
    return ring if len(ring) <= 5 else [*ring[:4], ring[-1]]


def _walk(before: list[set[int]], blocked: set[int]) -> Iterator[int]:
    """Walks from a blocked node to one that blocks it, until a node comes again."""
    seen: set[int] = set()
    at = min(blocked)
    while at not in seen:
        seen.add(at)
        yield at
        at = min(before[at] & blocked)
    yield at
