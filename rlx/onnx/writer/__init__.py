"""The writers of ops as ONNX operators, a module a family; importing this package fills the table with them."""

from rlx.onnx.writer import attention as attention
from rlx.onnx.writer import control as control
from rlx.onnx.writer import elementwise as elementwise
from rlx.onnx.writer import fourier as fourier
from rlx.onnx.writer import image as image
from rlx.onnx.writer import index as index
from rlx.onnx.writer import linalg as linalg
from rlx.onnx.writer import movement as movement
from rlx.onnx.writer import reduce as reduce
