"""Linear algebra, with the names and arguments of numpy.linalg (and scipy.linalg's solve_triangular, cho_solve).

Matrices are the last two axes; axes in front are a batch. f32 and f64 keep their dtype, integers become f32.
Decompositions are NumPy's LAPACK: on a GPU they are steps on the host, which the report lists. All have gradients,
and second ones, and work under jit, jvp and vmap. A matrix that is singular or not positive definite raises
errors.LinAlgError: at once outside a trace, and from a run where its step meets it.

>>> @rlx.jit
... def fit(x, y, ridge):
...     return rlx.linalg.solve(x.T @ x + ridge * rlx.eye(3), x.T @ y)
"""

from typing import TYPE_CHECKING

from rlx.errors import LinAlgError as LinAlgError
from rlx.ops.composed.products import cross as cross
from rlx.ops.composed.products import matrix_transpose as matrix_transpose
from rlx.ops.composed.products import tensordot as tensordot
from rlx.ops.composed.products import vecdot as vecdot
from rlx.ops.composite import outer as outer
from rlx.ops.linalg.functions import cho_solve as cho_solve
from rlx.ops.linalg.functions import cholesky as cholesky
from rlx.ops.linalg.functions import cond as cond
from rlx.ops.linalg.functions import det as det
from rlx.ops.linalg.functions import diagonal as diagonal
from rlx.ops.linalg.functions import eigh as eigh
from rlx.ops.linalg.functions import eigvalsh as eigvalsh
from rlx.ops.linalg.functions import inv as inv
from rlx.ops.linalg.functions import lstsq as lstsq
from rlx.ops.linalg.functions import matrix_norm as matrix_norm
from rlx.ops.linalg.functions import matrix_power as matrix_power
from rlx.ops.linalg.functions import matrix_rank as matrix_rank
from rlx.ops.linalg.functions import multi_dot as multi_dot
from rlx.ops.linalg.functions import norm as norm
from rlx.ops.linalg.functions import pinv as pinv
from rlx.ops.linalg.functions import qr as qr
from rlx.ops.linalg.functions import slogdet as slogdet
from rlx.ops.linalg.functions import solve as solve
from rlx.ops.linalg.functions import solve_triangular as solve_triangular
from rlx.ops.linalg.functions import svd as svd
from rlx.ops.linalg.functions import svdvals as svdvals
from rlx.ops.linalg.functions import trace as trace
from rlx.ops.linalg.functions import vector_norm as vector_norm
from rlx.ops.linalg.general import eig as eig
from rlx.ops.linalg.general import eigvals as eigvals
from rlx.ops.linalg.general import expm as expm
from rlx.ops.linalg.general import lu as lu
from rlx.ops.matmul import matmul as matmul
from rlx.ops.public import make_public as _make_public

__all__ = [
    "cho_solve", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "expm", "inv",
    "lstsq", "lu", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm",
    "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensordot", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers read the imports above
    _make_public(globals(), __all__)
