"""The planted faults of the CPU: those of its engine, of NumPy's kernels, and of what both of them run."""

from __future__ import annotations

from dataclasses import replace

from tests.mutation.engine_faults import ENGINE_FAULTS
from tests.mutation.fault import CPU, ENGINE, NUMPY, Fault
from tests.mutation.faults import FAULTS

# Faults in functions that the engine prints from the headers of the GPUs.
_OF_HEADERS = (
    "stores to bf16 round ties up", "exp: the sign of a coefficient", "exp: one digit of a small coefficient",
    "maximum: NaN of the first operand lost", "sine in f64: too few bits of 2/pi",
)  # fmt: skip
_HEADER_FAULTS = tuple(replace(f, name=f"engine, {f.name}", where=ENGINE) for f in FAULTS if f.name in _OF_HEADERS)

_SHARED_FAULTS = (
    Fault("both, epilogue: no bias before an activation", "backends/cpu/host/matmul/dense.py",
          "tree = rule([tree], attrs)", "tree = rule([ex.arg(0, held)], attrs)", ("matmul",), CPU,
          ("f32-f32-2x3-4x3T-bias_f32-gelu", "f64-f64-33x40-40x65-bias_f64-gelu")),
    Fault("engine, sum: a kept axis does not separate reduced ones", "reduce.py",
          "if shape[axis] != 1:\n                runs", "if False:\n                runs", ("sum", "max"), ENGINE),
    Fault("both, elementwise: any neighbouring axes are one", "backends/cpu/host/elementwise/evaluate.py",
          "if dims and all(before == now * n for", "if dims and any(before == now * n for", ("add", "where", "fused"),
          CPU),
    Fault("both, frames: the hop left out", "backends/cpu/host/signal.py", "hop * x.strides[-1], x.strides[-1]))",
          "x.strides[-1], x.strides[-1]))", ("frame", "windowed_frames", "overlap_add"), CPU),
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

_VALUES = ("tests/ranks/test_collectives.py",)
_TRAINED = ("tests/ranks/test_training.py",)
_RANK_FAULTS = (
    Fault("both, ranks: halves added as halves", "ranks/collect.py",
          'narrow = dtype.itemsize == 2 and dtype.kind not in "iu"', "narrow = False", (), CPU, tests=_VALUES),
    Fault("both, ranks: one rank more or less in the order", "ranks/mesh.py",
          "[kept.index(name) for name in over]", "range(len(kept))", (), CPU, tests=_VALUES),
    Fault("both, ranks: the gradient of a mean is a sum", "ops/collectives/records.py",
          '"all_reduce", d, how=how)', '"all_reduce", d, how="sum")', (), CPU, tests=_VALUES),
    Fault("both, ranks: equal elements have the whole gradient each", "ops/collectives/records.py",
          "(largest * (total / count),)", "(largest * total,)", (), CPU, tests=_VALUES),
    Fault("both, ranks: a root's gradient everywhere", "ops/collectives/records.py",
          '"i32")), total, total * 0.0),)', '"i32")), total, total),)', (), CPU, tests=_VALUES),
    Fault("both, ranks: constants are summed while a program is built", "passes/simplify.py",
          "op.broadcasts or op.meets is not None or bodies(node)", "op.broadcasts or bodies(node)",
          (), CPU, tests=_VALUES),
    Fault("both, ranks: constants are no part of a card", "ops/collectives/cards.py",
          'f"{value.item()!r}" if value.size == 1', '"number" if value.size == 1', (), CPU, tests=_VALUES),
    Fault("both, ranks: fewer rows weigh as much", "train/ranks.py",
          "weight, card = (end - start) * n / t.shape[0],", "weight, card = 1.0,", (), CPU, tests=_TRAINED),
    Fault("both, ranks: all draw alike", "train/program.py", "key = fold_in(key, ops.axis_index(model.ranks.axis))",
          "pass", (), CPU, tests=_TRAINED),
    Fault("both, ranks: a failure elsewhere is not seen", "train/program.py",
          "anywhere = _anywhere(model.ranks,", "_ = _anywhere(model.ranks,", (), CPU, tests=_TRAINED),
    Fault("both, ranks: parameters are not compared", "train/ranks.py", "sums = [f", "sums = [] and [f", (), CPU,
          tests=_TRAINED),
)  # fmt: skip

# Faults in row programs, from which reference, decomposition and kernel are made: only outside judges can notice.
_RECORDS = ("tests/ops/test_row_records.py",)
_RECORD_FAULTS = (
    Fault("both, record of softmax: half an exponential", "ops/softmax.py",
          "args[0] - row_max(args[0]))\n    return (e", "(args[0] - row_max(args[0])) * 0.5)\n    return (e", (), CPU,
          tests=_RECORDS),
    Fault("both, record of softmax's gradient: the sum of d alone", "ops/softmax.py", "(y * (d - row_sum(d * y)),)",
          "(y * (d - row_sum(d)),)", (), CPU, tests=_RECORDS),
    Fault("both, record of logsumexp: the maximum not put back", "ops/softmax.py",
          'ex.call("exp", away))) + top,)', 'ex.call("exp", away))),)', (), CPU, tests=_RECORDS),
    Fault("both, record of norms: epsilon outside the root", "ops/norm/rows.py",
          'c / ex.call("sqrt", row_mean(c * c) + eps)', 'c / (ex.call("sqrt", row_mean(c * c)) + eps)', (), CPU,
          tests=_RECORDS),
    Fault("both, record of norms: no mean taken off", "ops/norm/rows.py", "less_mean(x) if centre else x", "x", (), CPU,
          tests=_RECORDS),
    Fault("both, record of norms' gradients: the mean of d left", "ops/norm/grad.py", "dx = dx - row_mean(dy)", "pass",
          (), CPU, tests=_RECORDS),
    Fault("both, record of cross entropy: ignored labels count", "ops/loss/cross_entropy.py",
          'ex.call("select", ex.call("eq", label, attrs["ignore_index"]), 0.0, loss)', "loss", (), CPU, tests=_RECORDS),
    Fault("both, record of cross entropy's gradient: the label's share left", "ops/loss/cross_entropy.py",
          " - ex.cast(row_at(args[2]), e.dtype)", "", (), CPU, tests=_RECORDS),
)  # fmt: skip

_NUMPY_FAULTS = (
    Fault("numpy, sums: rows behind the whole groups forgotten", "rows.py", "if rest:\n            steps.append(",
          "if False:\n            steps.append(", ("attention",), NUMPY),
    Fault("numpy, one_hot: negative indices not counted from the end", "index.py",
          "partial(np.add, front, past, front)", "partial(np.copyto, front, front)", ("one_hot",), NUMPY),
    Fault("numpy, cache: what is written into is not kept", "index.py", "[partial(np.copyto, out, x), run]", "[run]",
          ("dynamic_update_slice",), NUMPY),
    Fault("numpy, top_k: the least of the best", "order.py", "k * _FEW <= n else _order(keys, descending)",
          "k * _FEW <= n else _order(keys, not descending)", ("top_k", "sort"), NUMPY),
    Fault("numpy, scatter: indices out of range count from the end", "scatter.py",
          "valid = (wanted >= 0) & (wanted < n)", "valid = wanted < n", ("scatter", "scatter_elements"), NUMPY),
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
)  # fmt: skip

CPU_FAULTS = (
    *ENGINE_FAULTS, *_HEADER_FAULTS, *_SHARED_FAULTS, *_RANK_FAULTS, *_RECORD_FAULTS, *_NUMPY_FAULTS
)  # fmt: skip

# What `make late` plants, each with every engine that runs it; `make mutation` plants them all.
CPU_SAMPLE = (
    "engine, product: a column too many",
    "engine, attention: a query does not see its own key",
    "engine, threads: a chunk too few",
    "both, epilogue: no bias before an activation",
    "both, record of norms: epsilon outside the root",
    "numpy, one_hot: negative indices not counted from the end",
)
