"""The error of networks in precision="bf16" against float64 on each device, and how each GEMM rounded its operands.

    python benchmarks/networks/bf16.py [--device cuda --device vulkan] [--only bert vit minilm] [--nodes] [--quick]

Networks have the sizes of BERT-base (1 x 128), ViT-B/16 (1 x 197) and MiniLM (1 x 128), with random weights. The first
table has a line for each device and each forced algorithm of GEMMs and attention: the NMSE of the last states against
float64, and milliseconds a run. The second has a line for each kind of node in the program of the default choice: the
NMSE of its results against float64 on the same inputs ("own"), and the rounding of its operands that explains it: none
("f32"), 11 bits to nearest ("tf32"), 8 bits to nearest ("bf16") or 8 bits truncated ("bf16 cut"), with the NMSE that
remains, which is below 1e-10 where this is the rounding. `--nodes` prints every tensor instead, in order. `--emulate`
first prints the NMSE of each network in NumPy with the operands of every GEMM rounded in each of these ways.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import numpy.typing as npt

import rlx
from benchmarks.harness import options
from rlx.backends.gpu.attention import choice as attention_choice
from rlx.backends.gpu.gemm import choice as product_choice
from rlx.conformance.compare import distance
from rlx.conformance.oracle import apply_reference, evaluate
from rlx.errors import RlxError
from rlx.ir import Node, Tensor
from rlx.runtime import CompiledGraph, Session, Weights

Array = npt.NDArray[Any]
Rounding = Callable[[Array], Array]


def _bits(kept: int, nearest: bool) -> Rounding:
    """A function that rounds f32 to `kept` bits of significand: to nearest even, or by truncation."""
    drop = 24 - kept

    def rounded(x: Array) -> Array:
        u = np.ascontiguousarray(x, np.float32).view(np.uint32)
        if nearest:
            u = u + np.uint32((1 << (drop - 1)) - 1) + (u >> np.uint32(drop) & np.uint32(1))
        return (u & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32).astype(np.float64)

    return rounded


ROUNDINGS: dict[str, Rounding] = {
    "f32": lambda x: np.asarray(x, np.float64),
    "tf32": _bits(11, True),
    "bf16": _bits(8, True),
    "bf16 cut": _bits(8, False),
}
# Each line of the first table: fields to force of the candidates for GEMMs and for attention.
FORCED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as the rules say": ({}, {}),
    "products by the library": ({"algorithm": "library"}, {}),
    "products by matrix instructions": ({"algorithm": "mma"}, {}),
    "products in f32": ({"algorithm": "fma"}, {}),
    "attention in f32": ({}, {"algorithm": "tiles"}),
    "products and attention in f32": ({"algorithm": "fma"}, {"algorithm": "tiles"}),
    "products of one part": ({"split_k": 1}, {}),
}
# (layers, tokens, width, inner width of the MLP, whether norms come before attention and MLP as in ViT).
SIZES = {
    "bert": (12, 128, 768, 3072, False),
    "vit": (12, 197, 768, 3072, True),
    "minilm": (6, 128, 384, 1536, False),
}
HEADS = 12


def network(name: str) -> tuple[rlx.Graph, dict[str, Array], dict[str, Array]]:
    """An encoder, its weights (normal with deviation 0.02, as such networks are initialized), and its input."""
    layers, n, d, wide, before = SIZES[name]
    rng = np.random.default_rng(0)
    g, weights = rlx.Graph(name), {}

    def param(label: str, *shape: int) -> Tensor:
        weights[label] = rng.standard_normal(shape).astype(np.float32) * np.float32(0.02)
        return g.param(label, shape)

    def linear(x: Tensor, label: str, k: int, m: int, activation: str | None = None) -> Tensor:
        w, b = param(f"{label}.weight", m, k), param(f"{label}.bias", m)
        return rlx.matmul(x, w, b, transpose_b=True, activation=activation)

    def norm(x: Tensor, label: str) -> Tensor:
        weights[f"{label}.weight"], weights[f"{label}.bias"] = np.ones(d, np.float32), np.zeros(d, np.float32)
        return rlx.layer_norm(x, g.param(f"{label}.weight", (d,)), g.param(f"{label}.bias", (d,)), 1e-6)

    def heads(x: Tensor) -> Tensor:
        return rlx.transpose(rlx.reshape(x, (1, n, HEADS, d // HEADS)), (0, 2, 1, 3))

    if before:
        feeds = {"x": rng.standard_normal((1, 3, 224, 224)).astype(np.float32)}
        image = g.input("x", (1, 3, 224, 224))
        seen = rlx.conv(image, param("patch.weight", d, 3, 16, 16), param("patch.bias", d), strides=16)
        rows = rlx.transpose(rlx.reshape(seen, (d, n - 1)), (1, 0))
        x = rlx.concat([param("class", 1, d), rows], axis=0) + param("places", n, d)
    else:
        feeds = {"x": rng.standard_normal((n, d)).astype(np.float32)}
        x = norm(g.input("x", (n, d)), "embeddings")
    for i in range(layers):
        read = norm(x, f"{i}.first") if before else x
        q, k, v = (heads(linear(read, f"{i}.{part}", d, d)) for part in ("query", "key", "value"))
        mixed = rlx.attention(q, k, v, scale=(d // HEADS) ** -0.5)
        mixed = rlx.reshape(rlx.transpose(mixed, (0, 2, 1, 3)), (n, d))
        x = x + linear(mixed, f"{i}.output", d, d)
        read = x = x if before else norm(x, f"{i}.first")
        read = norm(x, f"{i}.second") if before else read
        x = x + linear(linear(read, f"{i}.up", d, wide, "gelu"), f"{i}.down", wide, d)
        x = x if before else norm(x, f"{i}.second")
    g.output("states", norm(x, "last") if before else x)
    return g, weights, feeds


def rounded_reference(node: Node, read: list[Array], rounding: Rounding) -> Array:
    """The reference of a GEMM or an attention whose operands (not bias, mask or lengths) are rounded first. The
    rounding of probabilities inside an attention is not modelled."""
    count = 2 if node.op.name == "matmul" else 3
    given = [rounding(a) if i < count else a for i, a in enumerate(read)]
    return apply_reference(node, given, upcast=True)[0]


def examine(exe: CompiledGraph, reference: Mapping[int, Array], every: bool) -> None:
    """Prints the second table of a program that ran; see the top of this file.

    Requires: compiled with planner="bump", under which every tensor keeps its memory.
    """
    kinds: dict[tuple[str, ...], list[tuple[float, str, float]]] = {}
    wide: Callable[[Tensor], Array] = lambda t: np.asarray(exe.value(t), np.float64)  # noqa: E731
    for node in exe.program.nodes:
        if node.op.leaf or not node.output.dtype.is_float:
            continue
        got = wide(node.output)
        read = [reference[t.id] if t.node.op.leaf else wide(t) if t.dtype.is_float else exe.value(t)
                for t in node.inputs]  # fmt: skip
        own = distance(got, apply_reference(node, read, upcast=True)[0]).nmse
        model, left = "f32", own
        if node.op.name in ("matmul", "attention"):
            tried = {name: distance(got, rounded_reference(node, read, r)).nmse for name, r in ROUNDINGS.items()}
            model = min(tried, key=lambda name: tried[name])
            left = tried[model]
        kinds.setdefault((node.op.name, *(str(t.type) for t in node.inputs[:2])), []).append((own, model, left))
        if every:
            far = distance(got, reference[node.output.id]).nmse
            label = node.label or node.name
            print(f"    {node.op.name:12} {label:28} nmse {far:8.1e}  own {own:8.1e}  {model:8} {left:8.1e}")
    if every:
        return
    for kind, found in kinds.items():
        own = max(o for o, _, _ in found)
        if own < 1e-11:
            continue
        models = ", ".join(sorted({m for _, m, _ in found}))
        left = max(rest for _, _, rest in found)
        print(f"    {len(found):3} x {' '.join(kind):60} own {own:8.1e}  {models:8} {left:8.1e}")


def measure(device: str, name: str, every: bool, quick: bool) -> None:
    """Prints the tables of one network on one device."""
    graph, params, feeds = network(name)
    forced = {k: fields for k, fields in FORCED.items() if not quick or k == "as the rules say"}
    wanted = evaluate(graph, {**params, **feeds})[graph.outputs["states"].id]
    with ExitStack() as stack:
        session = Session(device, precision="bf16")
        weights = stack.enter_context(Weights(session.device))
        for choice, (products, attention) in forced.items():
            with product_choice.forcing(**products), attention_choice.forcing(**attention):
                exe = session.compile(graph, weights=weights)
                if choice == "as the rules say":
                    exe.set_params(params)
                exe.prepare()
            with exe:
                far = distance(exe.run(feeds)["states"], wanted).nmse
                best = min(_seconds(exe, feeds) for _ in range(10))
            print(f"  {device:9} {name:7} {choice:34} nmse {far:8.1e} {best * 1e3:9.3f} ms", flush=True)
        with session.compile(graph, weights=weights, planner="bump") as exe:
            exe.run(feeds)
            examine(exe, evaluate(exe.program, {**params, **feeds}), every)


def _seconds(exe: CompiledGraph, feeds: Mapping[str, Array]) -> float:
    began = time.perf_counter()
    exe.run(feeds)
    return time.perf_counter() - began


def emulate(name: str) -> None:
    """Prints a network's error in NumPy, with the operands of GEMMs rounded in each way, of attention to bf16."""
    graph, params, feeds = network(name)
    exact = evaluate(graph, {**params, **feeds})[graph.outputs["states"].id]
    for kind, rounding in ROUNDINGS.items():
        values: dict[int, Array] = {}
        for node in graph.nodes:
            if node.op.name in ("matmul", "attention"):
                read = [values[t.id] for t in node.inputs]
                way = ROUNDINGS["bf16"] if node.op.name == "attention" else rounding
                values[node.output.id] = rounded_reference(node, read, way)
            elif node.op.leaf:
                values[node.output.id] = {**params, **feeds}[node.attrs["name"]].astype(np.float64)
            else:
                values[node.output.id] = apply_reference(node, [values[t.id] for t in node.inputs], upcast=True)[0]
        far = distance(values[graph.outputs["states"].id], exact).nmse
        print(f"  NumPy     {name:7} products of {kind:9} operands, attention of bf16: nmse {far:8.1e}", flush=True)


def main() -> int:
    """Prints the tables; status 1 where a device did not run."""
    parser = options(__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--only", nargs="+", choices=sorted(SIZES), default=list(SIZES))
    parser.add_argument("--nodes", action="store_true", help="every tensor, in order")
    parser.add_argument("--quick", action="store_true", help="only the program that the rules make")
    parser.add_argument("--emulate", action="store_true", help="NumPy's model first")
    args = parser.parse_args()
    failed = False
    for name in args.only:
        if args.emulate:
            emulate(name)
        for device in args.device or ("cuda", "vulkan"):
            try:
                measure(device, name, args.nodes, args.quick)
            except RlxError as error:
                failed = True
                print(f"  {device:9} {name:7} {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
