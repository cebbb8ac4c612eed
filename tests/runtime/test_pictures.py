"""What notebooks show: readable reprs, graphs and memory plans as pictures; names of strangers' files stay text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import rlx
import rlx.onnx
from rlx.ir import Graph
from tests.onnx.models import model, node

BAD = "<script>alert('x')</script>\x00\x1b\n&\ud800"


def pictures(html: str) -> list[ElementTree.Element]:
    """The pictures in the HTML, which is well-formed and runs nothing."""
    assert "<script" not in html
    assert not re.search(r"\son\w+=", html)
    html.encode("utf-8")
    root = ElementTree.fromstring(html)
    return [e for e in root.iter() if e.tag.endswith("}svg")]


def texts(picture: ElementTree.Element) -> list[str]:
    return [e.text or "" for e in picture.iter("{http://www.w3.org/2000/svg}text")]


def small() -> Graph:
    g = Graph("small")
    x, w = g.input("x", (8, 64)), g.param("weight", (64, 64))
    y = rlx.softmax(x @ w * 0.5)
    state = g.state("seen", ())
    g.update("seen", state + 1)
    g.output("y", rlx.scan(lambda c, row: (c + row, c), y[0], y)[1])
    return g


def test_a_small_graph_is_drawn_with_its_ports_weights_and_a_legend() -> None:
    (picture,) = pictures(small()._repr_html_())
    found = texts(picture)
    assert {"x", "f32[8,64]", "matmul", "· weight f32[64,64]", "· 0.5", "softmax", "scan"} <= set(found)
    assert any(t.startswith("body: ") for t in found)
    assert {"input", "state", "op", "output", "new seen", "y"} <= set(found)
    for box in picture.iter("{http://www.w3.org/2000/svg}g"):
        assert (box[0].tag, box[1].tag) == ("{http://www.w3.org/2000/svg}title", "{http://www.w3.org/2000/svg}rect")


def test_a_plan_is_drawn_with_axes_names_and_a_legend() -> None:
    exe = rlx.Session("cpu").compile(small())
    (picture,) = pictures(exe._repr_html_())
    found = texts(picture)
    assert "step (node of the program)" in found and "memory, KiB" in found
    assert {"0", "f32"} <= set(found) and any(t.startswith("bound:") for t in found)
    assert any(t.startswith("matmul") for t in found)
    assert repr(exe) == "CompiledGraph('small' on cpu: (x: f32[8,64]) -> (y: f32[8,64]))"


def test_a_large_graph_is_summarized() -> None:
    g = Graph("large")
    t = g.input("x", (4,))
    for i in range(5_000):
        t = g.add("exp", (t,), label=f"/encoder/layer.{i % 12}/act")[0]
        (t,) = g.add("neg", (t,))
    g.output("y", t)
    html = g._repr_html_()
    assert pictures(html) == [] and len(html) < 10_000
    for words in ("10,001 nodes", "<td>exp</td><td>5,000</td>", "<td>encoder/layer/0</td><td>417</td>"):
        assert words in html
    for i in range(50):
        g.param(f"w{i}", (1,))
    assert len(repr(g)) < 300 and "44 more" in repr(g)


@pytest.mark.parametrize("make", [lambda g: g, lambda g: rlx.Session("cpu").compile(g)], ids=["graph", "compiled"])
def test_names_are_text(make: Callable[[Graph], object]) -> None:
    g = Graph(BAD)
    x = g.input(BAD, (2, 300))
    (y,) = g.add("softmax", (x @ g.param("w" + BAD, (300, 300)),), {"axis": 1}, label=BAD)
    g.output(BAD, y)
    (picture,) = pictures(make(g)._repr_html_())  # type: ignore[attr-defined]
    assert any("<script>" in t or "<scri" in t for t in texts(picture))


def test_models_of_files_are_readable(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y<b>")], {"x": ["N", 3]}, {"y<b>": ["N", 3]})
    proto.graph.name = "<script>net"
    onnx.save(proto, tmp_path / "m.onnx")
    with rlx.onnx.load(tmp_path / "m.onnx") as loaded:
        ports = "(x: tensor(float) (N, 3)) -> (y<b>: tensor(float) (N, 3))"
        assert repr(loaded) == f"Model('<script>net': 1 nodes, {ports})"
        assert pictures(loaded._repr_html_()) == []
        assert "<td>Relu</td><td>1</td>" in loaded._repr_html_()
        np.testing.assert_array_equal(loaded.run({"x": np.float32([[-1, 0, 2]])}, device="cpu")["y<b>"], [[0, 0, 2]])
