"""Recurrences, Fourier transforms and f64 rows on the processor: rlx's compiled engine and rlx on NumPy, in turns.

    python benchmarks/cpu/recurrences.py [WORD …] [--threads 1] [--rounds 7]

Each row is one op at the size that a model has. Times are processor time, the minimum of some rounds, of a run with
bound inputs and outputs; no time is asserted. Words keep the rows that have one of them in their names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, chosen, options
from rlx.ir import apply, apply_multi

Array = np.ndarray[Any, Any]
Engine = Literal["numpy", "compiled"]
Row = tuple[Callable[..., Any], list[Array]]


def floats(*shape: int, factor: float = 1.0, dtype: str = "f32") -> Array:
    """Normal numbers times a factor; a negative one makes all negative, a small one positive."""
    x = np.random.default_rng(0).standard_normal(shape) * factor
    x = -np.abs(x) if factor < 0 else np.abs(x) if factor < 1 else x
    return x.astype(rlx.dtypes.as_dtype(dtype).np)


def states(length: int, channels: int = 1536, count: int = 16) -> list[Array]:
    """x, Δ, A, B, C, D, z and the state of Mamba-130M's scan."""
    line, matrix = (1, length, channels), (1, length, count)
    return [
        floats(*line), floats(*line, factor=0.1), floats(channels, count, factor=-1), floats(*matrix), floats(*matrix),
        floats(channels), floats(*line), floats(1, channels, count),
    ]  # fmt: skip


def heads(length: int, count: int = 24, width: int = 64, n: int = 128) -> list[Array]:
    """The same of Mamba2-130M, one decay for each head."""
    line, matrix = (1, length, count, width), (1, length, n)
    return [
        floats(*line), floats(1, length, count, factor=0.1), floats(count, factor=-1), floats(*matrix), floats(*matrix),
        floats(count), floats(*line), floats(1, count, width, n),
    ]  # fmt: skip


def delta(length: int) -> list[Array]:
    """q, k, v, g, β and the state of a layer of Qwen3-Next."""
    keys, gate = (1, length, 16, 128), (1, length, 32)
    return [
        floats(*keys, factor=0.1), floats(*keys, factor=0.1), floats(1, length, 32, 128), floats(*gate, factor=-0.1),
        floats(*gate, factor=0.3), floats(1, 32, 128, 128),
    ]  # fmt: skip


def delta_grad(length: int) -> list[Array]:
    q, k, v, g, beta, state = delta(length)
    return [v, state, q, k, v, beta, g, state]


def states_grad(given: list[Array]) -> list[Array]:
    x, step, a, b, c, _, _, state = given
    return [x, state, x, step, a, b[:, :, None], c[:, :, None], state]


def scan(*given: Any) -> Any:
    return rlx.selective_scan(*given, delta_softplus=True)


def transform(op: str, n: int) -> Callable[..., Any]:
    return lambda x: apply(op, x, n=n, inverse=op == "irfft", scale=1.0)


def rows() -> dict[str, Row]:
    grad = lambda *given: apply_multi("selective_scan_grad", *given, operands=("state",))  # noqa: E731
    rule = lambda *given: apply_multi("gated_delta_rule_grad", *given, operands=("g", "state"), scale=0.1)  # noqa: E731
    conv = lambda *given: rlx.causal_conv(*given, activation="silu")  # noqa: E731
    group = lambda *g: apply_multi("group_norm_grad", *g, groups=32, eps=1e-5, beta=rlx.dtypes.f32)  # noqa: E731
    image, signal, wide = (2, 320, 32, 32), floats(1, 480_000), floats(256, 1024, dtype="f64")
    found: dict[str, Row] = {f"Mamba, {n} steps": (scan, states(n)) for n in (1, 256)}
    found |= {f"Mamba-2, {n} steps": (scan, heads(n)) for n in (1, 256)}
    found |= {f"delta rule, {n} steps": (rlx.gated_delta_rule, delta(n)) for n in (1, 128)}
    found |= {
        "Mamba gradient, 256 steps": (grad, states_grad(states(256))),
        "Mamba-2 gradient, 64 steps": (grad, states_grad(heads(64))),
        "delta rule gradient, 64 steps": (rule, delta_grad(64)),
    }
    for n in (1, 256):
        given = [floats(1, n, 8192), floats(8192, 4), floats(8192), floats(1, 3, 8192)]
        found[f"causal conv, {n} steps"] = conv, given
    for op in ("cumsum", "cumprod"):
        x = 1 + floats(256, 1024, factor=0.01)
        found |= {f"{op}, axis {i}": ((lambda x, op=op, i=i: apply(
            op, x, axis=i, exclusive=False, reverse=False)), [x]) for i in (0, 1)}  # fmt: skip
    found["group_norm_grad"] = group, [floats(*image), floats(*image), floats(320)]
    for op, lines, n in (("rfft", 3000, 400), ("rfft", 512, 1024), ("fft", 64, 4096)):
        shape = (lines, n) if op == "rfft" else (lines, n, 2)
        found[f"{op}, {lines} lines of {n}"] = transform(op, n), [floats(*shape)]
    found["spectra of 30 s, 512 / 128"] = (lambda x: rlx.signal.stft(x, nperseg=512, noverlap=384)[2]), [signal]
    found["softmax, f64"] = rlx.softmax, [wide]
    found["layer_norm, f64"] = rlx.layer_norm, [wide, wide[0].copy(), wide[1].copy()]
    return found


def bound_run(row: Row, engine: Engine, threads: int) -> Callable[[], Any]:
    """A run of the row's program by one engine, with inputs and outputs bound."""
    build, arrays = row
    graph = rlx.Graph("row")
    made = build(*(graph.input(f"x{i}", a.shape, rlx.dtypes.as_dtype(a.dtype)) for i, a in enumerate(arrays)))
    for i, t in enumerate(made if isinstance(made, tuple | list) else (made,)):
        graph.output(f"y{i}", t)
    bound = rlx.Session("cpu", engine=engine, threads=threads).compile(graph).bind()
    for i, a in enumerate(arrays):
        bound.inputs[f"x{i}"][...] = a
    return bound.run


def least(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The least processor time of each in microseconds, by turns, in rounds of some 20 ms."""
    counts = []
    for run in runs:
        run()
        start = time.perf_counter()
        run()
        counts.append(max(1, min(500, int(0.02 / (time.perf_counter() - start)))))
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, (run, count) in enumerate(zip(runs, counts, strict=True)):
            start = time.process_time()
            for _ in range(count):
                run()
            best[i] = min(best[i], (time.process_time() - start) / count * 1e6)
    return best


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    table = Table({"µs of processor time": "34", "NumPy": "8.1f", "engine": "8.1f", "ratio": "6.2f"})
    table.head()
    for name, row in rows().items():
        if not chosen(name, args.words):
            continue
        plain, compiled = least([bound_run(row, e, args.threads) for e in get_args(Engine)], args.rounds)
        table.row(name, plain, compiled, plain / compiled)


if __name__ == "__main__":
    os.environ.pop("RLX_CPU", None)
    main()
