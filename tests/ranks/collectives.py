"""Collectives beside NumPy, and where ranks are processes beside MPI's own: every dtype, odd sizes, empty arrays.

`python -m tests.ranks.collectives --ranks 3` makes threads, `mpiexec -n 3 python -m tests.ranks.collectives` processes;
`--device cuda` takes a GPU for each rank. The exit status is 1 where a result is wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import rlx
from rlx.dtypes import ALL, DType
from rlx.ranks import Mesh
from rlx.runtime.shard_map import device_of

Array = np.ndarray[Any, Any]
SHAPES = ((2, 3), (6, 1, 5), (12, 1031), (0, 3))  # times the number of ranks along the first axis


def inputs(dtype: DType, shape: tuple[int, ...], rank: int) -> Array:
    """What a rank has: numbers of all magnitudes, NaN and infinities among the floats."""
    rng = np.random.default_rng([rank, *shape, ALL.index(dtype)])
    if dtype.kind == "b":
        return rng.random(shape) < 0.4
    if dtype.is_int:
        bits = np.iinfo(dtype.np)
        return rng.integers(bits.min, bits.max, shape, dtype.np, endpoint=True)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    flat = x.reshape(-1)
    if flat.size > 8:
        flat[rank], flat[3], flat[5] = np.nan, np.inf, -np.inf if rank else np.inf
    return x.astype(dtype.np)


def hows(dtype: DType) -> list[str]:
    if dtype.kind == "b":
        return ["max", "min"]
    return ["sum", "prod", "max", "min"] + ["mean"] * dtype.is_float


def collectives(dtype: DType, shape: tuple[int, ...], n: int) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """By name, the function of a rank's tensor, and of the arrays of all ranks and a rank's number what it gives."""
    for how in hows(dtype):
        yield (
            f"all_reduce {how}", lambda x, how=how: rlx.all_reduce(x, "r", op=how),
            lambda xs, r, how=how: reduced(xs, how),
        )  # fmt: skip
        yield (
            f"reduce_scatter {how}", lambda x, how=how: rlx.reduce_scatter(x, "r", op=how),
            lambda xs, r, how=how: np.split(reduced(xs, how), n)[r],
        )  # fmt: skip
    yield "all_gather", lambda x: rlx.all_gather(x, "r"), lambda xs, r: np.concatenate(xs)
    yield "all_gather 1", lambda x: rlx.all_gather(x, "r", axis=1), lambda xs, r: np.concatenate(xs, 1)
    yield "all_to_all", lambda x: rlx.all_to_all(x, "r", 0, 0), lambda xs, r: np.concatenate(
        [np.split(x, n)[r] for x in xs]
    )
    yield "all_to_all 0 1", lambda x: rlx.all_to_all(x, "r", 0, 1), lambda xs, r: np.concatenate(
        [np.split(x, n)[r] for x in xs], 1
    )
    yield "broadcast", lambda x: rlx.broadcast(x, "r", root=n - 1), lambda xs, r: xs[n - 1]


def reduced(xs: list[Array], how: str) -> Array:
    """In the order of the ranks; halves in f32, rounded once."""
    wide = [x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x for x in xs]
    function = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[how]
    total = wide[0].copy()
    with np.errstate(all="ignore"):
        for x in wide[1:]:
            total = function(total, x)
        if how == "mean":
            total = total / total.dtype.type(len(xs))
        return total.astype(xs[0].dtype)


def differs(got: Array, want: Array, terms: Array | None) -> str:
    """What is wrong with a result, or nothing. `terms`: the size of what was added, where its order is free."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    if terms is None or want.dtype.kind in "iub":
        same = np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()
        wide = (np.float64,) if want.dtype.kind not in "iub" else ()
        equal = same or (bool(wide) and np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True))
        return "" if equal else "bits differ"
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        unlike = ~np.isfinite(b) & ~((a == b) | (np.isnan(a) & np.isnan(b)))
        eps = float(rlx_eps(want.dtype))
        far = np.isfinite(b) & ~(np.abs(a - b) <= 4 * eps * terms + 1e-300)
    return f"{int((unlike | far).sum())} of {b.size} elements are off" if (unlike | far).any() else ""


def rlx_eps(dtype: np.dtype[Any]) -> float:
    return {8: 2.0**-53, 4: 2.0**-24}.get(dtype.itemsize, 2.0**-8 if dtype.name == "bfloat16" else 2.0**-11)


def faults(mesh: Mesh, device: str, exact: bool, dtypes: tuple[DType, ...] = ALL) -> tuple[int, list[str]]:
    """On one rank: the number of results compared, and what is wrong."""
    n, rank, count, wrong = mesh.size, mesh.rank, 0, []
    mpi = _mpi(mesh)
    for dtype in dtypes:
        for least in SHAPES:
            shape = (least[0] * n, *least[1:])
            xs = [inputs(dtype, shape, r) for r in range(n)]
            table = list(collectives(dtype, shape, n))

            def program(x: Any, table: Any = table) -> list[Any]:
                return [f(x) for _, f, _ in table]

            results = rlx.jit(program, device=device)(xs[rank])
            for (name, _, of), got in zip(table, results, strict=True):
                want = of(xs, rank)
                adds = not exact and dtype.is_float and name.split()[-1] in ("sum", "mean", "prod")
                terms = _terms(xs, name, rank) if adds else None
                why = differs(np.asarray(got), want, terms)
                count += 1
                if why:
                    wrong.append(f"rank {rank}: {name} of {dtype}{list(shape)}: {why}")
                theirs = mpi(name, xs[rank], want)
                if theirs is not None:
                    count += 1
                    near = _terms(xs, name, rank) if dtype.is_float and name.split()[-1] in ("sum", "prod") else None
                    why = differs(np.asarray(got), theirs, near)
                    if why:
                        wrong.append(f"rank {rank}: {name} of {dtype}{list(shape)} beside MPI: {why}")
    return count, wrong


def _terms(xs: list[Array], name: str, rank: int) -> Array:
    with np.errstate(all="ignore"):
        wide = [np.abs(x.astype(np.float64)) for x in xs]
        total = np.prod(wide, axis=0) if "prod" in name else np.sum(wide, axis=0)
        return np.split(total, len(xs))[rank] if name.startswith("reduce_scatter") else total


def _mpi(mesh: Mesh) -> Callable[[str, Array, Array], Array | None]:
    """MPI's own result of a collective; None where it has none, or ranks are threads."""
    if mesh.threads or mesh.world is None:
        return lambda name, x, like: None
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    ops = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}

    def result(name: str, x: Array, like: Array) -> Array | None:
        what, _, how = name.partition(" ")
        if x.dtype.name in ("bfloat16", "float16", "bool") or how == "mean" or how.isdigit() or " " in how:
            return None
        if how in ("max", "min") and x.dtype.kind == "f":
            return None  # MPI may take either of a NaN and a number
        if how == "sum" and x.dtype.itemsize < 4 and "Open MPI" in MPI.Get_library_version():
            return None  # its sums of 8 and 16 bits are saturated in vectors, and wrap in what is left
        out = np.empty(like.shape, x.dtype)
        if what == "all_reduce":
            comm.Allreduce(x, out, ops[how])
        elif what == "reduce_scatter":
            comm.Reduce_scatter_block(x, out, ops[how])
        elif what == "all_gather":
            comm.Allgather(x, out)
        elif what == "all_to_all":
            comm.Alltoall(x, out)
        else:
            out[...] = x
            comm.Bcast(out, mesh.size - 1)
        return out

    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, help="threads, each with a device of its own number on GPUs")
    options = parser.parse_args()
    if options.ranks:
        numbered = options.device != "cpu"
        mesh = Mesh({"r": options.ranks}, devices=[
            f"{options.device}:{i}" if numbered else "cpu" for i in range(options.ranks)
        ])  # fmt: skip
    else:
        mesh = Mesh({"r": -1})
    bad = 0
    for count, wrong in mesh.run(lambda: faults(mesh, device_of(mesh, options.device), options.device == "cpu")):
        bad += len(wrong)
        print("\n".join(wrong[:20] + [f"{count - len(wrong)} of {count} right on {options.device} of {mesh!r}"]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
