"""Checks the memory that a program needs against what its device or its session has left."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.driver import Device
from rlx.errors import OutOfDeviceMemory
from rlx.ir import Graph, Tensor, bodies
from rlx.runtime.room import Room

# Programs of fewer bytes are not checked against free memory: on the CPU the query takes a quarter of a small graph's
# compile time, and where so little is missing the allocation itself fails.
_SMALL = 1 << 16


def check_memory(need: int, graph: Graph, name: str, device: Device, room: Room) -> None:
    """Raises: OutOfDeviceMemory where the device, or the session's limit, has fewer bytes left than are needed."""
    if need <= _SMALL and room.limit is None:
        return
    free = room.free()
    if need > free:
        within = "" if room.limit is None else f" within the session's memory_limit of {room.limit:,}"
        needs = f"needs {need:,} bytes on {device.info.id}, {max(free, 0):,} are free{within}"
        raise out_of_memory(needs, graph, name, room)


def out_of_memory(what: str, graph: Graph, name: str, room: Room) -> OutOfDeviceMemory:
    """The error that names the largest tensors of a graph and says what would make it fit."""
    largest_first = sorted(_tensors(graph), key=lambda t: -t.type.nbytes)[:5]
    largest = "; ".join(f"{t.node.label or t.node.op.name} {t.type} {t.type.nbytes:,}" for t in largest_first)
    limited = "" if room.limit is None else "close other models, raise memory_limit, "
    return OutOfDeviceMemory(
        f"graph {name!r} {what}. Largest tensors: {largest}. To make it fit: {limited}use a smaller "
        "batch, keep weights in bf16, or use another device"
    )


def _tensors(graph: Graph) -> Iterator[Tensor]:
    """The tensors of a graph and of the bodies of its control ops."""
    yield from graph.tensors()
    for node in graph.nodes:
        for body in bodies(node).values():
            yield from _tensors(body)
