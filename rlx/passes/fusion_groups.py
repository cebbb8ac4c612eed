"""Finding fusion groups: elementwise nodes that can run as one, without a path that leaves a group and comes back."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np

from rlx.dtypes import f32, f64
from rlx.ir import Graph, Node, Tensor
from rlx.passes.repeats import Repeat, repeat_of, splits
from rlx.passes.rewriting import SupportOf
from rlx.passes.trees import cheap, cost, literal, node_trees, spread
from rlx.records import Record, field

MAX_INPUTS = 8
MAX_TENSORS = 12  # limit on inputs and outputs together: pointers of one launch
MAX_COST = 64  # limit on distinct computed nodes of the trees
_FAR = 32  # how many of the following nodes are searched
MAX_SPREAD = 4096  # limit on one tree's nodes, shared parts counted at each use: printing and comparing take as long


class _Port(NamedTuple):
    """What a group reads for one input of a member: the tensor and its repetition (`read`), the index of the tensor's
    node, and the port's key, which is None for a literal."""

    tensor: Tensor
    repeat: Repeat | None
    producer: int
    key: Hashable


class FusionGroup(Record, frozen=False, eq=False):
    """A fusion group: indices of nodes that run as one over `shape`.

    Members of a smaller shape are computed again for each element. `place` is its rank in a topological order of all
    groups and single nodes. `reads` has its ports by key; `writes` has the tensors it must write, each with the nodes
    that read it (None for a graph output). No tree has more than `spread` nodes. `needs` are the outside nodes whose
    outputs members read; `feeds` are the outside nodes that read members' outputs."""

    shape: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    cost: int = 0
    place: int = 0
    reads: dict[Hashable, _Port] = field(default_factory=dict)
    writes: list[tuple[Tensor, list[int] | None]] = field(default_factory=list)
    spread: int = 1
    needs: Sequence[int] = ()
    feeds: Sequence[int] = ()


_PLACE = attrgetter("place")


class FusionGroupFinder:
    """Grows fusion groups along the edges of a graph: a consumer's group takes in the groups of its producers.

    Inputs and readers of each node are looked up once and cached, since groups grow by one node hundreds of times."""

    def __init__(
        self, graph: Graph, support: SupportOf, native: Collection[int] = frozenset(), halves: bool = False
    ) -> None:
        self.nodes = graph.nodes
        self.halves = halves
        self.position = {t.id: i for i, node in enumerate(graph.nodes) for t in node.outputs}
        self.users: dict[int, list[int]] = {t.id: [] for t in graph.tensors()}
        for i, node in enumerate(graph.nodes):
            for t in node.inputs:
                self.users[t.id].append(i)
        self.results = {t.id for t in graph.results()}
        self._repeats: dict[int, Repeat | None] = {}
        self._read: dict[int, tuple[Tensor, Repeat | None]] = {}
        self._literals: dict[int, bool] = {}
        self._readers_of: dict[int, list[int]] = {}
        self.region: dict[int, FusionGroup] = {}
        self._spread: dict[int, tuple[int, Mapping[int, int]]] = {}
        for i, node in enumerate(graph.nodes):
            if fusible(node) and not self._summed(node) and (node.outputs[0].id in native or support(node) == "native"):
                trees = node_trees(node)
                self.region[i] = FusionGroup(node.outputs[0].shape, [i], cost=cost(trees))
                self._spread.update({t.id: spread(tree) for t, tree in zip(node.outputs, trees, strict=True)})
        self._ports = {i: [self._port(t) for t in graph.nodes[i].inputs] for i in self.region}
        for i, group in self.region.items():
            self._take(group, (port for port in self._ports[i] if port.key is not None), self._written(i))
            group.spread = max(self._spread[t.id][0] for t in graph.nodes[i].outputs)
        # Each node's unit: its fusion group, or a group of itself alone.
        self._unit = [self.region.get(i, FusionGroup((), [i])) for i in range(len(graph.nodes))]
        self._needs = [self._before(i) for i in range(len(graph.nodes))]
        self._feeds: list[list[int]] = [[] for _ in graph.nodes]
        for i, unit in enumerate(self._unit):
            unit.place, unit.needs, unit.feeds = i, self._needs[i], self._feeds[i]
            for j in self._needs[i]:
                self._feeds[j].append(i)

    def find(self) -> list[FusionGroup]:
        """The fusion groups, those of one node included."""
        for i, node in enumerate(self.nodes):
            if i in self.region:
                for x, repeat, producer, _ in self._ports[i]:
                    if producer not in self.region or repeat is not None or self._stays_narrow(node, x):
                        continue
                    if not self._would_part(i, x):
                        self._try(self.region[producer], self.region[i])
        return list({id(r): r for r in self.region.values()}.values())

    def _stays_narrow(self, node: Node, x: Tensor) -> bool:
        """Whether a node widens 8-bit integers that are written to memory anyway. Such a node should join the groups of
        its readers: in the group that computes the integers, its output would be written too, in four times the
        bytes."""
        if not (x.dtype.is_int and x.dtype.itemsize == 1 and node.outputs[0].dtype.itemsize > 1):
            return False
        return x.id in self.results or any(i not in self.region for i in self._readers(x))

    def _would_part(self, i: int, x: Tensor) -> bool:
        """Whether joining node i to the producer of x would separate i from one of its readers: a reader that also
        depends on x through a node in no group, and so must run after that node. x is written to memory for that node
        in any case."""
        outside = [j for j in self._readers(x) if j not in self.region]
        if not outside or x.id in self.results:
            return False
        shape, behind = self.nodes[i].outputs[0].shape, [i]
        for at in behind:  # the loop appends to the list
            for t in self.nodes[at].outputs:
                behind += [
                    j for j in self._readers(t)
                    if j in self.region and self.nodes[j].outputs[0].shape == shape and j not in behind
                ]  # fmt: skip
            if len(behind) > _FAR:
                break
        end, wanted = max(behind), set(behind)
        seen = set(outside)
        for at in outside:
            if at in wanted:
                return at != i
            new = [j for j in self._feeds[at] if j <= end and j not in seen]
            seen.update(new)
            outside += new
            if len(seen) > _FAR**2:
                break
        return False

    def _try(self, producer: FusionGroup, consumer: FusionGroup) -> None:
        if producer is consumer or not self._fits(producer, consumer):
            return
        if producer.cost + consumer.cost > MAX_COST:
            return
        members = sorted((*producer.members, *consumer.members))
        merged = FusionGroup(consumer.shape, members, producer.cost + consumer.cost)
        parts = (producer, consumer)
        self._take(merged, (p for g in parts for p in g.reads.values()), [w for g in parts for w in g.writes])
        repeated = [port for port in merged.reads.values() if port.repeat is not None]
        if repeated and not {port.producer for port in repeated}.isdisjoint(members):
            return  # a member reads a repetition of another's output: that output must be in memory first
        if len(merged.reads) > MAX_INPUTS or len(merged.reads) + len(merged.writes) > MAX_TENSORS:
            return
        if repeated and splits(merged.shape, [p.repeat for p in repeated if p.repeat is not None]) is None:
            return
        merged.spread = producer.spread * consumer.spread  # an upper bound; counting would take longer
        if merged.spread > MAX_SPREAD:
            merged.spread = self._spread_of(merged)
        if merged.spread <= MAX_SPREAD and self._join(producer, consumer, merged):
            for i in merged.members:
                self.region[i] = self._unit[i] = merged

    def _take(
        self, group: FusionGroup, reads: Iterable[_Port], writes: Iterable[tuple[Tensor, list[int] | None]]
    ) -> None:
        """Derives what a merged group reads and writes from its two parts."""
        inside = set(group.members)
        for port in reads:
            if port.repeat is not None or port.producer not in inside:
                group.reads.setdefault(port.key, port)
        group.writes = [(t, readers) for t, readers in writes if readers is None or not inside.issuperset(readers)]

    def _written(self, i: int) -> list[tuple[Tensor, list[int] | None]]:
        """A node's outputs, each with its readers; None as the readers of a graph output."""
        return [(t, None if t.id in self.results else self._readers(t)) for t in self.nodes[i].outputs]

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

    def read(self, t: Tensor) -> tuple[Tensor, Repeat | None]:
        """The tensor that a group reads for t: the source of its broadcasts, which may be of a narrower dtype, or what
        t repeats, and the repetition."""
        known = self._read.get(t.id)
        if known is None:
            x = source(t)
            if x.id not in self._repeats:
                self._repeats[x.id] = repeat_of(x)
            repeat = self._repeats[x.id]
            known = self._read[t.id] = (self._narrow(x), None) if repeat is None else (repeat.base, repeat)
        return known

    def _narrow(self, x: Tensor) -> Tensor:
        """The narrower tensor that x widens, if other nodes than elementwise ones read x: it is in memory anyway."""
        if not widens_half(x.node):
            return x
        i = self.position[x.id]
        narrow = x.node.inputs[0]
        apart = self.position[narrow.id] not in self.region and any(j not in self.region for j in self._readers(x))
        return narrow if apart or i not in self.region else x

    def _summed(self, node: Node) -> bool:
        """Whether a node widens halves for sums, which read the halves, and for elementwise nodes."""
        if not (self.halves and widens_half(node)) or node.output.id in self.results:
            return False
        others = [self.nodes[j] for j in self.users[node.output.id] if not fusible(self.nodes[j])]
        return bool(others) and all(map(adds_up, others))

    def _port(self, t: Tensor) -> _Port:
        x, repeat = self.read(t)
        if t.id not in self._literals:
            self._literals[t.id] = literal(t) is not None
        return _Port(x, repeat, self.position[x.id], None if self._literals[t.id] else port_key(x, repeat))

    def ports(self, region: FusionGroup) -> tuple[list[tuple[Tensor, Repeat | None]], list[Tensor]]:
        """The tensors that a group reads, and those that it must write.

        Literals are not read; broadcasts and repetitions are replaced by their sources."""
        inside = set(region.members)
        inputs: dict[Hashable, tuple[Tensor, Repeat | None]] = {}
        outputs: list[Tensor] = []
        for i in region.members:
            for x, repeat, producer, key in self._ports[i]:
                if producer not in inside and key is not None:
                    inputs.setdefault(key, (x, repeat))
            for t in self.nodes[i].outputs:
                if t.id in self.results or not inside.issuperset(self._readers(t)):
                    outputs.append(t)
        return list(inputs.values()), outputs

    def _spread_of(self, region: FusionGroup) -> int:
        sizes: dict[int, int] = {}
        for i in region.members:
            ports = self._ports[i]
            for t in self.nodes[i].outputs:
                size, uses = self._spread[t.id]
                for k, n in uses.items():
                    inner = sizes.get(ports[k].tensor.id)
                    if inner is not None:
                        size += n * (inner - 1)
                sizes[t.id] = size
        return max(sizes.values())

    def _readers(self, t: Tensor) -> list[int]:
        """The nodes that read t. Elementwise nodes that read t through a broadcast count as its readers; a broadcast
        that other nodes read, or that is a result, counts itself."""
        known = self._readers_of.get(t.id)
        if known is not None:
            return known
        result: list[int] = []
        for i in self.users[t.id]:
            out = self.nodes[i].outputs[0]
            behind = self._readers(out) if self.nodes[i].op.broadcasts else []
            if behind and out.id not in self.results and all(j in self.region for j in behind):
                result += behind
            else:
                result.append(i)
        self._readers_of[t.id] = result
        return result

    def _join(self, producer: FusionGroup, consumer: FusionGroup, merged: FusionGroup) -> bool:
        """Puts the merged group into the order of units; False when another unit lies on a path between the two.

        Only units between the two in the order can lie on such a path. Of these, units that the consumer needs move
        ahead of the merged group and units that need the producer move behind it; the rest stay (Pearce and Kelly, "A
        Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", 2007).
        """
        ahead = self._between(consumer, producer, "needs")
        if ahead is None:
            return False
        behind = (self._between(producer, consumer, "feeds") or []) if ahead else []
        inside = set(merged.members)
        merged.needs = list({j for unit in (producer, consumer) for j in unit.needs if j not in inside})
        merged.feeds = list({j for unit in (producer, consumer) for j in unit.feeds if j not in inside})
        units = [*ahead, merged, *behind]
        places = sorted(u.place for u in (*ahead, producer, consumer, *behind))
        for unit, place in zip(units, places, strict=False):  # two units became one, so one place is left over
            unit.place = place
        return True

    def _between(
        self, start: FusionGroup, end: FusionGroup, edges: Literal["needs", "feeds"]
    ) -> list[FusionGroup] | None:
        """The units that can be reached from `start` along the edges and whose places are between `start` and `end`,
        in order; None if one of them leads to `end`."""
        low, high = sorted((start.place, end.place))
        units, forwards = self._unit, edges == "feeds"
        reached = {id(start)}
        queue = [start]
        for unit in queue:  # the loop appends to the queue
            for j in unit.feeds if forwards else unit.needs:
                other = units[j]
                if other is end and unit is not start:
                    return None
                if low < other.place < high and id(other) not in reached:
                    reached.add(id(other))
                    queue.append(other)
        return sorted(queue[1:], key=_PLACE)

    def _before(self, i: int) -> list[int]:
        """The nodes whose outputs a node reads. Elementwise nodes read through broadcasts (see `read`)."""
        if i in self.region:
            return [port.producer for port in self._ports[i]]
        return [self.position[t.id] for t in self.nodes[i].inputs]

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
        needs = [{unit_of[j] for i in unit for j in self._needs[i]} - {number} for number, unit in enumerate(units)]
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


def widens_half(node: Node) -> bool:
    """Whether a node casts halves to a wider float."""
    return node.op.converts and node.inputs[0].dtype.is_half and node.outputs[0].dtype in (f32, f64)


def adds_up(node: Node) -> bool:
    """Whether a node is a sum or a mean over axes, unlike a running sum and the mean of a window, which also add."""
    return node.op.joins == "add" and "axes" in node.attrs


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
