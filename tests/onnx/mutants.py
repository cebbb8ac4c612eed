"""`python -m tests.onnx.mutants --count 10000`: damaged ONNX files, loaded, compiled and run on the CPU.

Each file must run, or be refused with ModelFormatError or UnsupportedOp (one that is sound and asks for more memory
than there is: OutOfDeviceMemory; for steps without end: StepLimitExceeded), within 2 s of processor time and 64 MiB
more memory. Files are worked on in processes of their own, a few hundred in each; one that ends its process, or keeps
it for too long, is named with its seed, and the rest goes on. Outcomes are kept in a file: a run that was stopped, or
that `--seconds` ended, goes on where it was. `--seed N` runs one file here and shows what it raises. With `--bombs` the
files are those of tests/onnx/bombs.py, which ask for much; what their budget allows them is not more memory.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.errors import ModelFormatError, OutOfDeviceMemory, RlxError, StepLimitExceeded, UnsupportedOp
from rlx.onnx import TensorInfo
from rlx.onnx.reader.budget import MAX_BYTES
from rlx.onnx.reader.build import UNCHECKED
from rlx.onnx.reader.wire import TIMES_FILE
from tests.onnx.bombs import bomb
from tests.onnx.mutant_bases import library
from tests.onnx.mutations import Mutant, lay, mutant
from tests.onnx.outcomes import kept, lines

SECONDS = 2.0  # of processor time, for one file
MEBIBYTES = 64
PATIENCE = 60.0  # of the clock, on a machine that does other work too
ALLOWED = {"ran", "loaded", "ModelFormatError", "OutOfDeviceMemory", "StepLimitExceeded", "UnsupportedOp"}
PER_PROCESS = 250
SOURCES: dict[str, Callable[[int], Mutant]] = {"mutants": mutant, "bombs": bomb}
LARGEST_INPUT = 1 << 20  # elements; who feeds more made them before


@contextmanager
def peak_of_process() -> Iterator[list[int]]:
    """By how many bytes at most the process grew in the block, as a list's one entry once it has ended."""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    grown: list[int] = []
    yield grown
    grown.append(max(0, _memory("VmHWM") - before))


def attempt(seed: int, folder: Path, source: str = "mutants") -> dict[str, Any]:
    """Loads and runs one mutant: what came of it, in how many seconds and with how many bytes more."""
    made = SOURCES[source](seed)
    path = folder / "mutant.onnx"
    path.write_bytes(made.content)
    with peak_of_process() as grown:
        start = time.process_time()
        outcome, text = _outcome(path, made.budget)
        seconds = time.process_time() - start
    return {
        "seed": seed, "kind": made.kind, "base": made.base, "outcome": outcome, "text": text,
        "seconds": round(seconds, 3), "bytes": grown[0], "budget": _allowed(made),
    }  # fmt: skip


def _allowed(made: Mutant) -> int:
    """The bytes that a file may take beside: those of its budget, and of a bomb's own content."""
    if made.base != "bomb of bombs":
        return 0
    return len(made.content) * TIMES_FILE + (MAX_BYTES if made.budget is None else made.budget)


def _outcome(path: Path, budget: int | None) -> tuple[str, str]:
    try:
        with rlx.onnx.load(path, max_bytes=budget) as model:
            if any(math.prod(_shape(i)) > LARGEST_INPUT for i in model.inputs):
                return "loaded", "its inputs are too large to feed"
            feeds = {i.name: _fed(i, i.around) for i in model.inputs}
            model.run(feeds, device="cpu")
            return "ran", ""
    except (ModelFormatError, OutOfDeviceMemory, StepLimitExceeded, UnsupportedOp) as error:
        name = next(c.__name__ for c in type(error).__mro__ if c.__name__ in ALLOWED)
        return name, str(error)[:200]
    except RlxError as error:
        return f"another error: {type(error).__name__}", str(error)[:300]
    except Exception as error:  # noqa: BLE001 - whatever else it raises is the finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"not rlx's: {type(error).__name__}", f"{place.filename}:{place.lineno}: {error}"[:300]


def _shape(info: TensorInfo) -> list[int]:
    return [d if isinstance(d, int) else 2 for d in info.shape or ()]


def _fed(info: TensorInfo, around: Sequence[str]) -> Any:
    """Ones, in lists where a sequence is taken; every other kind of optional is empty."""
    if around:
        if around[0] == "optional" and len(info.name) % 2:
            return None
        inner = _fed(info, around[1:])
        return [inner, inner] if around[0] == "seq" else inner
    dtype = info.dtype if info.dtype is not None else np.dtype(np.float32)
    return np.full(_shape(info), "text" if dtype.kind == "O" else 1, dtype)


def _memory(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {what}")


def work(start: int, stop: int, source: str) -> None:
    """In a process of its own: a line before and after each mutant."""
    # Memory is limited so that a greedy file is seen and the machine not lost. What the process has is not counted: the
    # threads of BLAS reserve address space for each core.
    limit = _memory("VmSize") + (4 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "model"
        folder.mkdir()
        lay(folder)
        if source == "mutants":
            library()  # which takes seconds the first time: no file's fault
        for seed in range(start, stop):
            print(json.dumps({"begun": seed}), flush=True)
            signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)  # SIGPROF ends a process that does not mind it
            result = attempt(seed, folder, source)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(result), flush=True)


def worker(start: int, stop: int, source: str = "mutants") -> list[str]:
    """The command that works on a range of seeds."""
    more = ["--bombs"] if source == "bombs" else []
    return [sys.executable, "-m", "tests.onnx.mutants", "--work", str(start), str(stop), *more]


def watched(command: Sequence[str], start: int, end: float = math.inf) -> Iterator[dict[str, Any]]:
    """The outcomes of a range of seeds, from one process; those of a process that ended early stop there."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            for entry in _answers(process, start, "bombs" if "--bombs" in command else "mutants"):
                yield entry
                if time.monotonic() > end:
                    return
        finally:
            process.kill()


def _answers(process: subprocess.Popen[str], start: int, source: str) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None and process.stderr is not None
    begun: int | None = None
    while select.select([process.stdout], [], [], PATIENCE)[0]:
        line = process.stdout.readline()
        if line:
            entry = json.loads(line)
            begun = entry.get("begun")
            if begun is None:
                yield entry
            continue
        code = process.wait()
        if code or begun is not None:
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            told = process.stderr.read()[-300:]
            yield _lost(begun, start, source, f"{'over time, ' if how == 'SIGPROF' else ''}{how} {told}")
        return
    yield _lost(begun, start, source, f"no answer for {PATIENCE:.0f} s")


def _lost(begun: int | None, start: int, source: str, how: str) -> dict[str, Any]:
    seed = start if begun is None else begun
    made = SOURCES[source](seed)
    return {
        "seed": seed, "kind": made.kind, "base": made.base, "outcome": "process lost", "text": how,
        "seconds": 2 * SECONDS, "bytes": 0,
    }  # fmt: skip


def wrong(entry: dict[str, Any]) -> str:
    """What an outcome breaks, in words; empty where nothing."""
    found = [] if entry["outcome"] in ALLOWED else [entry["outcome"]]
    if UNCHECKED in entry["text"]:
        found.append("a check is missing")
    if entry["seconds"] > SECONDS:
        found.append(f"{entry['seconds']:.1f} s")
    if entry["bytes"] > (MEBIBYTES << 20) + entry.get("budget", 0):
        found.append(f"{entry['bytes'] >> 20} MiB more")
    return ", ".join(found)


def run(
    first: int, count: int, file: Path, seconds: float, source: str = "mutants"
) -> list[dict[str, Any]]:
    """Works on the seeds that the file does not have yet; gives all outcomes of the range."""
    done = {e["seed"]: e for e in lines(file)}
    end = time.monotonic() + (seconds or math.inf)
    started, told, made = time.monotonic(), time.monotonic(), 0
    at = first
    with file.open("a", encoding="utf-8") as log:
        while at < first + count and time.monotonic() < end:
            if at in done:
                at += 1
                continue
            stop = min(at + PER_PROCESS, first + count)
            for entry in watched(worker(at, stop, source), at, end):
                done[entry["seed"]] = entry
                log.write(json.dumps(entry) + "\n")
                log.flush()
                made += 1
                at = entry["seed"] + 1
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    print(f"{len(done)} done, {made / (told - started):.0f} a second", file=sys.stderr)
    return [done[s] for s in range(first, first + count) if s in done]


def summary(entries: list[dict[str, Any]]) -> str:
    """One screen: how many came to what end, by kind, the slowest, the greediest, and all that are wrong."""
    ends = Counter(e["outcome"] for e in entries)
    kinds = Counter(e["kind"] for e in entries)
    ran = Counter(e["kind"] for e in entries if e["outcome"] == "ran")
    made = [f"{len(entries):,} files: " + ", ".join(f"{n:,} {o}" for o, n in ends.most_common())]
    made.append("kinds (run): " + ", ".join(f"{k} {n} ({ran[k]})" for k, n in kinds.most_common()))
    if entries:

        def named(e: dict[str, Any]) -> str:
            return f"seed {e['seed']} ({e['kind']} of {e['base']})"

        slow, large = max(entries, key=lambda e: e["seconds"]), max(entries, key=lambda e: e["bytes"])
        made.append(f"slowest: {slow['seconds']:.2f} s, {named(slow)}")
        made.append(f"most memory: {large['bytes'] / (1 << 20):.1f} MiB, {named(large)}")
    bad = [e for e in entries if wrong(e)]
    made.append(f"wrong: {len(bad)}")
    made += [f"  seed {e['seed']} ({e['kind']} of {e['base']}): {wrong(e)}: {e['text']}" for e in bad[:40]]
    return "\n".join(made)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; the next run goes on")
    parser.add_argument(
        "--file", type=Path, help="where outcomes are kept (default: by the sources, in .cache)"
    )
    parser.add_argument("--seed", type=int, help="run this one here, with its traceback")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--bombs", action="store_true", help="files that ask for much, not damaged ones")
    given = parser.parse_args()
    source = "bombs" if given.bombs else "mutants"
    if given.work:
        work(*given.work, source)
        return 0
    if given.seed is not None:
        return _show(given.seed, source)
    entries = run(given.first, given.count, given.file or kept(source), given.seconds, source)
    print(summary(entries))
    if len(entries) < given.count:
        print(f"{given.count - len(entries)} left: run again")
        return 3
    return 1 if any(map(wrong, entries)) else 0


def _show(seed: int, source: str) -> int:
    made = SOURCES[source](seed)
    print(f"{made.kind} of {made.base}, {len(made.content)} bytes")
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "model"
        folder.mkdir()
        lay(folder)
        print(attempt(seed, folder, source))
        with rlx.onnx.load(folder / "mutant.onnx", max_bytes=made.budget) as model:
            feeds = {i.name: _fed(i, i.around) for i in model.inputs}
            print({k: getattr(v, "shape", v) for k, v in model.run(feeds, device="cpu").items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
