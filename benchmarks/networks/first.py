"""From an open device to the first result, each time in a new process, with an empty and a full cache of kernels.

    python benchmarks/networks/first.py [resnet50 swin-t gpt2-step …] [--device cuda vulkan cpu] [--beside CHECKOUT]
        [--rounds 3] [--precision f32] [--stages]

A network is an ONNX file: `import` is that of rlx.onnx, `load` reads the file, `first` compiles it, records it and runs
it once; `gpt2-step` is the first step of a training of GPT-2 small, 8 x 1024 tokens, of which `load` makes the
parameters (not counted). `result` is `load` and `first` of a network, `first` of a step, with the device open before.
`busy` is the processor time of all threads in `result`, for machines that others use too, and
`kernels` are those that the device's compiler had to make, where it counts them. The least of the rounds is printed for
a full cache, which the process before filled; a cache is empty once a round. With `--beside`, processes of another
checkout of rlx, with a cache of its own, take turns with those of this one. `--stages` prints the functions that took
longest, with what they call, of one more process of this checkout.
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
sys.path.append(str(ROOT))  # behind the checkout that is measured

FOLDER = ROOT / ".cache" / "files"
STEP = "gpt2-step"
NAMES = ("resnet50", "swin-t", STEP)


def _file_of(name: str) -> str:
    """The path of a network's file, which is written where it is not there, with what it is run on beside it."""
    import numpy as np

    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        from benchmarks.networks import models, onnx_cpu

        model, feeds = {**onnx_cpu.MODELS, **models.MODELS}[name]()
        FOLDER.mkdir(parents=True, exist_ok=True)
        np.savez(f"{path}.npz", **feeds)  # type: ignore[arg-type]
        path.write_bytes(model.SerializeToString())
    return str(path)


def _bits(results: Any) -> str:
    """A digest of the results."""
    import hashlib

    import numpy as np

    each = results.values() if isinstance(results, dict) else results
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in each)).hexdigest()[:16]


def _network(path: str, device: str, precision: str) -> dict[str, Any]:
    import numpy as np

    start = time.perf_counter()
    import rlx
    import rlx.onnx

    imported = time.perf_counter()
    with np.load(f"{path}.npz") as held:
        feeds = dict(held)
    session = rlx.Session(device, precision=precision)
    session.device.acquire(64).close()
    opened, spent = time.perf_counter(), time.process_time()
    model = rlx.onnx.load(path)
    loaded = time.perf_counter()
    results = model.run(feeds, device=session, precision=precision)
    first, busy = time.perf_counter(), time.process_time() - spent
    model.run(feeds, device=session, precision=precision)
    second = time.perf_counter()
    kernels = getattr(getattr(session.device, "kernels", None), "compiled", 0)
    return {"import": imported - start, "open": opened - imported, "load": loaded - opened, "first": first - loaded,
            "result": first - opened, "second": second - first, "busy": busy, "kernels": kernels,
            "bits": _bits(results)}  # fmt: skip


def _step(device: str, small: bool) -> dict[str, Any]:
    import numpy as np

    start = time.perf_counter()
    import rlx
    from rlx import optim

    imported = time.perf_counter()
    session = rlx.Session(device)
    session.device.acquire(64).close()
    opened = time.perf_counter()
    from benchmarks.networks.recompute import gpt2, loss

    words, tokens, width, layers, batch = (512, 64, 64, 2, 2) if small else (50257, 1024, 768, 12, 8)
    parameters = gpt2(words, tokens, width, layers)
    ids = np.zeros((batch, tokens + 1), np.int32)
    loaded, spent = time.perf_counter(), time.process_time()
    training = rlx.training(
        lambda p, rows: loss(p, rows[:, :-1], rows[:, 1:], max(1, width // 64)), parameters, optim.adamw(1e-3),
        device=session,
    )  # fmt: skip
    results = [training.step(ids)["loss"]]
    first, busy = time.perf_counter(), time.process_time() - spent
    training.step(ids)["loss"]
    second = time.perf_counter()
    kernels = getattr(getattr(session.device, "kernels", None), "compiled", 0)
    return {"import": imported - start, "open": opened - imported, "load": loaded - opened, "first": first - loaded,
            "result": first - loaded, "second": second - first, "busy": busy, "kernels": kernels,
            "bits": _bits(results)}  # fmt: skip


def _once(name: str, device: str, precision: str, profiled: bool) -> None:
    """The work of one process."""
    import cProfile
    import pstats

    measured = (lambda: _step(device, name.endswith("small"))) if name.startswith(STEP) else (
        lambda: _network(name, device, precision)
    )  # fmt: skip
    if not profiled:
        print(json.dumps(measured()))
        return
    profile = cProfile.Profile()
    profile.runcall(measured)
    for order in ("cumulative", "tottime"):
        pstats.Stats(profile).strip_dirs().sort_stats(order).print_stats(60)


def _process(root: Path, cache: str, *args: str) -> str:
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "RLX_CACHE_DIR": cache, "PYTHONPATH": path}
    env.pop("RLX_CUDA_PTX_CACHE", None)
    command = [sys.executable, __file__, "--once", *args]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    from benchmarks.harness import Table, options

    parser = options(__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--beside", type=Path, help="another checkout of rlx")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--stages", action="store_true")
    given = parser.parse_args()
    builds = {"this": ROOT, **({"beside": given.beside.resolve()} if given.beside else {})}
    stages = ("import", "open", "load", "first", "result", "second", "busy")
    words = {"case": "12", "device": "8", "build": "8", "cache": "6"}
    table = Table({**words, **dict.fromkeys(stages, "8.3f"), "kernels": "8"})
    table.head()
    for name in given.names:
        target = name if name.startswith(STEP) else _file_of(name)
        for device in given.device:
            found: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for _ in range(given.rounds):
                for build, root in builds.items():
                    with tempfile.TemporaryDirectory() as cache:
                        for state in ("empty", "full"):
                            times = json.loads(_process(root, cache, target, device, given.precision).splitlines()[-1])
                            found.setdefault((build, state), []).append(times)
                        if given.stages and root == ROOT and len(found[build, "full"]) == given.rounds:
                            print(_process(root, cache, target, device, given.precision, "profiled"))
            for (build, state), runs in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
                least = [min(run[stage] for run in runs) for stage in stages]
                table.row(name, device, build, state, *least, str(runs[-1]["kernels"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        _once(*sys.argv[2:5], profiled=len(sys.argv) > 5)  # type: ignore[misc]
    else:
        main()
