"""Slots and the memory plan: where every tensor lives. Pure data; imports no backend."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rlx.dtypes import DType

if TYPE_CHECKING:
    from rlx.passes.bodies import BodyProgram

ALIGNMENT = 256  # bytes; every slot begins on a multiple of it (aliases of a slice of another slot excepted)

# Segment names. An executable's own memory is "arena0", "arena1", … (one unless the device limits an allocation);
# "const" holds the graph's constants and the kernels' argument blocks. Weights and states live in stores that several
# executables share: "store3.0", "half3.0", … of store 3.
CONST = "const"
OUTER = "outer."  # before the names of segments that belong to the program around a body


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in device memory: `offset` and `nbytes` in bytes within `segment`; `dtype` is how it is stored."""

    segment: str
    offset: int
    nbytes: int
    dtype: DType

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    def from_inside(self) -> Slot:
        """The same place as a body of the program sees it."""
        return replace(self, segment=OUTER + self.segment)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a slot is in use: from step `first` to step `last`, both counted in nodes and inclusive."""

    first: int
    last: int


@dataclass(slots=True)
class MemoryPlan:
    """Where every tensor of a graph lives, keyed by tensor id.

    `segments` gives the bytes of each segment the executable owns ("arena0", …, "const"). `alias_of` maps a tensor
    that shares the slot of another (a reshape, an in-place result) to that tensor. `max_live_bytes` is the most
    bytes alive at once: no plan can be smaller; `no_reuse_bytes` is the sum of all slots. Both count aligned slots.
    `bodies` holds the plans of control ops' bodies by first output and attribute: their slots in this plan's memory,
    which are all but constants as long as that is one segment, are in segments of the same name behind "outer.".
    """

    planner: str
    slots: dict[int, Slot] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)
    lifetimes: dict[int, Lifetime] = field(default_factory=dict)
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
        """Arena bytes over the max-live bound; 1.0 is perfect."""
        return self.arena_bytes / self.max_live_bytes if self.max_live_bytes else 1.0


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A body as it runs, and where its tensors live."""

    program: BodyProgram
    plan: MemoryPlan


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """nbytes rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to
