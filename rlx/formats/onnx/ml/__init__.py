"""The operators of ai.onnx.ml, a module a family; importing this package fills the table with them."""

from rlx.formats.onnx.ml import features as features
from rlx.formats.onnx.ml import labels as labels
from rlx.formats.onnx.ml import support as support
from rlx.formats.onnx.ml import tree as tree
