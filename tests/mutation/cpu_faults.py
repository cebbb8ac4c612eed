"""The planted faults of the CPU: those of its engine, of NumPy's kernels, and of what both of them run."""

from __future__ import annotations

from dataclasses import replace

from tests.mutation.engine_faults import ENGINE_FAULTS
from tests.mutation.fault import CPU, ENGINE, NUMPY, Fault
from tests.mutation.faults import FAULTS

# In functions that the engine prints from the headers of the GPUs.
_OF_HEADERS = (
    "stores to bf16 round ties up", "exp: the sign of a coefficient", "exp: one digit of a small coefficient",
    "maximum: NaN of the first operand lost", "sine in f64: too few bits of 2/pi",
)  # fmt: skip
_HEADER_FAULTS = tuple(replace(f, name=f"engine, {f.name}", where=ENGINE) for f in FAULTS if f.name in _OF_HEADERS)

_SHARED_FAULTS = (
    Fault("both, epilogue: no bias before an activation", "backends/cpu/host/matmul/dense.py",
          "tree = rule([tree], attrs)", "tree = rule([ex.arg(0, held)], attrs)", ("matmul",), CPU,
          ("f32-f32-2x3-4x3T-bias_f32-gelu", "f64-f64-33x40-40x65-bias_f64-gelu")),
    Fault("both, sum: a kept axis does not separate reduced ones", "backends/cpu/host/reduce.py",
          "if shape[axis] != 1:\n                runs", "if False:\n                runs", ("sum", "max"), CPU),
    Fault("both, elementwise: any neighbouring axes are one", "backends/cpu/host/elementwise/evaluate.py",
          "if dims and all(before == now * n for", "if dims and any(before == now * n for", ("add", "where", "fused"),
          CPU),
    Fault("both, frames: the hop left out", "backends/cpu/host/signal.py", "hop * x.strides[-1], x.strides[-1]))",
          "x.strides[-1], x.strides[-1]))", ("frame", "windowed_frames"), CPU),
    Fault("both, fusion: operands of a group in the other order", "passes/fuse.py", "ex.arg(numbers[key], x.dtype)",
          "ex.arg(len(numbers) - 1 - numbers[key], x.dtype)", (), CPU,
          tests=("tests/passes/test_fuse.py", "tests/passes/test_results.py::test_float_graphs_in_float64")),
    Fault("both, fusion: halves not rounded within a group", "passes/fuse.py",
          "explicit(node_trees(node))", "node_trees(node)", (), CPU,
          tests=("tests/passes/test_fuse.py::test_halves_round_where_they_were_stored",)),
    Fault("both, memory: results written over inputs that are read later", "driver/memory/planner/storage.py",
          "last[t.id] = i\n    return last", "last.setdefault(t.id, i)\n    return last", (), CPU,
          tests=("tests/planner/test_planner.py", "tests/fuzz/test_fuzz.py::test_cpu")),
    Fault("both, memory: a block's last step is free", "driver/memory/planner/packing.py",
          "change[b.last + 1] -= b.nbytes", "change[b.last] -= b.nbytes", (), CPU,
          tests=("tests/planner/test_planner.py",)),
    Fault("both, memory: views begin where what they view begins", "driver/memory/planner/storage.py",
          "layout.home[t.id] = (number, base + offset)", "layout.home[t.id] = (number, base)", (), CPU,
          tests=("tests/planner/test_planner.py", "tests/fuzz/test_fuzz.py::test_cpu")),
)  # fmt: skip

_NUMPY_FAULTS = (
    Fault("numpy, softmax: the maximum not taken out", "softmax.py",
          "partial(np.subtract, x, one, out),\n            partial(np.exp, out, out)",
          "partial(np.copyto, out, x),\n            partial(np.exp, out, out)", ("softmax",), NUMPY),
    Fault("numpy, layer norm: half of the mean left", "rows.py",
          "row_sums(made, column),\n        partial(np.divide, column, count, column),\n"
          "        partial(np.subtract, made, column, made),\n    ]", "]", ("layer_norm",), NUMPY),
    Fault("numpy, norm: no epsilon", "norm/rows.py", "partial(np.add, column, eps, column),", "",
          ("layer_norm", "rms_norm"), NUMPY),
    Fault("numpy, sums: rows behind the whole groups forgotten", "rows.py", "if rest:\n            steps.append(",
          "if False:\n            steps.append(", ("sum", "mean", "softmax"), NUMPY),
    Fault("numpy, gather: negative indices not counted from the end", "index.py",
          "        partial(np.add, wanted, past, wanted),\n        partial(np.clip",
          "        partial(np.clip", ("gather", "gather_elements"), NUMPY),
    Fault("numpy, gather: indices not clamped", "index.py", "partial(np.clip, wanted, zero, last, wanted)",
          "partial(np.clip, wanted, zero, length, wanted)", ("gather", "gather_elements"), NUMPY),
    Fault("numpy, scatter: indices out of range count from the end", "scatter.py",
          "valid = (wanted >= 0) & (wanted < n)", "valid = wanted < n", ("scatter", "scatter_elements"), NUMPY),
    Fault("numpy, cumsum: exclusive sums begin with the first element", "cumulative.py",
          "source, target = source[:-1], target[1:]", "source, target = source[1:], target[1:]", ("cumsum", "cumprod"),
          NUMPY),
    Fault("numpy, max pool: zeros around an image", "pool.py", "-np.inf if largest else 0.0", "0.0", ("max_pool",),
          NUMPY),
    Fault("numpy, attention: a query does not see its own key", "attention/forward.py", "keep = ahead <= 0 if causal",
          "keep = ahead < 0 if causal", ("attention",), NUMPY),
    Fault("numpy, attention: the window's last key not looked at", "attention/forward.py",
          "high = min(high, queries.stop + shift + window)", "high = min(high, queries.stop + shift + window - 1)",
          ("attention",), NUMPY),
    Fault("numpy, attention: rows that see no key are not zero", "attention/forward.py",
          "steps.append(partial(np.maximum, total, np.asarray(info.tiny, self.dtype), out=total))", "pass",
          ("attention",), NUMPY),
    Fault("numpy, windows: no room behind an image", "windows.py",
          "max(after, (c - 1) * s + d * (k - 1) + 1 - before - n)", "after", ("max_pool", "avg_pool"), NUMPY),
    Fault("numpy, packed product: tiles of a part of the sum not added", "quantized.py",
          "out[rows] += np.matmul(x[rows, at]", "out[rows] = np.matmul(x[rows, at]", (), NUMPY,
          tests=("tests/cpu/test_parts.py",)),
    Fault("numpy, reduction: the rest of a long row forgotten", "reduce.py", "if rest.size:", "if False:", (), NUMPY,
          tests=("tests/cpu/test_parts.py",)),
)  # fmt: skip

CPU_FAULTS = (*ENGINE_FAULTS, *_HEADER_FAULTS, *_SHARED_FAULTS, *_NUMPY_FAULTS)

# What `make late` plants, each with every engine that runs it; `make mutation` plants them all.
CPU_SAMPLE = (
    "engine, product: a column too many",
    "engine, attention: a query does not see its own key",
    "engine, threads: a chunk too few",
    "both, epilogue: no bias before an activation",
    "numpy, gather: negative indices not counted from the end",
)
