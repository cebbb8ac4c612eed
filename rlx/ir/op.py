"""The Op record: everything rlx knows of one operation, registered once; and the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rlx.errors import UnsupportedOp
from rlx.ir.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.expr import Expr
    from rlx.ir.graph import Node, Tensor

Attrs = Mapping[str, Any]
Infer = Callable[[Sequence[TensorType], Attrs], "TensorType | tuple[TensorType, ...]"]
# Takes the input arrays and the attributes by keyword, gives an array or a tuple of arrays. Works in the floating
# dtype it is given: on float64 inputs it is the oracle.
Reference = Callable[..., Any]
# (node, gradients of the node's outputs) -> gradient of each input; None where an input has none. A gradient of an
# output that nothing uses is None. Written with rlx ops on the node's own inputs and outputs.
Vjp = Callable[["Node", "Sequence[Tensor | None]"], "Sequence[Tensor | None]"]
# (input expressions, attributes, output type's dtype) -> expression of one output element.
ExprRule = Callable[["Sequence[Expr]", Attrs], "Expr"]
Decompose = Callable[["Sequence[Tensor]", Attrs], "Tensor | tuple[Tensor, ...]"]


class _NotDifferentiable:
    def __repr__(self) -> str:
        return "NOT_DIFFERENTIABLE"


NOT_DIFFERENTIABLE: Final = _NotDifferentiable()


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    `infer` gives the output types or raises an error naming op, shapes and dtypes. `reference` is the NumPy definition,
    and in float64 the oracle. `judge` names the outside authority that checks `reference` (a dotted name such as
    "scipy.special.erf"). `vjp` is the reverse rule or NOT_DIFFERENTIABLE. Elementwise ops give `expr`, the others the
    `kernel` stem. `decompose` writes the op with simpler ones. `inplace` lists the inputs whose slot the output may
    take over when the type is the same and nothing reads them later. `leaf` marks inputs, params, state, constants.
    """

    name: str
    family: str
    infer: Infer
    reference: Reference
    judge: str
    vjp: Vjp | _NotDifferentiable
    expr: ExprRule | None = None
    kernel: str | None = None
    decompose: Decompose | None = None
    inplace: tuple[int, ...] = ()
    leaf: bool = False

    @property
    def elementwise(self) -> bool:
        return self.expr is not None


REGISTRY: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Adds an op to the registry. Raises: ValueError when the name is taken."""
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name!r} is registered twice")
    REGISTRY[op.name] = op
    return op


def get_op(name: str) -> Op:
    """The op of that name. Raises: UnsupportedOp when there is none."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise UnsupportedOp(f"there is no op named {name!r}; rlx.ir.REGISTRY lists all") from None
