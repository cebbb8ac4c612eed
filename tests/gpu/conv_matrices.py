"""Runs every conformance case of a convolution in f16 and in bf16 by each candidate of matrix instructions.

    python -m tests.gpu.conv_matrices [--device host cuda vulkan] [--tile s t m] [--stages 1 4] [--part I N]
        [--warpgroups] [--of halves f32 tf32]

host: the CUDA text on the CPU. --warpgroups: by their instructions, in tiles t, m, l. --of: the cases of f32 in halves,
or as they are at that precision, in tiles s and t (t and m by warpgroups); of tf32 on CUDA in all tiles. Prints the
worst error of each candidate and dtype, and every case that fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from rlx.backends.gpu.rules.conv.choice import forcing
from rlx.conformance.case import Case, cases_of
from rlx.conformance.runner import run_case
from rlx.driver import Limits
from rlx.dtypes import bf16, f16
from rlx.runtime import Session
from tests.gpu import lowered

OPS = ("conv", "conv_transpose", "conv_grad_input", "conv_grad_weight")
LIMITS = Limits(shared_bytes=48 << 10, dynamic_shared_bytes=227 << 10)
FEATURES = lowered.FEATURES | {"coopmat", "bf16_coopmat", "wgmma"}


# Of operands in two parts of bf16, which hold 16 of their 24 bits; and of those rounded to 11 bits.
_PARTS, _ROUNDED = {"nmse": 3e-10, "max_error": 5e-5}, {"nmse": 3e-7, "max_error": 1e-3}


def cases(of: str = "halves", device: str = "cuda") -> Iterator[Case]:
    """Every case of f32 with its operands in halves instead, and those of halves; or every case of f32 at a
    precision. Through Vulkan, and for gradients to weights, "tf32" is two parts of bf16."""
    for op in OPS:
        for case in cases_of(op):
            kinds = {s.dtype.name for s in case.inputs[:2]}
            if kinds == {"f32"} and of == "halves":
                for dtype in (f16, bf16):
                    inputs = tuple(replace(s, dtype=dtype) for s in case.inputs)
                    yield replace(case, name=f"{case.name} in {dtype}", inputs=inputs)
            elif kinds == {"f32"}:
                kept = _PARTS if op == "conv_grad_weight" or device == "vulkan" else _ROUNDED
                yield case if of == "f32" else replace(case, tolerance=replace(case.tolerance, **kept))
            elif of == "halves" and kinds in ({"f16"}, {"bf16"}):
                yield case


def outcome(
    case: Case, device: str, session: Session | None, wishes: dict[str, Any], precision: str = "f32"
) -> tuple[bool, float, str]:
    """(whether it passes, the greatest error in last places, what is wrong) of a case by the candidate wished for."""
    with forcing(algorithm="matrices", **wishes):
        if session is not None:
            done = run_case(session, case)
            return done.status == "pass", done.max_ulp, done.message
        with mock.patch.object(lowered, "FEATURES", FEATURES):
            got = lowered.run(
                case.op, *case.arrays(), limits=LIMITS, backend="cuda", precision=precision, **case.attrs
            )
        verdict = case.check({"y0": got})
        return verdict.ok, verdict.max_ulp, verdict.message


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", nargs="+", default=["host"])
    parser.add_argument("--tile", nargs="+", default=["s", "t", "m"])
    parser.add_argument("--stages", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--split", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--part", nargs=2, type=int, default=[0, 1])
    parser.add_argument("--warpgroups", action="store_true")
    parser.add_argument("--of", default="halves", choices=("halves", "f32", "tf32"))
    args = parser.parse_args()
    precision = "tf32" if args.of == "tf32" else "f32"
    failed = 0
    for device in args.device:
        chosen = list(cases(args.of, device))[args.part[0] :: args.part[1]]
        session = None if device == "host" else Session(device, precision=precision)
        for tile in args.tile:
            for stages in [None] if args.warpgroups else args.stages if device != "vulkan" else [1]:
                for split in args.split:
                    wishes = {"tile": tile, "stages": stages, "split_k": split, "warpgroups": args.warpgroups}
                    worst: dict[str, float] = {}
                    for case in chosen:
                        ok, places, message = outcome(case, device, session, wishes, precision)
                        name = case.inputs[0].dtype.name
                        worst[name] = max(worst.get(name, 0.0), places)
                        failed += not ok
                        if not ok:
                            print(f"FAIL {device} {wishes} {case.op} {case.id}: {message}"[:300], flush=True)
                    text = ", ".join(f"{k} {v:.3f}" for k, v in worst.items())
                    print(f"{device} {wishes}: {len(chosen)} cases, worst error in last places {text}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
