"""Every family of operators; importing this module fills the table."""

from rlx.formats.onnx import ops_arithmetic as ops_arithmetic
from rlx.formats.onnx import ops_attention as ops_attention
from rlx.formats.onnx import ops_cast as ops_cast
from rlx.formats.onnx import ops_conv as ops_conv
from rlx.formats.onnx import ops_elementwise as ops_elementwise
from rlx.formats.onnx import ops_fill as ops_fill
from rlx.formats.onnx import ops_index as ops_index
from rlx.formats.onnx import ops_labels as ops_labels
from rlx.formats.onnx import ops_legacy as ops_legacy
from rlx.formats.onnx import ops_linalg as ops_linalg
from rlx.formats.onnx import ops_microsoft as ops_microsoft
from rlx.formats.onnx import ops_ml as ops_ml
from rlx.formats.onnx import ops_movement as ops_movement
from rlx.formats.onnx import ops_norm as ops_norm
from rlx.formats.onnx import ops_pool as ops_pool
from rlx.formats.onnx import ops_quant as ops_quant
from rlx.formats.onnx import ops_random as ops_random
from rlx.formats.onnx import ops_recurrent as ops_recurrent
from rlx.formats.onnx import ops_reduce as ops_reduce
from rlx.formats.onnx import ops_resize as ops_resize
from rlx.formats.onnx import ops_sample as ops_sample
from rlx.formats.onnx import ops_sequence as ops_sequence
from rlx.formats.onnx import ops_signal as ops_signal
from rlx.formats.onnx import ops_text as ops_text
from rlx.formats.onnx import ops_training as ops_training
from rlx.formats.onnx import ops_tree as ops_tree
