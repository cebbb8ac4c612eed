"""Tries the GPU backends step by step: every step prints its result, and a failure does not stop the next step.

    python benchmarks/smoke/gpu_smoke.py            both backends
    python benchmarks/smoke/gpu_smoke.py cuda       one of them

It needs a GPU; without one each step prints the reason and fails. The exit status is the number of failed steps.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.smoke import smoke_cuda, smoke_vulkan
from benchmarks.smoke.smoke_steps import STEPS
from rlx.errors import DeviceUnavailable

__all__ = ["main", "smoke_cuda", "smoke_vulkan"]  # importing the modules registers their steps


def main() -> int:
    wanted = sys.argv[1:] or ["cuda", "vulkan"]
    failed = 0
    for backend, name, function in STEPS:
        if backend not in wanted:
            continue
        start = time.perf_counter()
        try:
            said, mark = function(), "ok  "
        except DeviceUnavailable as error:
            said, mark = str(error), "none"
            failed += 1
        except Exception:  # noqa: BLE001 - the steps after it are still to be tried
            said, mark = traceback.format_exc(limit=-6), "FAIL"
            failed += 1
        print(f"{mark} {name} ({time.perf_counter() - start:.2f} s): {said}", flush=True)
    print(f"{failed} steps failed", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
