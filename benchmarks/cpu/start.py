"""Memory and start of networks on the processor, with the compiled engine and without: each in a process of its own.

    python benchmarks/cpu/start.py [MODEL …] [--engines compiled numpy] [--rounds 3]

For each engine: seconds to load the file and to run it the first time, with the cache of kernels as the rounds before
left it (`--cold` begins each with an empty one); the memory of the process (RSS) behind the second run, and its highest
value. No time is asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import options  # noqa: E402


def _status(key: str) -> float:
    """A number of /proc/self/status, in MB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1e3 for line in file if line.startswith(key + ":"))


def run_once(path: str, engine: Any, threads: int) -> dict[str, Any]:
    """What the process of one measurement does."""
    import numpy as np

    import rlx

    with np.load(path + ".npz") as held:
        feeds = dict(held)
    before = _status("VmRSS")
    start = time.perf_counter()
    loaded = rlx.onnx.load(path)
    opened = time.perf_counter()
    session = rlx.Session("cpu", threads=threads, engine=engine)
    loaded.run(feeds, device=session)
    first = time.perf_counter()
    loaded.run(feeds, device=session)
    again = time.perf_counter()
    found = {"load": opened - start, "first": first - opened, "second": again - first}
    return {**found, "before": before, "rss": _status("VmRSS"), "peak": _status("VmHWM")}


def write_model(name: str, folder: Path) -> str:
    """Writes the model's file and its inputs."""
    import numpy as np

    from benchmarks.networks import models, onnx_cpu

    path = folder / f"{name}.onnx"
    if not path.exists():
        made = {**onnx_cpu.MODELS, **models.MODELS}
        model, feeds = made[name]()
        np.savez(str(path) + ".npz", **feeds)  # type: ignore[arg-type]
        path.write_bytes(model.SerializeToString())
    return str(path)


def measure(path: str, engine: str, cache: str, threads: int) -> dict[str, Any]:
    environment = {**os.environ, "RLX_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
    call = [sys.executable, __file__, "--child", path, engine, str(threads)]
    done = subprocess.run(call, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("models", nargs="*", default=["minilm-8x128", "resnet50"])
    parser.add_argument("--engines", nargs="+", default=["compiled", "numpy"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="an empty cache of kernels for each start")
    parser.add_argument("--models-in", default=str(ROOT / ".cache" / "files"), help="where the files are kept")
    args = parser.parse_args()
    folder = Path(args.models_in)
    folder.mkdir(parents=True, exist_ok=True)
    titles = ("load s", "first s", "second s", "RSS MB", "peak MB")
    print(f"{'model':14} {'engine':9}" + "".join(f"{title:>9}" for title in titles))
    with tempfile.TemporaryDirectory() as kept:
        for name in args.models:
            path = write_model(name, folder)
            rows: dict[str, list[dict[str, Any]]] = {e: [] for e in args.engines}
            for turn in range(args.rounds + (not args.cold)):
                for engine in args.engines:
                    with tempfile.TemporaryDirectory() as new:
                        found = measure(path, engine, new if args.cold else kept, args.threads)
                    rows[engine] += [found] if turn or args.cold else []
            for engine, all_found in rows.items():
                least = {key: min(f[key] for f in all_found) for key in all_found[0]}
                times = "".join(f"{least[key]:9.3f}" for key in ("load", "first", "second"))
                sizes = "".join(f"{least[key]:9.0f}" for key in ("rss", "peak"))
                print(f"{name:14} {engine:9}{times}{sizes}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(run_once(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
