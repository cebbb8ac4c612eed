"""Pickled and copied graphs; what holds a device is refused by name; a graph changed after it was compiled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError
from rlx.ir import Graph, verify

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def small() -> tuple[Graph, rlx.Tensor]:
    g = Graph("small")
    x = g.input("x", (3, 4))
    last = rlx.scan(lambda c, row: (c + rlx.tanh(row), c), rlx.zeros_like(x[0]), x)[0]
    seen = g.state("seen", (4,))
    g.update("seen", seen + last)
    g.output("y", rlx.cast(last * g.param("w", (4,)) + seen, "bf16"))
    g.output("packed", rlx.packed_matmul(x @ np.ones((4, 32), np.float32), rlx.quantize(np.eye(32), "q8_0")))
    return g, last


def values(g: Graph) -> list[Any]:
    with rlx.Session("cpu").compile(g) as exe:
        exe.set_param("w", np.float32([1, 2, 3, 4]))
        return [exe.run({"x": X}) for _ in range(2)]


@pytest.mark.parametrize(
    "again", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy], ids=["pickle", "deepcopy", "copy"]
)
def test_a_copied_graph_is_the_same_program_and_a_graph_of_its_own(again: Callable[[Any], Any]) -> None:
    g, last = small()
    twin = again(g)
    verify(twin)
    assert str(twin) == str(g)
    for one, other in zip(values(g), values(twin), strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    twin.output("more", next(t for t in twin.tensors() if t.id == last.id) * 2)
    assert "more" not in g.outputs
    assert next(iter(twin.params.values())).dtype is rlx.f32


def test_tensors_and_nodes_are_copied_with_their_graph() -> None:
    g, last = small()
    for twin, tensor, node in (copy.deepcopy((g, last, last.node)), pickle.loads(pickle.dumps((g, last, last.node)))):
        assert tensor.graph is twin and tensor.node is node and tensor.id == last.id


def test_a_deep_graph_is_pickled_and_copied() -> None:
    g = Graph("deep")
    t = g.input("x", (1,))
    for _ in range(5_000):
        t = rlx.neg(t)
    g.output("y", t)
    assert len(pickle.loads(pickle.dumps(g)).nodes) == len(copy.deepcopy(g).nodes) == 5_001


def test_what_cannot_be_pickled_says_what_to_do() -> None:
    g, _ = small()
    session = rlx.Session("cpu")
    exe = session.compile(g)
    for thing, advice in (
        (exe, "Session.compile"), (session, "make another"), (exe.weights, "make another"),
        (rlx.jit(rlx.exp, device="cpu"), "pickle the function"),
    ):  # fmt: skip
        for use in (pickle.dumps, copy.deepcopy):
            with pytest.raises(GraphError, match=advice):
                use(thing)
    with pytest.raises(GraphError, match="still traced"):
        rlx.cond(rlx.sum(g.inputs["x"]) > 0, lambda: pickle.dumps(rlx.exp(g.inputs["x"]).graph), lambda: None)
    with rlx.custom_op("gone", lambda x: x, infer=lambda types, attrs: types[0]) as gone:
        h = Graph("custom")
        h.output("y", gone(h.input("x", (2,))))
        data = pickle.dumps(h)
        assert pickle.loads(data).nodes[1].op is gone.op
    with pytest.raises(rlx.errors.UnsupportedOp, match="gone"):
        pickle.loads(data)
    with pytest.raises(rlx.errors.UnsupportedOp, match="removed"):
        pickle.dumps(h)


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.output("z", g.inputs["x"]),
        lambda g: g.input("more", ()),
        lambda g: g.param("more", ()),
        lambda g: g.update("seen", g.inputs["x"]),
    ],
    ids=["output", "input", "param", "update"],
)
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "use",
    [lambda e: e.run({"x": X}), lambda e: e.report(), lambda e: e.clone(), lambda e: e.program,
     lambda e: e.set_param("w", np.ones((3, 4), np.float32))],
    ids=["run", "report", "clone", "program", "set_param"],
)  # fmt: skip
def test_a_graph_changed_after_it_was_compiled_is_refused(
    change: Callable[[Graph], Any], recorded: bool, use: Callable[[Any], Any]
) -> None:
    g = Graph("changed")
    x = g.input("x", (3, 4))
    g.state("seen", (3, 4))
    g.output("y", x + g.param("w", (3, 4)))
    with rlx.Session("cpu").compile(g) as exe:
        exe.set_param("w", np.zeros((3, 4), np.float32))
        if recorded:
            exe.run({"x": X})
        rlx.exp(x)  # a node that no output needs changes nothing
        use(exe)
        change(g)
        with pytest.raises(GraphError, match="after it was compiled"):
            use(exe)


def test_wrong_names_say_what_was_meant() -> None:
    g = Graph("names")
    x = g.input("input_ids", (2,))
    g.param("weight", (2,))
    g.output("y", x)
    exe = rlx.Session("cpu").compile(g)
    exe.set_param("weight", [1, 2])
    uses: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: rlx.sofmax, AttributeError, "softmax"), (lambda: exe.run({"input_id": 1}), GraphError, "input_ids"),
        (lambda: rlx.Session("vulcan"), rlx.errors.DeviceUnavailable, "vulkan"),
        (lambda: rlx.Session("cpu", precision="fp16"), rlx.errors.DTypeError, "f16"),
        (lambda: exe.set_param("wieght", 0), GraphError, "weight"),
        (lambda: rlx.softmax(x, axs=0), TypeError, "axis"), (lambda: rlx.softmax(x, dim=0), TypeError, "axis"),
        (lambda: x.sum(keepdim=True), TypeError, "keepdims"), (lambda: x.softmax(dim=0), TypeError, "axis"),
        (lambda: rlx.cast(x, "flaot32"), rlx.errors.DTypeError, "float32|f32"),
    ]  # fmt: skip
    for use, error, name in uses:
        with pytest.raises(error, match=f"did you mean '({name})'"):
            use()
    assert not hasattr(rlx, "sofmax")
    assert pickle.loads(pickle.dumps(rlx.unsqueeze)) is rlx.unsqueeze
    with pytest.raises(TypeError, match="missing"):
        rlx.softmax(axis=1)  # type: ignore[call-arg]
