"""The operators of ai.onnx.ml, a module a family; importing this package fills the table with them."""

from rlx.onnx.ml import features as features
from rlx.onnx.ml import labels as labels
from rlx.onnx.ml import support as support
from rlx.onnx.ml import tree as tree
