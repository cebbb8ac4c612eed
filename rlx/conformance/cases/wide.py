"""Cases in f64: of every op that takes it, a few of its f32 cases with f64 in the place of f32.

The tolerance is that of the f32 case, the last place of f64 standing for that of f32. The oracle computes in f64 too,
so its own rounding is part of what is allowed.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.tolerances import BITS, EQUAL, Tolerance
from rlx.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from rlx.errors import RlxError

_MOST = 10  # cases of an op
_LEAST = 12  # elements, below which one is not told from another
_LARGEST = 1 << 18
_FINER = 2e-9  # the last place of f64 beside that of f32: 2^-29, rounded up
_TINIER = 2.0 ** (126 - 1022)  # the smallest normal f64 beside the smallest f32
_CONTROL = frozenset({"cond", "while_loop", "scan"})  # their bodies are graphs of f32


def finer(tolerance: Tolerance) -> Tolerance:
    """What a tolerance of f32 is in f64. A floor is either of rounding or of what overflows or is nearly subnormal."""
    floor = tolerance.floor * (_FINER if tolerance.floor > 1e-30 else _TINIER)
    return replace(
        tolerance, floor=floor, nmse=tolerance.nmse * _FINER**2, max_error=tolerance.max_error * _FINER
    )


def _size(case: Case) -> int:
    return sum(math.prod(s.shape) for s in case.inputs)


def _shows(case: Case) -> tuple[object, ...]:
    """What a case is the example of: its domains, ranks and the words and flags among its attributes."""
    words = tuple((k, v) for k, v in case.attrs.items() if v is None or isinstance(v, bool | str))
    return (tuple(s.domain for s in case.inputs), words)


def _picked(cases: Iterable[Case]) -> list[Case]:
    """The smallest case of each kind that is not tiny, some of the kinds where there are many."""
    found: dict[tuple[object, ...], Case] = {}
    for case in sorted(cases, key=lambda c: (_size(c) < _LEAST, _size(c), c.id)):
        if _size(case) <= _LARGEST:
            found.setdefault(_shows(case), case)
    kinds = list(found.values())
    step = max(1.0, len(kinds) / _MOST)
    return [kinds[int(i * step)] for i in range(min(len(kinds), _MOST))]


def _doubled(case: Case) -> Case | None:
    """The case in f64; None where the op does not take it."""
    inputs = tuple(replace(s, dtype=f64) if s.dtype == f32 else s for s in case.inputs)
    name = case.name.replace("f32", "f64") if "f32" in case.name else f"f64-{case.name}"
    attrs = {k: f64 if v == f32 else v for k, v in case.attrs.items()}
    made = Case(case.op, name, inputs, attrs, finer(case.tolerance), case.reason)
    try:
        made.graph()
    except RlxError:
        return None
    return made


def _casts() -> Iterator[Case]:
    """To f64 and from it; f16 and bf16 come from values just beside the ties of their rounding too."""
    kinds: Sequence[DType] = (f32, f16, bf16, i32, i64, i8, u8, bool_)
    for kind in kinds:
        exact = BITS if kind.is_float else EQUAL
        for domain in ("special", "normal", "any"):
            spec = InputSpec((5, 67), kind, domain)
            yield Case("cast", f"{kind}-5x67-{domain}-to-f64", (spec,), {"dtype": f64}, exact)
            narrowed = InputSpec((5, 67), f64, domain)
            yield Case("cast", f"f64-5x67-{domain}-to-{kind}", (narrowed,), {"dtype": kind}, exact)


def _orders() -> Iterator[Case]:
    """Numbers that only their last bits tell apart, which lie in the lower of two words."""
    for op, attrs in (
        ("sort", {"axis": 1, "descending": True}),
        ("argsort", {"axis": 1, "descending": False}),
        ("top_k", {"axis": 1, "k": 7, "largest": True}),
        ("argmin", {"axis": 1, "keepdims": False, "select_last_index": True}),
    ):
        yield Case(op, "f64-9x700-last_bits", (InputSpec((9, 700), f64, "last_bits"),), attrs, BITS)


def cases() -> Iterator[Case]:
    of: dict[str, list[Case]] = {}
    taken: set[str] = set()
    for family in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if family.name != "wide":
            module = importlib.import_module(f"rlx.conformance.cases.{family.name}")
            for case in module.cases() if hasattr(module, "cases") else ():
                taken.add(case.id)
                kinds = {s.dtype for s in case.inputs}
                if f32 in kinds and not kinds & {f16, bf16} and case.op not in _CONTROL | {"cast"}:
                    of.setdefault(case.op, []).append(case)
    for listed in of.values():
        made = (_doubled(case) for case in _picked(listed))
        yield from (case for case in made if case is not None and case.id not in taken)
    yield from (case for case in (*_casts(), *_orders()) if case.id not in taken)
