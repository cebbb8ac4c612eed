"""The quantized operators of com.microsoft."""

from rlx.onnx.contrib.quant import attention as attention
from rlx.onnx.contrib.quant import blocks as blocks
from rlx.onnx.contrib.quant import elementwise as elementwise
from rlx.onnx.contrib.quant import embedding as embedding
from rlx.onnx.contrib.quant import lstm as lstm
from rlx.onnx.contrib.quant import matmul as matmul
from rlx.onnx.contrib.quant import pool as pool
