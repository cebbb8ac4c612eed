"""Lowering: turns a planned graph into steps. It is written once for both GPUs; each op family registers its rules.

A rule is `rule(ctx: Lowering, node: Node) -> None` and appends steps through `ctx`. It is registered with
`@lowers("softmax", when=predicate)`; `when(node, features)` says whether the device can run this node natively, and
a node that it refuses becomes a reported host step. A plug-in puts a rule of its own before it with `override`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rlx.backends.gpu.program.candidates import Chooser
from rlx.backends.gpu.program.images import in_any_order
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.steps import (
    Arg,
    Collective,
    ControlCall,
    Copy,
    FileKernel,
    Gemm,
    HostCall,
    Kernel,
    Launch,
    Ref,
    SourceKernel,
    Step,
    TreeKernel,
)
from rlx.backends.gpu.program.target import Target
from rlx.driver import MemoryPlan, align
from rlx.driver.memory.views import is_alias, update_copies
from rlx.dtypes import HOST_ONLY, DType
from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import REGISTRY, Graph, Node, Tensor

ARGS = "args"  # segment of argument blocks: shapes and strides of N-d kernels
SCRATCH = "scratch"  # segment of workspace, shared by all nodes; the hazard rules order its uses
MAX_ARG_BYTES = 128
_SAME_ALIGNMENT = 256  # bytes: kernels and library calls are chosen by how addresses are aligned

Call = TypeVar("Call", HostCall, ControlCall)
Rule = Callable[["Lowering", Node], None]
When = Callable[[Node, frozenset[str]], bool]
WhenOn = Callable[[Node, Target], bool]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A registered rule and its condition."""

    rule: Rule
    when: WhenOn


# The kernel, the grid, the argument block, the count of elements or packs, and for each operand the offset of its first
# byte within its slot and its size in bytes.
KnownTree = tuple[TreeKernel, tuple[int, int, int], list[int], int, list[tuple[int, int]]]
LOWERINGS: dict[str, Lowered] = {}
OVERRIDES: dict[str, list[Lowered]] = {}  # the rules registered for an op; the last is asked first


def _always(node: Node, features: frozenset[str]) -> bool:
    return True


def _everywhere(node: Node, target: Target) -> bool:
    return True


def lowers(
    *ops: str, when: When = _always, on: WhenOn = _everywhere, shared: int = 0, hardware: bool = False
) -> Callable[[Rule], Rule]:
    """Registers a rule for the named ops. `on`: as `when`, of the whole target. `shared`: the least bytes of shared
    memory that its kernels need. `hardware`: the rule is not used on software drivers, which gain nothing from it."""

    def add(rule: Rule) -> Rule:
        for op in ops:
            if op in LOWERINGS:
                raise ValueError(f"op {op!r} has two lowering rules")
            LOWERINGS[op] = Lowered(
                rule,
                lambda node, target: (
                    target.shared_bytes >= shared
                    and not (hardware and target.software)
                    and when(node, target.features)
                    and on(node, target)
                ),
            )
        return rule

    return add


def override(op: str, rule: Rule, when: WhenOn = _everywhere) -> Callable[[], None]:
    """Registers a rule that lowers an op's nodes instead of the built-in one, wherever `when(node, target)` says so, in
    every program compiled from now on. Of several, the last registered is asked first.

    Returns: a function that unregisters the rule. Raises: UnsupportedOp where there is no such op.
    """
    if op not in REGISTRY:
        raise UnsupportedOp(f"override: there is no op {op!r}; register it first, or correct its name")
    added = Lowered(rule, when)
    rules = OVERRIDES.setdefault(op, [])
    rules.append(added)

    def withdraw() -> None:
        rules[:] = [r for r in rules if r is not added]

    return withdraw


def rule_for(node: Node, target: Target) -> Rule | None:
    """The rule that lowers a node for a target; None where it goes to the host."""
    for t in (*node.inputs, *node.outputs):
        if t.type.dtype in HOST_ONLY:
            return None
    for own in reversed(OVERRIDES.get(node.op.name, ())):
        if own.when(node, target):
            return own.rule
    built_in = LOWERINGS.get(node.op.name)
    return built_in.rule if built_in is not None and built_in.when(node, target) else None


class Lowering:
    """The context of lowering rules: it provides refs of tensors, argument blocks, workspace and grids, and collects
    steps.

    `target` describes the device; its `choose` is `chooser`, which records decisions. `precision` is the session's.
    """

    def __init__(
        self, graph: Graph, plan: MemoryPlan, target: Target, precision: str, chooser: Chooser | None = None
    ) -> None:
        self.graph = graph
        self.plan = plan
        self.chooser = chooser or Chooser(target.choose)
        self.target = replace(target, choose=self.chooser)
        self.precision = precision
        self.steps: list[Step] = []
        self.args = bytearray()
        self.addresses: list[tuple[int, Ref]] = []  # (offset in `args` where an address goes, the Ref it points to)
        self.scratch_bytes = 0
        self.bodies: dict[tuple[int, str], Lowering] = {}  # bodies of control ops, by first output and attribute
        self.together: dict[int, tuple[Node, ...]] | None = None  # id of a node's result -> the nodes of its batch
        self.made: set[int] = set()  # ids of results that an earlier node of their batch has computed
        self.last: frozenset[int] = frozenset()  # ids of the tensors that lie with their channels last (`images.py`)
        self.moved: dict[int, Ref] = {}  # id of a tensor -> its channels-first copy, for the current node
        self.chosen: dict[Hashable, Any] = {}  # the candidates for a problem; layers repeat problems
        self.instead: dict[int, Rule] = {}  # rules that earlier nodes set for one node, by its first output
        self.within: dict[int, str] = {}  # id of a result -> the name of the later node that computes it
        self.trees: dict[Hashable, KnownTree] = {}  # launches of expression trees, by everything they depend on
        self._blocks: dict[bytes, Ref] = {}
        self._begun: dict[int, int] = {}  # id of a result -> the number of steps before its node's
        self._scratch_used = 0
        self._label = ""

    @functools.cached_property
    def readers(self) -> dict[int, list[int]]:
        """The indices of the nodes that read each tensor, by its id; the graph's outputs and updates count as one more
        node at the end."""
        found: dict[int, list[int]] = {}
        for number, node in enumerate(self.graph.nodes):
            for i in dict.fromkeys(t.id for t in node.inputs):
                found.setdefault(i, []).append(number)
        for t in (*self.graph.outputs.values(), *self.graph.updates.values()):
            found.setdefault(t.id, []).append(len(self.graph.nodes))
        return found

    # -- tensors

    def ref(self, tensor: Tensor) -> Ref:
        """The whole slot of a tensor (its own bytes, without alignment padding), or its copy made for the current
        node."""
        if tensor.id in self.moved:
            return self.moved[tensor.id]
        slot = self.plan.slots[tensor.id]
        return Ref(slot.segment, slot.offset, slot.nbytes)

    def lies_last(self, tensor: Tensor) -> bool:
        """Whether `ref` holds the tensor in the layout (N, *S, C)."""
        return tensor.id in self.last and tensor.id not in self.moved

    def storage(self, tensor: Tensor) -> DType:
        """The dtype a tensor is stored as."""
        return self.plan.slots[tensor.id].dtype

    # -- memory for kernels

    def block(self, values: Sequence[int] | npt.NDArray[np.generic]) -> Ref:
        """A read-only argument block (ints become i32); equal blocks share memory."""
        if isinstance(values, np.ndarray):
            raw = values.tobytes()
        else:
            for v in values:
                if not -(2**31) <= v < 2**31:
                    raise ShapeError(f"{self._label}: {v} does not fit the 32-bit argument block of a kernel")
            raw = np.asarray(values, np.int32).tobytes()
        if raw not in self._blocks:
            offset = len(self.args)
            self.args += raw + bytes(align(len(raw), 16) - len(raw))
            self._blocks[raw] = Ref(ARGS, offset, len(raw))
        return self._blocks[raw]

    def table(self, refs: Sequence[Ref]) -> Ref:
        """An argument block of 8-byte addresses, which are written once the memory is known."""
        offset = len(self.args)
        self.addresses += [(offset + 8 * k, ref) for k, ref in enumerate(refs)]
        self.args += bytes(align(8 * len(refs), 16))
        return Ref(ARGS, offset, 8 * len(refs))

    def counters(self, count: int) -> Ref:
        """32-bit counters of this node alone; they are 0 before the first run, and each run resets them to 0."""
        offset = len(self.args)
        self.args += bytes(align(4 * count, 16))
        return Ref(ARGS, offset, 4 * count)

    def scratch(self, nbytes: int) -> Ref:
        """Workspace for the node being lowered; its content is undefined and lasts until the node's last step."""
        offset = self._scratch_used
        self._scratch_used = align(offset + max(nbytes, 1))
        self.scratch_bytes = max(self.scratch_bytes, self._scratch_used)
        return Ref(SCRATCH, offset, nbytes)

    # -- grids

    def groups(self, count: int) -> tuple[int, int, int]:
        """A 1-D grid of at least `count` workgroups; X beyond the device's limit folds into Y. Kernels compute
        `x + y * num_x` and guard: groups past `count` must do nothing."""
        limit_x, limit_y, _ = self.target.limits.max_groups
        if count <= limit_x:
            return (max(count, 1), 1, 1)
        y = math.ceil(count / limit_x)
        if y > limit_y:
            raise ShapeError(
                f"{self._label}: {count} workgroups are more than the device runs ({limit_x} x {limit_y})"
            )
        return (math.ceil(count / y), y, 1)

    # -- steps

    def launch(
        self, kernel: Kernel, groups: tuple[int, int, int], args: Sequence[Arg], outputs: int = 1
    ) -> None:
        """Appends a launch. For a file kernel the access of each pointer comes from its declaration. Other kernels
        write their last pointers, one for each output (of a source kernel, `outputs` of them), and read the others."""
        args = [_in_f32(a) if isinstance(a, float) else a for a in args]
        pointers = [a for a in args if isinstance(a, Ref)]
        if isinstance(kernel, FileKernel):
            decl = KERNELS[kernel.stem]
            if len(decl.args) != len(args):
                raise ValueError(f"kernel {kernel.stem} takes {len(decl.args)} arguments, got {len(args)}")
            reads = tuple(
                a for a, d in zip(args, decl.args, strict=True) if isinstance(a, Ref) and "r" in d.access
            )
            writes = tuple(
                a for a, d in zip(args, decl.args, strict=True) if isinstance(a, Ref) and "w" in d.access
            )
        else:
            split = len(pointers) - (len(kernel.outputs) if isinstance(kernel, TreeKernel) else outputs)
            reads, writes = tuple(pointers[:split]), tuple(pointers[split:])
        if len(pointers) * 8 + (len(args) - len(pointers)) * 4 > MAX_ARG_BYTES:
            raise ValueError(f"{kernel}: more than {MAX_ARG_BYTES} bytes of arguments")
        reads = tuple(r for r in reads if r.nbytes)
        writes = tuple(w for w in writes if w.nbytes)
        self.steps.append(Launch(kernel, groups, tuple(args), reads, writes, self._label))

    def emit(self, step: Step) -> None:
        """Appends any other step (Gemm, Copy)."""
        self.steps.append(step)

    def copy(self, source: Ref, target: Ref) -> None:
        """Appends a device-side copy between ranges of equal sizes; nothing where they are empty or the same."""
        if source.nbytes != target.nbytes:
            raise ValueError(f"copy of {source.nbytes} bytes into {target.nbytes}")
        if source.nbytes and source != target:
            self.steps.append(Copy(source, target, self._label))

    def make_at(self, tensor: Tensor, target: Ref) -> bool:
        """Makes the step that computes a tensor write it to `target`, so that the current node need not copy it there.

        Returns False, and changes nothing, if the tensor has other readers or shares its bytes with another tensor, if
        several steps write it or one does not write all of it, or if a step since then uses the target."""
        source = self.ref(tensor)
        readers = self.readers.get(tensor.id, [])
        aligned = source.offset % _SAME_ALIGNMENT == target.offset % _SAME_ALIGNMENT
        if len(readers) != 1 or tensor.id in self.moved or is_alias(tensor.node, self.plan) or not aligned:
            return False
        begun = self._begun.get(tensor.id, len(self.steps))
        making = [i for i in range(begun, len(self.steps)) if any(r.overlaps(source) for r in self.steps[i].writes)]
        if len(making) != 1:
            return False
        since = self.steps[making[0] :]
        if any(ref.overlaps(target) for step in since for ref in (*step.reads, *step.writes)):
            return False
        held = {r for r in map(self.ref, tensor.node.inputs) if r.overlaps(source)}
        moved = _written_to(since[0], source, target) if held <= {*since[0].reads} else None
        if moved is not None:
            self.steps[making[0]] = moved
        return moved is not None

    # -- driving

    def lower(self, node: Node) -> int:
        """Lowers one node (natively where a rule takes it, else as a host call). Returns how many steps it became."""
        before = len(self.steps)
        self._begun.update((t.id, before) for t in node.outputs)
        self._label = self.chooser.node = node.name
        self._scratch_used = 0
        rule = rule_for(node, self.target)
        own = self.instead.get(node.outputs[0].id) if node.outputs else None
        if own is not None:
            own(self, node)
        elif rule is None:
            self.steps.append(self.call(HostCall, node))
        elif self.last.isdisjoint(t.id for t in (*node.inputs, *node.outputs)) or in_any_order(self, node):
            rule(self, node)
        else:
            self._in_order_of_shapes(rule, node)
        return len(self.steps) - before

    def _in_order_of_shapes(self, rule: Rule, node: Node) -> None:
        """Lowers a node whose rule supports only the channels-first layout, on transposed copies."""
        from rlx.backends.gpu.rules.movement import from_last, to_last

        touched = {t.id: t for t in (*node.inputs, *node.outputs) if t.id in self.last}
        slots = {i: self.ref(t) for i, t in touched.items()}
        copies = {i: self.scratch(slots[i].nbytes) for i in touched}
        for i in dict.fromkeys(t.id for t in node.inputs if t.id in touched):
            from_last(self, touched[i].shape, self.storage(touched[i]), slots[i], copies[i])
        self.moved = copies
        rule(self, node)
        self.moved = {}
        for t in node.outputs:
            if t.id in touched:
                to_last(self, t.shape, self.storage(t), copies[t.id], slots[t.id])

    def call(self, kind: type[Call], node: Node) -> Call:
        """Appends a step that runs a whole node, reading its inputs and writing its outputs."""
        reads = tuple(dict.fromkeys(r for r in map(self.ref, node.inputs) if r.nbytes))
        writes = tuple(r for r in map(self.ref, node.outputs) if r.nbytes)
        return kind(node, reads, writes, self._label)

    def lower_updates(self) -> None:
        """Copies states' new values into the states, after all reads of the old ones."""
        self._label = "update"
        for updated, state in update_copies(self.graph, self.plan):
            self.copy(self.ref(updated), self.ref(state))


def _written_to(step: Step, source: Ref, target: Ref) -> Step | None:
    """The step writing to `target` instead of `source`. None if it writes another range too, or writes through a
    pointer by which it also reads."""
    if source not in step.writes:
        return None
    if isinstance(step, Gemm):
        return replace(step, c=target)
    if not isinstance(step, Launch) or isinstance(step.kernel, SourceKernel):
        return None
    writes = tuple(target if ref == source else ref for ref in step.writes)
    pointers = [i for i, a in enumerate(step.args) if isinstance(a, Ref)]
    if isinstance(step.kernel, FileKernel):
        places = [i for i, d in enumerate(KERNELS[step.kernel.stem].args) if "w" in d.access and step.args[i] == source]
        if any("r" in KERNELS[step.kernel.stem].args[i].access for i in places):
            return None
    else:
        places = [i for i in pointers[len(pointers) - len(step.kernel.outputs) :] if step.args[i] == source]
    args = [target if i in places else a for i, a in enumerate(step.args)]
    return replace(step, args=tuple(args), writes=writes)


def runs_natively(node: Node, target: Target) -> bool:
    """Whether a rule lowers this node for this target."""
    return rule_for(node, target) is not None


def kernel_name(step: Step) -> str:
    """The name of a step in reports and timings."""
    if isinstance(step, Launch):
        if isinstance(step.kernel, TreeKernel):
            return "tree"
        if isinstance(step.kernel, SourceKernel):
            return step.kernel.name
        words = [step.kernel.stem, *(value for _, value in step.kernel.defines)]
        return "-".join(words)
    if isinstance(step, HostCall | ControlCall):
        return f"{'host' if isinstance(step, HostCall) else 'control'}:{step.node.op.name}"
    if isinstance(step, Collective):
        return f"nccl:{step.node.op.name}"
    return type(step).__name__.lower()


def _in_f32(value: float) -> float:
    """An argument's value as an f32; values beyond the largest f32 become infinite, as in NumPy."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
