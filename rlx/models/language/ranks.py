"""Programs and states of a language model whose matrices are split over ranks, and how the ranks are set up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.driver.registry import find_device, in_turns
from rlx.dtypes import DType
from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import Graph, TensorType
from rlx.models.language.parallel import AXIS, TensorParallel, parts_of
from rlx.models.language.weights import ModelWeights, Source
from rlx.packed import PackedArray
from rlx.ranks.collect import Group
from rlx.ranks.mesh import Mesh
from rlx.ranks.mpi import launched
from rlx.ranks.team import Calls, Team, team_of
from rlx.ranks.world import World, card_of
from rlx.records import Record
from rlx.runtime import CompiledGraph, Session, State
from rlx.runtime.launch import Launch
from rlx.runtime.version import VERSION

_SAMPLED = ("o_proj.weight", "down_proj.weight")  # the ranks compare a row of each of these


class Meeting(Record, slots=False):
    """The ranks that will share a model; each rank of this process has a session."""

    mesh: Mesh
    world: World
    sessions: Sequence[Session]
    sums: DType | None
    team: Team | None  # the ranks' threads; None if ranks are processes

    @property
    def own(self) -> range:
        """The ranks of this process."""
        return range(self.mesh.size) if self.mesh.threads else range(self.mesh.rank, self.mesh.rank + 1)


def meeting_of(count: int, device: str, sums: DType | None, open: Callable[[str], Session]) -> Meeting | None:
    """The ranks of `tensor_parallel=count`: the processes that mpiexec has started, or threads of this one, on the
    devices from `device` on, or all on the CPU. None for one rank.

    Raises: ShapeError for an impossible count, or one unlike the number of mpiexec's processes; UnsupportedOp for
    devices that cannot share a model; DeviceUnavailable for too few devices."""
    if type(count) is not int or count < 1:
        raise ShapeError(f"tensor_parallel is {count!r}; expected how many devices share the model, an integer from 1")
    processes = Mesh({"ranks": -1}).size if launched() else 1
    if count == 1 and processes == 1:
        return None
    info = find_device(device)
    if info.backend == "vulkan":
        raise UnsupportedOp(f"tensor_parallel={count} on {info.id}: through Vulkan each layer's sums would go through "
                            "the host; layers_on= places layers on several such devices")  # fmt: skip
    if processes > 1:
        world: Any = Mesh({AXIS: count}).world
        infos = [find_device(in_turns(device, world.local_rank()))]
    else:
        first = info.index
        infos = [info if info.kind == "cpu" else find_device(f"{info.backend}:{first + i}") for i in range(count)]
    if len({i.name for i in infos}) > 1:
        told = ", ".join(f"{i.id} is {i.name}" for i in infos)
        raise UnsupportedOp(f"tensor_parallel={count}: {told}; devices that share a model must be alike, since a "
                            "token's experts follow from the last digits; name others, or take layers_on=")  # fmt: skip
    team = team_of({AXIS: count}, [i.id for i in infos]) if processes == 1 else None
    mesh = Mesh({AXIS: count}) if team is None else team.mesh
    assert mesh.world is not None
    return Meeting(mesh, mesh.world, [open(i.id) for i in infos], sums, team)


class Ranks(Record, slots=False):
    """The ranks of this process: their parts of the model, and weights."""

    meeting: Meeting
    parts: Sequence[TensorParallel]
    weights: Sequence[ModelWeights]

    @property
    def team(self) -> Team | None:
        """The ranks' threads; None if ranks are processes."""
        return self.meeting.team

    @classmethod
    def of(
        cls, meeting: Meeting, whole: ModelWeights, told: Sequence[str], part: Callable[[TensorParallel], ModelWeights]
    ) -> Ranks:
        """The ranks' parts of a model; `part` makes a rank's weights, `told` are settings that must agree on all ranks.

        Raises: as `parts_of`; RanksDisagree, RankLost."""
        config, source, count = whole.config, whole.source, meeting.mesh.size
        card = "the model"
        if not meeting.mesh.threads:
            lines = [f"loading a model of {config.architecture} on {count} ranks", *told, *_said(config, source)]
            text = "\n".join(lines)
            group = Group(meeting.world, meeting.mesh.rank, tuple(range(count)))
            group.meet(lambda: text)
            card = f"model {card_of(text).hex()[:8]}"

        def who(rank: int) -> Mapping[str, Any]:
            """The attributes of a rank's collectives. `spoils`: a run may write caches in place, since the next run
            overwrites the rows that a failed one leaves."""
            return {"over": (AXIS,), "mesh": ((AXIS, count),), "world": meeting.world.name, "rank": rank, "card": card,
                    "spoils": True}  # fmt: skip

        every = parts_of(config, source.where, whole.block_of, count, who, meeting.sums)
        parts = [every[rank] for rank in meeting.own]
        return cls(meeting, parts, [part(p) for p in parts])

    @property
    def text(self) -> str:
        """The devices, and the dtype of their sums."""
        ids = ", ".join(session.info.id for session in self.meeting.sessions)
        where = ids if self.team is not None else f"{ids}, rank {self.meeting.mesh.rank} of {self.meeting.mesh.size}"
        return f"{where} (matrices cut in {self.meeting.mesh.size}, sums in {self.meeting.sums or 'activations'})"

    def agree(self, ids: Any, inputs: Mapping[str, Any]) -> None:
        """Raises: RanksDisagree where processes continue from different tokens, or sample by different settings."""
        if self.team is not None:
            return

        def tell() -> str:
            drawn = [f"{name} {np.asarray(value).tolist()!s:.200}" for name, value in inputs.items()]
            return "\n".join([f"a prompt of {len(ids)} tokens", f"tokens {ids.tolist()}", *drawn])

        mesh = self.meeting.mesh
        Group(self.meeting.world, mesh.rank, tuple(range(mesh.size))).meet(tell)


def _said(config: Any, source: Source) -> list[str]:
    """The lines that ranks compare to check that they load the same model."""
    lines = [f"rlx {VERSION}", f"settings {config!r}"]
    for name, (shape, dtype) in source.kinds.items():
        line = f"{name} {dtype}{list(shape)}"
        if len(shape) == 1 or (name.endswith(_SAMPLED) and len(shape) == 2):
            value = source.read(name) if len(shape) == 1 else source.read_part(name, 0, 0, 1)
            data = value.data if isinstance(value, PackedArray) else np.ascontiguousarray(value).view(np.uint8)
            line += f" {hashlib.blake2b(data.tobytes(), digest_size=6).hexdigest()}"
        lines.append(line)
    return lines


class RanksStates:
    """The states of a model on all ranks of a process: writes go to all ranks, reads come from the first."""

    def __init__(self, team: Team, states: Sequence[State]) -> None:
        self._team, self._states = team, states

    def reserve(self, types: Mapping[str, TensorType]) -> None:
        self._team.each(lambda rank: self._states[rank].reserve(types))

    def set(self, name: str, value: Any) -> None:
        self._team.each(lambda rank: self._states[rank].set(name, value))

    def get(self, name: str) -> Any:
        return self._team.each(lambda rank: self._states[rank].get(name) if rank == 0 else None)[0]


class RanksLaunch:
    """A launched run on all ranks."""

    def __init__(self, team: Team, calls: Calls[Launch[dict[str, Any]]]) -> None:
        self._team, self._calls = team, calls

    def wait(self, out: Any = "device") -> Any:
        """The outputs of the first rank, once all are done. Raises: the first error of a rank."""
        return self._team.each(lambda rank: self._calls.futures[rank].result().wait(out))[0]


class RanksProgram:
    """The programs of a process's ranks: a run runs all of them on the same inputs; its outputs are the first rank's,
    which are equal on all ranks."""

    def __init__(self, team: Team, parts: Sequence[CompiledGraph]) -> None:
        self._team, self.parts = team, parts
        self.graph: Graph = parts[0].graph
        self._prepared = False

    def prepare(self) -> None:
        self._team.each(lambda rank: self.parts[rank].prepare())
        self._prepared = True

    def _ready(self) -> None:
        """Builds all parts before any runs: if one rank lacked memory for its part, the others would wait for it on
        their devices until these are lost."""
        if not self._prepared:
            self.prepare()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Runs all parts; as `CompiledGraph.run`."""
        self._ready()
        return self._team.each(lambda rank: self.parts[rank].run(inputs, out="host" if rank == 0 else "device"))[0]

    def launch(self, inputs: Mapping[str, Any] | None = None) -> RanksLaunch:
        self._ready()
        return RanksLaunch(self._team, self._team.begin(lambda rank: self.parts[rank].launch(inputs)))

    def close(self) -> None:
        for part in self.parts:
            part.close()
