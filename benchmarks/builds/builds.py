"""Two builds of rlx side by side: `python benchmarks/builds/builds.py OTHER [--device cpu …] [--rounds 15]`.

OTHER is a folder with another checkout of rlx. Three processes keep the same networks ready: one runs this tree, two
run OTHER, so that the ratio of OTHER to itself shows the noise. In each round each process is timed once, one after
the other. A row prints the ratio of medians (this tree over OTHER), the same of OTHER over itself, the medians in ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
CASES = ("decode-bf16", "decode-q4_k", "decode-q8_0", "minilm-1x16", "minilm-8x128", "resnet50")


def prepared(case: str, device: str, shape: str) -> Callable[[], Any]:
    """What one measurement of `case` calls, compiled and run once."""
    kind, _, detail = case.partition("-")
    if kind == "decode":
        import rlx
        from benchmarks.language.decoding import decoder_of
        from rlx.models.language.decoder import Sampling

        decoder = decoder_of(shape, detail, rlx.Session(device), 1024, "f32", "bf16")

        def decode() -> None:
            decoder.reset(128)
            for _ in decoder.decode(5, Sampling(), most=32):
                pass

        return decode
    if kind == "minilm":
        from benchmarks.networks import minilm

        batch, length = map(int, detail.split("x"))
        encode = minilm.rlx_encoder(minilm.random_weights(), batch, length, device)
        return partial(encode, *minilm.inputs(batch, length))
    import rlx
    from benchmarks.networks.onnx_cpu import MODELS

    model, feeds = MODELS[case]()
    return partial(rlx.onnx.load(model).run, feeds, device=device)


def serve(case: str, device: str, shape: str, seconds: float) -> None:
    """A worker: for each line that comes, the mean time of a call, in seconds."""
    call = prepared(case, device, shape)
    for _ in range(3):
        call()
    for _ in iter(sys.stdin.readline, ""):
        start, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            call()
            count += 1
        print(elapsed / count, flush=True)


def compare(case: str, device: str, args: argparse.Namespace) -> None:
    trees = (HERE, args.other, args.other)
    workers = []
    for tree in trees:
        command = [sys.executable, __file__, str(tree), "--worker", case, "--device", device, "--shape", args.shape,
                   "--seconds", str(args.seconds)]  # fmt: skip
        path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree,
                                        env={**os.environ, "PYTHONPATH": path}))  # fmt: skip
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(args.rounds + 1):
        for worker, kept in zip(workers, times, strict=True):
            assert worker.stdin is not None and worker.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write("\n")
                worker.stdin.flush()
            line = worker.stdout.readline()
            if not line:
                raise SystemExit(f"{case}: a process has ended; its own message stands above")
            seconds = float(line)
            if turn:  # the first round warms up
                kept.append(seconds)
    for worker in workers:
        worker.communicate()
    this, other, again = (statistics.median(t) for t in times)
    print(f"{device:9} {case:13} {this / other:6.3f} {again / other:6.3f}  {this * 1e3:9.3f} {other * 1e3:9.3f} ms",
          flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=lambda path: Path(path).resolve())  # workers start in other folders
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--shape", default="0.5b", help="of the language model that decodes (language/decoding.py)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="of one measurement")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        # rlx is the named tree's; the benchmarks are this file's, since those of another tree may lie elsewhere.
        here = {Path(__file__).resolve().parent, HERE, args.other}
        sys.path[:] = [str(args.other), *(p for p in sys.path if Path(p).resolve() not in here)]
        import rlx

        if not Path(rlx.__file__).is_relative_to(args.other):
            raise SystemExit(f"{args.other} has no rlx: {rlx.__file__} was imported")
        sys.path.insert(0, str(HERE))
        serve(args.worker, args.device[0], args.shape, args.seconds)
        return
    print("device    case           ratio  noise       this     other")
    for device in args.device:
        for case in args.cases:
            compare(case, device, args)


if __name__ == "__main__":
    main()
