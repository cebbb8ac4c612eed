"""The picture of a memory plan: a box for every tensor, where and as long as its bytes are taken."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx

from tests.cli.conftest import Rlx
from tests.onnx.models import I64, info, model, node

Box = tuple[float, float, float, float]


def boxes(rlx: Rlx, folder: Path, proto: onnx.ModelProto, *arguments: str) -> dict[str, Box]:
    """The boxes of the CPU's plan by the name of the tensor: left, right, bottom, top."""
    onnx.save(proto, folder / "m.onnx")
    ran = rlx("inspect", folder / "m.onnx", "--device", "cpu", "--memory", folder / "plan.svg", *arguments)
    assert ran.status == 0
    found = {}
    for e in ElementTree.parse(folder / "plan.svg").getroot().iter("{http://www.w3.org/2000/svg}rect"):
        if (title := e.find("{http://www.w3.org/2000/svg}title")) is not None and title.text:
            name = re.sub(r": %\d+ .*| making .*", "", title.text)
            x, y, width, height = (float(e.attrib[k]) for k in ("x", "y", "width", "height"))
            found[name] = (x, x + width, -y - height, -y)
    return found


def test_a_result_made_in_place_takes_the_bytes_on(rlx: Rlx, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "a", name="first"), node("Softmax", "a", "b", name="in_place"),
        node("MatMul", "x v", "a2", name="second"), node("Concat", "b a2", "c", name="reader", axis=0),
    ]  # fmt: skip
    proto = model(
        nodes,
        {"x": [4, 64]},
        {"c": [8, 64]},
        {"w": np.eye(64, dtype=np.float32), "v": np.ones((64, 64), np.float32)},
    )
    found = boxes(rlx, tmp_path, proto)
    first, over, reader = found["first"], found["in_place"], found["reader"]
    assert over[2:] == first[2:], "on the same bytes"
    assert first[0] < over[0] and over[1] > reader[0], "until it is read"
    assert first[1] == over[1]


def test_what_a_body_holds_is_drawn_in_the_step_of_its_loop(rlx: Rlx, tmp_path: Path) -> None:
    inner = onnx.helper.make_graph(
        [node("MatMul", "v w", "p", name="product"), node("Tanh", "p", "v2", name="bend")], "body",
        [info("i", [], I64), info("go", [], onnx.TensorProto.BOOL), info("v", [8, 8])],
        [info("go", [], onnx.TensorProto.BOOL), info("v2", [8, 8])],
    )  # fmt: skip
    nodes = [node("Loop", "m _ x", "l", name="loop", body=inner), node("Softmax", "l", "y", name="after")]
    proto = model(nodes, {"m": ([], I64), "x": [8, 8]}, {"y": [8, 8]}, {"w": np.eye(8, dtype=np.float32)})
    np.save(tmp_path / "m.npy", np.array(100))
    found = boxes(rlx, tmp_path, proto, "--input", f"m={tmp_path / 'm.npy'}")
    product = next(box for name, box in found.items() if name.startswith("loop/") and box[3] - box[2] > 1)
    assert found["x"][0] < product[0] and product[1] <= found["after"][0] + 1e-6
    assert product[1] - product[0] < found["x"][1] - found["x"][0]


def test_branches_stand_side_by_side(rlx: Rlx, tmp_path: Path) -> None:
    def branch(kind: str) -> onnx.GraphProto:
        nodes = [node("MatMul", "x x", f"{kind}p", name=f"{kind}_p"), node(kind, f"{kind}p", f"{kind}q")]
        return onnx.helper.make_graph(nodes, kind, [], [info(f"{kind}q", [8, 8])])

    nodes = [
        node("If", "c", "y", name="choice", then_branch=branch("Softmax"), else_branch=branch("Hardmax"))
    ]
    proto = model(nodes, {"c": ([], onnx.TensorProto.BOOL), "x": [8, 8]}, {"y": [8, 8]})
    found = boxes(rlx, tmp_path, proto)
    then = [b for n, b in found.items() if n.startswith("choice/then/")]
    other = [b for n, b in found.items() if n.startswith("choice/otherwise/")]
    assert then and other
    assert max(b[1] for b in then) <= min(b[0] for b in other) + 1e-6
