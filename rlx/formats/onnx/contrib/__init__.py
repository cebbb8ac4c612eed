"""The operators of com.microsoft, a module a family; importing this package fills the table with them."""

from rlx.formats.onnx.contrib import activation as activation
from rlx.formats.onnx.contrib import attention as attention
from rlx.formats.onnx.contrib import grouped_attention as grouped_attention
from rlx.formats.onnx.contrib import image as image
from rlx.formats.onnx.contrib import linear as linear
from rlx.formats.onnx.contrib import norm as norm
from rlx.formats.onnx.contrib import quant as quant
