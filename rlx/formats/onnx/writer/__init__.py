"""The writers of ops as ONNX operators, a module a family; importing this package fills the table with them."""

from rlx.formats.onnx.writer import attention as attention
from rlx.formats.onnx.writer import control as control
from rlx.formats.onnx.writer import elementwise as elementwise
from rlx.formats.onnx.writer import fourier as fourier
from rlx.formats.onnx.writer import image as image
from rlx.formats.onnx.writer import index as index
from rlx.formats.onnx.writer import linalg as linalg
from rlx.formats.onnx.writer import movement as movement
from rlx.formats.onnx.writer import reduce as reduce
