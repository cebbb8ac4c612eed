"""Slots and the memory plan: the place of every tensor. Pure data, without imports of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlx.dtypes import DType
from rlx.records import Record, field

if TYPE_CHECKING:
    from rlx.passes.bodies import BodyProgram

ALIGNMENT = 256  # bytes; every slot begins on a multiple of it, except aliases of a part of another slot

# Segment names. An executable's own memory is "arena0", "arena1", … (one unless the device limits an allocation);
# "const" holds the graph's constants and the kernels' argument blocks. Weights and states lie in stores that several
# executables share: "store3.0", "half3.0", … are segments of store 3.
CONST = "const"
PLANNERS = ("reuse", "bump")
SPARED_BYTES = 1 << 28  # arenas of at least this size are made smaller by recomputing cheap nodes (`planner/spare.py`)
SPARED_PART = 8  # an arena below 1/SPARED_PART of a GPU's memory leaves memory to spare



def input_segment(name: str) -> str:
    """The segment of an input whose memory each call supplies (`Device.build_call`)."""
    return f"in.{name}"


def output_segment(name: str) -> str:
    """The segment of an output whose memory each call supplies."""
    return f"out.{name}"


class OuterSegment(str):
    """A body's name for a segment of the enclosing program; `name` is that program's own name for it."""

    name: str

    def __new__(cls, name: str) -> OuterSegment:
        result = super().__new__(cls, f"outer.{name}")
        result.name = name
        return result


class Slot(NamedTuple):
    """A place in device memory: `offset` and `nbytes` are bytes within `segment`, `dtype` the element type."""

    segment: str
    offset: int
    nbytes: int
    dtype: DType

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    def from_inside(self) -> Slot:
        """The same slot under the segment name that a body of the program uses."""
        return self._replace(segment=OuterSegment(self.segment))


class LiveRange(NamedTuple):
    """A live range: from step `first` to step `last`, both node indices and inclusive."""

    first: int
    last: int


class MemoryPlan(Record, frozen=False, repr=False):
    """The slot of every tensor of a graph, by tensor id.

    `segments` gives the bytes of each segment the executable owns ("arena0", …, "const"). `alias_of` maps a tensor
    that shares the slot of another (a reshape, an in-place result) to that tensor. `max_live_bytes` is the largest
    number of bytes alive at once: no plan can be smaller; `no_reuse_bytes` is the sum of all slots. Both count
    aligned slots. `bodies` holds the plans of control ops' bodies by first output and attribute. Slots of theirs in
    this plan's memory (all but constants, if their arena is one segment) are in its segments (`OuterSegment`).
    """

    planner: str
    slots: dict[int, Slot] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)
    live_ranges: dict[int, LiveRange] = field(default_factory=dict)
    alias_of: dict[int, int] = field(default_factory=dict)
    max_live_bytes: int = 0
    no_reuse_bytes: int = 0
    bodies: dict[tuple[int, str], BodyPlan] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Bytes of all segments, the bodies' included."""
        return sum(self.segments.values()) + sum(body.plan.total_bytes for body in self.bodies.values())

    @property
    def arena_bytes(self) -> int:
        return sum(n for name, n in self.segments.items() if name.startswith("arena"))

    @property
    def overhead(self) -> float:
        """Arena bytes relative to `max_live_bytes`; 1.0 is optimal."""
        return self.arena_bytes / self.max_live_bytes if self.max_live_bytes else 1.0

    def __repr__(self) -> str:
        segments = ", ".join(f"{name} {nbytes:,}" for name, nbytes in self.segments.items())
        bodies = f", {len(self.bodies)} bodies" if self.bodies else ""
        return (
            f"MemoryPlan({self.planner!r}: {len(self.slots)} tensors, {len(self.alias_of)} in another's slot{bodies}; "
            f"bytes: {segments or 'none'}; {self.overhead:.3f} x the largest number alive at once)"
        )


class BodyPlan(NamedTuple):
    """A body as a program, and the plan of its memory."""

    program: BodyProgram
    plan: MemoryPlan


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """nbytes rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to
