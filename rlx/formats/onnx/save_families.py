"""Every family of writers; importing this module fills the table."""

from rlx.formats.onnx import save_attention as save_attention
from rlx.formats.onnx import save_control as save_control
from rlx.formats.onnx import save_elementwise as save_elementwise
from rlx.formats.onnx import save_image as save_image
from rlx.formats.onnx import save_index as save_index
from rlx.formats.onnx import save_linalg as save_linalg
from rlx.formats.onnx import save_movement as save_movement
from rlx.formats.onnx import save_reduce as save_reduce
