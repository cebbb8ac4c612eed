"""Values that stay on a device: what runs cost with inputs on the host, in pinned memory and on the device.

    python benchmarks/networks/arrays.py [--device cuda --device cpu] [--images 32] [--precision tf32] [--only chain]

For ResNet-50 with random weights: ms of the program alone (`executable.run`), of `run` with NumPy arrays, with one in
pinned memory (CUDA, with torch), and with rlx.Arrays in and out; the least of 15 runs. For a chain of ten small
programs: µs with arrays on the host, with Arrays and `run`, and with `launch`; on CUDA also how often the host waited
and copied in the last, counted at the calls of the runtime and by torch's profiler. For three ops on the CPU: µs of
`run` and of `Bound.run`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

WAITS = ("streamSynchronize", "eventSynchronize", "deviceSynchronize")


def resnet(images: int, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> rlx.Graph:
    """ResNet-50 with folded norms and random weights (He et al., 2015)."""
    rng = np.random.default_rng(0)
    g = rlx.Graph("resnet50")

    def conv(x: rlx.Tensor, out: int, size: int, stride: int = 1, relu: bool = True) -> rlx.Tensor:
        w = rng.standard_normal((out, x.shape[1], size, size), np.float32)
        w *= np.float32((x.shape[1] * size * size) ** -0.5)
        y = rlx.conv(x, g.constant(w), g.constant(np.zeros(out, np.float32)), strides=stride, pads=size // 2)
        return rlx.relu(y) if relu else y

    x = rlx.max_pool(conv(g.input("x", (images, 3, 224, 224), "f32"), 64, 7, 2), 3, strides=2, pads=1)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            short = x if block else conv(x, 4 * width, 1, stride, relu=False)
            y = conv(conv(conv(x, width, 1), width, 3, stride), 4 * width, 1, relu=False)
            x = rlx.relu(y + short)
    w = g.constant(rng.standard_normal((x.shape[1], 1000), np.float32) / 45)
    g.output("y", rlx.matmul(rlx.mean(x, (2, 3)), w))
    return g


def least(work: Callable[[], Any], runs: int = 15) -> float:
    """The least of the times of `runs` calls, in µs."""
    work()
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def networks(session: Session, images: int, small: bool) -> None:
    exe = session.compile(resnet(images, (1, 1, 1, 1) if small else (3, 4, 6, 3)))
    host = np.random.default_rng(1).standard_normal((images, 3, 224, 224), np.float32)
    want = exe.run({"x": host})["y"]
    held = rlx.array(host, device=session)
    assert np.array_equal(exe.run({"x": held}, "device")["y"].numpy(), want)
    rows = {"the program alone": exe.executable.run, "run, NumPy": lambda: exe.run({"x": host})}
    try:
        import torch

        pinned = torch.from_numpy(host).pin_memory().numpy()
        rows["run, pinned NumPy"] = lambda: exe.run({"x": pinned})
    except (ImportError, RuntimeError):
        pass
    rows["run, Arrays"] = lambda: exe.run({"x": held}, "device")
    rows["launch and wait, Arrays"] = lambda: exe.launch({"x": held}).wait()
    rows["10 launches, then wait, each"] = lambda: [exe.launch({"x": held}) for _ in range(10)][-1].wait()
    own = 0.0
    for name, work in rows.items():
        us = least(work) / (10 if name.startswith("10") else 1)
        own = own or us
        print(f"  {name:30} {us / 1e3:9.3f} ms  {us / own - 1:+7.1%}")


def chain(session: Session) -> None:
    programs = []
    for i in range(10):
        g = rlx.Graph(f"part{i}")
        x = g.input("x", (64, 64), "f32")
        g.output("x", rlx.softmax(rlx.matmul(x, x) + 1.0))
        programs.append(session.compile(g))
    start = np.random.default_rng(2).standard_normal((64, 64), np.float32)
    held = {"x": rlx.array(start, device=session)}

    def through(run: Callable[[Any, Any], Any], values: Any) -> Any:
        for p in programs:
            values = run(p, values)
        return values

    def launched() -> Any:
        return through(lambda p, v: p.launch(v).results, held)["x"]

    want = through(lambda p, v: p.run(v), {"x": start})["x"]
    assert np.array_equal(launched().numpy(), want)
    print(f"  host    {least(lambda: through(lambda p, v: p.run(v), {'x': start})):9.1f} µs")
    print(f"  run     {least(lambda: through(lambda p, v: p.run(v, 'device'), held)):9.1f} µs")
    print(f"  launch  {least(lambda: launched().numpy()):9.1f} µs, until it returns {least(launched):9.1f} µs")
    if session.info.backend == "cuda":
        count(launched)


def count(work: Callable[[], Any]) -> None:
    """Prints the waits and copies of a call: counted at CuPy's runtime, and by torch's profiler where there is one."""
    from cupy_backends.cuda.api import runtime

    calls: Counter[str] = Counter()
    kinds = {1: "host to device", 2: "device to host", 3: "device to device"}
    shipped = {name: getattr(runtime, name) for name in (*WAITS, "memcpyAsync")}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[kinds[args[3]] if name == "memcpyAsync" else name] += 1
            return shipped[name](*args)

        return call

    try:
        for name in shipped:
            setattr(runtime, name, counted(name))
        result = work()
    finally:
        for name, call in shipped.items():
            setattr(runtime, name, call)
    result.numpy()
    print(f"  calls   {dict(calls)}")
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile

        torch.zeros(1, device="cuda")
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
            result = work()
        seen = {e.key: e.count for e in profiled.key_averages() if "emcpy" in e.key or "ynchronize" in e.key}
        print(f"  torch's profiler {seen}")
        result.numpy()
    except (ImportError, RuntimeError) as error:
        print(f"  no profiler: {error}")


def bound(session: Session) -> None:
    g = rlx.Graph("three")
    x = g.input("x", (4, 8), "f32")
    g.output("y", rlx.relu(x * 2.0 + 1.0))
    exe = session.compile(g)
    ones = {"x": np.ones((4, 8), np.float32)}
    b = exe.bind()
    b.inputs["x"][...] = 1.0
    held = {"x": rlx.array(ones["x"], device=session)}

    def each(work: Callable[[], Any]) -> float:
        return min(least(lambda: [work() for _ in range(200)], 50) / 200, 1e9)

    print(
        f"  run {each(lambda: exe.run(ones)):.2f} µs, Arrays {each(lambda: exe.run(held, 'device')):.2f} µs, "
        f"bound {each(b.run):.2f} µs, its three calls {each(exe.executable.launch):.2f} µs"
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", help="default: cuda, vulkan and cpu")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--small", action="store_true", help="one block a stage")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--only", choices=["networks", "chain"])
    args = parser.parse_args()
    for name in args.device or ["cuda", "vulkan", "cpu"]:
        try:
            session = Session(name, precision=args.precision)
        except DeviceUnavailable as error:
            print(error)
            continue
        print(f"{session.info.id}: {session.info.name}")
        if session.info.backend == "cpu":
            bound(session)
        elif args.only != "chain":
            networks(session, args.images, args.small)
        if args.only != "networks":
            chain(session)


if __name__ == "__main__":
    main()
