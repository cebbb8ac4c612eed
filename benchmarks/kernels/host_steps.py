"""Host steps, which a GPU leaves to the CPU: one node at a time, by the compiled engine, by NumPy, by its reference.

    python benchmarks/kernels/host_steps.py [WORD …] [--rounds 9]

A row per op and shape, chosen by the words in its name: the medians of the calls in microseconds, taken in turns, and
how long NumPy and the reference take of the engine's time. NumPy's column is that of an op's kernel in
rlx/backends/cpu/host, and the reference's where there is none. One core. No time is asserted.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, chosen, once, options
from rlx.backends.cpu import executable
from rlx.backends.cpu.context import ArrayMemory, BindContext, in_order
from rlx.backends.cpu.host.kernels import bind_reference
from rlx.backends.cpu.quiet import quietly
from rlx.ir import Graph, Node, apply

SHAPES = ((64, 384), (512, 2048))
DTYPES = (rlx.f32, rlx.f64, rlx.f16)


def nodes() -> dict[str, Node]:
    """The measured nodes by name."""
    measured: dict[str, Node] = {}
    for dtype in DTYPES:
        for rows, columns in SHAPES:
            g = Graph("host steps")
            shape = (rows, columns)
            x, y, d = (g.input(name, shape, dtype) for name in "xyd")
            w, b = g.input("w", (columns,), dtype), g.input("b", (columns,), dtype)
            image = g.input("image", (4, rows // 4, columns // 64, 64), dtype)
            labels = g.input("labels", (rows,), rlx.i64)
            places = g.input("places", shape, rlx.i32)
            rates, state = g.input("rates", (1, rows, 64), dtype), g.input("state", (64, 16), dtype)
            mixed = g.input("mixed", (1, rows, 16), dtype)
            builders: dict[str, Callable[[], Any]] = {
                "gelu": lambda x=x: rlx.gelu(x),
                "softmax rows": lambda x=x: rlx.softmax(x),
                "softmax columns": lambda x=x: rlx.softmax(x, axis=0),
                "log_softmax": lambda x=x: rlx.log_softmax(x),
                "logsumexp": lambda x=x: rlx.logsumexp(x),
                "softmax_grad": lambda x=x, d=d: apply("softmax_grad", x, d, axis=1),
                "layer_norm": lambda x=x, w=w, b=b: rlx.layer_norm(x, w, b),
                "rms_norm": lambda x=x, w=w: rlx.rms_norm(x, w),
                "group_norm": lambda i=image, g=g, r=rows, t=dtype: rlx.group_norm(
                    i, 4, g.input("gw", (r // 4,), t), g.input("gb", (r // 4,), t)
                ),
                "cross_entropy": lambda x=x, n=labels: rlx.cross_entropy(x, n, reduction="none"),
                "sum rows": lambda x=x: rlx.sum(x, axis=1),
                "sum columns": lambda x=x: rlx.sum(x, axis=0),
                "mean all": lambda x=x: rlx.mean(x),
                "max rows": lambda x=x: rlx.max(x, axis=1),
                "max columns": lambda x=x: rlx.max(x, axis=0),
                "prod rows": lambda x=x: rlx.prod(x, axis=1),
                "argmax rows": lambda x=x: rlx.argmax(x),
                "argmax columns": lambda x=x: rlx.argmax(x, axis=0),
                "cumsum": lambda x=x: rlx.cumsum(x, axis=1),
                "cumprod": lambda x=x: rlx.cumprod(x, axis=1),
                "sort": lambda x=x: rlx.sort(x),
                "top_k": lambda x=x: rlx.top_k(x, 8)[0],
                "gather": lambda x=x, n=labels: rlx.gather(x, n),
                "gather_elements": lambda x=x, n=places: rlx.gather_elements(x, n, axis=1),
                "transpose": lambda x=x: rlx.transpose(x, (1, 0)),
                "slice": lambda x=x: x[1:-1, 3:-3],
                "concat": lambda x=x, y=y: rlx.concat([x, y], axis=1),
                "expand": lambda x=x, s=shape: rlx.expand(x, (3, *s)),
                "pad constant": lambda x=x: rlx.pad(x, ((1, 1), (2, 2))),
                "pad reflect": lambda x=x: rlx.pad(x, ((1, 1), (2, 2)), mode="reflect"),
                "max_pool": lambda i=image: rlx.max_pool(i, (2, 2), strides=(2, 2)),
                "avg_pool": lambda i=image: rlx.avg_pool(i, (2, 2), strides=(2, 2)),
                "matmul": lambda x=x, y=y: rlx.matmul(x, rlx.transpose(y, (1, 0))),
                "causal_conv": lambda r=rates, g=g, t=dtype: rlx.causal_conv(r, g.input("k", (64, 4), t)),
                "selective_scan": lambda r=rates, s=state, m=mixed: rlx.selective_scan(r, r, s, m, m),
            }
            for name, make in builders.items():
                output = make()
                output = output[0] if isinstance(output, tuple) else output
                measured[f"{name} {dtype.name} {rows}x{columns}"] = output.node
    return measured


def calls(node: Node) -> dict[str, Callable[[], object]]:
    """What runs the node, by column."""
    rng = np.random.default_rng(0)
    ins = []
    for t in node.inputs:
        kind = np.dtype(t.dtype.np)
        wide = rng.standard_normal(t.shape) if t.dtype.is_float else rng.integers(0, 8, t.shape)
        ins.append(np.asarray(wide).astype(kind))
    outs = [np.zeros(t.type.array_shape, t.dtype.np) for t in node.outputs]
    columns: dict[str, Callable[[], object]] = {}
    os.environ["RLX_CPU"] = "compiled"
    engine = executable._on_engine(node, ins, outs)
    if engine is not None:
        columns["engine"] = partial(quietly, in_order(engine))
    os.environ["RLX_CPU"] = "numpy"
    columns["numpy"] = executable.bind_node(node, ins, outs)
    steps = bind_reference(node, ins, outs, BindContext(ArrayMemory()))
    columns["reference"] = partial(quietly, in_order(steps))
    return columns


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    table = Table({"host step": "36", "engine": "9.0f", "numpy": "9.0f", "reference": "9.0f", "numpy / engine": "14.2f",
                   "reference / engine": "18.2f"})  # fmt: skip
    table.head()
    for name, node in nodes().items():
        if not chosen(name, args.words):
            continue
        ways = calls(node)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds + 1):
            for way, call in ways.items():
                times[way].append(1e6 * once(call))
        medians = {way: statistics.median(some[1:]) for way, some in times.items()}
        base = medians.get("engine", medians["numpy"])
        cells = (medians.get(way) for way in ("engine", "numpy", "reference"))
        table.row(name, *cells, medians["numpy"] / base, medians["reference"] / base)


if __name__ == "__main__":
    main()
