"""Plants a fault of the CPU in a copy of the sources and asks a process that works in the copy whether it is noticed.

Compiled kernels are kept in a cache that all faults share. Its keys contain the sources and the text of each kernel, so
that only kernels with a fault are compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlx.conformance.guarded import guarded_faults
from rlx.driver.registry import open_device
from tests.mutation.fault import ROOTS, Fault, cases_for

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINES = ("compiled", "numpy")
_NOT_COPIED = shutil.ignore_patterns("*.spv", ".hypothesis")
LIMIT_SECONDS = 300


def copied(folder: Path) -> None:
    """Copies what runs on the CPU, and the tests."""
    for name in ("rlx", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=_NOT_COPIED)
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")


def planted_in(fault: Fault, root: Path, copy: Path) -> None:
    """Writes the files of `root` that hold the fault's text into `copy`, with the fault.

    Raises: AssertionError where no file holds it any more, SyntaxError where Python cannot read one with it."""
    found = [p for below in ROOTS[fault.where] for p in (root / below).glob(fault.file)]
    texts = {p: p.read_text(encoding="utf-8") for p in found}
    changed = {p: text for p, text in texts.items() if fault.old in text}
    assert changed, f"{fault.name}: {fault.file} no longer holds {fault.old!r}"
    for path, text in changed.items():
        planted = text.replace(fault.old, fault.new)
        if path.suffix == ".py":
            compile(planted, path, "exec")  # a module that cannot be read would be noticed by anything
        target = copy / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(planted, encoding="utf-8")


def noticed_by(fault: Fault, engine: str, folder: Path) -> str:
    """Which case or test notices a fault when programs run on this engine, and what is wrong; empty when none does.

    Raises: AssertionError where the fault could not be planted."""
    copied(folder)
    planted_in(fault, ROOT, folder)
    return asked(fault, engine, folder)


def asked(fault: Fault, engine: str, folder: Path) -> str:
    """The same in a copy that is there."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(folder), *(p for p in others if p and Path(p).resolve() != ROOT)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "RLX_CPU": engine, "PYTHONDONTWRITEBYTECODE": "1"}
    env["RLX_CACHE_DIR"] = str(ROOT / ".cache" / "mutation")
    if fault.ops:
        said = _said([sys.executable, "-m", "tests.mutation.on_cpu", fault.name], env, folder, 5)
        if said:
            return said
    if fault.tests:
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-x", "--no-header", "-p", "no:cacheprovider"]
        # A test that is named by its file is chosen by `-k` there, late or not: see tests/full.py.
        return _said([*command, *fault.tests], {**env, "RLX_TEST_FULL": "1"}, folder, 0)
    return ""


def _said(command: list[str], env: dict[str, str], folder: Path, missed: int) -> str:
    """How a process noticed the fault, or how it ended, in a line; empty if its exit status is `missed`."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_SECONDS} s"
    if done.returncode == missed:
        return ""
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("case ", "FAILED ", "ERROR "))]
    ended = done.returncode in (0, 1) and lines
    assert ended, f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return lines[0]


def main(name: str) -> int:
    """Runs the cases of a fault in this process, whose sources have it: prints the first that fails."""
    from tests.mutation.cpu_faults import CPU_FAULTS

    (fault,) = [f for f in CPU_FAULTS if f.name == name]
    device = open_device("cpu")
    for case in cases_for(fault):
        try:
            wrong = guarded_faults(device, case)
        except Exception as error:  # noqa: BLE001 - what a fault raises is noticed
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            print(f"case {case.id}: {wrong}".replace("\n", " ")[:300])
            return 0
    return 5


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
