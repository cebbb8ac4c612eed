"""Kernels of fusion groups (trees) on a GPU: the time to make one, and its speed.

    python benchmarks/kernels/tree_vulkan.py                  emitted SPIR-V beside an interpreter with specialization
    constants python benchmarks/kernels/tree_vulkan.py vulkan:0 speed   bandwidth by dtype and layout; cuda:0 too

Run times are the best of several; disk caches are off. The interpreter is compiled here, with glslangValidator.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlx.backends.gpu.elementwise.emit_spirv import emit_spirv, template
from rlx.backends.gpu.elementwise.spirv import Module, no_contraction
from rlx.backends.gpu.elementwise.strided import View, broadcast, contiguous, launch_tree
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import FileKernel, Launch, Ref, TreeKernel, TreeOperand
from rlx.backends.gpu.rules.movement import move
from rlx.driver import BuildOptions, MemoryPlan, Slot
from rlx.driver.closing import Resources
from rlx.driver.registry import open_device
from rlx.dtypes import DType, bf16, bool_, f16, f32, i32, u8
from rlx.ir import Expr, Graph, expr

ROOT = Path(__file__).resolve().parents[2]
CODES = {"add": 1, "sub": 2, "mul": 3, "div": 4, "max": 5, "min": 6, "neg": 8, "abs": 9, "exp": 10, "log": 11,
         "sqrt": 12, "tanh": 13, "erf": 14, "sin": 15, "floor": 17, "sign": 18}  # fmt: skip
CHAINS = {
    1: ["exp"],
    5: ["abs", "sqrt", "mul", "tanh", "add"],
    15: ["abs", "sqrt", "log", "mul", "tanh", "add", "exp", "max", "erf", "sub", "sin", "mul", "neg", "div", "floor"],
}


def chain(names: list[str]) -> tuple[Expr, list[int]]:
    """A tree in which each node reads the one before (a binary one the input too), and its interpreter code."""
    x = expr.arg(0, f32)
    tree, words = x, []
    for k, name in enumerate(names):
        tree = expr.call(name, *([tree, x] if expr.PRIMS[name] == 2 else [tree]))
        words.append(CODES[name] | k << 8)
    words += [k << 8 for k in range(len(names), 15)]
    return tree, words


def arena_of(device: Any, segments: dict[str, int]) -> Any:
    slots = {i: Slot(name, 0, size, f32) for i, (name, size) in enumerate(segments.items())}
    return device.arena(MemoryPlan("bump", slots, dict(segments)), {})


def best(recorded: Any, times: int = 20) -> float:
    """Microseconds of the fastest run, from the device's clock where there is one."""
    found = float("inf")
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        recorded.launch()
        recorded.wait()
    for _ in range(times):
        start = time.perf_counter()
        recorded.launch()
        recorded.wait()
        found = min(found, (time.perf_counter() - start) * 1e6, *recorded.timings())
    return found


def making(device: Any) -> None:
    """Times emitting, making the pipeline, the first and later runs, for emitted SPIR-V and for the interpreter."""
    n = 1 << 20
    arena = arena_of(device, {"arena0": 8 * n})
    x, y = Ref("arena0", 0, 4 * n), Ref("arena0", 4 * n, 4 * n)
    template()
    made = ROOT / "out" / "tree_interpreter.spv"  # kept for use on machines without the compiler
    if shutil.which("glslangValidator"):
        made.parent.mkdir(exist_ok=True)
        command = ["glslangValidator", "-V", "--quiet", "--target-env", "vulkan1.2", "-o", str(made)]
        command += [f"-I{ROOT}/shaders/include", f"-I{ROOT}/rlx/backends/device_code"]
        subprocess.run([*command, str(ROOT / "benchmarks/kernels/tree_interpreter.comp")], check=True)
    interpreter = no_contraction(Module.parse(made.read_bytes())).encode()
    print(f"{device.info.name}: {n} f32 elements")
    print("nodes  kind         emit ms  pipeline ms  first run ms  run ms")
    flat = TreeOperand(f32, "flat")
    from rlx.backends.vulkan.pipelines import Pipeline

    for nodes, names in CHAINS.items():
        tree, words = chain(names)
        for kind in ("emitted", "interpreter"):
            start = time.perf_counter()
            if kind == "emitted":
                kernel: Any = TreeKernel((tree,), (flat,), (flat,), 0)
                code, constants = emit_spirv(kernel, device.info.features, device.info.kind != "software"), ()
            else:
                kernel = FileKernel("tree_interpreter", (), tuple(words))
                code, constants = interpreter, tuple(words)
            emitted = time.perf_counter()
            handle = device.pipelines._compile(kind, code, constants, 0, Resources())
            compiled = time.perf_counter()
            device.pipelines._made[kernel] = Pipeline(handle, kind)
            launch = Launch(kernel, (n // 1024, 1, 1), (x, y, n), (x,), (y,))
            recorded = device.record([launch], arena, timings=True)
            begun = time.perf_counter()
            recorded.launch()
            recorded.wait()
            first = time.perf_counter() - begun
            steps = [emitted - start, compiled - emitted, first]
            print(f"{nodes:5}  {kind:11}" + "".join(f"{1e3 * s:12.2f}" for s in steps) + f"{best(recorded) / 1e3:9.2f}")
            recorded.close()
    arena.close()


def speed(device: Any) -> None:
    """Measures gigabytes read and written a second, by op, dtype and layout."""
    n = 1 << (20 if device.info.kind == "software" else 28)
    side = 1 << (10 if device.info.kind == "software" else 14)
    arena = arena_of(device, {"arena0": 4 * n, "arena1": 4 * n, "arena2": 4 * n})
    graph = Graph("none")
    plan = MemoryPlan("bump")
    print(f"{device.info.name}: {n} elements")

    def measure(label: str, tree: Expr | None, shape: tuple[int, ...], ins: list[View], out: View, moved: int) -> None:
        lowering = Lowering(graph, plan, device.target, BuildOptions().precision)
        if tree is None:
            move(lowering, shape, ins[0], out)
        else:
            launch_tree(lowering, (tree,), shape, ins, [out])
        if lowering.args:
            block = device.acquire(len(lowering.args))
            import numpy as np

            block.write(0, np.frombuffer(bytes(lowering.args), np.uint8))
            arena.bind("args", block)
        recorded = device.record(lowering.steps, arena, timings=True)
        us = best(recorded)
        print(f"{label:34}{us:10.1f} us {moved / us / 1e3:8.0f} GB/s")
        recorded.close()

    def flat(segment: str, dtype: DType, at: int = 0) -> View:
        return View(Ref(segment, at, 4 * n), dtype, (1,))

    x, y = expr.arg(0, f32), expr.arg(1, f32)
    two = [flat("arena0", f32), flat("arena1", f32)]
    measure("add f32", x + y, (n,), two, flat("arena2", f32), 12 * n)
    measure("neg f32", -x, (n,), [flat("arena0", f32)], flat("arena2", f32), 8 * n)
    measure("neg f32, unaligned", -x, (n - 4,), [flat("arena0", f32, 4)], flat("arena2", f32), 8 * n)
    for dtype in (f16, bf16):
        a, b = expr.arg(0, dtype), expr.arg(1, dtype)
        ins = [flat("arena0", dtype), flat("arena1", dtype)]
        measure(f"add {dtype}", a + b, (n,), ins, flat("arena2", dtype), 6 * n)
    a = expr.arg(0, u8)
    measure("u8 to f32", expr.cast(a, f32), (n,), [flat("arena0", u8)], flat("arena2", f32), 5 * n)
    measure("f32 < f32", expr.call("lt", x, y), (n,), two, flat("arena2", bool_), 9 * n)
    for name in ("exp", "tanh", "erf", "sin", "sqrt", "log"):
        measure(f"{name} f32", expr.call(name, x), (n,), [flat("arena0", f32)], flat("arena2", f32), 8 * n)
    measure("div f32", x / y, (n,), two, flat("arena2", f32), 12 * n)
    measure("pow f32", expr.call("pow", x, y), (n,), two, flat("arena2", f32), 12 * n)
    shape = (side, n // side)
    row = View(Ref("arena1", 0, 4 * n), f32, broadcast((shape[1],), shape))
    whole = View(Ref("arena0", 0, 4 * n), f32, contiguous(shape))
    out = View(Ref("arena2", 0, 4 * n), f32, contiguous(shape))
    measure("add f32, a row broadcast", x + y, shape, [whole, row], out, 8 * n)
    column = View(Ref("arena1", 0, 4 * n), f32, (1, 0))
    measure("add f32, a column broadcast", x + y, shape, [whole, column], out, 8 * n)
    turned = View(Ref("arena0", 0, 4 * n), i32, (1, side))
    raw = View(Ref("arena2", 0, 4 * n), i32, contiguous(shape))
    measure("transpose 4 bytes, as a tree", expr.arg(0, i32), shape, [turned], raw, 8 * n)
    measure("transpose 4 bytes", None, shape, [turned], raw, 8 * n)
    heads = (8, 16, n // 8 // 16 // 64, 64)  # (b, s, h, d) read as (b, h, s, d)
    s = heads[2]
    split = View(Ref("arena0", 0, 4 * n), i32, (16 * s * 64, 64, 16 * 64, 1))
    measure("heads apart, 4 bytes", expr.arg(0, i32), heads, [split], View(raw.slot, i32, contiguous(heads)), 8 * n)
    arena.close()


def main() -> None:
    os.environ["RLX_CACHE_DIR"] = os.environ["RLX_CUDA_PTX_CACHE"] = "off"
    device = open_device(sys.argv[1] if len(sys.argv) > 1 else "vulkan:0")
    if "speed" not in sys.argv:
        making(device)
    if len(sys.argv) > 1:
        speed(device)


if __name__ == "__main__":
    main()
