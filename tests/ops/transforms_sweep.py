"""`python -m tests.ops.transforms_sweep`: forward mode and vmap of every op, in float64.

Tangents: for every differentiable op, the dot product of jvp's tangents with weights against that of vjp's gradients
with the tangents, and the tangents against central differences, extrapolated. vmap: every op on examples that differ
in all inputs, in each input alone, and nested, against one example after the other; the table counts how each op is
batched. The exit status is 1 where an op fails.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import rlx
from rlx.autodiff import pullback, pushforward
from rlx.conformance.case import Case, cases_of
from rlx.conformance.oracle import evaluate
from rlx.dtypes import f64
from rlx.errors import DTypeError, RlxError, UnsupportedOp
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Graph, Tensor
from rlx.ops.batching import how
from rlx.packed import PackedArray
from tests.ops.by_family import GRADIENTS
from tests.ops.gradient_cases import GradientCase

Array = np.ndarray
SIZE = 3
# Ops whose gradient's op has none, neither of its own nor by parts: forward mode refuses them.
REFUSED: frozenset[str] = frozenset()


def tangents(case: GradientCase, seed: int) -> tuple[float, float]:
    """The relative errors of a gradient case: of the dot products, and of the tangents beside differences."""
    rng = np.random.default_rng(seed)
    arrays = case.arrays(rng)
    g = Graph()
    xs = [g.input(f"x{i}", a.shape, f64) for i, a in enumerate(arrays)]
    y = case.build(*xs)
    weights = rng.standard_normal(y.shape)
    along = [rng.standard_normal(a.shape) for a in arrays]
    (t,) = pushforward([y], [g.constant(d, f64) for d in along], xs)
    grads = pullback([y], [g.constant(weights, f64)], xs)
    values = evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})
    tangent = np.zeros(y.shape) if t is None else values[t.id]
    back = [np.zeros(a.shape) if d is None else values[d.id] for d, a in zip(grads, arrays, strict=True)]
    terms = [weights * tangent, *(d * b for d, b in zip(along, back, strict=True))]
    scale = float(sum(np.sum(np.abs(p)) for p in terms)) or 1.0
    dots = abs(float(np.sum(terms[0]) - sum(np.sum(p) for p in terms[1:]))) / scale

    plain = Graph()
    given = [plain.input(f"x{i}", a.shape, f64) for i, a in enumerate(arrays)]
    result = case.build(*given)

    def moved(step: float) -> Array:
        feeds = {f"x{i}": a + step * d for i, (a, d) in enumerate(zip(arrays, along, strict=True))}
        return np.asarray(evaluate(plain, feeds)[result.id])

    reach = max(1.0, *(float(np.max(np.abs(d), initial=0)) for d in along))
    differences = slope(moved, WIDEST * case.step / reach)
    power = float(np.sqrt(np.sum(differences**2))) or 1.0
    return dots, float(np.sqrt(np.sum((tangent - differences) ** 2))) / max(power, 1e-3)


WIDEST = 256.0  # times the step of a case: the first step of the extrapolation
HALVINGS, ORDERS = 14, 6


def slope(function: Callable[[float], Array], step: float) -> Array:
    """The derivative of a function at 0: central differences of steps that are halved, extrapolated to a step of 0.

    Each element takes the extrapolation that differs least from the two that it was made of, the rounding of its step
    added: near a kink a small step is right, and elsewhere a large one. Follows Ridders, 1982."""
    rows: list[list[Array]] = []
    best: Array = np.zeros(())
    error: Array = np.full((), np.inf)
    with np.errstate(all="ignore"):
        for k in range(HALVINGS):
            h = step / 2**k
            after, before = function(h), function(-h)
            rows.append([(after - before) / (2 * h)])
            rounding = np.maximum(np.abs(after), np.abs(before)) * (2.0**-52 / h)
            if k == 0:
                best, error = rows[0][0], np.full(rows[0][0].shape, np.inf)
            for order in range(1, min(k, ORDERS) + 1):
                finer, coarser = rows[k][order - 1], rows[k - 1][order - 1]
                rows[k].append(finer + (finer - coarser) / (4.0**order - 1))
                apart = np.maximum(np.abs(rows[k][-1] - finer), np.abs(rows[k][-1] - coarser)) + rounding
                better = apart < error
                best, error = np.where(better, rows[k][-1], best), np.where(better, apart, error)
    return best


def small_cases(op: str, count: int) -> list[Case]:
    """At most `count` cases of an op without a control op's bodies, small ones of different signatures."""
    known: dict[Any, Case] = {}
    for case in sorted(cases_of(op), key=_size):
        key = (tuple(len(s.shape) for s in case.inputs), tuple(s.dtype.name for s in case.inputs))
        if case.inputs and all(0 not in s.shape for s in case.inputs):
            known.setdefault(key, case)
    chosen = list(known.values())
    wide = (
        [c for c in chosen if c.has_f64]
        or [c for c in chosen if not any(s.dtype.is_half for s in c.inputs)]
        or chosen
    )
    step = max(1, len(wide) // count)
    return wide[::step][:count]


def _size(case: Case) -> int:
    return sum(int(np.prod(s.shape)) for s in case.inputs)


def patterns(case: Case) -> Iterator[list[bool]]:
    """Which inputs differ among examples: all, then each alone; packed weights never do."""
    free = [not s.dtype.is_packed for s in case.inputs]
    if any(free):
        yield free
    for i, f in enumerate(free):
        if f and sum(free) > 1:
            yield [j == i for j in range(len(free))]


def vmapped(case: Case, flags: Sequence[bool], nested: bool = False) -> float:
    """The largest error of vmap beside one example after the other, relative to the largest result; inf for integers
    that differ."""
    graph = case.graph()
    (node,) = (n for n in graph.nodes if not n.op.leaf)
    depth = 2 if nested else 1
    shape = (2, SIZE)[2 - depth :]
    examples = list(np.ndindex(*shape))
    made = []
    for n in range(len(examples)):
        inputs = [replace(s, seed=s.seed + 31 * n) if f else s for s, f in zip(case.inputs, flags, strict=True)]
        made.append(replace(case, inputs=tuple(inputs)).arrays())
    g = Graph("vmap")
    xs, feeds = [], {}
    for i, (s, flag) in enumerate(zip(case.inputs, flags, strict=True)):
        value = np.stack([m[i] for m in made]).reshape(*shape, *made[0][i].shape) if flag else made[0][i]
        xs.append(g.input(f"x{i}", (*shape, *s.shape) if flag else s.shape, s.dtype))
        feeds[f"x{i}"] = PackedArray(s.dtype, s.shape, value) if s.dtype.is_packed else value

    def one(*given: Tensor) -> list[Tensor]:
        return list(rlx.ir.graph.traced_into(g).add(node.op, given, node.attrs))

    function: Any = one
    for _ in range(depth):
        function = rlx.vmap(function, in_axes=tuple(0 if f else None for f in flags))
    outs = function(*xs)
    values = evaluate(g, feeds)
    worst = 0.0
    for n, at in enumerate(examples):
        alone = {
            f"x{i}": PackedArray(s.dtype, s.shape, m) if s.dtype.is_packed else m
            for i, (m, s) in enumerate(zip(made[n], case.inputs, strict=True))
        }
        wanted = evaluate(graph, alone)
        for t, own in zip(outs, node.outputs, strict=True):
            got, want = values[t.id][at], wanted[own.id]
            assert got.shape == want.shape and t.dtype == own.dtype
            if not own.dtype.is_float:
                worst = max(worst, 0.0 if np.array_equal(got, want) else np.inf)
                continue
            if not np.array_equal(np.isfinite(got), np.isfinite(want)):
                return float(np.inf)
            finite = np.isfinite(want)
            scale = float(np.max(np.abs(want[finite]), initial=0)) or 1.0
            worst = max(worst, float(np.max(np.abs(got[finite] - want[finite]), initial=0)) / scale)
    return worst


def bound(case: Case) -> float:
    """The largest error: constants of a graph are rounded to its dtype, and the parts of an op to halves."""
    if any(s.dtype.is_half for s in case.inputs):
        return 1.6e-2
    return 1e-11 if case.has_f64 else 1e-6


def batched_ops() -> list[str]:
    """The ops that vmap meets: all but leaves."""
    return sorted(name for name, op in REGISTRY.items() if not op.leaf)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ops.transforms_sweep", description=__doc__)
    parser.add_argument("--op", help="this op alone")
    parser.add_argument("--cases", type=int, default=3, help="vmap: cases of each op (default 3)")
    given = parser.parse_args(arguments)
    failed = 0
    worst = [0.0, 0.0]
    names = (
        [given.op]
        if given.op
        else sorted(n for n, op in REGISTRY.items() if op.vjp is not NOT_DIFFERENTIABLE)
    )
    count = 0
    for op in names:
        for number, case in enumerate(GRADIENTS.get(op, ())):
            try:
                dots, differences = tangents(case, number)
            except UnsupportedOp as error:
                if op not in REFUSED:
                    failed += 1
                    print(f"{op} {number}: {error}")
                continue
            except RlxError as error:
                failed += 1
                print(f"{op} {number}: {type(error).__name__}: {error}")
                continue
            count += 1
            worst = [max(worst[0], dots), max(worst[1], differences)]
            if dots > 1e-13 or differences > 1e-11:
                failed += 1
                print(f"{op} {number}: dot products {dots:.1e}, differences {differences:.1e}")
    print(
        f"tangents: {len(names)} ops, {count} cases; worst: dot products {worst[0]:.1e}, differences {worst[1]:.1e}"
    )
    ways: Counter[str] = Counter()
    runs, far, refused = 0, 0.0, 0
    for op in [given.op] if given.op else batched_ops():
        cases = small_cases(op, given.cases)
        if not cases:
            failed += 1
            print(f"{op}: no case")
            continue
        ways[how(REGISTRY[op])] += 1
        for case in cases:
            for flags in patterns(case):
                for nested in (
                    (False, True)
                    if all(f or s.dtype.is_packed for f, s in zip(flags, case.inputs, strict=True))
                    else (False,)
                ):
                    try:
                        error = vmapped(case, flags, nested)
                    except DTypeError as refusal:
                        if not str(refusal).startswith("vmap: "):
                            raise
                        refused += 1
                        print(f"vmap {case.id} {flags}: refused")
                        continue
                    except RlxError as failure:
                        failed += 1
                        print(
                            f"vmap {case.id} {flags} {'nested' * nested}: {type(failure).__name__}: {failure}"
                        )
                        continue
                    runs, far = runs + 1, max(far, error)
                    if error > bound(case):
                        failed += 1
                        print(f"vmap {case.id} {flags} {'nested' * nested}: {error:.1e}")
    said = ", ".join(f"{n} {way}" for way, n in ways.most_common())
    print(f"vmap: {runs} runs, worst {far:.1e}; {refused} refused; ops by {said}; {failed} failures in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
