"""Ops outside a trace, one at a time: rlx on each device beside torch and JAX, each on its own arrays, in turns.

`python benchmarks/kernels/eager.py [--device cpu --device cuda --device vulkan] [--jax PYTHON] [--torch PYTHON]
[--beside CHECKOUT] [--seconds 55]`: by default all devices that are here. `--jax` and `--torch` are interpreters that
have these libraries, which need not be this one, and `--beside` is the root of another checkout of rlx. For each op the
least of many rounds, in µs a call after the first: until the call returns ("launch"), and until the device has done
it ("finish"). The last rows are arrays of 512 KB. torch is left out on Vulkan, JAX where its interpreter has no such
device. JAX runs alone, after the others have ended, since its process keeps most of a GPU's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CALLS, LARGE_CALLS = 200, 20
Timed = tuple[Callable[[], Any], int]


def measured(library: str, device: str) -> tuple[dict[str, Timed], Callable[[], None]]:
    """The ops, each with its calls in a round, and a function that waits for the device."""
    small, square, large, line = (np.ones(shape, np.float32) for shape in ((4, 4), (64, 64), (256, 512), (4,)))
    index = np.array([0, 2])

    def formula(x: Any) -> Any:
        return x * 2.0 + 1.0

    xp: Any
    if library in ("rlx", "base"):
        import rlx

        xp, opened = rlx, rlx.Session(device).device
        x, m, b, v, at = (rlx.array(a, device=device) for a in (small, square, large, line, index))
        half, program = "f16", rlx.jit(formula, device=device, out="device")
        jitted = program if device == "cpu" else lambda x: program.launch(x).results  # a call waits for the device
        wait: Callable[[], None] = opened.synchronize
    elif library == "jax":
        import jax
        import jax.numpy as jnp

        xp, where = jnp, jax.devices("gpu" if device == "cuda" else device)[0]
        x, m, b, v, at = (jax.device_put(a, where) for a in (small, square, large, line, index))
        half, jitted = jnp.float16, jax.jit(formula)

        def wait() -> None:
            (x + x).block_until_ready()  # the device works in order
    else:
        import torch

        xp = torch
        torch.set_num_threads(1)
        x, m, b, v, at = (torch.from_numpy(a).to(device) for a in (small, square, large, line, index))
        half, jitted = torch.float16, formula  # torch.compile takes seconds, and a compiler of the system
        wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    few, large_few, mask = CALLS, LARGE_CALLS, x > 0
    astype = (lambda: x.to(half)) if library == "torch" else (lambda: x.astype(half))
    calls: dict[str, Timed] = {
        "add": (lambda: x + x, few), "times a number": (lambda: x * 2.5, few), "exp": (lambda: xp.exp(x), few),
        "sum": (lambda: xp.sum(x), few), "matmul 64": (lambda: m @ m, few), "index x[1]": (lambda: x[1], few),
        "index x[1:3]": (lambda: x[1:3], few), "index x[array]": (lambda: x[at], few),
        "reshape": (lambda: x.reshape(16), few), "number + x": (lambda: 1.0 + x, few),
        "x > 0": (lambda: x > 0, few), "where": (lambda: xp.where(mask, x, 0.0), few), "x + row": (lambda: x + v, few),
        "sum of rows": (lambda: x.sum(0), few), "index x[1, 2]": (lambda: x[1, 2], few),
        "index x[:, 1]": (lambda: x[:, 1], few), "index x[::2]": (lambda: x[::2], few),
        "transpose": (lambda: x.T, few), "astype": (astype, few), "-x": (lambda: -x, few),
        "jit of x * 2 + 1": (lambda: jitted(x), few), "add 512 KB": (lambda: b + b, large_few),
        "exp 512 KB": (lambda: xp.exp(b), large_few), "sum 512 KB": (lambda: xp.sum(b), large_few),
    }  # fmt: skip
    if library in ("rlx", "base"):
        calls["add NumPy's 512 KB"] = (lambda: b + large, large_few)
    return calls, wait


def least(call: Callable[[], Any], count: int, wait: Callable[[], None]) -> tuple[float, float]:
    """µs a call until they have returned, and until the device has done them."""
    wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    returned = time.perf_counter()
    wait()
    return 1e6 * (returned - start) / count, 1e6 * (time.perf_counter() - start) / count


def worker(library: str, device: str) -> None:
    """Answers each line of standard input with a round of all calls."""
    calls, wait = measured(library, device)
    for call, _ in calls.values():
        call()
    wait()
    print("{}", flush=True)
    for _ in sys.stdin:
        print(json.dumps({name: least(*timed, wait) for name, timed in calls.items()}), flush=True)


def rounds(
    commands: dict[str, list[str]], seconds: float, beside: str = ""
) -> dict[str, dict[str, tuple[float, float]]]:
    """The least times of each command's calls, in turns until time is over. Those that cannot start are left out.
    `beside` is the checkout of "base"."""
    end = time.monotonic() + seconds
    running: dict[str, subprocess.Popen[str]] = {}
    for name, command in commands.items():
        paths = {"PYTHONPATH": beside} if name == "base" else {}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | paths,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline():
            running[name] = process
        else:
            said = process.stderr.read().strip().splitlines()
            print(f"without {name}: {said[-1] if said else process.wait()}")
    best: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in running}
    while running and (time.monotonic() < end or not all(best.values())):
        for name, process in running.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            for op, (launch, finish) in json.loads(process.stdout.readline()).items():
                before = best[name].get(op, (launch, finish))
                best[name][op] = min(before[0], launch), min(before[1], finish)
    for process in running.values():
        process.communicate()
    return best


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", action="append")
    options.add_argument("--jax", default=sys.executable, metavar="PYTHON")
    options.add_argument("--torch", default=sys.executable, metavar="PYTHON")
    options.add_argument("--beside", default="", metavar="CHECKOUT")
    options.add_argument("--seconds", type=float, default=55)
    options.add_argument("--worker", default="", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        worker(chosen.worker, chosen.device[0])
        return
    devices = chosen.device
    if not devices:
        import rlx

        devices = list(dict.fromkeys(info.backend for info in rlx.devices()))
    for device in devices:
        libraries = {"rlx": sys.executable, "base": sys.executable, "jax": chosen.jax, "torch": chosen.torch}
        commands = {
            name: [python, __file__, "--worker", name, "--device", device]
            for name, python in libraries.items()
            if (chosen.beside if name == "base" else name == "rlx" or device != "vulkan")
        }  # fmt: skip
        seconds, alone = chosen.seconds / len(devices), {n: commands.pop(n) for n in ("jax",) if n in commands}
        best = rounds(commands, seconds * (0.7 if alone else 1), chosen.beside)
        best |= rounds(alone, seconds * 0.3) if alone else {}
        print(f"\n{f'{device}, µs a call':20}" + "".join(f"{name + ' launch':>13}{'finish':>9}" for name in best))
        for op in best.get("rlx", {}):
            none = float("nan"), float("nan")
            numbers = (times.get(op, none) for times in best.values())
            print(f"{op:20}" + "".join(f"{launch:13.2f}{finish:9.2f}" for launch, finish in numbers))


if __name__ == "__main__":
    main()
