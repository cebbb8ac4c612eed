"""The time of the next image of torchvision's detectors, beside ONNX Runtime on the CPU:
`python benchmarks/networks/detectors.py --device cpu --device cuda --images 12`.

The networks have random weights and are exported on the spot (torch, torchvision); the scores of their classes are
spread, so that images have different numbers of boxes. ONNX Runtime is measured in a process of its own, since its
threads spin for work, which would slow down rlx. The images have several sizes, and each size is run twice
before it is measured. Boxes, scores and labels are compared with ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options

SIDES = {"ssdlite": 320, "retinanet": 320}
MADE = {"ssdlite": "ssdlite320_mobilenet_v3_large", "retinanet": "retinanet_resnet50_fpn"}


def export(name: str, folder: Path) -> Path:
    """Writes a detector with torch's exporter."""
    import torch
    from torchvision.models import detection

    torch.manual_seed(0)
    side = SIDES[name]
    sizes = {"min_size": side, "max_size": 2 * side} if name == "retinanet" else {}
    net = getattr(detection, MADE[name])(weights=None, weights_backbone=None, num_classes=91, **sizes).eval()
    if name == "retinanet":
        torch.nn.init.normal_(net.head.classification_head.cls_logits.weight, std=0.025)
    else:
        # Without statistics of its own the network's features vanish, and all scores are equal.
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        with torch.no_grad():
            net.head.train()(list(net.backbone.train()(torch.rand(8, 3, side, side)).values()))
        for branch in net.eval().head.classification_head.module_list:
            torch.nn.init.normal_(branch[1].weight, std=0.03)
    path = folder / f"{name}.onnx"
    torch.onnx.export(
        net, ([torch.rand(3, side, side + 32)],), str(path), dynamo=False, opset_version=17, input_names=["image"],
        output_names=["boxes", "scores", "labels"], dynamic_axes={"image": {1: "h", 2: "w"}},
    )  # fmt: skip
    return path


def images(side: int, count: int) -> list[Any]:
    """Noise of different coarseness, in three sizes in turn."""
    rng, made = np.random.default_rng(5), []
    for k in range(count):
        h, w, coarse = side, side + 32 * (k % 3), 1 + k % 7
        small = rng.random((3, -(-h // coarse), -(-w // coarse)), dtype=np.float32)
        made.append(np.ascontiguousarray(small.repeat(coarse, 1).repeat(coarse, 2)[:, :h, :w]))
    return made


def timed(run: Callable[[Any], Any], given: list[Any]) -> tuple[list[Any], list[float]]:
    """The results, and the milliseconds of the second time over all images."""
    for image in given[:6]:
        run(image)
    made, times = [], []
    for image in given:
        begin = time.perf_counter()
        made.append(run(image))
        times.append((time.perf_counter() - begin) * 1e3)
    return made, times


def beside(path: Path, threads: int, pictures: list[Any]) -> tuple[list[Any], list[float]]:
    """ONNX Runtime's results and times, from a process that has ended before rlx is measured."""
    command = [sys.executable, __file__, "--beside", str(path), "--threads", str(threads)]
    made = subprocess.run(command, input=pickle.dumps(pictures), stdout=subprocess.PIPE, check=True).stdout
    found: tuple[list[Any], list[float]] = pickle.loads(made)
    return found


def run_beside(path: Path, threads: int) -> None:
    """The child of `beside`: images from its standard input, results and times to its standard output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    pictures = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(timed(lambda x: session.run(None, {"image": x}), pictures)))


def shared(got: Any, want: Any) -> float:
    """The share of ONNX Runtime's boxes that are among rlx's, with their label, within a tenth of a pixel and 1e-3 of
    their score: networks of random weights magnify the last bits, and these may decide which of two boxes stays."""
    (boxes, scores, labels), (others, theirs, names) = got, want
    near = np.abs(boxes[:, None] - others).max(2, initial=0) < 0.1
    near &= (np.abs(scores[:, None] - theirs) < 1e-3) & (labels[:, None] == names)
    return float(near.any(0).mean()) if len(others) else float(not len(boxes))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", default=None)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--threads", type=int, action="append", default=None)
    parser.add_argument("--models", type=Path, help="a folder of exported models, used again where they are there")
    parser.add_argument("--parts", action="store_true", help="say what the last run of each model consisted of")
    parser.add_argument("--beside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.beside:
        run_beside(given.beside, given.threads[0])
        return
    installed = importlib.util.find_spec("onnxruntime") is not None
    if not installed:
        print("onnxruntime is not installed: results are not compared")
    with tempfile.TemporaryDirectory() as made:
        folder = given.models or Path(made)
        for name, side in SIDES.items():
            path = folder / f"{name}.onnx"
            path = path if path.exists() else export(name, folder)
            pictures = images(side, given.images)
            want: list[Any] = []
            for threads in (given.threads or [1, 2]) if installed else ():
                want, times = beside(path, threads, pictures)
                counts = [len(w[0]) for w in want]
                print(
                    f"{name:10} onnxruntime, {threads:2} threads  {np.median(times):8.2f} ms an image, "
                    f"{min(counts)} to {max(counts)} boxes", flush=True,
                )  # fmt: skip
            for device in given.device or ["cpu"]:
                with rlx.onnx.load(path, strict=False) as model:
                    got, times = timed(lambda x: list(model.run({"image": x}, device=device).values()), pictures)
                    parts = sorted(shared(g, w) for g, w in zip(got, want, strict=False))
                    equal = "not compared"
                    if parts:
                        equal = f"{parts.count(1)} of {len(got)} as onnxruntime, of the others {parts[0]:.1%} at least"
                    print(
                        f"{name:10} rlx on {device:12}         {np.median(times):8.2f} ms an image, "
                        f"{equal}, {len(model.programs)} programs", flush=True,
                    )  # fmt: skip
                    if given.parts:
                        print("\n".join(f"    {part}" for part in model.programs[-1].parts), flush=True)


if __name__ == "__main__":
    main()
