"""Published models, as packages carry them, on every device beside ONNX Runtime.

    pip download --no-deps -d FOLDER silero-vad rapidocr-onnxruntime …
    python -m tests.onnx.published FOLDER [--device cpu …]

Takes every ONNX file of the wheels in the folder, feeds it seeded random numbers and prints a table: the largest
difference, as a share of the largest number that ONNX Runtime gives. Exit status 1 where a model does not run.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import rlx
from rlx.errors import RlxError
from tests.onnx.runtime import session

# What random numbers of any length do not do for: the input's name, its shape or value.
_FRAME: dict[str, Any] = {"input": (1, 576), "state": (2, 1, 128), "sr": np.array(16000)}
_GIVEN: dict[str, dict[str, Any]] = {
    "silero_vad.onnx": {**_FRAME, "h": (2, 1, 64), "c": (2, 1, 64)},
    "silero_vad_16k_op15.onnx": _FRAME,
    "silero_vad_half.onnx": _FRAME,
    "silero_vad_op18_ifless.onnx": _FRAME,
    "melspectrogram.onnx": {"input": (1, 16000)},
}
_OPEN = {4: (1, 3, 64, 96), 3: (1, 16, 16), 2: (1, 16), 1: (16,)}  # lengths of dimensions that a model leaves open


def models(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """(package, file name, content) of the ONNX files in the wheels of a folder; each content once."""
    seen = set()
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                content = archive.read(name) if name.endswith(".onnx") else b""
                if content and content not in seen:
                    seen.add(content)
                    yield wheel.name.split("-")[0], Path(name).name, content


def feeds(file: str, inputs: Sequence[Any]) -> dict[str, Any]:
    """Seeded numbers for what ONNX Runtime says a model takes: floats below 1, small integers."""
    rng = np.random.default_rng(0)
    made = {}
    for i in inputs:
        given = _GIVEN.get(file, {}).get(i.name, ())
        if isinstance(given, np.ndarray):
            made[i.name] = given.astype(np.int64)
            continue
        spare = _OPEN.get(len(i.shape), (1,) * len(i.shape))
        shape = given or tuple(n if isinstance(n, int) and n > 0 else s for n, s in zip(i.shape, spare, strict=True))
        element = rlx.dtypes.as_dtype(_ELEMENTS[i.type]).np
        made[i.name] = (rng.integers(0, 16, shape) if element.kind in "iu" else rng.random(shape)).astype(element)
    return made


_ELEMENTS = {"tensor(float)": "f32", "tensor(float16)": "f16", "tensor(int64)": "i64", "tensor(int32)": "i32"}


def difference(got: Any, want: Any) -> float:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape}, ONNX Runtime {want.shape}")
    if want.dtype.kind != "f":
        return float(np.count_nonzero(got != want))
    most = max(float(np.abs(want).max(initial=0)), 1e-30)
    return float(np.abs(got.astype(np.float64) - want).max(initial=0)) / most


def row(file: str, content: bytes, devices: Sequence[str]) -> list[str]:
    """A cell for each device. Raises: onnxruntime's errors for what it does not run on these inputs."""
    judge = session(onnx.load_from_string(content))
    fed = feeds(file, judge.get_inputs())
    want = judge.run(None, fed)
    cells = []
    for device in devices:
        try:
            made = rlx.onnx.InferenceSession(content, device=device).run(None, fed)
            cells.append(f"{max(map(difference, made, want)):.0e}")
        except (RlxError, ValueError) as error:
            cells.append(f"{type(error).__name__}: {str(error)[:120]}")
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", action="append", help="may be repeated; default: cpu")
    args = parser.parse_args()
    devices = args.device or ["cpu"]
    onnxruntime.set_default_logger_severity(4)
    print(f"| Package | Model | {' | '.join(devices)} |\n|{'---|' * (2 + len(devices))}")
    failed = False
    for package, file, content in models(args.folder):
        try:
            cells = row(file, content, devices)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no base
            print(f"{package} {file}: not run by ONNX Runtime: {str(error)[:160]}", file=sys.stderr)
            continue
        failed = failed or any(":" in c for c in cells)
        print(f"| {package} | {file} | {' | '.join(cells)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
