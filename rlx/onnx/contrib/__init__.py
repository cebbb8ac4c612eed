"""The operators of com.microsoft, a module a family; importing this package fills the table with them."""

from rlx.onnx.contrib import activation as activation
from rlx.onnx.contrib import attention as attention
from rlx.onnx.contrib import grouped_attention as grouped_attention
from rlx.onnx.contrib import image as image
from rlx.onnx.contrib import linear as linear
from rlx.onnx.contrib import norm as norm
from rlx.onnx.contrib import quant as quant
from rlx.onnx.contrib import text as text
