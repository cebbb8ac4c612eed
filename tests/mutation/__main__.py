"""`python -m tests.mutation [NAME…]`: plants every fault, each in a process of its own, and says which case noticed.

A fault that ends its process or runs for minutes is noticed too. Exit status 1 where more than one in twenty is not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlx.backends.cpu.machine import this_machine
from tests.mutation.cpu_faults import CPU_FAULTS
from tests.mutation.fault import CPU, ENGINE, NUMPY, Fault
from tests.mutation.faults import FAULTS
from tests.mutation.on_cpu import noticed_by

MISSED = 5  # the exit status of a process whose fault nobody noticed
LIMIT_SECONDS = 300


def places(fault: Fault) -> tuple[str, ...]:
    """The places where a fault's cases run: a fault in code that both CPU engines share is planted for each engine."""
    return (ENGINE, NUMPY) if fault.where == CPU else (fault.where,)


def has(feature: str) -> bool:
    """Whether this processor has a feature, which a fault needs; "" is none."""
    machine = this_machine()
    return not feature or (machine is not None and feature in machine.features)


def plant(fault: Fault, where: str = "") -> str:
    """Which case noticed a fault, and what is wrong, in one line; empty when none did. `where` is one of `places`.

    Raises: AssertionError where the fault could not be planted."""
    if where in (ENGINE, NUMPY):
        with tempfile.TemporaryDirectory(prefix="rlx-fault-") as folder:
            return noticed_by(fault, where, Path(folder))
    with tempfile.TemporaryDirectory(prefix="rlx-fault-") as folder:
        command = [sys.executable, "-m", "tests.mutation", "--one", fault.name, folder]
        root = Path(__file__).resolve().parent.parent.parent
        try:
            done = subprocess.run(
                command, cwd=root, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT_SECONDS} s"
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    assert done.returncode in (0, MISSED), f"{fault.name}: {done.stderr[-2000:]}"
    return done.stdout.strip() if done.returncode == 0 else ""


def _one(name: str, folder: Path) -> int:
    from tests.mutation.planting import first_notice

    (fault,) = [f for f in FAULTS if f.name == name]
    found = first_notice(fault, folder)
    if found is None:
        return MISSED
    print(f"{found[0]}: {found[1]}".replace("\n", " ")[:300])
    return 0


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--one"]:
        return _one(arguments[1], Path(arguments[2]))
    every = [f for f in (*FAULTS, *CPU_FAULTS) if not arguments or any(text in f.name for text in arguments)]
    every = [f for f in every if has(f.needs)]
    chosen = [(fault, where) for fault in every for where in places(fault)]
    if not chosen:
        print(
            f"no fault is named after {' or '.join(arguments)}; tests/mutation/*faults.py list them", file=sys.stderr
        )
        return 2
    noticed = Counter[str]()
    with ThreadPoolExecutor(2) as workers:
        for (fault, where), said in zip(chosen, workers.map(plant, *zip(*chosen, strict=True)), strict=True):
            noticed[where] += bool(said)
            why = said[:160] or fault.unseen or "no case noticed: add one"
            print(f"{'caught' if said else 'MISSED'}  {fault.name} [{where}]\n        {why}", flush=True)
    for where, count in Counter(where for _, where in chosen).items():
        print(f"{where}: {noticed[where]} of {count} planted faults caught")
    print(f"{noticed.total()} of {len(chosen)} planted faults caught")
    return 0 if noticed.total() * 20 >= len(chosen) * 19 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
