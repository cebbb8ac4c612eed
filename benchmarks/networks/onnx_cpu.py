"""Latency of ONNX models on the processor: rlx beside ONNX Runtime, two threads each, in one run.

    python benchmarks/networks/onnx_cpu.py [MODEL …] [--profile] [--rounds 5]

The models: ResNet-50 and ShuffleNet of onnx's light models, a MobileNet-like chain of depthwise blocks, and the network
of MiniLM as an exporter writes it, at two sizes. Weights are random and seeded (normal with variance 2 / fan-in), so
that all values are finite and none is constant. Engines take turns, each after a warm-up. No time is asserted.

Both engines run on the same cores, but not on the same kernels: OpenBLAS obeys OPENBLAS_CORETYPE, ONNX Runtime does
not. The first lines print its value; `env -u OPENBLAS_CORETYPE python …` measures without it.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import WARM_UP_S, in_turns, middle_and_best, options, version
from benchmarks.networks import minilm
from rlx.driver.registry import probe_all
from tests.onnx.light import light

THREADS = 2
Feeds = dict[str, np.ndarray[Any, Any]]


def light_model(name: str) -> tuple[Any, Feeds]:
    proto = light(name)
    held = {i.name for i in proto.graph.initializer}
    (info,) = (i for i in proto.graph.input if i.name not in held)
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return proto, {info.name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


def minilm_model(batch: int, length: int) -> tuple[Any, Feeds]:
    ids, mask = minilm.inputs(batch, length)
    feeds = {"ids": ids.astype(np.int64), "mask": mask.astype(np.int64)}
    return minilm.onnx_model(minilm.random_weights()), feeds


# (channels, stride) of each depthwise block, as in MobileNet; the first convolution gives 32 channels.
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def mobilenet_model() -> tuple[Any, Feeds]:
    """MobileNet's body at 224 × 224, and an input.

    It has depthwise 3 × 3 and plain 1 × 1 convolutions, each with BatchNormalization and Relu, then the mean.
    """
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)
    w = minilm.Writer()

    def block(x: str, channels: int, inner: int, kernel: int, stride: int, group: int) -> str:
        shape = (channels, inner, kernel, kernel)
        values = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        pads = [kernel // 2] * 4
        weight = w.weight(f"w{len(w.nodes)}", values.astype(np.float32))
        x = w("Conv", x, weight, kernel_shape=shape[2:], strides=[stride] * 2, pads=pads, group=group)
        vectors = (rng.uniform(0.8, 1.2, channels), *rng.standard_normal((2, channels)) * 0.1)
        names = [w.constant(v) for v in (*vectors, rng.uniform(0.8, 1.2, channels))]
        return w("Relu", w("BatchNormalization", x, *names))

    x, before = block("x", 32, 3, 3, 2, 1), 32
    for channels, stride in _BLOCKS:
        x = block(x, before, 1, 3, stride, before)
        x, before = block(x, channels, before, 1, 1, 1), channels
    w.nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"]))
    shape = [1, 3, 224, 224]
    graph = helper.make_graph(
        w.nodes,
        "mobilenet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, before, 1, 1])],
        w.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


MODELS: dict[str, Callable[[], tuple[Any, Feeds]]] = {
    "resnet50": partial(light_model, "resnet50"),
    "shufflenet": partial(light_model, "shufflenet"),
    "mobilenet": mobilenet_model,
    "minilm-1x16": partial(minilm_model, 1, 16),
    "minilm-8x128": partial(minilm_model, 8, 128),
}


def runtime_session(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def spent(program: Any, runs: int = 10) -> list[tuple[str, float, int]]:
    """(op, its median µs in a run, its number of nodes) for each op of a program, the slowest first."""
    found: dict[str, list[float]] = defaultdict(list)
    count: dict[str, int] = {}
    plain = program.graph
    exe = rlx.Session("cpu", timings=True).compile(plain.graph, weights=plain.weights)
    for name, t in exe.program.inputs.items():
        exe.arena.write_bytes(t.id, plain.value(plain.program.inputs[name]))
    for _ in range(runs):
        exe.executable.run()
        total: dict[str, float] = defaultdict(float)
        nodes: dict[str, int] = defaultdict(int)
        for label, us, *_ in exe.executable.timings():
            kind = label.split(maxsplit=1)[0]
            total[kind] += us
            nodes[kind] += 1
        for kind, us in total.items():
            found[kind].append(us)
        count = nodes
    rows = [(kind, statistics.median(values), count[kind]) for kind, values in found.items()]
    return sorted(rows, key=lambda row: -row[1])


def measure(name: str, rounds: int, seconds: float, profile: bool) -> None:
    model, feeds = MODELS[name]()
    loaded = rlx.onnx.load(model)
    want = loaded.run(feeds, device="cpu")
    program = loaded.programs[-1]
    session = runtime_session(model)
    (output,) = want
    got = session.run([output], feeds)[0]
    apart = float(np.abs(got - want[output]).max() / np.abs(got).max())
    engines: dict[str, Callable[[], Any]] = {
        "rlx": lambda: program.run(feeds),
        "ort": lambda: session.run([output], feeds),
    }
    times = in_turns(engines, rounds, seconds, WARM_UP_S, again=0.1)
    (own, best_own), (other, best_other) = middle_and_best(times).values()
    print(
        f"{name:14} {own:9.2f} {other:9.2f} {own / other:6.2f}  {best_own:9.2f} {best_other:9.2f} "
        f"{best_own / best_other:6.2f}  {len(times['rlx']):6} {apart:10.1e}",
        flush=True,
    )
    if profile:
        for kind, us, nodes in spent(program)[:10]:
            print(f"    {kind:20} {us / 1e3:8.2f} ms  {nodes:4} nodes")
    loaded.close()


def main() -> None:
    from rlx.backends.cpu.host.matmul import blas  # here, since other builds have it elsewhere

    parser = options(__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], default=[])
    parser.add_argument("--profile", action="store_true", help="what rlx spends, by op")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    args = parser.parse_args()
    (cpu,) = (i for i in probe_all()[0] if i.backend == "cpu")
    core = os.environ.get("OPENBLAS_CORETYPE")
    told = f"OPENBLAS_CORETYPE={core} in the environment" if core else "its own choice"
    print(f"{cpu.name}; {THREADS} threads each; {cpu.driver}; onnxruntime {version('onnxruntime')}")
    print(f"rlx's f32 products: {blas.load()[1]} ({told}). Load before: {os.getloadavg()[0]:.1f}")
    print(f"{'':14} {'median ms':>19} {'':6}  {'best ms':>19}")
    print(
        f"{'model':14} {'rlx':>9} {'ort':>9} {'ratio':>6}  {'rlx':>9} {'ort':>9} {'ratio':>6}  "
        f"{'runs':>6} {'difference':>10}"
    )
    for name in args.models or MODELS:
        measure(name, args.rounds, args.seconds, args.profile)


if __name__ == "__main__":
    main()
