"""Single-precision GEMMs by a single-threaded copy of NumPy's OpenBLAS.

Why a copy: OpenBLAS has one thread count for the whole process, which belongs to the user, and its results depend on
it. Here GEMMs are cut into tiles by their shape alone, and our own threads run a tile's epilogue right behind its GEMM,
on the same core. That takes a single-threaded BLAS. A second copy of the library that NumPy ships provides it and
leaves the user's NumPy as it was. OpenBLAS's environment variables, such as OPENBLAS_CORETYPE, hold for the copies too.
Where there is no copy (no OpenBLAS, no memfd), `load` says why and GEMMs go through `numpy.matmul`.

`load_team` loads a third copy, with a thread for every processor, for batched GEMMs alone: one call computes a list of
products, each on one thread of the library. Those threads wait without sleeping and without the interpreter lock;
waking one of ours takes longer than a small GEMM. A GEMM gives the same bits there as in the single-threaded copy.
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

from rlx.host.processors import available_threads

_ROW_MAJOR = 101
_PLAIN, _TRANSPOSED = 111, 112
# (prefix, suffix, integer type) of the function names in known builds: NumPy's and SciPy's wheels, Linux distributions.
_NAMES = (
    ("scipy_", "64_", ctypes.c_int64),
    ("", "64_", ctypes.c_int64),
    ("scipy_", "", ctypes.c_int32),
    ("", "", ctypes.c_int32),
)
# Processor families for which OpenBLAS multiplies small matrices without packing them first.
_UNPACKED_CORES = {"skylakex", "cooperlake", "sapphirerapids"}
_environment = threading.Lock()
# With fewer multiplications OpenBLAS's batched call uses kernels that fail on some processors.
MIN_IN_LIST = 1_000_001
# OPENBLAS_THREAD_TIMEOUT: how long the team's threads spin before they sleep, here one or two milliseconds (2^22 clock
# cycles). OpenBLAS's default is sixteen times as long.
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
        self._library = library  # keeps the library loaded
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
        """The call that computes a GEMM.

        Requires: the memory outlives the call; m, n, k ≥ 1. After: with beta 0, c is overwritten, whatever it held.
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
        # Arguments are converted once, here: a call with ctypes values costs half of one with Python numbers.
        return partial(function, *(kind(value) for kind, value in zip(function.argtypes, args, strict=True)))


class BlasTeam:
    """A loaded BLAS library with several threads, which computes a list of GEMMs in one batched call."""

    def __init__(self, library: ctypes.CDLL) -> None:
        prefix, suffix, integer = _naming(library)
        self._library = library
        self._integer = integer
        self._batch = getattr(library, f"{prefix}cblas_sgemm_batch{suffix}")
        self._batch.restype = None
        self.threads = int(getattr(library, f"{prefix}openblas_get_num_threads{suffix}")())

    def sgemms(self, products: Sequence[Product]) -> Step:
        """The call that computes the products, in any order.

        Requires: as `Blas.sgemm`; each has MIN_IN_LIST multiplications or more; none writes what another reads.
        """
        assert all(p.m * p.n * p.k >= MIN_IN_LIST for p in products)
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
    """The single-threaded BLAS and its description, or None and the reason why there is none."""
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
    """The BLAS of several threads; None where there is only one processor, or no library that can do this."""
    source, threads = _numpys_library(), available_threads()
    if load()[0] is None or source is None or threads == 1:
        return None
    wanted = {"OPENBLAS_NUM_THREADS": str(threads), "OPENBLAS_THREAD_TIMEOUT": _AWAKE}
    try:
        team = BlasTeam(_load_copy(source, wanted))
    except (OSError, AttributeError):  # an older library has no batched call
        return None
    return team if team.threads == threads and _works_in_lists(team) else None


def _numpys_library() -> Path | None:
    """The OpenBLAS file that NumPy has loaded."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    names = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "openblas" in line}
    beside_numpy = Path(np.__file__).parent.parent
    libraries = sorted(Path(n) for n in names if n.startswith("/"))
    ours = [p for p in libraries if beside_numpy in p.parents]
    return next(iter(ours or libraries), None)


def _load_copy(source: Path, environment: Mapping[str, str]) -> ctypes.CDLL:
    """Loads the library once more, from an anonymous file, so that the loader takes it for another one. The library
    reads its environment variables only while it is loaded."""
    # The file stays open: the loader knows libraries by their paths, and a descriptor number that is used again would
    # be the path of the earlier copy.
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
    """Compares one GEMM, whose arguments all differ, with NumPy's."""
    a = np.arange(15, dtype=np.float32).reshape(3, 5)
    b = np.arange(35, dtype=np.float32).reshape(7, 5)
    c = np.full((3, 7), np.nan, np.float32)
    blas.sgemm(Product(a.ctypes.data, 5, False, b.ctypes.data, 5, True, c.ctypes.data, 7, 3, 7, 5, 0.5))()
    return bool(np.array_equal(c, 0.5 * (a @ b.T)))


def _works_in_lists(team: BlasTeam) -> bool:
    """Compares a batched call of three GEMMs, the last with beta 1, with NumPy's."""
    products = []
    for k in (120, 130, 140):
        a, b = ((np.arange(n * k) % m).astype(np.float32) for n, m in ((90, 7), (110, 5)))
        products.append((a.reshape(90, k), b.reshape(110, k), np.ones((90, 110), np.float32), float(k == 140)))
    team.sgemms([
        Product(a.ctypes.data, a.shape[1], False, b.ctypes.data, a.shape[1], True, c.ctypes.data, 110, 90, 110,
                a.shape[1], 0.5, beta)
        for a, b, c, beta in products
    ])()  # fmt: skip
    return all(np.array_equal(c, 0.5 * (a @ b.T) + beta) for a, b, c, beta in products)
