"""The quantized operators of com.microsoft."""

from rlx.formats.onnx.contrib.quant import attention as attention
from rlx.formats.onnx.contrib.quant import blocks as blocks
from rlx.formats.onnx.contrib.quant import elementwise as elementwise
from rlx.formats.onnx.contrib.quant import embedding as embedding
from rlx.formats.onnx.contrib.quant import lstm as lstm
from rlx.formats.onnx.contrib.quant import matmul as matmul
from rlx.formats.onnx.contrib.quant import pool as pool
