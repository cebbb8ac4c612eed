"""Where the compile time of a training step of GPT-2 small goes, for a GPU that need not be there.

    python benchmarks/networks/compile_step.py [--target cuda vulkan] [--dtype f32 bf16] [--rounds 3] [--profile STAGE]

The step (AdamW, 8 x 1024 tokens; bf16: weights in bf16 with f32 masters, cast-bf16: f32 weights cast in the
loss) is traced, optimized, planned, lowered and its
barriers are placed, as `rlx.training` has it done; the table has the processor time of each stage in milliseconds, the
least of the rounds, each on a graph traced anew. Where the disk's cache has the graph that passes and planner left,
`key` (what the cache is asked by) and `read` take the place of `verify`, `passes` and `spare`: the second total. What a
device does then, loading kernels and recording, is not in it;
`kernels` is the text of each elementwise kernel that must be compiled where the cache has none.
`--profile` prints the functions that a stage spends its time in.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.networks.recompute import gpt2, loss
from rlx import optim
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.program.barriers import place_barriers
from rlx.backends.gpu.program.executable import lower_graph, support
from rlx.backends.gpu.program.steps import Launch, TreeKernel
from rlx.backends.gpu.program.target import Target
from rlx.backends.vulkan.target import vulkan_target
from rlx.driver import BuildOptions, DeviceInfo, Limits, MemoryPlan
from rlx.driver.memory.planner.spare import spared
from rlx.host.collector import paused
from rlx.host.diskcache import key_of
from rlx.ir import Graph, verify
from rlx.runtime import kept
from rlx.runtime.options import CompileOptions
from rlx.runtime.prepare import Prepared, planned, prepare
from rlx.train.leaves import taken_apart
from rlx.train.program import Model, step_graph

HALVES = frozenset({"16bit_storage", "8bit_storage", "f16", "bf16", "i8", "i16", "i64", "f64", "subgroup",
                    "full_subgroups", "float_controls", "denorm_preserve", "coopmat", "bf16_coopmat"})  # fmt: skip
GROUPS = (2**31 - 1, 65535, 65535)


def target_of(name: str) -> Target:
    """The target of an H200 through CUDA or Vulkan."""
    limits = Limits(max_groups=GROUPS, max_group_threads=1024, shared_bytes=48 << 10, subgroup=32,
                    dynamic_shared_bytes=227 << 10 if name == "cuda" else 0)  # fmt: skip
    if name == "cuda":
        return cuda_target(HALVES | {"tensorcore", "wgmma"}, limits)
    return vulkan_target(HALVES, limits, software=False)


class Bare:
    """A stand-in for a device: its target, and the properties that the cache's keys contain."""

    def __init__(self, target: Target) -> None:
        self.target, self.limits = target, target.limits
        self.info = DeviceInfo("bare", 0, "bare", "gpu", 150_000_000_000, "none", frozenset(target.features))


def model_of(dtype: str, layers: int = 12, width: int = 768, vocabulary: int = 50257, tokens: int = 1024) -> Model:
    """GPT-2 with zeros for weights, and AdamW; in bf16 with masters of f32."""
    parameters = gpt2(vocabulary, tokens, width, layers)
    optimizer = optim.adamw(1e-3)
    half = None if dtype == "f32" else rlx.dtypes.as_dtype(dtype.removeprefix("cast-"))
    if half is not None and "cast-" not in dtype:
        parameters = rlx.tree.map(lambda p: p.astype(half.np), parameters)
        optimizer = optim.with_masters(optimizer)
    theirs, held = taken_apart(parameters, "parameters")
    own, _ = taken_apart(optimizer.init(theirs.tree(held)), "optimizer")

    def of_batch(p: Any, batch: Any) -> Any:
        if "cast-" in dtype:
            p = rlx.tree.map(lambda x: rlx.cast(x, half), p)
        return loss(p, batch[:, :-1], batch[:, 1:], max(1, width // 64))

    return Model(of_batch, theirs, None, None, optimizer, own, False, 1, True)


class Stages:
    """Runs the stages in order, and keeps the least processor time of each."""

    def __init__(self, profiled: str = "") -> None:
        self.times: dict[str, float] = {}
        self.profiled = profiled
        self.profile = cProfile.Profile()

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        gc.collect()
        if name == self.profiled:
            self.profile.enable()
        begin = time.process_time()
        with paused():
            result = call()
        spent = (time.process_time() - begin) * 1e3
        self.profile.disable()
        self.times[name] = min(spent, self.times.get(name, np.inf))
        return result


def compiled(stages: Stages, model: Model, target: Target, batch: int, tokens: int) -> tuple[Graph, Any, Any]:
    """The stages on a model: the prepared graph, its plan, its lowering."""
    types, _ = taken_apart(np.zeros((batch, tokens + 1), np.int32), "batch")
    graph = stages.run("trace", lambda: step_graph(model, types, 0).graph)
    stages.run("verify", lambda: verify(graph))
    device: Any = Bare(target)
    ready = stages.run("passes", lambda: prepare(
        graph, support=lambda n: support(device, n), param_dtypes={}, storage="typed", packed=False, optimize=True,
        fallback="host").graph)  # fmt: skip

    def plan_of(graph: Graph) -> MemoryPlan:
        return planned(graph, "reuse", lambda n: None, lambda n: None, 1 << 40)

    plan = stages.run("plan", lambda: plan_of(ready))
    ready = stages.run("spare", lambda: spared(ready, plan, plan_of, roomy=True))
    plan = plan_of(ready)
    options: Any = CompileOptions("reuse", "typed", True, "host", BuildOptions(), None)  # type: ignore[arg-type]
    stages.run("key", lambda: key_of(kept.key_parts(graph, device, options, {})))
    record = kept.written(Prepared(ready, frozenset(), {}))
    assert record is not None
    stages.run("read", lambda: kept.read(record, graph, {}))
    lowering, _ = stages.run("lower", lambda: lower_graph(ready, plan, target, "f32"))
    stages.run("barriers", lambda: place_barriers(lowering.steps))
    kernels = {s.kernel: None for s in lowering.steps if isinstance(s, Launch) and isinstance(s.kernel, TreeKernel)}

    def texts() -> None:
        from rlx.backends.gpu.elementwise.emit_cuda import emit_cuda
        from rlx.backends.gpu.elementwise.emit_spirv import emit_spirv

        for kernel in kernels:
            emit_cuda(kernel) if target.library else emit_spirv(kernel, target.features)

    stages.run("kernels", texts)
    return ready, plan, lowering


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("batch", 8), ("tokens", 1024), ("layers", 12), ("width", 768), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--target", nargs="+", default=["cuda", "vulkan"])
    parser.add_argument("--dtype", nargs="+", default=["f32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", default="")
    args = parser.parse_args()
    for dtype in args.dtype:
        model = model_of(dtype, args.layers, args.width, args.vocabulary, args.tokens)
        for name in args.target:
            stages = Stages(args.profile)
            for _ in range(args.rounds):
                ready, plan, lowering = compiled(stages, model, target_of(name), args.batch, args.tokens)
            left_out = {"kernels", "key", "read"}, {"kernels", "verify", "passes", "spare"}
            total, known = (sum(t for n, t in stages.times.items() if n not in out) for out in left_out)
            each = ", ".join(f"{n} {t:.0f}" for n, t in stages.times.items())
            print(f"{name} {dtype}: {len(ready.nodes):,} nodes, {len(lowering.steps):,} steps, arena "
                  f"{plan.arena_bytes / 1e6:,.0f} MB: {total:.0f} ms, kept {known:.0f} ms ({each})")  # fmt: skip
            if args.profile:
                pstats.Stats(stages.profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
