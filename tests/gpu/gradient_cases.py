"""The conformance cases of attention's gradient in f16 and bf16 by matrix instructions, with sizes that are forced:

    python -m tests.gpu.gradient_cases [--device cuda] [--scores shared] [--sizes 1 64 1 64] [--part 0 4]

"host" runs the CUDA sources on the CPU. Every case is taken in both dtypes, whatever its own; those that another kernel
computes are left out. Prints the cases that fail, and how many ran.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import rlx
from rlx.backends.gpu.attention.choice import SCORES, forcing
from rlx.backends.gpu.program.steps import Launch
from rlx.conformance.case import Case, cases_of
from rlx.conformance.tolerances import Tolerance
from rlx.dtypes import bf16, f16
from rlx.ir.graph import Graph
from tests.gpu import lowered
from tests.gpu.lowered import carried_out, lower

# P and dS are rounded to the dtype before they are multiplied: by half an ULP of each term, which may come on top of
# the one ULP that results of 16 bits have anyway.
LIMITS = {bf16: Tolerance("norm", nmse=1e-6, max_error=2e-3), f16: Tolerance("norm", nmse=1.6e-8, max_error=2.5e-4)}
SIZES = ("deep", "keys", "deep_keys", "queries")


def cases() -> Iterator[Case]:
    """Every case with keys and queries, in both dtypes."""
    for case in cases_of("attention_grad"):
        if case.has_f64 or any(0 in spec.shape for spec in case.inputs):
            continue
        for dtype, limit in LIMITS.items():
            operands = [replace(spec, dtype=dtype) for spec in case.inputs[:4]]
            name = f"{case.name}-as-{dtype}"
            yield replace(case, name=name, inputs=(*operands, *case.inputs[4:]), tolerance=limit)


def form(case: Case) -> str:
    """A key that is equal for cases run by the same kernels, its dtype first; cases are sorted by it into parts."""
    attrs = [(name, value) for name, value in sorted(case.attrs.items()) if name != "scale"]
    masks = [spec.dtype.name for spec in case.inputs[4:]]
    return repr((case.inputs[0].dtype.name, case.inputs[0].shape[3], masks, attrs))


def on_host(case: Case, limits: Any) -> dict[str, Any] | None:
    """The outputs by the CUDA sources on the CPU; None where another kernel computes the case."""
    arrays = case.arrays()
    graph, planned, steps = lower(case.op, arrays, dict(case.attrs), "cuda", limits)
    kernels = [step.kernel for step in steps.steps if isinstance(step, Launch)]
    if "attention_dkv_mma" not in [getattr(kernel, "stem", "") for kernel in kernels]:
        return None
    return carried_out(graph, planned, steps, arrays, "cuda")


def on_device(case: Case, session: rlx.Session) -> dict[str, Any] | None:
    """The outputs on a device; None where another kernel computes the case."""
    graph: Graph = case.graph()
    with session.compile(graph, optimize=False) as exe:
        names = " ".join(name for entry in exe.report() for name in entry.steps)
        return dict(exe.run(case.feeds())) if "attention_dkv_mma" in names else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host")
    parser.add_argument("--sizes", type=int, nargs=4, default=(1, 64, 1, 64), metavar=tuple(s.upper() for s in SIZES))
    parser.add_argument("--scores", choices=SCORES, help="where scores are kept; as chosen otherwise")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="part I of N parts of the cases")
    args = parser.parse_args()
    session = None if args.device == "host" else rlx.Session(args.device)
    if session is None:
        from tests.gpu.test_attention_matrix import DEVICE, WORDS

        lowered.FEATURES = lowered.FEATURES | WORDS
    ran, failed, sizes = 0, 0, dict(zip(SIZES, args.sizes, strict=True))
    every = sorted(cases(), key=form)
    part, parts = args.part
    for case in every[len(every) * part // parts : len(every) * (part + 1) // parts]:
        with forcing(algorithm="matrix", scores=args.scores, **sizes), np.errstate(all="ignore"):
            got = on_host(case, DEVICE) if session is None else on_device(case, session)
            verdict = None if got is None else case.check(got)
        ran += verdict is not None
        if verdict is not None and not verdict.ok:
            failed += 1
            print(f"{case.name}: {verdict.message}", flush=True)
    print(f"{args.device} {args.sizes}: {ran} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
