"""The operators of onnx's own domain, a module a family; importing this package fills the table with them."""

from rlx.onnx.ops import arithmetic as arithmetic
from rlx.onnx.ops import attention as attention
from rlx.onnx.ops import cast as cast
from rlx.onnx.ops import conv as conv
from rlx.onnx.ops import elementwise as elementwise
from rlx.onnx.ops import experimental as experimental
from rlx.onnx.ops import fill as fill
from rlx.onnx.ops import index as index
from rlx.onnx.ops import legacy as legacy
from rlx.onnx.ops import linalg as linalg
from rlx.onnx.ops import loss as loss
from rlx.onnx.ops import movement as movement
from rlx.onnx.ops import norm as norm
from rlx.onnx.ops import pool as pool
from rlx.onnx.ops import quant as quant
from rlx.onnx.ops import random as random
from rlx.onnx.ops import recurrent as recurrent
from rlx.onnx.ops import reduce as reduce
from rlx.onnx.ops import resize as resize
from rlx.onnx.ops import sample as sample
from rlx.onnx.ops import sequence as sequence
from rlx.onnx.ops import signal as signal
from rlx.onnx.ops import text as text
from rlx.onnx.ops import training as training
