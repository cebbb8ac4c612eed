"""Finding fusion groups: elementwise nodes that can run as one, without a path that leaves a group and comes back."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from rlx.ir import Graph, Node, Tensor
from rlx.passes.repeats import Repeat, repeat_of, splits
from rlx.passes.rewriting import SupportOf
from rlx.passes.trees import cheap, cost, literal, node_trees, spread
from rlx.records import Record, field

MAX_INPUTS = 8
MAX_TENSORS = 12  # limit on inputs and outputs together: pointers of one launch
MAX_COST = 64  # limit on distinct computed nodes of the trees
MAX_SPREAD = 4096  # limit on one tree's nodes, shared parts counted at each use: printing and comparing take as long


class FusionGroup(Record, frozen=False, eq=False):
    """A fusion group: indices of nodes that run as one over `shape`.

    Members of a smaller shape are computed again for each element. `place` is its rank in a topological order of all
    groups and single nodes."""

    shape: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    cost: int = 0
    place: int = 0


class FusionGroupFinder:
    """Grows fusion groups along the edges of a graph: a consumer's group takes in the groups of its producers."""

    def __init__(self, graph: Graph, support: SupportOf) -> None:
        self.nodes = graph.nodes
        self.position = {t.id: i for i, node in enumerate(graph.nodes) for t in node.outputs}
        self.users: dict[int, list[int]] = {t.id: [] for t in graph.tensors()}
        for i, node in enumerate(graph.nodes):
            for t in node.inputs:
                self.users[t.id].append(i)
        self.results = {t.id for t in graph.results()}
        self._repeats: dict[int, Repeat | None] = {}
        self.region: dict[int, FusionGroup] = {}
        self._spread: dict[int, tuple[int, dict[int, int]]] = {}
        for i, node in enumerate(graph.nodes):
            if fusible(node) and support(node) == "native":
                trees = node_trees(node)
                self.region[i] = FusionGroup(node.outputs[0].shape, [i], cost=cost(trees))
                self._spread.update({t.id: spread(tree) for t, tree in zip(node.outputs, trees, strict=True)})
        # Each node's unit: its fusion group, or a group of itself alone.
        self._unit = [self.region.get(i, FusionGroup((), [i])) for i in range(len(graph.nodes))]
        self._needs = [self._before([i]) for i in range(len(graph.nodes))]
        self._feeds: list[list[int]] = [[] for _ in graph.nodes]
        for i, unit in enumerate(self._unit):
            unit.place = i
            for j in self._needs[i]:
                self._feeds[j].append(i)

    def find(self) -> list[FusionGroup]:
        """The fusion groups, those of one node included."""
        for i, node in enumerate(self.nodes):
            if i in self.region:
                for t in node.inputs:
                    x, repeat = self.read(t)
                    producer = self.position[x.id]
                    if producer in self.region and repeat is None and not self._stays_narrow(node, x):
                        self._try(self.region[producer], self.region[i])
        return list({id(r): r for r in self.region.values()}.values())

    def _stays_narrow(self, node: Node, x: Tensor) -> bool:
        """Whether a node widens integers of 8 bits that are written anyway. Then it joins the groups that read what it
        makes: else the group that makes the integers would write both, the second in four times the bytes."""
        if not (x.dtype.is_int and x.dtype.itemsize == 1 and node.outputs[0].dtype.itemsize > 1):
            return False
        return x.id in self.results or any(i not in self.region for i in self._readers(x))

    def _try(self, producer: FusionGroup, consumer: FusionGroup) -> None:
        if producer is consumer or not self._fits(producer, consumer):
            return
        members = sorted((*producer.members, *consumer.members))
        if self._repeats_itself(members):
            return
        merged = FusionGroup(consumer.shape, members, producer.cost + consumer.cost)
        inputs, outputs = self.ports(merged)
        if len(inputs) > MAX_INPUTS or len(inputs) + len(outputs) > MAX_TENSORS or merged.cost > MAX_COST:
            return
        repeats = [repeat for _, repeat in inputs if repeat is not None]
        if repeats and splits(merged.shape, repeats) is None:
            return
        if self._spread_of(merged) <= MAX_SPREAD and self._join(producer, consumer, merged):
            for i in merged.members:
                self.region[i] = self._unit[i] = merged

    def _fits(self, producer: FusionGroup, consumer: FusionGroup) -> bool:
        if producer.shape == consumer.shape:
            return True
        if np.broadcast_shapes(producer.shape, consumer.shape) != consumer.shape:
            return False
        inside = {*producer.members, *consumer.members}
        for i in producer.members:
            for t in self.nodes[i].outputs:
                if t.id in self.results or not inside.issuperset(self._readers(t)):
                    return False
        return all(cheap(node_trees(self.nodes[i])) for i in producer.members) and producer.cost <= 4

    def _repeats_itself(self, members: list[int]) -> bool:
        """Whether a member reads a repetition of another member's output: that output must be in memory first."""
        inside = set(members)
        inputs = (self.read(t) for i in members for t in self.nodes[i].inputs)
        return any(repeat is not None and self.position[x.id] in inside for x, repeat in inputs)

    def read(self, t: Tensor) -> tuple[Tensor, Repeat | None]:
        """The tensor that a group reads for t: the source of its broadcasts, or what t repeats, and the repetition."""
        x = source(t)
        if x.id not in self._repeats:
            self._repeats[x.id] = repeat_of(x)
        repeat = self._repeats[x.id]
        return (x, None) if repeat is None else (repeat.base, repeat)

    def ports(self, region: FusionGroup) -> tuple[list[tuple[Tensor, Repeat | None]], list[Tensor]]:
        """The tensors that a group reads, and those that it must write.

        Among the former are no literals; broadcasts and repetitions are replaced by their sources."""
        inside = set(region.members)
        inputs: dict[Hashable, tuple[Tensor, Repeat | None]] = {}
        outputs: list[Tensor] = []
        for i in region.members:
            for t in self.nodes[i].inputs:
                x, repeat = self.read(t)
                if self.position[x.id] not in inside and literal(t) is None:
                    inputs.setdefault(port_key(x, repeat), (x, repeat))
            for t in self.nodes[i].outputs:
                if t.id in self.results or not inside.issuperset(self._readers(t)):
                    outputs.append(t)
        return list(inputs.values()), outputs

    def _spread_of(self, region: FusionGroup) -> int:
        sizes: dict[int, int] = {}
        for i in region.members:
            inputs = self.nodes[i].inputs
            for t in self.nodes[i].outputs:
                size, uses = self._spread[t.id]
                sizes[t.id] = size + sum(n * (sizes.get(self.read(inputs[k])[0].id, 1) - 1) for k, n in uses.items())
        return max(sizes.values())

    def _readers(self, t: Tensor) -> list[int]:
        """The nodes that read t. Elementwise nodes that read t through a broadcast count as its readers; a broadcast
        that other nodes read, or that is a result, counts itself."""
        result: list[int] = []
        for i in self.users[t.id]:
            out = self.nodes[i].outputs[0]
            behind = self._readers(out) if self.nodes[i].op.broadcasts else []
            if behind and out.id not in self.results and all(j in self.region for j in behind):
                result += behind
            else:
                result.append(i)
        return result

    def _join(self, producer: FusionGroup, consumer: FusionGroup, merged: FusionGroup) -> bool:
        """Puts the merged group into the order of units; False when another unit lies on a path between the two.

        Only units between the two in the order can lie on such a path. Of these, units that the consumer needs move
        ahead of the merged group and units that need the producer move behind it; the rest stay (Pearce and Kelly, "A
        Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", 2007).
        """
        ahead = self._between(consumer, producer, self._needs)
        if ahead is None:
            return False
        behind = (self._between(producer, consumer, self._feeds) or []) if ahead else []
        units = [*ahead, merged, *behind]
        places = sorted(u.place for u in (*ahead, producer, consumer, *behind))
        for unit, place in zip(units, places, strict=False):  # two units became one, so one place is left over
            unit.place = place
        return True

    def _between(
        self, start: FusionGroup, end: FusionGroup, edges: Sequence[Sequence[int]]
    ) -> list[FusionGroup] | None:
        """The units that can be reached from `start` along the edges and whose places are between `start` and `end`,
        in order; None if one of them leads to `end`."""
        low, high = sorted((start.place, end.place))
        reached = {id(start): start}
        queue = [start]
        for unit in queue:  # the loop appends to the queue
            for i in unit.members:
                for j in edges[i]:
                    other = self._unit[j]
                    if other is end and unit is not start:
                        return None
                    if low < other.place < high and id(other) not in reached:
                        reached[id(other)] = other
                        queue.append(other)
        return sorted(queue[1:], key=lambda unit: unit.place)

    def _before(self, members: list[int]) -> list[int]:
        """The nodes whose outputs the members read. Elementwise nodes read through broadcasts (see `read`)."""
        result = []
        for i in members:
            for t in self.nodes[i].inputs:
                result.append(self.position[(self.read(t)[0] if i in self.region else t).id])
        return result

    def order(self, chosen: Mapping[int, FusionGroup]) -> list[list[int]]:
        """An order of nodes, as lists of their indices, in which each chosen group's members are adjacent.

        They come after all their inputs. The order is as close to the given one as the groups allow."""
        unit_of: dict[int, int] = {}
        units: list[list[int]] = []
        for i in range(len(self.nodes)):
            if i not in unit_of:
                members = chosen[i].members if i in chosen else [i]
                unit_of.update(dict.fromkeys(members, len(units)))
                units.append(members)
        needs = [{unit_of[j] for j in self._before(unit)} - {number} for number, unit in enumerate(units)]
        feeds: list[list[int]] = [[] for _ in units]
        for number, before in enumerate(needs):
            for b in before:
                feeds[b].append(number)
        waiting = [len(before) for before in needs]
        ready = [(units[n][-1], n) for n in range(len(units)) if waiting[n] == 0]
        heapq.heapify(ready)
        done: list[list[int]] = []
        while ready:
            _, n = heapq.heappop(ready)
            done.append(units[n])
            for f in feeds[n]:
                waiting[f] -= 1
                if waiting[f] == 0:
                    heapq.heappush(ready, (units[f][-1], f))
        assert len(done) == len(units), "regions form a cycle"
        return done


def fusible(node: Node) -> bool:
    """Whether a node can be in a fusion group: elementwise, not empty, and no copy, which needs its own memory."""
    if node.op.materializes or node.outputs[0].size == 0:
        return False
    return node.op.elementwise


def port_key(x: Tensor, repeat: Repeat | None) -> Hashable:
    """A key that is equal for inputs of a group that are read in the same way."""
    return x.id if repeat is None else repeat.key()


def source(t: Tensor) -> Tensor:
    """The source of a broadcast of t, or t: fusion groups broadcast their inputs themselves."""
    while t.node.op.broadcasts:
        t = t.node.inputs[0]
    return t
