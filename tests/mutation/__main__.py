"""`python -m tests.mutation [NAME…]`: plants every fault, each in a process of its own, and says which case noticed.

A fault that ends its process or runs for minutes is noticed too. Exit status 1 where more than one in twenty is not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.faults import FAULTS, Fault

MISSED = 5  # the exit status of a process whose fault nobody noticed
LIMIT_SECONDS = 300


def plant(fault: Fault) -> str:
    """Which case noticed a fault, and what is wrong, in one line; empty when none did.

    Raises: AssertionError where the fault could not be planted."""
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
    chosen = [f for f in FAULTS if not arguments or any(text in f.name for text in arguments)]
    if not chosen:
        print(f"no fault is named after {' or '.join(arguments)}; tests/mutation/faults.py lists them", file=sys.stderr)
        return 2
    noticed = 0
    with ThreadPoolExecutor(2) as workers:
        for fault, said in zip(chosen, workers.map(plant, chosen), strict=True):
            noticed += bool(said)
            why = said[:160] or fault.unseen or "no case noticed: add one"
            print(f"{'caught' if said else 'MISSED'}  {fault.name}\n        {why}", flush=True)
    print(f"{noticed} of {len(chosen)} planted faults caught")
    return 0 if noticed * 20 >= len(chosen) * 19 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
