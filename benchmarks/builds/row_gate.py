"""The gate for kernels of rows: may a generated kernel replace a written one?

    python benchmarks/builds/row_gate.py --out TABLE.json [--against OTHER.json] [--beside CHECKOUT] [--only WORD …]
    python benchmarks/builds/row_gate.py --rounds 0 --against benchmarks/builds/row_gate.json --only softmax  # code

The table has for each GPU kernel of the families in scope the bytes of its SPIR-V, and the registers and the bytes of
stack (spills lie there) of its cubin, which NVRTC makes without a GPU; for each op × size × dtype the time in the
CPU's compiled engine, and on a GPU, where there is one, the time and the bandwidth. `--against` prints what differs
from another table, and exits with 1 where something does. `--beside` times another checkout in turns with this one,
and with itself for the noise: a generated kernel passes where the median of its times is at most 1.02 of the written
one's, or within the spread of those (their middle half, over their median). It exits with 1 where a case does not.

A GPU compares by its own clock, in at most two minutes; `--export` makes the other checkout small, with the SPIR-V of
the kernels in scope alone:

    python benchmarks/builds/row_gate.py --export REVISION build/before
    python benchmarks/builds/row_gate.py --beside build/before --device cuda
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
LIMIT = 1.02
KERNELS_IN_SCOPE = frozenset(
    """reduce arg_reduce cross_entropy cross_entropy_grad group_norm norm_axis add_norm norm_grad norm_columns row_norm
    softmax softmax_axis softmax_grad softmax_grad_axis log_softmax log_softmax_axis logsumexp logsumexp_axis""".split()
)
ROWS = ((1536, 128), (300, 77), (64, 1000), (8, 32000))
COLUMNS = ((8, 64, 1000), (21, 300, 40), (2, 512, 196))  # along axis 1
DTYPES = ("f32", "bf16", "f64")
ALONG = ("softmax", "log_softmax", "logsumexp", "softmax_grad")
LAST = ("layer_norm", "rms_norm", "add_layer_norm", "layer_norm_grad", "rms_norm_grad", "cross_entropy",
        "cross_entropy_grad", "sum", "max", "mean")  # fmt: skip
IMAGES = ("group_norm", "layer_norm_channels", "group_norm_grad")
SHAPES = ((2, 32, 28, 28), (4, 64, 7, 9))
# Shapes for a GPU: rows that fit the registers of a warp, of a workgroup, or of neither; many and few columns.
GPU_ROWS = ((16384, 512), (2048, 4096), (64, 1000), (256, 32001))
GPU_COLUMNS = ((64, 512, 196), (2048, 1000, 4))
GPU_LAST = ("cross_entropy", "cross_entropy_grad", "layer_norm", "rms_norm", "add_layer_norm")
GPU_IMAGES = ("group_norm", "layer_norm_channels")
GPU_SHAPES = ((64, 64, 7, 9), (8, 96, 56, 56))


def cases(device: str = "cpu") -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    """The name, op, shape and dtype of each case."""
    groups = ((ALONG, (*ROWS, *COLUMNS)), (LAST, ROWS), (IMAGES, SHAPES))
    if device != "cpu":
        groups = ((ALONG, (*GPU_ROWS, *GPU_COLUMNS)), (GPU_LAST, GPU_ROWS), (GPU_IMAGES, GPU_SHAPES))
    for ops, shapes in groups:
        for op in ops:
            for shape in shapes:
                for dtype in DTYPES[: None if device == "cpu" else 2]:
                    yield f"{op} {'x'.join(map(str, shape))} {dtype}", op, shape, dtype


def graph_of(op: str, shape: tuple[int, ...], dtype: str) -> tuple[Any, dict[str, Any]]:
    """A graph of one node, and its inputs."""
    import numpy as np

    import rlx
    from rlx.dtypes import as_dtype
    from rlx.ir.graph import apply_multi

    kind = as_dtype(dtype)
    channels = shape[1] if op in IMAGES else shape[-1]
    second = {"softmax_grad": [shape], "add_layer_norm": [shape, (channels,), (channels,)], "rms_norm": [(channels,)]}
    gradients = {"layer_norm_grad", "rms_norm_grad", "group_norm_grad"}
    more = second.get(op, [])
    if op in ("layer_norm", "group_norm", "layer_norm_channels"):
        more = [(channels,), (channels,)]
    if op in gradients:
        more = [shape, (channels,)]
    attrs: dict[str, Any] = {}
    if op in ALONG:
        attrs = {"axis": 1}
    elif "norm" in op:
        attrs = {"eps": 1e-5} | ({"groups": 8} if op.startswith("group") else {})
        attrs |= {"beta": None if op.startswith("rms") else kind} if op in gradients else {}
        attrs |= {"keep_sum": True} if op.startswith("add") else {}
    elif "entropy" in op:
        attrs = {"ignore_index": -100}
    else:
        attrs = {"axes": (1,), "keepdims": False}
    graph, rng = rlx.Graph("gate"), np.random.default_rng(0)
    shapes = [shape, *more]
    dtypes = [kind] * len(shapes)
    if "entropy" in op:
        shapes, dtypes = [shape, shape[:-1]], [kind, as_dtype("i32")]
        if op.endswith("_grad"):
            wide = as_dtype("f32") if kind.is_half else kind
            shapes, dtypes = [shape[:-1], *shapes], [wide, *dtypes]
    feeds, ins = {}, []
    for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True)):
        x = rng.standard_normal(s) if d.is_float else rng.integers(0, shape[-1], s)
        feeds[f"x{i}"] = x.astype(d.np)
        ins.append(graph.input(f"x{i}", s, d))
    for i, t in enumerate(apply_multi(op, *ins, **attrs)):
        graph.output(f"y{i}", t)
    return graph, feeds


def prepared(op: str, shape: tuple[int, ...], dtype: str) -> tuple[Callable[[], Any], int]:
    """One run of the engine without copies in or out, and the bytes that it reads and writes."""
    import rlx

    graph, feeds = graph_of(op, shape, dtype)
    program = rlx.Session("cpu", threads=1, engine="compiled").compile(graph)
    outputs = program.run(feeds)
    nbytes = sum(a.nbytes for a in (*feeds.values(), *outputs.values()))
    call = program.executable.quick()
    return lambda: (program, call()), nbytes


def on_gpu(op: str, shape: tuple[int, ...], dtype: str, device: str) -> tuple[Callable[[], float], int]:
    """One run, which gives the seconds that its steps took by the device's clock, and the bytes it reads and writes."""
    import numpy as np

    import rlx

    graph, feeds = graph_of(op, shape, dtype)
    program = rlx.Session(device, timings=True).compile(graph)
    program.prepare()
    for name, value in feeds.items():
        program.arena.write_bytes(program.program.inputs[name].id, value)
    outputs = graph.outputs.values()
    nbytes = sum(a.nbytes for a in feeds.values()) + sum(t.size * np.dtype(t.dtype.np).itemsize for t in outputs)

    def run() -> float:
        program.executable.run()
        return sum(step.us for step in program.executable.timings()) / 1e6

    return run, nbytes


def timed(call: Callable[[], Any], seconds: float) -> float:
    """The mean processor time of a call, which other processes do not add to, measured for at least `seconds`."""
    start, count = time.process_time(), 0
    while (elapsed := time.process_time() - start) < seconds or not count:
        for _ in range(max(1, count)):
            call()
        count += max(1, count)
    return elapsed / count


def worker(seconds: float, device: str) -> None:
    """For each name that comes, the mean time of its case; an empty line for an op that this checkout lacks."""
    by_name = {name: case for name, *case in cases(device)}
    name, measured = "", None
    for line in iter(sys.stdin.readline, ""):
        if line.strip() != name:
            name = line.strip()
            measured, _ = measurement(*by_name[name], device)
            measured(seconds)
        assert measured is not None
        print(measured(seconds), flush=True)


def measurement(
    op: str, shape: tuple[int, ...], dtype: str, device: str
) -> tuple[Callable[[float], float], int]:
    """A function of how many seconds to measure, which gives those of a run, and the bytes it reads and writes."""
    if device == "cpu":
        call, nbytes = prepared(op, shape, dtype)
        return lambda seconds: timed(call, seconds), nbytes
    run, nbytes = on_gpu(op, shape, dtype, device)

    def by_its_clock(seconds: float) -> float:
        end, times = time.perf_counter() + seconds, [run()]
        while time.perf_counter() < end:
            times.append(run())
        return statistics.median(times)

    return by_its_clock, nbytes


class Checkout:
    """A process that runs the cases of one checkout."""

    def __init__(self, tree: Path, seconds: float, device: str) -> None:
        path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, __file__, "--worker", "--seconds", str(seconds), "--device", device]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def time(self, name: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def spread(times: Sequence[float]) -> float:
    """The middle half of the times over their median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def beside(
    other: Path, names: Sequence[str], rounds: int, seconds: float, device: str, limit: float
) -> dict[str, Any]:
    """Times of both checkouts in turns, of as many cases as the limit of seconds allows."""
    trees = [Checkout(tree, seconds, device) for tree in (HERE, other, other)]
    table, end = {}, time.perf_counter() + limit
    print(f"{'case':36}  ratio  noise spread   this µs  other µs")
    for i, name in enumerate(names):
        if time.perf_counter() > end:
            print(f"{len(names) - i} cases were left out after {limit:.0f} s, from {name} on; --only names some")
            break
        times: list[list[float]] = [[] for _ in trees]
        for _ in range(rounds):
            for tree, kept in zip(trees, times, strict=True):
                kept.append(tree.time(name))
        this, written, again = (statistics.median(t) for t in times)
        wide = max(spread(times[1]), spread(times[2]), abs(again / written - 1))
        passes = this / written <= max(LIMIT, 1 + wide)
        table[name] = {"this": this, "other": written, "noise": again / written, "spread": wide, "passes": passes}
        print(f"{name:36} {this / written:6.3f} {again / written:6.3f} {wide:6.3f} {this * 1e6:9.1f} "
              f"{written * 1e6:9.1f}{'' if passes else '  FAILS'}", flush=True)  # fmt: skip
    for tree in trees:
        tree.close()
    return table


def alone(names: Sequence[str], rounds: int, seconds: float, device: str) -> dict[str, Any]:
    by_name = {name: case for name, *case in cases(device)}
    table = {}
    for name in names:
        op, shape, dtype = by_name[name]
        measured, nbytes = measurement(op, shape, dtype, device)
        times = [measured(seconds) for _ in range(rounds)]
        median = statistics.median(times)
        table[name] = {"seconds": median, "spread": spread(times), "GB/s": nbytes / median / 1e9}
    return table


def export(revision: str, folder: Path) -> None:
    """The package of a revision, with the SPIR-V of the kernels in scope alone."""
    import io
    import shutil
    import tarfile

    archive = subprocess.run(["git", "archive", revision, "rlx"], cwd=HERE, capture_output=True, check=True).stdout
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    for path in (folder / "rlx" / "backends" / "vulkan" / "spirv").glob("*.spv"):
        if path.name.split(".")[0].split("-")[0] not in KERNELS_IN_SCOPE:
            path.unlink()


def code_sizes(words: Sequence[str]) -> dict[str, dict[str, int]]:
    """Bytes of SPIR-V, registers and stack of each GPU kernel in scope."""
    table: dict[str, dict[str, int]] = {}
    for path in sorted((HERE / "rlx" / "backends" / "vulkan" / "spirv").glob("*.spv")):
        stem = path.name.split(".")[0].split("-")[0]
        if stem in KERNELS_IN_SCOPE and (not words or any(w in stem for w in words)):
            table[path.name] = {"spirv": path.stat().st_size}
    for name, image in cubins(words):
        table[name] = dict(zip(("registers", "stack"), used_by(image), strict=True)) | {"cubin": len(image)}
    return table


def written(table: dict[str, Any]) -> str:
    """A table as JSON, one kernel or case a line."""
    parts = []
    for key, rows in table.items():
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        parts.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def cubins(words: Sequence[str], arch: str = "sm_90") -> Iterator[tuple[str, bytes]]:
    """The machine code of each kernel in scope, in each variant with each of its trial constants."""
    from itertools import product

    from rlx.backends.cuda.nvrtc import available, nvrtc
    from rlx.backends.cuda.sources import kernel_source
    from rlx.backends.gpu.program.executable import load_rules
    from rlx.backends.gpu.program.kernel import KERNELS
    from rlx.backends.gpu.program.steps import FileKernel

    if not available():
        return
    load_rules()
    compiler = nvrtc(available()[0])
    for stem, decl in sorted(KERNELS.items()):
        if stem not in KERNELS_IN_SCOPE or (words and not any(w in stem for w in words)):
            continue
        for values in product(*decl.variants.values()):
            defines = tuple(zip(decl.variants, values, strict=True))
            for constants in decl.trials:
                source = kernel_source(FileKernel(stem, defines, constants))
                image = compiler.compile(source.text, source.name, source.options, dict(source.headers), arch)
                yield f"{stem} {'-'.join(values)} {constants} {arch}", image


def used_by(cubin: bytes) -> tuple[int, int]:
    """The most registers, and the most bytes of stack, of the kernels in a cubin, read from `.nv.info`. An attribute
    there is a format and a number; format 4 is followed by a length and two words."""
    registers, stack, words = 0x2F, 0x11, 4
    (at,), (size, count, names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    most = {registers: 0, stack: 0}
    for name, _, _, _, offset, length in sections:
        start = sections[names][4] + name
        if cubin[start : cubin.index(b"\0", start)] != b".nv.info":
            continue
        place = offset
        while place < offset + length:
            form, attribute, nbytes = struct.unpack_from("<BBH", cubin, place)
            if form == words and attribute in most:
                most[attribute] = max(most[attribute], struct.unpack_from("<I", cubin, place + 8)[0])
            place += 4 + (nbytes if form == words else 0)
    return most[registers], most[stack]


def differences(table: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """Lines of what differs in code, and of times that are more than the limit apart."""
    whole = table["measured"]["kernels"] == other["measured"]["kernels"]
    for name in sorted({*table["code"], *other["code"]} if whole else table["code"]):
        now, before = table["code"].get(name), other["code"].get(name)
        if now != before:
            yield f"{name}: {before} -> {now}"
    for key in (key for key in table if key.startswith("times ")):
        for name, row in table[key].items():
            before = other.get(key, {}).get(name)
            ratio = row["seconds"] / before["seconds"] if before else 1.0
            if abs(ratio - 1) > max(LIMIT - 1, row["spread"]):
                yield f"{key} {name}: {ratio:.3f} of {before['seconds'] * 1e6:.1f} µs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="words, one of which a case or kernel has in its name")
    parser.add_argument("--rounds", type=int, default=21, help="of each time; 0: no times, the table of code alone")
    parser.add_argument("--seconds", type=float, default=0.004, help="of one measurement")
    parser.add_argument("--device", default="cpu", help="whose times --beside compares")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds for --beside; 0: 110 on a GPU, else any")
    parser.add_argument("--export", nargs=2, metavar=("REVISION", "FOLDER"), help="a small checkout for --beside")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.seconds, args.device)
        return 0
    if args.export:
        export(args.export[0], Path(args.export[1]))
        return 0

    def chosen(device: str) -> list[str]:
        return [name for name, *_ in cases(device) if not args.only or any(w in name for w in args.only)]

    if args.beside is not None:
        limit = args.limit or (float("inf") if args.device == "cpu" else 110.0)
        other = args.beside.resolve()
        table = beside(other, chosen(args.device), args.rounds, args.seconds, args.device, limit)
        if args.out is not None:  # beside what the file has already
            kept = json.loads(args.out.read_text()) if args.out.is_file() else {}
            day = time.strftime("%Y-%m-%d", time.gmtime())
            kept[f"{args.device} beside {args.beside.name}, {day}, {args.rounds} rounds"] = table
            args.out.write_text(written(kept))
        return 0 if all(row["passes"] for row in table.values()) else 1
    import rlx

    present = ["cpu", *(d.id for d in rlx.devices() if d.backend == "cuda")] if args.rounds else []
    how = {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "kernels": args.only or ["all in scope"],
        "times": f"medians of {args.rounds} rounds on {', '.join(present)}" if present else "none",
    }
    table: dict[str, Any] = {"measured": how, "code": code_sizes(args.only)}
    for device in present:
        table[f"times {device}"] = alone(chosen(device), args.rounds, args.seconds, device)
    if args.out is not None:
        args.out.write_text(written(table))
    if args.against is not None:
        lines = list(differences(table, json.loads(args.against.read_text())))
        print("\n".join(lines))
        return 1 if lines else 0
    return 0


if __name__ == "__main__":
    # Without this file's own folder, so that modules come from the checkout that PYTHONPATH names.
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != HERE / "benchmarks" / "builds"]
    sys.exit(main())
