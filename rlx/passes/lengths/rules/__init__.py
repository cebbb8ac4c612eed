"""The rules for padding, by family of ops: each module registers its rules when it is imported."""

from rlx.passes.lengths.rules import attention as attention
from rlx.passes.lengths.rules import control as control
from rlx.passes.lengths.rules import images as images
from rlx.passes.lengths.rules import index as index
from rlx.passes.lengths.rules import matmul as matmul
from rlx.passes.lengths.rules import movement as movement
from rlx.passes.lengths.rules import order as order
from rlx.passes.lengths.rules import random as random
from rlx.passes.lengths.rules import reduce as reduce
from rlx.passes.lengths.rules import rows as rows
