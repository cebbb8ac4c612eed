"""First results of two builds in turns, whose bits must be equal, and where the time of one process goes.

    python benchmarks/networks/first_beside.py BASE [--seconds 100] [gpt2-step:cuda gpt2-step:vulkan swin-t:cuda …]

Each process is one of first.py: seconds from an open device to the first result. Rounds begin until the seconds are
over; the least of each is printed, with the kernels that a compiler made. Then a process of this build with a full
cache is sampled, a thousand times a second, once for each case of the first name: milliseconds that its main thread
spent in a function and what that calls.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks.networks import first  # noqa: E402 the checkout that is measured comes first

CASES = ("gpt2-step:cuda", "gpt2-step:vulkan", "swin-t:cuda", "swin-t:vulkan", "resnet50:vulkan")
SHOWN = 26


def _sampled(target: str, device: str) -> None:
    """A process of first.py with a thread that looks where the main thread is."""
    main, found, ended = threading.main_thread().ident, Counter[str](), threading.Event()
    sys.setswitchinterval(0.0005)

    def look() -> None:
        last = time.perf_counter()
        while not ended.wait(0.001):
            now, seen = time.perf_counter(), set()
            frame: Any = sys._current_frames().get(main or 0)
            inside = False
            while frame is not None:
                code = frame.f_code
                inside = inside or code.co_name in ("step", "run", "load", "training")
                seen.add(f"{Path(code.co_filename).stem}.{code.co_name}")
                frame = frame.f_back
            if inside:
                for name in seen:
                    found[name] += round(1e6 * (now - last))
            last = now

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    if target.startswith(first.STEP):
        first._step(device, target.endswith("small"))
    else:
        first._network(target, device, "f32")
    ended.set()
    thread.join()
    shown = [f"{name} {us / 1000:.0f}" for name, us in found.most_common(SHOWN + 7) if not name.startswith("first")]
    print("; ".join(shown[:SHOWN]))


def _sample_process(cache: str, target: str, device: str) -> str:
    import subprocess

    env = {**os.environ, "RLX_CACHE_DIR": cache, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, __file__, "--sampled", target, device]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--seconds", type=float, default=100)
    given = parser.parse_args()
    builds = {"base": given.base.resolve(), "this": ROOT}
    begun, lines, samples = time.perf_counter(), {}, []
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for turn in range(3):
        for case in given.cases:
            name, device = case.split(":")
            target = name if name.startswith(first.STEP) else first._file_of(name)
            for build, root in builds.items():
                if time.perf_counter() - begun > given.seconds and turn:
                    continue
                with tempfile.TemporaryDirectory() as cache:
                    for state in ("empty", "full"):
                        said = first._process(root, cache, target, device, "f32")
                        found.setdefault((case, build, state), []).append(json.loads(said.splitlines()[-1]))
                    if build == "this" and not turn and name == given.cases[0].split(":")[0]:
                        samples.append(f"{case}, full, ms: {_sample_process(cache, target, device)}")
    for case in given.cases:
        runs = {key: each for key, each in found.items() if key[0] == case}
        bits = {run["bits"] for each in runs.values() for run in each}
        if len(bits) != 1:
            raise SystemExit(f"{case}: the results differ: {bits}")
        for (_, build, state), each in sorted(runs.items(), key=lambda item: (item[0][2], item[0][1])):
            least = " ".join(f"{min(run[s] for run in each):7.3f}" for s in ("result", "second", "busy"))
            lines[case, build, state] = f"{case:17} {state:6}{build:5}{least} {each[-1]['kernels']:4} x{len(each)}"
    print("\n".join(samples))
    print("bits equal in all cases; seconds:\ncase              cache build result  second    busy kernels")
    print("\n".join(lines.values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sampled"]:
        _sampled(*sys.argv[2:4])
    else:
        main()
