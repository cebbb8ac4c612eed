"""The operators of onnx's own domain, a module a family; importing this package fills the table with them."""

from rlx.formats.onnx.ops import arithmetic as arithmetic
from rlx.formats.onnx.ops import attention as attention
from rlx.formats.onnx.ops import cast as cast
from rlx.formats.onnx.ops import conv as conv
from rlx.formats.onnx.ops import elementwise as elementwise
from rlx.formats.onnx.ops import experimental as experimental
from rlx.formats.onnx.ops import fill as fill
from rlx.formats.onnx.ops import index as index
from rlx.formats.onnx.ops import legacy as legacy
from rlx.formats.onnx.ops import linalg as linalg
from rlx.formats.onnx.ops import movement as movement
from rlx.formats.onnx.ops import norm as norm
from rlx.formats.onnx.ops import pool as pool
from rlx.formats.onnx.ops import quant as quant
from rlx.formats.onnx.ops import random as random
from rlx.formats.onnx.ops import recurrent as recurrent
from rlx.formats.onnx.ops import reduce as reduce
from rlx.formats.onnx.ops import resize as resize
from rlx.formats.onnx.ops import sample as sample
from rlx.formats.onnx.ops import sequence as sequence
from rlx.formats.onnx.ops import signal as signal
from rlx.formats.onnx.ops import text as text
from rlx.formats.onnx.ops import training as training
