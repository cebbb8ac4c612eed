"""Single-precision matrix products by a single-threaded copy of NumPy's OpenBLAS.

Why a copy. OpenBLAS has one thread count for the whole process, which is the user's, and its results depend on it.
Here products are cut into tiles by their shape alone, and our own threads run the epilogue of a tile right behind its
product, on the same core; that takes a BLAS of one thread. A second copy of the library that NumPy ships gives it and
leaves the user's NumPy as it was. OpenBLAS's environment variables, such as OPENBLAS_CORETYPE, hold for the copies too.
Where there is no copy (no OpenBLAS, no memfd), `load` says why and products go through `numpy.matmul`.

`load_team` loads a third copy, with a thread for every processor, for one thing: a list of products in one call, each
by one thread of the library. Those threads wait without sleeping and without the interpreter lock; waking one of ours
takes longer than a small product. A product gives the same bits there as in the copy of one thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.cpu.threads import available_threads

_ROW_MAJOR = 101
_PLAIN, _TRANSPOSED = 111, 112
# (prefix, suffix, integer type) of the names in the builds there are: NumPy's and SciPy's wheels, distributions.
_NAMES = (
    ("scipy_", "64_", ctypes.c_int64),
    ("", "64_", ctypes.c_int64),
    ("scipy_", "", ctypes.c_int32),
    ("", "", ctypes.c_int32),
)
# Kernels that multiply small matrices without packing them first.
_UNPACKED_CORES = {"skylakex", "cooperlake", "sapphirerapids"}
_environment = threading.Lock()
# Below this many multiplications a call for a list of products takes kernels that fail on some processors.
LEAST_IN_LIST = 1_000_001
# How long the team's threads wait awake: 2^22 cycles of the clock, one or two milliseconds. OpenBLAS's own is sixteen
# times as long.
_AWAKE = "18"

Step = Callable[[], Any]


class Product(NamedTuple):
    """c = alpha · op(a) · op(b) + beta · c, row-major: addresses, leading dimensions in elements, m × n × k."""

    a: int
    lda: int
    transpose_a: bool
    b: int
    ldb: int
    transpose_b: bool
    c: int
    ldc: int
    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0


class Blas:
    """A loaded BLAS library. `core` is the processor family whose kernels it uses; `unpacked` says that it
    multiplies small matrices without packing them first."""

    def __init__(self, library: ctypes.CDLL) -> None:
        prefix, suffix, integer = _naming(library)
        self._library = library  # keeps it loaded
        core = getattr(library, f"{prefix}openblas_get_corename{suffix}")
        core.restype = ctypes.c_char_p
        self.core = str(core().decode())
        self.unpacked = self.core.lower() in _UNPACKED_CORES
        i, p, f = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
        n = integer
        self._sgemm = getattr(library, f"{prefix}cblas_sgemm{suffix}")
        self._sgemm.restype = None
        self._sgemm.argtypes = [i, i, i, n, n, n, f, p, n, p, n, f, p, n]
        self._sgemv = getattr(library, f"{prefix}cblas_sgemv{suffix}")
        self._sgemv.restype = None
        self._sgemv.argtypes = [i, i, n, n, f, p, n, p, n, f, p, n]

    def sgemm(self, p: Product) -> Step:
        """The call that makes a product.

        After: with beta 0, c is overwritten, whatever it held. Requires: the memory outlives the call; m, n, k ≥ 1.
        """
        ta, tb = (_TRANSPOSED if t else _PLAIN for t in (p.transpose_a, p.transpose_b))
        return self._bound(
            self._sgemm,
            _ROW_MAJOR,
            ta,
            tb,
            p.m,
            p.n,
            p.k,
            p.alpha,
            p.a,
            p.lda,
            p.b,
            p.ldb,
            p.beta,
            p.c,
            p.ldc,
        )

    def sgemv(
        self,
        a: int, lda: int, transpose_a: bool,
        x: int, incx: int,
        y: int, incy: int,
        rows: int, columns: int,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Step:  # fmt: skip
        """The call y = alpha · op(a) · x + beta · y, where a has `rows` × `columns` as stored."""
        t = _TRANSPOSED if transpose_a else _PLAIN
        return self._bound(self._sgemv, _ROW_MAJOR, t, rows, columns, alpha, a, lda, x, incx, beta, y, incy)

    @staticmethod
    def _bound(function: Any, *args: Any) -> Step:
        # Converted once, here: a call with ready ctypes values costs half of one with Python numbers.
        return partial(function, *(kind(value) for kind, value in zip(function.argtypes, args, strict=True)))


class BlasTeam:
    """A loaded BLAS library with several threads, which work off a list of products in one call."""

    def __init__(self, library: ctypes.CDLL) -> None:
        prefix, suffix, integer = _naming(library)
        self._library = library
        self._integer = integer
        self._batch = getattr(library, f"{prefix}cblas_sgemm_batch{suffix}")
        self._batch.restype = None
        self.threads = int(getattr(library, f"{prefix}openblas_get_num_threads{suffix}")())

    def sgemms(self, products: Sequence[Product]) -> Step:
        """The call that makes the products, in any order.

        Requires: as `Blas.sgemm`; each of LEAST_IN_LIST multiplications or more, none writes what another reads.
        """
        assert all(p.m * p.n * p.k >= LEAST_IN_LIST for p in products)
        count, n, f, at = len(products), self._integer, ctypes.c_float, ctypes.c_void_p

        def row(kind: Any, values: Iterable[Any]) -> Any:
            return (kind * count)(*values)

        def field(kind: Any, name: str) -> Any:
            return row(kind, (getattr(p, name) for p in products))

        ta, tb = (
            row(ctypes.c_int, (_TRANSPOSED if getattr(p, name) else _PLAIN for p in products))
            for name in ("transpose_a", "transpose_b")
        )
        return partial(
            self._batch, ctypes.c_int(_ROW_MAJOR), ta, tb, field(n, "m"), field(n, "n"), field(n, "k"),
            field(f, "alpha"), field(at, "a"), field(n, "lda"), field(at, "b"), field(n, "ldb"), field(f, "beta"),
            field(at, "c"), field(n, "ldc"), n(count), row(n, [1] * count),
        )  # fmt: skip


@cache
def load() -> tuple[Blas | None, str]:
    """The private BLAS and its description, or None and the reason why there is none."""
    source = _numpys_library()
    if source is None:
        return None, "NumPy is not built on OpenBLAS"
    if not hasattr(os, "memfd_create"):
        return None, "this system cannot load a second copy of a library"
    try:
        blas = Blas(_load_copy(source, {"OPENBLAS_NUM_THREADS": "1"}))
    except (OSError, AttributeError) as error:
        return None, f"the copy of {source.name} does not load: {error}"
    if not _works(blas):
        return None, f"the copy of {source.name} gives wrong products"
    return blas, f"OpenBLAS {blas.core}"


@cache
def load_team() -> BlasTeam | None:
    """The BLAS of several threads, None where there is one processor or no such library."""
    source, threads = _numpys_library(), available_threads()
    if load()[0] is None or source is None or threads == 1:
        return None
    wanted = {"OPENBLAS_NUM_THREADS": str(threads), "OPENBLAS_THREAD_TIMEOUT": _AWAKE}
    try:
        team = BlasTeam(_load_copy(source, wanted))
    except (OSError, AttributeError):  # an older library has no call for lists
        return None
    return team if team.threads == threads and _works_in_lists(team) else None


def _numpys_library() -> Path | None:
    """The OpenBLAS file that NumPy has loaded."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    names = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "openblas" in line}
    beside_numpy = Path(np.__file__).parent.parent
    found = sorted(Path(n) for n in names if n.startswith("/"))
    ours = [p for p in found if beside_numpy in p.parents]
    return next(iter(ours or found), None)


def _load_copy(source: Path, environment: Mapping[str, str]) -> ctypes.CDLL:
    """The library loaded once more from an anonymous file, so that the loader takes it for another one; it reads the
    environment then, and not again."""
    # Stays open: the loader knows libraries by their paths, and a number given out again would name the copy before.
    fd = os.memfd_create("rlx-blas")
    with open(fd, "wb", closefd=False) as copy:
        copy.write(source.read_bytes())
    with _environment:
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            return ctypes.CDLL(f"/proc/self/fd/{fd}")
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _naming(library: ctypes.CDLL) -> tuple[str, str, Any]:
    for prefix, suffix, integer in _NAMES:
        if hasattr(library, f"{prefix}cblas_sgemm{suffix}"):
            return prefix, suffix, integer
    raise AttributeError("no cblas_sgemm under a known name")


def _works(blas: Blas) -> bool:
    """One product with every argument different, against NumPy."""
    a = np.arange(15, dtype=np.float32).reshape(3, 5)
    b = np.arange(35, dtype=np.float32).reshape(7, 5)
    c = np.full((3, 7), np.nan, np.float32)
    blas.sgemm(Product(a.ctypes.data, 5, False, b.ctypes.data, 5, True, c.ctypes.data, 7, 3, 7, 5, 0.5))()
    return bool(np.array_equal(c, 0.5 * (a @ b.T)))


def _works_in_lists(team: BlasTeam) -> bool:
    """Three products with every argument different, the last onto what is there, against NumPy."""
    made = []
    for k in (120, 130, 140):
        a, b = ((np.arange(n * k) % m).astype(np.float32) for n, m in ((90, 7), (110, 5)))
        made.append((a.reshape(90, k), b.reshape(110, k), np.ones((90, 110), np.float32), float(k == 140)))
    team.sgemms([
        Product(a.ctypes.data, a.shape[1], False, b.ctypes.data, a.shape[1], True, c.ctypes.data, 110, 90, 110,
                a.shape[1], 0.5, beta)
        for a, b, c, beta in made
    ])()  # fmt: skip
    return all(np.array_equal(c, 0.5 * (a @ b.T) + beta) for a, b, c, beta in made)
