"""Prepared graphs in the disk's cache: a large graph goes through the passes once on a machine.

The key of an entry covers all that the passes depend on: the graph with its constants, the device, the options, and the
versions and sources in use. An entry holds the graph in the form of a saved program's file and is read in the same way:
node by node, with every claim checked, without addresses. A graph whose entry cannot be read is prepared anew.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlx.driver import Device
from rlx.driver.device import Bytes
from rlx.dtypes import DType
from rlx.errors import UnsupportedOp
from rlx.host.collector import paused
from rlx.host.diskcache import Part, shared
from rlx.host.sources import stamp
from rlx.ir import Graph
from rlx.runtime.options import CompileOptions
from rlx.runtime.prepare import Prepared
from rlx.runtime.saved.graph_data import GraphsReader, GraphsWriter, names_of
from rlx.runtime.version import VERSION, described

KIND = "graphs"  # the kind of these records in the disk's cache
MOST_CONSTANT_BYTES = 16 << 20  # limit on a graph's constants; more are not worth a second copy on the disk
PASSES = ("backends", "driver", "ir", "ops", "packed", "passes", "runtime")  # the folders that a result depends on
_COUNT = struct.Struct("<Q")
_ALIGNMENT = 64


def prepared(
    graph: Graph,
    device: Device,
    options: CompileOptions,
    param_dtypes: Mapping[str, DType],
    make: Callable[[], Prepared],
) -> Prepared:
    """The result of `make`, from the cache if it is there. Requires: it depends only on the other arguments."""
    cache = shared(KIND)
    key = None if cache.off else key_parts(graph, device, options, param_dtypes)
    if key is None:
        return make()
    record = cache.get(key)
    known = None if record is None else read(record, graph, param_dtypes)
    if known is not None:
        return known
    result = make()
    record = written(result)
    if record is not None:
        cache.put(key, record)
    return result


def key_parts(
    graph: Graph, device: Device, options: CompileOptions, param_dtypes: Mapping[str, DType]
) -> list[Part] | None:
    """What the result depends on; None for a graph that no file can hold, or whose constants are too large."""
    data = _data(graph)
    if data is None:
        return None
    o, info = options, device.info
    ours = [info.packed, info.memory_bytes]
    chosen = [o.planner, o.storage, o.optimize, o.fallback, o.build.precision, o.build.engine, *ours]
    dtypes = sorted((name, dtype.name) for name, dtype in param_dtypes.items())
    said = json.dumps([described(device), chosen, dtypes], sort_keys=True)
    return [VERSION, sys.version, np.__version__, stamp(*PASSES), said.encode(), *data]


def _data(graph: Graph, **more: Any) -> list[bytes] | None:
    """A graph as JSON, with the fields of `more` beside it, and the bytes of its arrays."""
    blocks: list[Bytes] = []

    def add(raw: Bytes) -> int:
        blocks.append(raw)
        return len(blocks) - 1

    writer = GraphsWriter(add)
    try:
        number = writer.add(graph)
    except UnsupportedOp:
        return None
    if sum(raw.nbytes for raw in blocks) > MOST_CONSTANT_BYTES:
        return None
    table = {**more, "graph": number, "exprs": writer.exprs, "graphs": writer.graphs}
    return [json.dumps(table, separators=(",", ":")).encode(), *(raw.tobytes() for raw in blocks)]


def written(prepared: Prepared) -> bytes | None:
    """The record of a prepared graph: the number of its parts, their lengths, and the parts, each padded with zeros to
    a multiple of 64 bytes."""
    parts = _data(prepared.graph, decomposed=sorted(prepared.decomposed))
    if parts is None:
        return None
    head = struct.pack(f"<{1 + len(parts)}Q", len(parts), *map(len, parts))
    return b"".join(part + bytes(-len(part) % _ALIGNMENT) for part in (head, *parts))


def read(record: bytes, declared: Graph, param_dtypes: Mapping[str, DType]) -> Prepared | None:
    """The prepared graph of a record; None for a damaged record, or one of another graph."""
    try:
        (count,) = _COUNT.unpack_from(record)
        lengths = struct.unpack_from(f"<{count}Q", record, _COUNT.size)
        raw, parts = np.frombuffer(record, np.uint8), list[Bytes]()
        at = _COUNT.size * (1 + count)
        for nbytes in lengths:
            at += -at % _ALIGNMENT
            parts.append(raw[at : at + nbytes])
            at += nbytes
        table = json.loads(parts[0].tobytes())
        with paused():
            reader = GraphsReader(table["exprs"], parts[1:].__getitem__, "the cache of graphs", trusted=True)
            graphs = [reader.read(data) for data in table["graphs"]]
        graph = graphs[table["graph"]]
        if names_of(graph) != names_of(declared):
            return None
        return Prepared(graph, frozenset(table["decomposed"]), param_dtypes)
    except Exception:  # noqa: BLE001 whatever is wrong with a record, the graph is prepared anew
        return None
