"""Edge detection: an ONNX network, made here, draws the outlines in a picture, on every device.

    python examples/onnx_outlines.py [PICTURE.ppm [OUTLINES.pgm]]

Needs the `onnx` package: pip install 'rlx[onnx]'. Pictures are binary Netpbm files, colour (P6) or grey (P5), of any
size: `convert photo.jpg photo.ppm` makes one. Without one, the picture is a disc and a bar. The network turns colours
to grey, blurs, and takes the size of the gradient by Sobel's two kernels.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

import rlx

try:
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    sys.exit("onnx_outlines.py: the package onnx, which writes the network, is not installed: pip install 'rlx[onnx]'")

BLUR = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
SOBEL = np.outer([1, 2, 1], [-1, 0, 1]) / 8


def network() -> bytes:
    """The ONNX file: from (1, 3, height, width) to (height, width), of any size, values from 0 to 1."""
    weights = {
        "grey": np.array([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1), "blur": BLUR.reshape(1, 1, 5, 5),
        "sobel": np.stack([SOBEL, SOBEL.T])[:, None], "least": np.array(1e-6),
        "axes": np.array([1]), "two": np.array([0, 1]),
        "pads2": np.array([0, 0, 2, 2, 0, 0, 2, 2]), "pads1": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["picture", "grey"], ["light"]),
        helper.make_node("Pad", ["light", "pads2"], ["wide"], mode="edge"),
        helper.make_node("Conv", ["wide", "blur"], ["soft"]),
        helper.make_node("Pad", ["soft", "pads1"], ["soft_wide"], mode="edge"),
        helper.make_node("Conv", ["soft_wide", "sobel"], ["slopes"]),
        helper.make_node("ReduceL2", ["slopes", "axes"], ["steepness"]),
        helper.make_node("ReduceMax", ["steepness"], ["most"]),
        helper.make_node("Max", ["most", "least"], ["scale"]),
        helper.make_node("Div", ["steepness", "scale"], ["part"]),
        helper.make_node("Squeeze", ["part", "two"], ["outlines"]),
    ]
    graph = helper.make_graph(
        nodes, "outlines",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, 3, "height", "width"])],
        [helper.make_tensor_value_info("outlines", TensorProto.FLOAT, ["height", "width"])],
        [numpy_helper.from_array(a if a.dtype.kind == "i" else a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    ).SerializeToString()


def read_picture(path: Path) -> np.ndarray:
    """A binary Netpbm file with one byte a value, as (1, 3, height, width) with values from 0 to 1."""
    content = path.read_bytes()
    head = re.match(rb"P([56])\s(?:\s|#.*\n)*(\d+)\s(?:\s|#.*\n)*(\d+)\s(?:\s|#.*\n)*255\s", content)
    if head is None:
        sys.exit(f"{path}: is no binary Netpbm picture (P5 or P6) with 255 shades")
    channels, width, height = 3 if head[1] == b"6" else 1, int(head[2]), int(head[3])
    if len(content) - head.end() < channels * width * height:
        sys.exit(f"{path}: ends before its {width} × {height} pixels")
    pixels = np.frombuffer(content, np.uint8, channels * width * height, head.end())
    planes = pixels.reshape(height, width, channels).transpose(2, 0, 1).astype(np.float32) / 255
    return np.ascontiguousarray(np.broadcast_to(planes, (3, height, width)))[None]


def drawn_picture() -> np.ndarray:
    """A red disc and a blue bar on grey paper."""
    y, x = np.mgrid[0:48, 0:64]
    made = np.full((3, 48, 64), 0.7, np.float32)
    made[:, (x - 22) ** 2 + (y - 24) ** 2 < 15**2] = [[0.8], [0.1], [0.1]]
    made[:, (x > 42) & (x < 56) & (y > 8) & (y < 40)] = [[0.1], [0.2], [0.8]]
    return made[None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, nargs="?", help="a .pgm or .ppm file; without it one is drawn")
    parser.add_argument("out", type=Path, nargs="?", help="a .pgm file for the outlines")
    given = parser.parse_args()
    picture = read_picture(given.picture) if given.picture else drawn_picture()
    loaded = rlx.onnx.load(network())
    found = {d.id: loaded.run({"picture": picture}, device=d.id)["outlines"] for d in rlx.devices()}
    first = next(iter(found.values()))
    if given.picture is None:
        print("\n".join("".join(" .:*#"[int(v * 4.99)] for v in row) for row in first[::2]))
    for device, made in found.items():
        print(
            f"{device:>9}: {made.shape[1]} × {made.shape[0]}, apart from the first {np.abs(made - first).max():.1e}"
        )
    if given.out:
        head = f"P5 {first.shape[1]} {first.shape[0]} 255\n".encode()
        given.out.write_bytes(head + np.round(first * 255).astype(np.uint8).tobytes())


if __name__ == "__main__":
    main()
