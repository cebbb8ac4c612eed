"""Convolutions of ResNet-50 on the GPUs of this machine, beside torch: each shape, the network, training.

    python benchmarks/kernels/convolutions.py [--device cuda vulkan] [--batch 32] [--dtype bf16 | f16 | f32 | tf32]
        [--part shapes network steps training] [--every] [--alone] [--panels]

Shapes: TFLOP/s of a convolution with bias and relu between two others, so that its input and result lie as they do in
the network; weights as a caller gives them, to repack them is counted. "before": without matrix instructions.
tf32: f32 at that precision. --every: each tile by itself, too; --alone: without torch and without "before"; --panels:
all by instructions of warpgroups. Times are the least of several runs by the device's own timestamps; torch's are those
of calls in a row, with channels last. The network: milliseconds a run with its input on the device, and its NMSE
against the same network in float64. Steps: the network's, in µs, the least of ten runs. Training: milliseconds a step
of a ResNet-18 for pictures of 32 x 32, a batch of 128, with norms of batches, weights in 16 bits with masters of f32,
AdamW.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, options
from benchmarks.kernels.gpu import per_run
from rlx import optim
from rlx.backends.gpu.rules.conv import choice
from rlx.runtime import Session

# Input channels, output channels, side of the picture, kernel, stride, how often the network has it.
SHAPES = (
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 1, 1, 1), (64, 64, 56, 3, 1, 3), (64, 256, 56, 1, 1, 4), (256, 64, 56, 1, 1, 2),
    (256, 128, 56, 1, 1, 1), (128, 128, 56, 3, 2, 1), (128, 512, 28, 1, 1, 4), (256, 512, 56, 1, 2, 1),
    (512, 128, 28, 1, 1, 3), (128, 128, 28, 3, 1, 3), (512, 256, 28, 1, 1, 1), (256, 256, 28, 3, 2, 1),
    (256, 1024, 14, 1, 1, 6), (512, 1024, 28, 1, 2, 1), (1024, 256, 14, 1, 1, 5), (256, 256, 14, 3, 1, 5),
    (1024, 512, 14, 1, 1, 1), (512, 512, 14, 3, 2, 1), (512, 2048, 7, 1, 1, 3), (1024, 2048, 14, 1, 2, 1),
    (2048, 512, 7, 1, 1, 2), (512, 512, 7, 3, 1, 2),
)  # fmt: skip


# The tiles that --every forces; w: those of instructions of warpgroups.
EVERY = {
    **{tile: {"tile": tile, "warpgroups": False} for tile in "stm"},
    **{f"w{tile}": {"tile": tile, "warpgroups": True} for tile in "tml"},
}

BESIDE = {False: ("before", "now"), True: ("now",)}


@contextlib.contextmanager
def before() -> Iterator[None]:
    """Inside, programs are compiled without matrix instructions for convolutions."""
    with mock.patch.object(choice, "multiplies", return_value=False):
        yield


def dtype_of(name: str) -> str:
    """The dtype of weights and pictures for a name of --dtype."""
    return "f32" if name == "tf32" else name


def opened(device: str, name: str, timings: bool = False) -> Session:
    """A session of the precision that a name of --dtype means."""
    return Session(device, precision="tf32" if name == "tf32" else "f32", timings=timings)


def torch_kind(name: str) -> Any:
    """torch's dtype for a name of --dtype; tf32 is allowed for that name alone."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    return {"bf16": torch.bfloat16, "f16": torch.float16}.get(name, torch.float32)


def graph_of(shape: tuple[int, ...], batch: int, dtype: str) -> rlx.Graph:
    c, o, side, k, stride, _ = shape
    g = rlx.Graph("one")

    def conv(x: rlx.Tensor, channels: int, k: int, stride: int) -> rlx.Tensor:
        w = g.input(f"w{len(g.inputs)}", (channels, x.shape[1], k, k), dtype)
        b = g.input(f"b{len(g.inputs)}", (channels,), dtype)
        return rlx.relu(rlx.conv(x, w, b, strides=stride, pads=k // 2))

    x = g.input("x", (batch, c if c < 8 else 64, side, side), dtype)
    x = x if c < 8 else conv(x, c, 1, 1)
    g.output("y", conv(conv(x, o, k, stride), 64, 1, 1))
    return g


def microseconds(session: Session, shape: tuple[int, ...], batch: int, dtype: str) -> tuple[float, str]:
    """The least time of the middle convolution's steps in a run, and its kernel."""
    exe = session.compile(graph_of(shape, batch, dtype))
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(t.shape).astype(t.dtype.np) for n, t in exe.graph.inputs.items()}
    exe.run(feeds)
    runs = []
    for _ in range(6):
        exe.executable.run()
        steps = [(step.name.split(" ", 1), step.us) for step in exe.executable.timings()]
        labels = list(dict.fromkeys(label for (_, label), _ in steps if "conv" in label))
        mine = [(kernel, t) for (kernel, label), t in steps if label == labels[-2]]
        runs.append((sum(t for _, t in mine), " ".join(k for k, _ in mine)))
    exe.close()
    return min(runs)


def by_torch(shape: tuple[int, ...], batch: int, dtype: str) -> float:
    import torch

    c, o, side, k, stride, _ = shape
    kind = torch_kind(dtype)
    x = torch.randn(batch, c, side, side, device="cuda", dtype=kind).to(memory_format=torch.channels_last)
    w = torch.randn(o, c, k, k, device="cuda", dtype=kind).to(memory_format=torch.channels_last)
    b = torch.randn(o, device="cuda", dtype=kind)
    with torch.no_grad():
        return 1e6 * per_run(
            lambda: torch.conv2d(x, w, b, stride, k // 2).relu_(), torch.cuda.synchronize, seconds=0.05
        )


def shapes(devices: list[str], batch: int, dtype: str, every: bool, alone: bool) -> None:
    sessions = {d: opened(d, dtype, timings=True) for d in devices}
    titles = [f"{d} {word}" for d in devices for word in (*BESIDE[alone], *(EVERY if every else ()))]
    table = Table({"shape": "26", "GFLOP": "6.1f", "torch": "6.1f", **dict.fromkeys(titles, "11.1f"), "kernel": "30"})
    table.head()
    total: dict[str, float] = dict.fromkeys(("torch", *titles), 0.0)
    for shape in SHAPES:
        c, o, side, k, stride, times = shape
        flops = 2 * batch * o * c * k * k * (side // stride) ** 2
        found: dict[str, float] = {"torch": np.inf if alone else by_torch(shape, batch, dtype)}
        names = []
        for d, session in sessions.items():
            if not alone:
                with before():
                    found[f"{d} before"], _ = microseconds(session, shape, batch, dtype_of(dtype))
            found[f"{d} now"], name = microseconds(session, shape, batch, dtype_of(dtype))
            names.append(name)
            for tile, wishes in EVERY.items() if every else ():
                with choice.forcing(algorithm="matrices", **wishes):
                    found[f"{d} {tile}"], _ = microseconds(session, shape, batch, dtype_of(dtype))
        for title, value in found.items():
            total[title] += times * value
        rates = [flops / found[t] / 1e6 for t in ("torch", *titles)]
        table.row(f"{times} x {c}>{o} {side} k{k} s{stride}", flops / 1e9, *rates, names[0][:60])
    print("µs of all, each as often as the network has it: " + ", ".join(f"{t} {v:.0f}" for t, v in total.items()))


def resnet50(batch: int, dtype: str) -> tuple[rlx.Graph, dict[str, Any]]:
    """The network without norms of batches, which inference folds into the weights; and its weights."""
    g, rng = rlx.Graph("resnet50"), np.random.default_rng(0)
    weights: dict[str, Any] = {}

    def param(shape: tuple[int, ...], scale: float) -> rlx.Tensor:
        t = g.param(f"w{len(weights)}", shape, dtype)
        weights[f"w{len(weights)}"] = (rng.standard_normal(shape) * scale).astype(t.dtype.np)
        return t

    def conv(x: rlx.Tensor, channels: int, k: int, stride: int = 1, scale: float = 1.0) -> rlx.Tensor:
        w = param((channels, x.shape[1], k, k), scale * (2 / (x.shape[1] * k * k)) ** 0.5)
        return rlx.conv(x, w, param((channels,), 0.1), strides=stride, pads=k // 2)

    y = g.input("x", (batch, 3, 224, 224), dtype)
    y = rlx.max_pool(rlx.relu(conv(y, 64, 7, 2)), 3, strides=2, pads=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            width, stride = 64 << stage, 2 if stage and not block else 1
            z = rlx.relu(conv(rlx.relu(conv(y, width, 1)), width, 3, stride))
            z = conv(z, 4 * width, 1, scale=0.3)
            y = rlx.relu(z + (y if block else conv(y, 4 * width, 1, stride)))
    y = rlx.mean(y, axis=(2, 3)) @ param((2048, 1000), 0.02) + param((1000,), 0.1)
    g.output("y", y)
    return g, weights


def torch_resnet(weights: dict[str, Any], kind: Any) -> Callable[[Any], Any]:
    """The same network of torch's functions on CUDA, with channels last."""
    import torch
    import torch.nn.functional as f

    w = [torch.from_numpy(a.astype(np.float32)).to("cuda", kind) for a in weights.values()]
    w = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in w]

    def run(x: Any) -> Any:
        left = iter(w)

        def conv(y: Any, stride: int = 1) -> Any:
            k = next(left)
            return f.conv2d(y, k, next(left), stride, k.shape[2] // 2)

        y = f.max_pool2d(f.relu(conv(x, 2)), 3, 2, 1)
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                z = conv(f.relu(conv(f.relu(conv(y)), stride)))
                y = f.relu(z + (y if block else conv(y, stride)))
        return y.mean((2, 3)) @ next(left) + next(left)

    return run


def network(devices: list[str], batch: int, dtype: str) -> None:
    import torch

    g, weights = resnet50(batch, dtype_of(dtype))
    x = np.random.default_rng(1).standard_normal((batch, 3, 224, 224)).astype(g.inputs["x"].dtype.np)
    kind = torch_kind(dtype)
    image = torch.from_numpy(x.astype(np.float32)).cuda()
    with torch.no_grad():
        want = torch_resnet(weights, torch.float64)(image.double()).cpu().numpy()

        def nmse(y: Any) -> float:
            return float(((y.astype(np.float64) - want) ** 2).sum() / (want**2).sum())

        own, run = image.to(kind).to(memory_format=torch.channels_last), torch_resnet(weights, kind)
        error = nmse(run(own).float().cpu().numpy())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(own)
        time = per_run(graph.replay, torch.cuda.synchronize)
    print(f"network batch {batch} {dtype}: torch, eager in a CUDA graph {1e3 * time:.3f} ms, NMSE {error:.1e}")
    for device in devices:
        for title, state in (("before", before()), ("now", contextlib.nullcontext())):
            with state:
                session = opened(device, dtype)
                exe = session.compile(g)
                exe.set_params(weights)
                error = nmse(exe.run({"x": x})["y"])
                time = per_run(exe.executable.run, lambda: None)
                same = np.array_equal(exe.run({"x": x})["y"], exe.run({"x": x})["y"])
                count = len(exe.executable.steps)
                print(f"  {device} {title}: {1e3 * time:.3f} ms, NMSE {error:.1e}, same bits {same}, {count} steps")
                exe.close()


def steps(devices: list[str], batch: int, dtype: str) -> None:
    """Prints each step of the network, equal ones of a stage together."""
    g, weights = resnet50(batch, dtype_of(dtype))
    x = np.random.default_rng(1).standard_normal((batch, 3, 224, 224)).astype(g.inputs["x"].dtype.np)
    for device in devices:
        exe = opened(device, dtype, timings=True).compile(g)
        exe.set_params(weights)
        exe.run({"x": x})
        runs = []
        for _ in range(10):
            exe.executable.run()
            runs.append([s for s in exe.executable.timings() if s.track == "device"])
        least = [min(t.us for t in same) for same in zip(*runs, strict=True)]
        print(f"steps of {device}: {sum(least):.0f} µs")
        for step, us in zip(runs[0], least, strict=True):
            rate, speed = step.operations * 1e-6 / us, step.nbytes * 1e-6 / us
            print(f"  {us:7.1f} µs {rate:6.0f} TFLOP/s {speed:5.2f} TB/s  {step.name[:90]}")


def resnet18() -> dict[str, Any]:
    """Weights of a ResNet-18 for pictures of 32 x 32 and ten classes (He et al., 2015)."""
    rng = np.random.default_rng(0)

    def conv(c: int, o: int, k: int) -> dict[str, Any]:
        w = (rng.standard_normal((o, c, k, k)) * (2 / (c * k * k)) ** 0.5).astype(np.float32)
        return {"w": w, "gamma": np.ones(o, np.float32), "beta": np.zeros(o, np.float32)}

    p: dict[str, Any] = {"stem": conv(3, 64, 3), "head": (rng.standard_normal((512, 10)) * 0.04).astype(np.float32)}
    for stage in range(4):
        for block in range(2):
            c, o = 64 << max(stage - (not block), 0), 64 << stage
            p[f"{stage}.{block}"] = {"a": conv(c, o, 3), "b": conv(o, o, 3)} | ({} if c == o else {"c": conv(c, o, 1)})
    return p


def training_loss(p: dict[str, Any], batch: dict[str, Any]) -> rlx.Tensor:
    def normed(part: dict[str, Any], x: rlx.Tensor, stride: int = 1) -> rlx.Tensor:
        y = rlx.conv(x, part["w"], strides=stride, pads=part["w"].shape[2] // 2)
        mean, var = rlx.mean(y, axis=(0, 2, 3)), rlx.var(y, axis=(0, 2, 3))
        return rlx.batch_norm(y, part["gamma"], part["beta"], mean, var)

    y = rlx.relu(normed(p["stem"], rlx.cast(batch["x"], p["head"].dtype)))
    for stage in range(4):
        for block in range(2):
            part, stride = p[f"{stage}.{block}"], 2 if stage and not block else 1
            z = normed(part["b"], rlx.relu(normed(part["a"], y, stride)))
            y = rlx.relu(z + (normed(part["c"], y, stride) if "c" in part else y))
    return rlx.mean(rlx.cross_entropy(rlx.cast(rlx.mean(y, axis=(2, 3)) @ p["head"], "f32"), batch["y"]))


def training(devices: list[str], batch: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    data = {"x": rng.standard_normal((batch, 3, 32, 32)).astype(np.float32), "y": rng.integers(0, 10, batch)}
    kind = rlx.dtypes.as_dtype(dtype_of(dtype)).np
    for device in devices:
        for title, state in (("before", before()), ("now", contextlib.nullcontext())):
            with state:
                weights = rlx.tree.map(lambda w: w.astype(kind), resnet18())
                run = rlx.training(
                    training_loss, weights, optim.with_masters(optim.adamw(1e-3)), device=device, progress=False
                )
                first = run.step(data)["loss"]
                time = per_run(lambda run=run: run.step(data), lambda run=run: float(run.step(data)["loss"]), 0.4)
                last = float(run.step(data)["loss"])
                print(f"training {device} {title}: {1e3 * time:.2f} ms a step, loss {float(first):.4f} to {last:.4f}")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", nargs="+", default=["cuda", "vulkan"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32", "tf32"))
    parts = ("shapes", "network", "steps", "training")
    parser.add_argument("--part", nargs="+", default=parts, choices=parts)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--panels", action="store_true")
    args = parser.parse_args()
    with choice.forcing(algorithm="matrices", warpgroups=True) if args.panels else contextlib.nullcontext():
        run(args)


def run(args: argparse.Namespace) -> None:
    if "shapes" in args.part:
        shapes(args.device, args.batch, args.dtype, args.every, args.alone)
    if "network" in args.part:
        network(args.device, args.batch, args.dtype)
    if "steps" in args.part:
        steps(args.device, args.batch, args.dtype)
    if "training" in args.part:
        training(args.device, 128, args.dtype)


if __name__ == "__main__":
    main()
