"""Latency of single kernels on the processor: rlx's compiled engine, rlx on NumPy and ONNX Runtime, in turns.

    python benchmarks/cpu/rows.py [NAME …] [--threads 1] [--rounds 5]

Each model is one or a few operators, in f32. Inputs and outputs are bound, so that no copy of them is measured. Medians
and minima of all runs; no time is asserted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import in_turns, middle_and_best, options, version

Feeds = dict[str, np.ndarray[Any, Any]]


def node(op: str, *inputs: str, domain: str = "", **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, list(inputs), ["y"], domain=domain, **attributes)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def attention(batch: int, heads: int, queries: int, keys: int, size: int) -> tuple[Any, Feeds]:
    feeds = {
        n: floats(batch, length, heads * size) for n, length in (("q", queries), ("k", keys), ("v", keys))
    }
    return node("MultiHeadAttention", "q", "k", "v", domain="com.microsoft", num_heads=heads), feeds


def reduction(op: str, axes: list[int], *shape: int) -> tuple[Any, Feeds]:
    return node(op, "x", "axes", keepdims=1), {"x": floats(*shape), "axes": np.array(axes, np.int64)}


def pool(op: str, kernel: int, stride: int, *shape: int) -> tuple[Any, Feeds]:
    pads = [kernel // 2] * 4
    return node(op, "x", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads), {"x": floats(*shape)}


def norm(*shape: int) -> tuple[Any, Feeds]:
    d = shape[-1]
    return node("LayerNormalization", "x", "g", "b"), {"x": floats(*shape), "g": floats(d), "b": floats(d)}


def gather(rows: int, d: int, count: int) -> tuple[Any, Feeds]:
    index = np.random.default_rng(1).integers(0, rows, count)
    return node("Gather", "x", "i"), {"x": floats(rows, d), "i": index}


def resized(mode: str, *shape: int) -> tuple[Any, Feeds]:
    return node("Resize", "x", "", "s", mode=mode), {"x": floats(*shape), "s": np.array([1, 1, 2, 2], np.float32)}


def sampled(n: int, c: int, h: int, w: int) -> tuple[Any, Feeds]:
    grid = np.random.default_rng(1).uniform(-1, 1, (n, h, w, 2)).astype(np.float32)
    return node("GridSample", "x", "g"), {"x": floats(n, c, h, w), "g": grid}


MODELS: dict[str, Callable[[], tuple[Any, Feeds]]] = {
    "softmax 1536x128": lambda: (node("Softmax", "x", axis=-1), {"x": floats(1536, 128)}),
    "softmax 8x32000": lambda: (node("Softmax", "x", axis=-1), {"x": floats(8, 32000)}),
    "softmax axis 1 of 1x21x512x512": lambda: (node("Softmax", "x", axis=1), {"x": floats(1, 21, 512, 512)}),
    "layer_norm 1024x384": lambda: norm(1024, 384),
    "layer_norm 128x768": lambda: norm(128, 768),
    "sum 1024x1024 last": lambda: reduction("ReduceSum", [1], 1024, 1024),
    "sum 1024x1024 first": lambda: reduction("ReduceSum", [0], 1024, 1024),
    "max 1024x1024 last": lambda: reduction("ReduceMax", [1], 1024, 1024),
    "mean 1x2048x7x7": lambda: (node("GlobalAveragePool", "x"), {"x": floats(1, 2048, 7, 7)}),
    "attention 1x12x128x64": lambda: attention(1, 12, 128, 128, 64),
    "attention 8x12x128x32": lambda: attention(8, 12, 128, 128, 32),
    "attention 1x12x197x64": lambda: attention(1, 12, 197, 197, 64),
    "attention 1x8x1500x64": lambda: attention(1, 8, 1500, 1500, 64),
    "attention 1x12x16x32": lambda: attention(1, 12, 16, 16, 32),
    "attention 1x14x(1, 1024)x64": lambda: attention(1, 14, 1, 1024, 64),
    "transpose 8x12x128x32 0213": lambda: (node("Transpose", "x", perm=[0, 2, 1, 3]), {"x": floats(8, 12, 128, 32)}),
    "transpose 1024x1024": lambda: (node("Transpose", "x", perm=[1, 0]), {"x": floats(1024, 1024)}),
    "transpose 1x64x112x112 0231": lambda: (
        node("Transpose", "x", perm=[0, 2, 3, 1]),
        {"x": floats(1, 64, 112, 112)},
    ),
    "concat 2x 1x256x56x56": lambda: (
        node("Concat", "a", "b", axis=1),
        {"a": floats(1, 256, 56, 56), "b": floats(1, 256, 56, 56)},
    ),
    "gather 30522x384 1024": lambda: gather(30522, 384, 1024),
    "max_pool 3 2 1x64x112x112": lambda: pool("MaxPool", 3, 2, 1, 64, 112, 112),
    "avg_pool 3 1 1x192x35x35": lambda: pool("AveragePool", 3, 1, 1, 192, 35, 35),
    "resize linear 1x64x64x64": lambda: resized("linear", 1, 64, 64, 64),
    "resize nearest 1x64x64x64": lambda: resized("nearest", 1, 64, 64, 64),
    "grid_sample 1x64x55x128": lambda: sampled(1, 64, 55, 128),
    "cumsum 256x1024": lambda: (
        node("CumSum", "x", "axis"),
        {"x": floats(256, 1024), "axis": np.array(1, np.int64)},
    ),
    "argmax 256x4096": lambda: (node("ArgMax", "x", axis=1), {"x": floats(256, 4096)}),
}


def model_of(one: Any, feeds: Feeds) -> tuple[Any, Feeds]:
    """The model of a node, with the inputs that say sizes or axes as its constants."""
    from onnx import TensorProto, helper, numpy_helper

    fixed = {n: a for n, a in feeds.items() if n in ("axes", "s", "axis", "g", "b") and a.ndim < 3}
    given = {n: a for n, a in feeds.items() if n not in fixed}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    kind = TensorProto.INT64 if one.op_type == "ArgMax" else TensorProto.FLOAT
    graph = helper.make_graph(
        [one], "one", inputs, [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in fixed.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), given


def measure(name: str, rounds: int, seconds: float, threads: int) -> None:
    import onnxruntime

    model, feeds = model_of(*MODELS[name]())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    runtime = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = runtime.io_binding()
    for n, a in feeds.items():
        binding.bind_cpu_input(n, a)
    wanted = runtime.run(None, feeds)[0].astype(np.float64)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(runtime.run(None, feeds)[0]))
    calls: dict[str, Callable[[], Any]] = {}
    for engine in ("compiled", "numpy"):
        plain = rlx.onnx.load(model)
        plain.run(feeds, device="cpu")
        graph = plain.programs[-1].graph
        program = rlx.Session("cpu", threads=threads, engine=engine).compile(graph.graph, weights=graph.weights)
        made = next(iter(program.run(feeds).values()))
        assert np.abs(made - wanted).max() <= 1e-4 * max(1.0, np.abs(wanted).max()), name
        calls[engine] = program.executable.quick()
    calls["onnxruntime"] = lambda: runtime.run_with_iobinding(binding)
    times = middle_and_best(in_turns(calls, rounds, seconds, 0.05), 1e6)
    row = [f"{name:32}"]
    for which in range(2):
        own, plain_time, other = (times[e][which] for e in ("compiled", "numpy", "onnxruntime"))
        row.append(f"{own:9.1f} {plain_time:9.1f} {other:9.1f} {own / other:6.2f}")
    print("  ".join(row), flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *MODELS], default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each turn")
    args = parser.parse_args()
    print(f"{args.threads} threads each; onnxruntime {version('onnxruntime')}; load {os.getloadavg()[0]:.1f}")
    print(f"{'':32}  {'median µs':36}  {'best µs':36}")
    print("  ".join([f"{'':32}", *[f"{'engine':>9} {'numpy':>9} {'ort':>9} {'ratio':>6}"] * 2]))
    for name in args.names or MODELS:
        measure(name, args.rounds, args.seconds, args.threads)


if __name__ == "__main__":
    main()
