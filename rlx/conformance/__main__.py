"""`python -m rlx.conformance`: every case on every device; a run that was interrupted is resumed.

Each case runs twice: normally, and between guard bytes.

Outcomes are appended to one file per device under `.conformance/`, named after a digest of rlx's own sources, of the
device's driver, and of the processor's features that the CPU's kernels use (`RLX_CPU_FEATURES`): a stopped run
continues after its last case, and a change of any of these starts a new file.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import rlx
from rlx.backends.cpu.choice import usable
from rlx.backends.cpu.machine import Machine, this_machine
from rlx.conformance.case import Case, all_cases
from rlx.conformance.runner import Outcome, Summary, pick, run_cases
from rlx.driver import DeviceInfo
from rlx.driver.registry import hardware
from rlx.errors import RlxError
from rlx.runtime import Session

PART_SECONDS = 540  # one run of the command ends after this time; the next run continues

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases that have no outcome yet.

    Exit status 0: all passed; 1: some failed; 2: could not run; 3: not finished, run the command again;
    130: interrupted, the same.
    """
    parser = argparse.ArgumentParser(prog="python -m rlx.conformance", description=__doc__)
    parser.add_argument("--device", default="all", help='"all" (no software drivers), or a device name')
    parser.add_argument(
        "--seconds", type=_seconds, default=0, help=f"stop after this long (a part: {PART_SECONDS}); 0: no limit"
    )
    parser.add_argument("--op", action="append", help="only this op's cases; may be repeated")
    parser.add_argument("--folder", type=Path, default=Path(".conformance"), help="where outcomes are kept")
    args = parser.parse_args(arguments)
    end = time.monotonic() + (args.seconds or float("inf"))
    try:
        cases = pick(all_cases(), args.op)
        names, left_out = hardware() if args.device == "all" else ([args.device], [])
        for line in left_out:
            print(f"conformance: {line}", file=sys.stderr)
        status = 0
        for name in names:
            if status != INTERRUPTED:
                status = max(status, _run_device(name, cases, args.folder, end))
        return status
    except RlxError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a length of time in seconds; 0 sets no limit")
    return seconds


def _run_device(name: str, cases: list[Case], folder: Path, end: float) -> int:
    session = Session(name)
    info = session.info
    compiled = this_machine() if info.kind == "cpu" and usable(session.options.engine) else None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{info.id.replace(':', '-')}-{digest(info, compiled)}.jsonl"
    outcomes, interrupted = _run(session, cases, file, end)
    done = len(outcomes) == len(cases)
    rest = "" if done else f" of {len(cases)}: run again"
    print(f"{info.id} ({info.name}{', compiled kernels' if compiled else ''}): {Summary.of(outcomes)}{rest}")
    for outcome in [o for o in outcomes if o.status != "pass"][:40]:
        print(f"  {outcome.status} {outcome.case}: {outcome.message}")
    messages: list[str] = getattr(session.device, "messages", [])  # what the validation layers of Vulkan said
    for message in messages[:10]:
        print(f"  validation: {message}")
    if interrupted:
        return INTERRUPTED
    if not done:
        return 3
    return 1 if messages or any(o.status == "fail" for o in outcomes) else 0


def _run(session: Session, cases: list[Case], file: Path, end: float) -> tuple[list[Outcome], bool]:
    """The outcomes, including those of earlier runs, and whether Ctrl-C ended the run."""
    outcomes = {o.case: o for o in _read(file)}
    left = [c for c in cases if c.id not in outcomes]
    if len(left) < len(cases):
        print(f"{session.info.id}: {len(cases) - len(left)} of {len(cases)} cases are done already ({file})")
    started = shown = time.monotonic()
    interrupted = False
    with file.open("a", encoding="utf-8") as log, suppress(KeyboardInterrupt):
        interrupted = True
        for i, outcome in enumerate(run_cases(session, left, guarded=True), 1):
            outcomes[outcome.case] = outcome
            log.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            now = time.monotonic()
            if now - shown > 10:
                log.flush()
                rate = i / (now - started)
                print(f"{session.info.id}: {i}/{len(left)}, {rate:.0f} a second", file=sys.stderr)
                shown = now
            if now > end:
                break
        interrupted = False
    return [outcomes[c.id] for c in cases if c.id in outcomes], interrupted


def _read(file: Path) -> list[Outcome]:
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    if text and not text.endswith(
        "\n"
    ):  # a run was killed while writing its last line: end that line first
        with file.open("a", encoding="utf-8") as log:
            log.write("\n")
    result = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            result.append(Outcome(**{**entry, "how": tuple(entry["how"])}))
        except (ValueError, TypeError, KeyError):
            continue  # the incomplete line of a killed run
    return result


def digest(info: DeviceInfo, compiled: Machine | None = None) -> str:
    """A digest of every source and kernel of the installed package, and of the device with its driver, or the CPU's
    kernels, `compiled` for these features of the processor."""
    root = Path(rlx.__file__).parent
    kernels = "" if compiled is None else f"{compiled.arch} {' '.join(sorted(compiled.features))}"
    total = hashlib.sha256(f"{info.name}\0{info.driver}\0{kernels}\0".encode())
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".cu", ".h", ".spv", ".inc"}):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
