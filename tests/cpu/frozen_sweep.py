"""Compares programs that are loaded ready from the disk's cache with the same programs made from their files.

    python -m tests.cpu.frozen_sweep [OP …] [--cases 2] [--start 0]

Conformance cases of each op, with the inputs as they are and with all but the first as weights or as constants, are
saved and loaded, so that they are kept. Another process loads the files again and runs each twice: the bits must be
those that the first process computed. Printed is how many programs the cache had ready, how many it declined, and which
gave other bits.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import rlx
from rlx.backends.cpu import frozen
from rlx.errors import RlxError
from rlx.ir import Node, Tensor
from rlx.ir.rewrite import Rewriter, rebuild
from rlx.runtime.saved import ready
from tests.runtime.saved_programs import Saved, of_op, ops


def with_weights(saved: Saved, constant: bool = False) -> Saved | None:
    """The program with all inputs but the first as weights, or as constants; None where there are no others."""
    names = list(saved.graph.inputs)[1:]

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not node.op.declared or node.attrs["name"] not in names:
            return None
        name, t = node.attrs["name"], node.output
        return (new.graph.constant(saved.inputs[name]) if constant else new.graph.param(name, t.shape, t.dtype),)

    if not names:
        return None
    return Saved(rebuild(saved.graph, rewrite), {} if constant else {n: saved.inputs[n] for n in names},
                 {n: x for n, x in saved.inputs.items() if n not in names})  # fmt: skip


def is_ready(program: Any) -> bool:
    return type(program) is ready.ReadyProgram and program._ready is not None


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two results have the same names, types and bits."""
    return list(a) == list(b) and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes() for n in a
    )


def keep(saved: Saved, path: Path) -> dict[str, Any]:
    """Saves a program and loads it, so that the cache keeps it. Returns its results."""
    session = rlx.Session("cpu", engine="compiled", threads=2)
    with saved.compiled(session) as exe:
        exe.save(path)
        wanted: dict[str, Any] = exe.run(saved.inputs)
    rlx.load_program(path, session).close()
    return wanted


def compare(folder: Path) -> None:
    """What the other process does: prints a line for each program."""
    session = rlx.Session("cpu", engine="compiled", threads=2)
    for path in sorted(folder.glob("*.pickle")):
        inputs, wanted = pickle.loads(path.read_bytes())
        with rlx.load_program(path.with_suffix(".rlx"), session) as program:
            if not is_ready(program):
                print(path.stem, "declined", flush=True)
                continue
            print(path.stem, "runs", flush=True)  # if the run crashes, this line names the program
            good = all(same(program.run(inputs), wanted) for _ in range(2)) and is_ready(program)
            print(path.stem, "ready" if good else "WRONG", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--compare", type=Path)
    args = parser.parse_args()
    if args.compare is not None:
        compare(args.compare)
        return
    refused, reasons = 0, Counter[str]()
    freeze = frozen.freeze

    def noted(*given: Any) -> bytes | str:
        data = freeze(*given)
        if isinstance(data, str):
            reasons[data] += 1
        return data

    frozen.freeze = noted
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for op in args.ops or ops():
            for number in range(args.start, args.start + args.cases):
                plain = of_op(op, number)
                kinds = {"inputs": plain, "weights": with_weights(plain), "constants": with_weights(plain, True)}
                for what, saved in kinds.items():
                    path = folder / f"{op}-{number}-{what}.rlx"
                    try:
                        wanted = None if saved is None else keep(saved, path)
                    except RlxError as error:
                        refused += 1
                        print(f"{path.stem}: {error}", file=sys.stderr)
                        continue
                    if saved is not None:
                        path.with_suffix(".pickle").write_bytes(pickle.dumps((saved.inputs, wanted)))
        child = subprocess.run([sys.executable, "-m", "tests.cpu.frozen_sweep", "--compare", name],
                               stdout=subprocess.PIPE, text=True, env=dict(os.environ), check=False)  # fmt: skip
    words = [line.split() for line in child.stdout.splitlines()]
    ends = dict(words)
    counts = {state: sum(s == state for s in ends.values()) for state in ("ready", "declined", "WRONG", "runs")}
    print(f"{len(ends)} programs: {counts['ready']} ready, {counts['declined']} declined, {counts['WRONG']} wrong, "
          f"{refused} that no file holds; the process ended with {child.returncode}")  # fmt: skip
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    for state in ("WRONG", "runs", "declined"):
        print(f"{state}: {' '.join(n for n, s in ends.items() if s == state)}")


if __name__ == "__main__":
    main()
