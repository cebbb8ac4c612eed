"""Storages: which tensors of a graph share bytes, and the live range of those bytes.

A storage is a run of bytes shared by one tensor or more: a tensor, its views, and the results written in place over
it. Packing (`packing.py`) then gives each storage in the arena an offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Flag

from rlx.driver.memory.plan import LiveRange, Slot
from rlx.driver.memory.views import VIEW_ALIGNMENT, cut_from, view_offset
from rlx.errors import ArenaError, GraphError
from rlx.ir import Graph, Leaf, Node, Tensor, bodies
from rlx.records import Record, field

_BESIDE = 4  # how many collectives later an input of a collective may be overwritten
SMALL_BYTES = 1 << 15  # storages too small to be worth one more step (a copy) on a GPU


class Storage(Record, frozen=False):
    """Bytes that tensors share.

    `slot` is given for params and states. No node writes over a `kept` storage (inputs, params, states, constants),
    except a donated state. `renewed`: the storage already holds the state's new value."""

    nbytes: int
    first: int
    last: int
    kept: bool = False
    slot: Slot | None = None
    constant: bool = False
    state: str | None = None
    renewed: bool = False
    members: list[int] = field(default_factory=list)


class Layout(Record, frozen=False):
    """Storages in the order of their creation; `home` gives each tensor's storage number and byte offset in it."""

    storages: list[Storage] = field(default_factory=list)
    home: dict[int, tuple[int, int]] = field(default_factory=dict)
    alias_of: dict[int, int] = field(default_factory=dict)


def tensor_live_ranges(graph: Graph) -> dict[int, LiveRange]:
    """Each tensor's live range in node indices; `len(graph.nodes)` stands for the end of the run.

    Leaves live through the whole run: a user may leave inputs on the device between runs. Results live to the end. The
    input of a collective stays alive for some further collectives, since the nodes in between may overlap it; a matrix
    whose columns a node may read where they are (`Op.strided`) until that node.
    """
    end = len(graph.nodes)
    last = last_uses(graph)
    first: dict[int, int] = {}
    meetings = [end] * _BESIDE
    for i in reversed(range(end)):
        node = graph.nodes[i]
        if node.op.meets is not None and node.op.fallible and not node.attrs.get("spoils"):
            if not node.op.inplace:
                last.update((t.id, max(last[t.id], meetings[-_BESIDE])) for t in node.inputs)
            meetings.append(i)
    for i, node in enumerate(graph.nodes):
        for k in node.op.strided:
            if (whole := cut_from(node.inputs[k])) is not None:
                last[whole.id] = max(last[whole.id], i)
        for t in node.outputs:
            first[t.id] = 0 if node.op.leaf else i
            if node.op.leaf:
                last[t.id] = end
    for t in kept_to_the_end(graph):
        last[t.id] = end
    return {t: LiveRange(first[t], last[t]) for t in first}


def last_uses(graph: Graph) -> dict[int, int]:
    """The index of the last node that reads each tensor; of its own node if none does."""
    last: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        for t in (*node.inputs, *node.outputs):
            last[t.id] = i
    return last


def kept_to_the_end(graph: Graph) -> list[Tensor]:
    """Outputs, and the new values of states, which are copied to the states after the last node if not made there."""
    return graph.results()


class Sharing(Flag):
    """Which tensors share a storage. VIEWS: a view has its input's. IN_PLACE: a result is written over an input, or
    over the state whose new value it is, once nothing reads the old value any more."""

    NONE = 0
    VIEWS = 1
    IN_PLACE = 2


def lay_out(
    graph: Graph,
    live_ranges: Mapping[int, LiveRange],
    param_slots: Mapping[str, Slot],
    state_slots: Mapping[str, Slot],
    sharing: Sharing,
    failsafe: bool,
) -> Layout:
    """Gives every tensor a storage: its own, or one that `sharing` lets it share. `failsafe` keeps states intact up to
    the last node that may end the run with an error."""
    layout = Layout()
    donated = donations(graph) if Sharing.IN_PLACE in sharing else {}
    safe_from = after_last_failure(graph) if failsafe else 0
    uses, results = last_uses(graph), {t.id for t in kept_to_the_end(graph)}
    views = _views(graph, live_ranges) if Sharing.VIEWS in sharing else {}
    updated = {name for name, t in graph.updates.items() if t is not graph.states[name]}
    _check_results(graph, updated)
    for i, node in enumerate(graph.nodes):
        offset = view_offset(node) if Sharing.VIEWS in sharing else None
        if offset is not None and _may_view(graph, node, offset, layout, views, live_ranges, updated, donated):
            _join(layout, node.inputs[0], node.outputs[0], offset, live_ranges)
            _note_renewed(graph, node.outputs[0], layout)
            continue
        taken: set[int] = set()
        for t in node.outputs:
            state = donated.get(t.id)
            if state is not None and i >= safe_from and may_overwrite(node, i, t, state, layout, uses, results):
                _join(layout, state, t, 0, live_ranges)
                _note_renewed(graph, t, layout)
                continue
            donor = _in_place_input(node, i, t, layout, taken) if Sharing.IN_PLACE in sharing else None
            if donor is not None:
                taken.add(donor.id)
                _join(layout, donor, t, 0, live_ranges)
            else:
                layout.home[t.id] = (len(layout.storages), 0)
                layout.storages.append(_new_storage(t, live_ranges[t.id], param_slots, state_slots))
    return layout


def donations(graph: Graph) -> dict[int, Tensor]:
    """Maps tensors to the state in whose memory they may be made.

    These are the state's new value, and the tensors it is made from, back to the state, by ops that work in place or
    give views. A new value that two states share is made in the first. A result among these tensors is made
    elsewhere, since the state's memory holds another value when the run ends."""
    result: dict[int, Tensor] = {}
    results = {t.id for t in kept_to_the_end(graph)}
    for name, t in graph.updates.items():
        state = graph.states[name]
        if t is not state and t.id not in result and not t.node.op.leaf:
            path = [i for i in _donation_path(t, state) if i == t.id or i not in results]
            result.update(dict.fromkeys(path, state))
    return result


def _donation_path(t: Tensor, state: Tensor) -> list[int]:
    """The path from the state to t, each tensor made in place from the one before; t alone if there is none."""
    before: dict[int, int] = {t.id: t.id}  # tensor -> the tensor that is made from it
    stack = [t]
    while stack:
        tensor = stack.pop()
        node = tensor.node
        sources = [node.inputs[0]] if view_offset(node) == 0 else []
        sources += [
            node.inputs[p] for p in _overwritten(node) if p < len(node.inputs) and may_take_over(node, p, tensor)
        ]
        for x in sources:
            if x is state:
                steps = [tensor.id]
                while steps[-1] != t.id:
                    steps.append(before[steps[-1]])
                return steps
            if x.id not in before and not x.node.op.leaf and x.type.nbytes == state.type.nbytes:
                before[x.id] = tensor.id
                stack.append(x)
    return [t.id]


def after_last_failure(graph: Graph) -> int:
    """The index of the first node from which on no node can end the run with an error."""
    return max((i + 1 for i, node in enumerate(graph.nodes) if _may_fail(node)), default=0)


def _may_fail(node: Node) -> bool:
    """Whether the node may fail: it runs a user's function, or a loop, which may reach its limit of steps, or it waits
    for other ranks, whose loss must not destroy states."""
    if (node.op.fallible and not node.attrs.get("spoils")) or (node.op.control is not None and node.op.control.repeats):
        return True
    return any(_may_fail(inner) for body in bodies(node).values() for inner in body.nodes)


def _note_renewed(graph: Graph, t: Tensor, layout: Layout) -> None:
    number, offset = layout.home[t.id]
    storage = layout.storages[number]
    if storage.state is not None and graph.updates.get(storage.state) is t and offset == 0:
        storage.renewed = True


def _check_results(graph: Graph, updated: set[str]) -> None:
    """Refuses a result that is a state which the run replaces: its bytes are new before the result is read."""
    named = [("output", name, t) for name, t in graph.outputs.items()]
    named += [("update", name, t) for name, t in graph.updates.items() if name in updated]
    for kind, name, t in named:
        if t.node.op.leaf is Leaf.STATE and t.node.attrs["name"] in updated:
            raise GraphError(
                f"{kind} {name!r} is state {t.node.attrs['name']!r} itself, which the run replaces; give it a copy "
                "(rlx.passes.isolate_results inserts it)"
            )


def _new_storage(
    t: Tensor, life: LiveRange, param_slots: Mapping[str, Slot], state_slots: Mapping[str, Slot]
) -> Storage:
    leaf = t.node.op.leaf
    storage = Storage(t.type.nbytes, life.first, life.last, members=[t.id])
    if leaf in (Leaf.PARAM, Leaf.STATE):
        name = t.node.attrs["name"]
        storage.slot = given_slot(t, name, leaf.value, param_slots if leaf is Leaf.PARAM else state_slots)
        storage.state = name if leaf is Leaf.STATE else None
    storage.constant = leaf is Leaf.CONSTANT
    storage.kept = leaf is not None
    return storage


def given_slot(t: Tensor, name: str, kind: str, slots: Mapping[str, Slot]) -> Slot:
    """The slot given for a weight or a state. Raises: ArenaError if there is none, or one of another size or dtype."""
    slot = slots.get(name)
    if slot is None:
        raise ArenaError(
            f"{kind} {name!r} ({t.type}) has no slot; the {kind} slots given are {sorted(slots)}"
        )
    if slot.nbytes < t.type.nbytes or slot.dtype != t.dtype:
        raise ArenaError(f"{kind} {name!r} is {t.type}, {t.type.nbytes} bytes; the slot given is {slot}")
    return slot


def _join(layout: Layout, source: Tensor, t: Tensor, offset: int, live_ranges: Mapping[int, LiveRange]) -> None:
    number, base = layout.home[source.id]
    storage = layout.storages[number]
    storage.last = max(storage.last, live_ranges[t.id].last)
    storage.members.append(t.id)
    layout.home[t.id] = (number, base + offset)
    layout.alias_of[t.id] = source.id


def _may_view(
    graph: Graph,
    node: Node,
    offset: int,
    layout: Layout,
    views: Mapping[int, Sequence[tuple[int, int]]],
    live_ranges: Mapping[int, LiveRange],
    updated: set[str],
    donated: Mapping[int, Tensor],
) -> bool:
    number, base = layout.home[node.inputs[0].id]
    t = node.outputs[0]
    storage, life = layout.storages[number], live_ranges[t.id]
    if storage.state in updated and life.last == len(graph.nodes) and not storage.renewed:
        # The state's bytes change before the result is read, unless the result is the new value itself.
        state = graph.states[storage.state]
        if graph.updates[storage.state] is not t or donated.get(t.id) is not state:
            return False
    if (base + offset) % VIEW_ALIGNMENT:
        return False
    # A view keeps the whole storage alive. If the views that outlive the rest are a small part of it, copies are
    # cheaper, unless the whole storage is small.
    if life.last <= storage.last or storage.nbytes <= SMALL_BYTES:
        return True
    root = node.inputs[0].id
    while root in layout.alias_of:
        root = layout.alias_of[root]
    return sum(nbytes for nbytes, last in views.get(root, ()) if last > storage.last) * 4 >= storage.nbytes


def _views(graph: Graph, live_ranges: Mapping[int, LiveRange]) -> dict[int, list[tuple[int, int]]]:
    """The bytes of each possible view, and the last use of it and of its own views, by the tensor whose view it is."""
    views: dict[int, list[tuple[int, int]]] = {}
    for node in reversed(graph.nodes):
        if view_offset(node) is not None:
            t = node.outputs[0]
            last = max([live_ranges[t.id].last, *(inner for _, inner in views.get(t.id, ()))])
            views.setdefault(node.inputs[0].id, []).append((t.type.nbytes, last))
    return views


def _in_place_input(node: Node, step: int, t: Tensor, layout: Layout, taken: set[int]) -> Tensor | None:
    """The input whose bytes output t may be written over, or None."""
    for position in _overwritten(node):
        if position < len(node.inputs) and node.inputs[position].id not in taken:
            x = node.inputs[position]
            if may_take_over(node, position, t) and _is_last_use(layout, x, step) and _is_sole_reader(layout, node, x):
                return x
    return None


def _overwritten(node: Node) -> tuple[int, ...]:
    """The positions of the inputs that outputs may be written over."""
    renewed = node.op.renews(node.attrs) if node.op.renews is not None else ()
    return tuple(position for position, _ in renewed) or node.op.inplace


def may_take_over(node: Node, position: int, t: Tensor) -> bool:
    """Whether the op may write output t over its input `position`, which its record lists as in place.

    Element size and count must be equal. A node with several outputs must be elementwise, since then each element of
    all outputs is computed before the first is written, and the others may still read that input; or its record names
    the input and the output (`renews`)."""
    x, y = node.inputs[position].type, t.type
    if 0 in y.shape or (x is not y and (x.numel != y.numel or x.nbytes != y.nbytes)):
        return False
    if node.op.renews is not None:
        return (position, t.index) in node.op.renews(node.attrs)
    return len(node.outputs) == 1 or node.op.elementwise


def may_overwrite(
    node: Node, step: int, t: Tensor, state: Tensor, layout: Layout, uses: Mapping[int, int], results: Set[int]
) -> bool:
    """Whether t may be written over the contents of the state's memory. `results` are those that exist to the end.

    No later step may read them, and this step only where the op may work in place."""
    if node.op.leaf or state.id not in layout.home or t.type.nbytes != state.type.nbytes:
        return False
    number = layout.home[state.id][0]
    members = set(layout.storages[number].members)
    if members & results or any(uses[m] > step for m in members):
        return False
    if all(uses[m] < step for m in members):
        return True
    return any(
        position < len(node.inputs)
        and layout.home[node.inputs[position].id] == (number, 0)
        and may_take_over(node, position, t)
        and _is_sole_reader(layout, node, node.inputs[position])
        for position in _overwritten(node)
    )


def _is_last_use(layout: Layout, x: Tensor, step: int) -> bool:
    """Whether nothing reads the storage of x, through any of its tensors, after this step."""
    storage = layout.storages[layout.home[x.id][0]]
    return not storage.kept and storage.last <= step


def _is_sole_reader(layout: Layout, node: Node, x: Tensor) -> bool:
    """Whether no other input of the node lies in the storage of x. The same tensor may be read twice by an
    elementwise op, whose output element i needs element i only."""
    number = layout.home[x.id][0]
    others = [t for t in node.inputs if layout.home[t.id][0] == number]
    return all(t is x for t in others) and (
        len(others) == 1 or node.op.elementwise
    )
