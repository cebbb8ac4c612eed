"""MiniLM on the GPUs of this machine, beside torch in the same run.

    python benchmarks/networks/minilm_gpu.py --model FOLDER [--no-torch] [--no-sweep] [--no-steps] [--device cuda …]

Prints milliseconds, the number of steps, the slowest kernels, and a sweep over candidates that are worth tuning.
Times are the smallest mean of five loops after a warm-up (see kernels/gpu.py), with the inputs on the device. Steps
are timed one by one, outside a CUDA graph, so that the time of each includes its launch.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.harness import options
from benchmarks.kernels.gpu import per_run, step_times, torch_minilm
from rlx.backends.gpu.attention import choice as attention_choice
from rlx.backends.gpu.gemm import choice as product_choice
from rlx.models import SentenceEncoder, load
from rlx.runtime import CompiledGraph, Session

SIZES = ((1, 16), (32, 128))
# (precision, dtype of the weights, dtype of the activations). The last corresponds to torch's bf16.
KINDS = (("f32", None, None), ("tf32", None, None), ("bf16", "bf16", None), ("bf16", "bf16", "bf16"))
SWEPT = (("f32", None), ("bf16", None), ("bf16", "bf16"))
_TOP = 10

# The sweep of each size (batch, tokens): name -> fields to force of the candidates for GEMMs and for attention.
Wish = tuple[dict[str, Any], dict[str, Any]]
SWEEPS: dict[tuple[int, int], dict[str, Wish]] = {
    (1, 16): {
        "products by the library": ({"algorithm": "library"}, {}),
        "biases in launches of their own": ({"fused_bias": False}, {}),
        **{
            f"few rows, {sites} sites, {ahead} steps ahead": (
                {"algorithm": "rows", "sites": sites, "ahead": ahead},
                {},
            )
            for sites in (2, 4, 8, 16)
            for ahead in (1, 2, 4)
        },
        **{f"attention of {n} rows a group": ({}, {"algorithm": "decode", "rows": n}) for n in (1, 2, 4)},
        "attention in tiles": ({}, {"algorithm": "tiles"}),
        "attention by matrices": ({}, {"algorithm": "matrix"}),
    },
    (32, 128): {
        "biases in launches of their own": ({"fused_bias": False}, {}),
        "products by matrix instructions": ({"algorithm": "mma"}, {}),
        **{f"mma tiles {tile}": ({"algorithm": "mma", "tile": tile}, {}) for tile in "sml"},
        "attention in tiles": ({}, {"algorithm": "tiles"}),
        **{
            f"attention by matrices, {deep} deep, {keys} keys": (
                {},
                {"algorithm": "matrix", "deep": deep, "keys": keys},
            )
            for deep in (1, 2)
            for keys in (32, 64)
        },
    },
    (1, 64): {
        "products by the library": ({"algorithm": "library"}, {}),
        "products by the kernel for few rows": ({"algorithm": "rows"}, {}),
    },
}


def executable(
    encoder: SentenceEncoder, size: tuple[int, int], session: Session | None = None
) -> CompiledGraph:
    """The encoder for one size, by the default or the forced candidates, with its inputs written."""
    exe = (session or encoder.session).compile(encoder.graph(*size), weights=encoder.weights)
    ids = np.random.default_rng(0).integers(1000, 20000, size).astype(np.int32)
    exe.run({"ids": ids, "mask": np.ones(size, np.bool_)})
    return exe


def milliseconds(encoder: SentenceEncoder, size: tuple[int, int]) -> str:
    """ms a run and the number of steps; or the error, since one row must not end the table."""
    try:
        with executable(encoder, size) as exe:
            steps = sum(len(d.steps) for d in exe.report())
            return f"{1e3 * per_run(exe.executable.run, lambda: None):.4f} ms ({steps} steps)"
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error)[:100]}"


def slowest(encoder: SentenceEncoder, size: tuple[int, int], precision: str) -> None:
    """Prints the kernels that take the most time, summed over a run."""
    session = Session(encoder.session.info.id, precision=precision, timings=True)
    with executable(encoder, size, session) as exe:
        per_run(exe.executable.run, lambda: None)
        shares: dict[str, list[float]] = {}
        for name, us in step_times(exe):
            shares.setdefault(name.partition(" ")[0], []).append(us)
    print(f"    {sum(map(sum, shares.values())):.1f} µs in steps, one by one:")
    for name, times in sorted(shares.items(), key=lambda item: -sum(item[1]))[:_TOP]:
        print(
            f"    {sum(times):9.1f} µs in {len(times):3} × {name} (least {min(times):.2f}, most {max(times):.2f})"
        )


def sweep(encoder: SentenceEncoder, size: tuple[int, int], wishes: dict[str, Wish]) -> None:
    for name, (products, attention) in wishes.items():
        with ExitStack() as stack:
            stack.enter_context(product_choice.forcing(**products))
            stack.enter_context(attention_choice.forcing(**attention))
            print(f"    {name:52}{milliseconds(encoder, size)}", flush=True)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="MiniLM's folder")
    parser.add_argument(
        "--device", action="append", help="cuda or vulkan; may be repeated; both when left out"
    )
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--no-steps", action="store_true")
    args = parser.parse_args()
    for device in args.device or ["cuda", "vulkan"]:
        for precision, dtype, activations in KINDS:
            kept = {"dtype": dtype, "activations": activations}
            with load(args.model, device, precision=precision, **kept) as encoder:
                for size in SWEEPS:
                    row = f"{device} {size[0]}x{size[1]} {precision}, activations {activations or 'f32'}"
                    print(f"{row}: {milliseconds(encoder, size)}", flush=True)
                    if not args.no_steps and size in SIZES:
                        slowest(encoder, size, precision)
                    if not args.no_sweep and (precision, activations) in SWEPT:
                        sweep(encoder, size, SWEEPS[size])
    if not args.no_torch:
        torch_minilm()
    return 0


if __name__ == "__main__":
    sys.exit(main())
