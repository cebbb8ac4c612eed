"""Whole processes on the processor, from the interpreter's first step to its end, ONNX Runtime's beside rlx's.

    python benchmarks/cpu/processes.py [CASE …] [--rounds 15] [--bytecode kept none own] [--threads 2]

The cases take turns, each as a new process: Python alone, `import numpy`, `import rlx`, a small convolutional network
in ONNX Runtime, in rlx from a saved program and from the ONNX file, and the first token of a tiny language model by
`rlx generate`. Kernels are in the cache. Bytecode is "kept" where Python looks for it; there is "none", neither of rlx
nor of other packages, as where all were installed without; or rlx's "own" is missing, as in a folder that cannot be
written. Printed are the median and the least time, and the least processor time (user and system, of all threads),
which other processes disturb least. No time is asserted.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import options  # noqa: E402

CASES = {
    "python": "",
    "numpy": "import numpy",
    "import rlx": "import numpy, rlx",
    "ONNX Runtime": """
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = THREADS
session = ort.InferenceSession("net.onnx", options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.load("x.npy")})
""",
    "rlx, saved": """
import numpy as np, rlx
rlx.load_program("net.rlx", rlx.Session("cpu", threads=THREADS)).run({"x": np.load("x.npy")})
""",
    "rlx, ONNX": """
import numpy as np, rlx
rlx.onnx.load("net.onnx").run({"x": np.load("x.npy")}, device=rlx.Session("cpu", threads=THREADS))
""",
    "rlx generate": """
import numpy, sys
from rlx.cli import main
sys.argv = ["rlx", "generate", "tiny.gguf", "-p", "hello", "-n", "1", "--device", "cpu"]
main()
""",
}


def write_models(folder: Path) -> None:
    """The network in ONNX, as a saved program, and its input; and the tiny language model. All weights are random."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import rlx
    from tests.models.language import tiny

    rng = np.random.default_rng(0)
    layers = [("Conv", (16, 3, 3, 3)), ("Conv", (32, 16, 3, 3)), ("ConvTranspose", (32, 16, 2, 2)),
              ("ConvTranspose", (16, 2, 2, 2))]  # fmt: skip
    nodes: list[Any] = []
    weights: list[Any] = []
    at = "x"
    for n, (op, shape) in enumerate(layers):
        weights += [
            numpy_helper.from_array((rng.standard_normal(shape) * 0.1).astype(np.float32), f"w{n}"),
            numpy_helper.from_array(rng.standard_normal(shape[op == "ConvTranspose"]).astype(np.float32), f"b{n}"),
        ]
        pads = [1] * 4 if op == "Conv" else [0] * 4
        end = "y" if n == 3 else f"c{n}"
        nodes.append(helper.make_node(op, [at, f"w{n}", f"b{n}"], [end], strides=[2, 2], pads=pads))
        if n < 3:
            nodes.append(helper.make_node("Relu", [end], [at := f"r{n}"]))
    shape, given = (1, 3, 96, 96), helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [given("x", TensorProto.FLOAT, shape)], [given("y", TensorProto.FLOAT, (1, 2, 96, 96))], weights
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    np.save(folder / "x.npy", rng.standard_normal(shape).astype(np.float32))
    rlx.onnx.load(str(folder / "net.onnx")).compile({"x": shape}, device="cpu").save(folder / "net.rlx")
    model = tiny.write_language_model(folder / "tiny", {**tiny.LLAMA, "vocab_size": 300}, text=True)
    from rlx.models.language.written import folder_to_gguf

    folder_to_gguf(model, folder / "tiny.gguf", None)


def environment(bytecode: str, folder: Path) -> dict[str, str]:
    """The environment in which bytecode is "kept", there is "none", or rlx's "own" is missing."""
    own = folder / "rlx-without"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENBLAS_"))}
    env |= {"PYTHONPATH": str(ROOT), "RLX_CACHE_DIR": str(folder / "cache")}
    if bytecode == "kept":
        return {**env, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    if bytecode == "none":
        return {**env, "PYTHONPYCACHEPREFIX": str(folder / "empty")}
    if not own.exists():
        shutil.copytree(ROOT / "rlx", own / "rlx", ignore=shutil.ignore_patterns("__pycache__"))
    return {**env, "PYTHONPATH": str(own)}


def measure(text: str, env: dict[str, str], folder: Path) -> tuple[float, float]:
    """Seconds and processor seconds of a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", text], env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bytecode", nargs="+", default=["kept", "own"], choices=["kept", "none", "own"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        print(f"{'bytecode':9}{'case':14}{'median s':>10}{'least s':>10}{'processor s':>13}{'over ORT':>10}")
        for bytecode in args.bytecode:
            env = environment(bytecode, folder)
            rows: dict[str, list[tuple[float, float]]] = {case: [] for case in args.cases}
            for turn in range(args.rounds + 2):  # the first two compile kernels and write bytecode, where that is kept
                for case, times in rows.items():
                    times += [measure(CASES[case].replace("THREADS", str(args.threads)), env, folder)] * (turn > 1)
            beside = min(p for _, p in rows["ONNX Runtime"]) if "ONNX Runtime" in rows else float("nan")
            for case, times in rows.items():
                seconds, spent = [t for t, _ in times], min(p for _, p in times)
                print(f"{bytecode:9}{case:14}{statistics.median(seconds):10.3f}{min(seconds):10.3f}{spent:13.3f}"
                      f"{spent / beside:10.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
