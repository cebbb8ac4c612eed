"""The Op record, which holds everything rlx knows of one operation, registered once; and the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rlx.dtypes import packed_refused
from rlx.errors import DTypeError, UnsupportedOp, meant
from rlx.ir.types import TensorType
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.ir.expr import Expr
    from rlx.ir.graph import Node, Tensor
    from rlx.ir.rows import Rows

Attrs = Mapping[str, Any]
Infer = Callable[[Sequence[TensorType], Attrs], "TensorType | tuple[TensorType, ...]"]
# Pairs of positions: of an input, and of the output that may be written over it.
Renews = Callable[[Attrs], "tuple[tuple[int, int], ...]"]
# A reference takes input arrays, and attributes by keyword; it returns an array or a tuple of arrays. It works in the
# floating dtype of its inputs: on float64 inputs it is the oracle.
Reference = Callable[..., Any]
# (node, gradients of the node's outputs) -> gradient of each input; None for an input that has none. The gradient of
# an output that nothing uses is None. The rule is written with rlx ops on the node's own inputs and outputs.
Vjp = Callable[["Node", "Sequence[Tensor | None]"], "Sequence[Tensor | None]"]
# (node, tangents of the node's inputs) -> tangent of each output; None stands for zeros, on both sides.
Jvp = Callable[["Node", "Sequence[Tensor | None]"], "Sequence[Tensor | None]"]
# (node of one example, inputs, which of them have an axis of examples in front, the number of examples) -> the node's
# outputs for all examples, each with that axis in front.
Batch = Callable[["Node", "Sequence[Tensor]", "Sequence[bool]", int], "Sequence[Tensor]"]
# (input expressions, attributes, output type's dtype) -> expression of one output element.
ExprRule = Callable[["Sequence[Expr]", Attrs], "Expr"]
Decompose = Callable[["Sequence[Tensor]", Attrs], "Tensor | tuple[Tensor, ...]"]
# node -> the byte offset in its first input at which its output's bytes already are; None if they must be written.
View = Callable[["Node"], "int | None"]
# (node, new inputs, a function that appends a node of (op, inputs, attributes) unless the graph has it) -> a tensor
# with the same bits as the node's output, or None where the rule finds none.
Identity = Callable[["Node", "Sequence[Tensor]", "Callable[[str, Sequence[Tensor], Attrs], Tensor]"], "Tensor | None"]


class _NotDifferentiable:
    def __repr__(self) -> str:
        return "NOT_DIFFERENTIABLE"


NOT_DIFFERENTIABLE: Final = _NotDifferentiable()


class Leaf(Enum):
    """The role of a leaf: a part of a graph's signature (input, param, state), or a value known in the graph."""

    INPUT = "input"
    PARAM = "param"
    STATE = "state"
    CONSTANT = "constant"


class Control(NamedTuple):
    """How a control op runs its bodies: one of several once, or its only one repeatedly.

    `predicate`: the node's first input is a bool that chooses the branch, or says whether a loop runs its first step;
    the first output of a loop's body is then the predicate of the next step. A loop without a predicate (a scan)
    takes one row of its inputs in each step, and its attribute `carries` counts the values that a step passes on.
    """

    predicate: bool
    repeats: bool

    @property
    def loops(self) -> bool:
        """Whether its body runs until a predicate is false (while_loop)."""
        return self.predicate and self.repeats

    @property
    def rows(self) -> bool:
        """Whether its body runs once for each row of its inputs (scan)."""
        return self.repeats and not self.predicate


class Cost(NamedTuple):
    """The cost of running a node, which limits on steps and bytes apply to.

    `nbytes`: bytes that a kernel writes, and those that it reads repeatedly. `multiplications`: pairs of numbers that
    a product multiplies. `steps`: the steps of its body. `tables`: bytes of the tables that a kernel is built with.
    `terms`: about the bytes that the NumPy definition reads, writes and holds beside inputs and outputs.
    """

    nbytes: int
    multiplications: int = 0
    steps: int = 0
    tables: int = 0
    terms: int = 0


class Op(Record, eq=False, repr=False):
    """The record of one operation. There is one of each name, so records are compared by identity.

    `infer` gives the output types or raises an error naming op, shapes and dtypes. `reference` is the NumPy
    definition, and in float64 the oracle. `judge` names the outside authority that checks `reference` (a dotted name
    such as "scipy.special.erf"). `vjp` is the gradient rule or NOT_DIFFERENTIABLE. Elementwise ops have `expr`, the
    others a `kernel` stem; ops on rows may have `rows`, of which reference, decomposition and the CPU's kernel follow.
    `decompose` writes the op with simpler ones. `inplace` lists the inputs whose slot the output may take over when the
    types are equal and nothing reads the input later. `renews`, of an op with several outputs, gives the inputs
    (states) that some of them may be written over, each with the output that is.

    The rest are traits, which passes, planner, runtime and devices ask for instead of the name of an op.

    - `leaf`: the op's value is given, not computed, and in which role. `control`: the op runs bodies, and how.
      `fallible`: a run of the op may raise an error.
    - `view`: at which byte offset of the first input the output already lies. `reshapes`: the output has the same
      elements in the same order. `broadcasts`: it repeats the first input's elements, so that reading that input is
      cheaper.
    - `moves_data`: each element of the output is one of the first input's, bit for bit; any other inputs say which.
      `picks`: each is an element of some input, and which one depends at most on the numeric order of elements.
    - `converts`: the output is the input in another dtype. `materializes`: it is the input, in memory of its own.
    - `commutes`: the two inputs may be exchanged. `adds`: the output is their sum. `joins`: the scalar primitive by
      which a reduction or scan combines elements; `averages`: it then divides by their number. `centres`: a norm that
      subtracts the mean.
    - `contracts`: the op sums products of elements of two inputs. `epilogue`: it takes a bias as a third input, and
      the attribute `activation`; the bias lies along this axis of the output.
    - `packed`: inputs that may be packed weights; other ops refuse them, except leaves and control ops, which pass
      them on. `mixed`: inputs that may be f16 or bf16 where the others are f32. `rounds_once`: for f16 and bf16 the op
      computes what it would for f32, and rounds the result.
    - `strided`: inputs that a kernel may read in the matrix that they are columns of; the planner keeps that matrix
      until the op has run.
    - `heads`: inputs of (batch, heads, length, size) that the attribute `tokens` can name, and which are then
      (batch, length, heads, size). `mask`: which input hides scores where it is false, or is added to them.
    - `summed`: the op that does the same to the sum of two inputs. `identity`: finds a tensor with the same bits.
    - `integers`: the op of the same inputs and attributes that sessions of precision "int8" run instead.
    - `jvp`: the rule of forward mode, of ops whose `vjp` is not to be transposed for it.
    - `batch`: how the op works on many examples at once. Without it elementwise ops broadcast, an op that `decompose`
      writes with others is batched as these are, and any other runs once an example, in a scan.
    - `forwards`: the outputs are the first inputs unchanged; the op exists only for its differentiation rules.
    - `meets`: the op waits for other ranks; this function, called like `reference`, runs it. It is never folded: each
      run computes it exactly once.
    - `cost`: what running a node costs, where that is more than writing its outputs once.
    """

    name: str
    family: str
    infer: Infer
    reference: Reference
    judge: str
    vjp: Vjp | _NotDifferentiable
    expr: ExprRule | None = None
    kernel: str | None = None
    rows: Rows | None = None
    decompose: Decompose | None = None
    inplace: tuple[int, ...] = ()
    renews: Renews | None = None
    leaf: Leaf | None = None
    control: Control | None = None
    fallible: bool = False
    view: View | None = None
    reshapes: bool = False
    broadcasts: bool = False
    moves_data: bool = False
    picks: bool = False
    converts: bool = False
    materializes: bool = False
    commutes: bool = False
    adds: bool = False
    joins: str | None = None
    averages: bool = False
    centres: bool = False
    contracts: bool = False
    epilogue: int | None = None
    packed: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()
    rounds_once: bool = False
    strided: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    mask: int | None = None
    summed: str | None = None
    identity: Identity | None = None
    integers: str | None = None
    jvp: Jvp | None = None
    batch: Batch | None = None
    forwards: bool = False
    meets: Callable[[Node], Reference] | None = None
    cost: Callable[[Node], Cost] | None = None

    def __repr__(self) -> str:
        return f"Op({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if REGISTRY.get(self.name) is not self and HOST.get(self.name) is not self:
            raise UnsupportedOp(f"op {self.name!r} was removed or defined anew; build the graph again to pickle it")
        return get_op, (self.name,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self

    def types(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        """The output types: what `infer` says. Raises: what `infer` raises, DTypeError for packed weights that the op
        does not take or make."""
        passes_on = self.leaf is not None or self.control is not None
        for position, t in enumerate(inputs):
            if t.dtype.kind == "q" and position not in self.packed and not passes_on:
                raise packed_refused(self.name, t.dtype)
        inferred = self.infer(inputs, attrs)
        result = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
        for t in result:
            if t.dtype.kind == "q" and not passes_on and not (self.packed and self.moves_data):
                plain = "; plain integers of 8 bits are i8" if t.dtype.name == "int8" else ""
                raise DTypeError(
                    f"{self.name}: no graph makes {t.dtype}; rlx.quantize packs arrays on the host{plain}"
                )
        return result

    @property
    def elementwise(self) -> bool:
        return self.expr is not None

    @property
    def is_constant(self) -> bool:
        return self.leaf is Leaf.CONSTANT

    @property
    def declared(self) -> bool:
        """Whether it is part of a graph's signature: an input, a param or a state."""
        return self.leaf is not None and self.leaf is not Leaf.CONSTANT


class Registry(dict[str, Op]):
    """Ops by name. The module that registers an op is imported when that op is first looked up; listing the registry
    imports all. `places` maps each op to its module."""

    places: Mapping[str, str] = MappingProxyType({})

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name) and name in self.places:
            import_module(self.places[str(name)])
        return super().__contains__(name)

    def __missing__(self, name: str) -> Op:
        if name in self:
            return self[name]
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default

    def _all(self) -> None:
        for module in dict.fromkeys(self.places.values()):
            import_module(module)

    def __iter__(self) -> Iterator[str]:
        self._all()
        return super().__iter__()

    def __len__(self) -> int:
        self._all()
        return super().__len__()

    def keys(self) -> Any:
        self._all()
        return super().keys()

    def values(self) -> Any:
        self._all()
        return super().values()

    def items(self) -> Any:
        self._all()
        return super().items()


REGISTRY = Registry()
# Ops that no device has a kernel for: they run on the CPU as host steps, except collectives that a library of the
# device runs.
HOST = Registry()
REDEFINED: dict[int, Op] = {}  # users' ops that were redefined, by id; older graphs still hold them


def register(op: Op, redefines: bool = False) -> Op:
    """Adds an op to the registry. Raises: ValueError when the name is taken, unless it `redefines` that op."""
    if op.name in REGISTRY:
        if not redefines:
            raise ValueError(f"op {op.name!r} is registered twice")
        REDEFINED[id(REGISTRY[op.name])] = REGISTRY[op.name]
    REGISTRY[op.name] = op
    return op


def register_host(op: Op) -> Op:
    """Adds an op that has no kernel on any device to `HOST`. Raises: ValueError when the name is taken."""
    if op.name in REGISTRY or op.name in HOST:
        raise ValueError(f"op {op.name!r} is registered twice")
    HOST[op.name] = op
    return op


def get_op(name: str) -> Op:
    """The op of that name. Raises: UnsupportedOp when there is none."""
    known = dict.get(REGISTRY, name)
    if known is not None:  # whatever its module, it is imported
        return known
    try:
        return REGISTRY[name] if name in REGISTRY else HOST[name]
    except KeyError:
        near = meant(name, [*REGISTRY, *HOST])
        raise UnsupportedOp(f"there is no op named {name!r}{near}; rlx.ir.REGISTRY lists all") from None
