"""Storages: which tensors of a graph share bytes, and how long those bytes are needed.

A storage is one run of bytes that one tensor or several occupy: a tensor, its views, and the in-place results that
took it over. Packing (planner_pack) then gives each storage in the arena an offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlx.driver.memory.plan import Lifetime, Slot
from rlx.driver.memory.planner_views import VIEW_ALIGNMENT, view_offset
from rlx.errors import ArenaError, GraphError
from rlx.ir import Expr, Graph, Leaf, Node, Tensor


@dataclass(slots=True)
class Storage:
    """Bytes that tensors share. `slot` is given for params and states; `kept` storages are never written by nodes:
    inputs, params, states, constants."""

    nbytes: int
    first: int
    last: int
    kept: bool = False
    slot: Slot | None = None
    constant: bool = False
    state: str | None = None
    members: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Layout:
    """Storages in the order made; `home` gives each tensor's storage number and byte offset in it."""

    storages: list[Storage] = field(default_factory=list)
    home: dict[int, tuple[int, int]] = field(default_factory=dict)
    alias_of: dict[int, int] = field(default_factory=dict)


def tensor_lifetimes(graph: Graph) -> dict[int, Lifetime]:
    """When each tensor is needed, in node indices; `len(graph.nodes)` stands for the end of the run.

    Leaves live through the whole run: a user may keep inputs on the device from run to run. Results live to the end.
    """
    end = len(graph.nodes)
    last = last_uses(graph)
    first: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        for t in node.outputs:
            first[t.id] = 0 if node.op.leaf else i
            if node.op.leaf:
                last[t.id] = end
    for t in kept_to_the_end(graph):
        last[t.id] = end
    return {t: Lifetime(first[t], last[t]) for t in first}


def last_uses(graph: Graph) -> dict[int, int]:
    """The last node that reads each tensor; its own node when nothing does."""
    last: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        for t in (*node.inputs, *node.outputs):
            last[t.id] = i
    return last


def kept_to_the_end(graph: Graph) -> list[Tensor]:
    """Outputs, and the new values of states, which are copied into the states after the last node."""
    return graph.results()


def lay_out(
    graph: Graph,
    lifetimes: Mapping[int, Lifetime],
    param_slots: Mapping[str, Slot],
    state_slots: Mapping[str, Slot],
    *,
    views: bool,
    inplace: bool,
    settle: bool = False,
) -> Layout:
    """Gives every tensor a storage: its own, its input's where it is a view, or one it takes over in place. With
    `settle` a state's new value is made in the state itself where nothing reads the old value any more."""
    layout = Layout()
    settlers = {t.id: graph.states[name] for name, t in graph.updates.items()} if settle else {}
    uses = last_uses(graph)
    updated = {name for name, t in graph.updates.items() if t is not graph.states[name]}
    _check_results(graph, updated)
    for i, node in enumerate(graph.nodes):
        offset = view_offset(node) if views else None
        if offset is not None and _may_view(graph, node, offset, layout, lifetimes, updated):
            _join(layout, node.inputs[0], node.outputs[0], offset, lifetimes)
            continue
        taken: set[int] = set()
        for t in node.outputs:
            state = settlers.get(t.id)
            if state is not None and _settles(graph, node, i, t, state, layout, uses):
                _join(layout, state, t, 0, lifetimes)
                continue
            heir = _heir(node, i, t, layout, taken) if inplace else None
            if heir is not None:
                taken.add(heir.id)
                _join(layout, heir, t, 0, lifetimes)
            else:
                layout.home[t.id] = (len(layout.storages), 0)
                layout.storages.append(_new_storage(t, lifetimes[t.id], param_slots, state_slots))
    return layout


def _check_results(graph: Graph, updated: set[str]) -> None:
    """A state that a run replaces cannot be a result itself: its bytes are new before the result is read."""
    named = [("output", name, t) for name, t in graph.outputs.items()]
    named += [("update", name, t) for name, t in graph.updates.items() if name in updated]
    for kind, name, t in named:
        if t.node.op.leaf is Leaf.STATE and t.node.attrs["name"] in updated:
            raise GraphError(
                f"{kind} {name!r} is state {t.node.attrs['name']!r} itself, which the run replaces; give it a copy "
                "(rlx.passes.isolate_results inserts it)"
            )


def _new_storage(
    t: Tensor, life: Lifetime, param_slots: Mapping[str, Slot], state_slots: Mapping[str, Slot]
) -> Storage:
    leaf = t.node.op.leaf
    storage = Storage(t.type.nbytes, life.first, life.last, members=[t.id])
    if leaf in (Leaf.PARAM, Leaf.STATE):
        name = t.node.attrs["name"]
        storage.slot = _given(t, name, leaf.value, param_slots if leaf is Leaf.PARAM else state_slots)
        storage.state = name if leaf is Leaf.STATE else None
    storage.constant = leaf is Leaf.CONSTANT
    storage.kept = leaf is not None
    return storage


def _given(t: Tensor, name: str, kind: str, slots: Mapping[str, Slot]) -> Slot:
    slot = slots.get(name)
    if slot is None:
        raise ArenaError(
            f"{kind} {name!r} ({t.type}) has no slot; the {kind} slots given are {sorted(slots)}"
        )
    if slot.nbytes < t.type.nbytes or slot.dtype != t.dtype:
        raise ArenaError(f"{kind} {name!r} is {t.type}, {t.type.nbytes} bytes; the slot given is {slot}")
    return slot


def _join(layout: Layout, source: Tensor, t: Tensor, offset: int, lifetimes: Mapping[int, Lifetime]) -> None:
    number, base = layout.home[source.id]
    storage = layout.storages[number]
    storage.last = max(storage.last, lifetimes[t.id].last)
    storage.members.append(t.id)
    layout.home[t.id] = (number, base + offset)
    layout.alias_of[t.id] = source.id


def _may_view(
    graph: Graph,
    node: Node,
    offset: int,
    layout: Layout,
    lifetimes: Mapping[int, Lifetime],
    updated: set[str],
) -> bool:
    number, base = layout.home[node.inputs[0].id]
    storage, life = layout.storages[number], lifetimes[node.outputs[0].id]
    if storage.state in updated and life.last == len(graph.nodes):
        return False  # the state's bytes change before the result is read
    if (base + offset) % VIEW_ALIGNMENT:
        return False
    # A view keeps the whole storage alive. Where it is a crumb of it and outlives the rest, a copy is cheaper.
    return life.last <= storage.last or node.outputs[0].type.nbytes * 4 >= storage.nbytes


def _heir(node: Node, step: int, t: Tensor, layout: Layout, taken: set[int]) -> Tensor | None:
    """The input whose bytes output t may take over, or None."""
    for position in node.op.inplace:
        if position < len(node.inputs) and node.inputs[position].id not in taken:
            x = node.inputs[position]
            if may_take_over(node, position, t) and _dies_here(layout, x, step) and _alone(layout, node, x):
                return x
    return None


def may_take_over(node: Node, position: int, t: Tensor) -> bool:
    """Whether the op may write output t over its input `position`: same bytes an element and in all, and no other
    output still reads that input. The op's record says so by listing the position."""
    x = node.inputs[position]
    if x.dtype.itemsize != t.dtype.itemsize or x.size != t.size or t.size == 0:
        return False
    if len(node.outputs) == 1:
        return True
    trees = node.attrs.get("trees")
    positions = {k for k, y in enumerate(node.inputs) if y is x}
    return trees is not None and not any(_reads(e, positions) for k, e in enumerate(trees) if k != t.index)


def _settles(
    graph: Graph, node: Node, step: int, t: Tensor, state: Tensor, layout: Layout, uses: Mapping[int, int]
) -> bool:
    """Whether t, the new value of a state, may be written over the old one: nothing reads that after this step, and
    in this step only where the op may work in place."""
    if node.op.leaf or state.id not in layout.home:
        return False
    members = set(layout.storages[layout.home[state.id][0]].members)
    if members & {r.id for r in graph.results()} or any(uses[m] > step for m in members):
        return False
    if all(uses[m] < step for m in members):
        return True
    return any(
        position < len(node.inputs)
        and node.inputs[position] is state
        and may_take_over(node, position, t)
        and _alone(layout, node, state)
        for position in node.op.inplace
    )


def _reads(tree: Expr, positions: set[int]) -> bool:
    seen: set[int] = set()
    stack = [tree]
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if e.prim == "arg" and e.value in positions:
            return True
        stack.extend(e.args)
    return False


def _dies_here(layout: Layout, x: Tensor, step: int) -> bool:
    """Whether nothing reads the storage of x, under any of its names, after this step."""
    storage = layout.storages[layout.home[x.id][0]]
    return not storage.kept and storage.last <= step


def _alone(layout: Layout, node: Node, x: Tensor) -> bool:
    """Whether no other input of the node lies in the storage of x. The same tensor twice is fine where element i of
    the output needs element i only."""
    number = layout.home[x.id][0]
    others = [t for t in node.inputs if layout.home[t.id][0] == number]
    return all(t is x for t in others) and (
        len(others) == 1 or node.op.elementwise
    )
