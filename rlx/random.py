"""Random numbers: keys, draws and dropout. Their conventions are written in `rlx.ops.random.draws`."""

from rlx.ops.random.draws import bernoulli as bernoulli
from rlx.ops.random.draws import bits as bits
from rlx.ops.random.draws import dropout as dropout
from rlx.ops.random.draws import fold_in as fold_in
from rlx.ops.random.draws import gumbel as gumbel
from rlx.ops.random.draws import key as key
from rlx.ops.random.draws import normal as normal
from rlx.ops.random.draws import permutation as permutation
from rlx.ops.random.draws import randint as randint
from rlx.ops.random.draws import split as split
from rlx.ops.random.draws import threefry2x32 as threefry2x32
from rlx.ops.random.draws import uniform as uniform

__all__ = [
    "bernoulli", "bits", "dropout", "fold_in", "gumbel", "key", "normal", "permutation", "randint", "split",
    "threefry2x32", "uniform",
]  # fmt: skip
