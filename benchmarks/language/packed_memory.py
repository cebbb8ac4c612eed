"""The memory that a large packed weight takes on a device: `python benchmarks/language/packed_memory.py [device …]
[--gb 4]`.

A program whose parameter is a Q4_K weight of so many gigabytes is compiled, its weight is set, and it runs: a product
of one row, and some of its sums are compared with float64. The table shows what the driver reports as used (nvidia-smi,
or the device's own count of free bytes where there is none) beyond what was used when the session was open and had run
a small program: at the end, and at the highest point in between, as a multiple of the packed bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.dtypes import PACKED
from rlx.packed import PackedArray
from rlx.packed.decode import split_planes

Q4_K = PACKED["q4_k"]
COLUMNS = 16384


class Used:
    """The bytes in use on the device, sampled by a thread; `highest` is the most seen so far."""

    def __init__(self, session: rlx.Session) -> None:
        self.session, self.highest, self.ended = session, 0, False
        self.smi = shutil.which("nvidia-smi") if session.info.kind != "software" else None
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def now(self) -> int:
        if self.smi is None:
            used = self.session.info.memory_bytes - self.session.device.free_bytes()
        else:
            query = [self.smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
            used = (
                int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) << 20
            )
        self.highest = max(self.highest, used)
        return used

    def sample(self) -> None:
        while not self.ended:
            self.now()
            time.sleep(0.02)


def weight(rows: int) -> PackedArray:
    """Random quants with small scales; the rows repeat after some thousands."""
    few = min(rows, 2048)
    data = np.random.default_rng(0).integers(0, 256, Q4_K.array_shape((few, COLUMNS)), np.uint8)
    plane = split_planes(Q4_K, data)["dm"]
    plane[:] = np.resize(np.array([0.01, 0.02], np.float16).view(np.uint8), plane.shape)
    return PackedArray(Q4_K, (rows, COLUMNS), np.resize(data, Q4_K.array_shape((rows, COLUMNS))))


def program(session: rlx.Session, w: PackedArray) -> rlx.CompiledGraph:
    g = rlx.Graph("matvec")
    g.output("y", rlx.packed_matmul(g.input("x", (1, COLUMNS), "f16"), g.param("w", w.shape, w.dtype)))
    made = session.compile(g)
    made.set_param("w", w)
    return made


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("device", nargs="*", default=["cuda", "vulkan"])
    parser.add_argument("--gb", type=float, default=4.0)
    args = parser.parse_args()
    w = weight(int(args.gb * 1e9) // Q4_K.nbytes((1, COLUMNS)))
    x = np.random.default_rng(1).standard_normal((1, COLUMNS)).astype(np.float16)
    good = True
    for device in args.device:
        session = rlx.Session(device)
        with program(session, weight(64)) as small:
            small.run({"x": x})
        used = Used(session)
        before = used.highest = used.now()
        start = time.perf_counter()
        with program(session, w) as exe:
            y = exe.run({"x": x})["y"]
            took, after = time.perf_counter() - start, used.now()
        used.ended = True
        used.thread.join()
        last = PackedArray(Q4_K, (4, COLUMNS), w.data[-4:]).dequantize().astype(np.float64)
        want = (x.astype(np.float64) @ last.T)[0]
        error = float(np.max(np.abs(y[0, -4:].astype(np.float64) - want)) / np.max(np.abs(want)))
        held, highest = (after - before) / w.nbytes, (used.highest - before) / w.nbytes
        good = good and error < 1e-2 and highest <= 1.05
        print(
            f"{device:8}{w.nbytes / 1e9:6.2f} GB packed: holds {held:.3f} x, at most {highest:.3f} x, in {took:.1f} s; "
            f"error {error:.0e}",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
