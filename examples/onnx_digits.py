"""Image classification: a small ONNX network, made here and run on every device.

Needs the `onnx` package: pip install 'rlx[onnx]'. The network blurs a picture of 8 × 8 by a convolution and compares it
with ten blurred templates. It needs no training, and so no other files.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import rlx

try:
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    sys.exit("onnx_digits.py: the package onnx, which writes the network, is not installed: pip install 'rlx[onnx]'")

GLYPHS = """
.###. ..#.. .###. .###. #..#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# #..#. #.... #.... ....# #...# #...#
#...# ..#.. ...#. ..##. ##### ####. ####. ...#. .###. .####
#...# ..#.. ..#.. ....# ...#. ....# #...# ..#.. #...# ....#
.###. .###. ##### .###. ...#. ####. .###. .#... .###. .###.
"""


def templates() -> np.ndarray:
    """(10, 1, 8, 8): a picture of each digit, ink 1, paper 0."""
    made = np.zeros((10, 1, 8, 8), np.float32)
    for row, line in enumerate(GLYPHS.split("\n")[1:-1]):
        for digit, part in enumerate(line.split()):
            made[digit, 0, row + 1, 1:6] = [c == "#" for c in part]
    return made


def network() -> bytes:
    """The ONNX file: blur, flatten, compare with the blurred templates, softmax, for any number of pictures."""
    blur = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]], np.float32).reshape(1, 1, 3, 3) / 16
    soft = rlx.onnx.load(
        model([node("Conv", "x w", "y", pads=[1, 1, 1, 1])], {"w": blur}, ["n", 1, 8, 8])
    ).run({"x": templates()}, device="cpu")["y"]
    rows = soft.reshape(10, 64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    nodes = [
        node("Conv", "x w", "soft", pads=[1, 1, 1, 1]),
        node("Flatten", "soft", "flat"),
        node("LpNormalization", "flat", "unit", axis=1),
        node("Gemm", "unit templates", "likeness", transB=1, alpha=20.0),
        node("Softmax", "likeness", "y", axis=1),
    ]
    return model(nodes, {"w": blur, "templates": rows.astype(np.float32)}, ["n", 10])


def node(kind: str, inputs: str, output: str, **attributes: object) -> object:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def model(nodes: list[object], weights: dict[str, np.ndarray], shape: list[object]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    ).SerializeToString()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    noise = np.random.default_rng(7).normal(0, 0.25, (10, 1, 8, 8)).astype(np.float32)
    pictures = np.clip(templates() + noise, 0, 1).astype(np.float32)
    print("\n".join("".join(" .:*#"[int(v * 4)] for p in pictures[:5] for v in p[0, r]) for r in range(1, 6)))
    loaded = rlx.onnx.load(network())
    for device in rlx.devices():
        shares = loaded.run({"x": pictures}, device=device.id)["y"]
        best = shares.max(1)
        print(
            f"{device.id:>9}: {shares.argmax(1).tolist()}, surest {best.max():.3f}, least sure {best.min():.3f}"
        )


if __name__ == "__main__":
    main()
