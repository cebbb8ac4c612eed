"""The intermediate representation: types, ops, graphs, scalar expressions, verifier and text form."""

from rlx.ir import leaves as leaves
from rlx.ir.body import bodies as bodies
from rlx.ir.expr import Expr as Expr
from rlx.ir.graph import Graph as Graph
from rlx.ir.graph import Node as Node
from rlx.ir.graph import Tensor as Tensor
from rlx.ir.graph import apply as apply
from rlx.ir.graph import apply_multi as apply_multi
from rlx.ir.graph import node_of as node_of
from rlx.ir.op import HOST as HOST
from rlx.ir.op import NOT_DIFFERENTIABLE as NOT_DIFFERENTIABLE
from rlx.ir.op import REGISTRY as REGISTRY
from rlx.ir.op import Attrs as Attrs
from rlx.ir.op import Control as Control
from rlx.ir.op import Cost as Cost
from rlx.ir.op import Leaf as Leaf
from rlx.ir.op import Op as Op
from rlx.ir.op import get_op as get_op
from rlx.ir.op import register as register
from rlx.ir.op import register_host as register_host
from rlx.ir.rewrite import Rewriter as Rewriter
from rlx.ir.rewrite import inline as inline
from rlx.ir.rewrite import rebuild as rebuild
from rlx.ir.types import TensorType as TensorType
from rlx.ir.verify import verify as verify
