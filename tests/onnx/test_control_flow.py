"""If, Loop and Scan: what is taken or unrolled while building, what is compiled, and whose values become constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.errors import ModelFormatError
from rlx.onnx.reader.patterns import put_together
from tests.onnx.models import I64, info, model, node

BOOL = TensorProto.BOOL
CONTROL = {"cond", "while_loop", "scan"}


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any], name: str = "body") -> Any:
    return helper.make_graph(nodes, name, inputs, outputs)


Wanted = Callable[..., "tuple[Any, ...]"]


def run(proto: onnx.ModelProto, device: str, wanted: Wanted, *feeds: dict[str, np.ndarray]) -> Any:
    """Runs the model on each of the feeds, beside `wanted` in float64. Gives the programs that took, and control ops
    in the last."""
    names = [o.name for o in proto.graph.output]
    with rlx.onnx.load(proto) as loaded:
        for feed in feeds:
            made = loaded.run(feed, device=device)
            wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feed.items()}
            for name, want in zip(names, wanted(**wide), strict=True):
                np.testing.assert_allclose(made[name], want, rtol=1e-4, atol=1e-6, err_msg=name)
        programs = loaded.programs
        return programs, {d.op for d in programs[-1].report() if d.how == "control"}


def choice(then: list[Any], other: list[Any]) -> onnx.ModelProto:
    """If sum(x) > 0, over branches that give `b`."""
    branches = {
        "then_branch": body(then, [], [info("b", None)], "then"),
        "else_branch": body(other, [], [info("b", None)], "else"),
    }
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "c"), node("If", "c", "y", **branches),
    ]  # fmt: skip
    return model(nodes, {"x": [3, 4]}, {"y": None}, {"zero": np.array(0, np.float32)})


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_branch_is_chosen_in_the_run(device: str) -> None:
    proto = choice([node("Exp", "x", "e"), node("Mul", "e s", "b")], [node("Neg", "x", "b")])
    (program,), found = run(
        proto,
        device,
        lambda x: (np.exp(x) * x.sum() if x.sum() > 0 else -x,),
        {"x": X},
        {"x": -X},
        {"x": X * 0.1},
    )
    assert found == {"cond"} and program.fixed == ()


def test_branches_of_different_shapes_make_the_value_part_of_the_program() -> None:
    proto = choice([node("Transpose", "x", "b")], [node("Neg", "x", "b")])
    wanted = lambda x: (x.T if x.sum() > 0 else -x,)  # noqa: E731
    programs, found = run(proto, "cpu", wanted, {"x": X}, {"x": -X}, {"x": X})
    assert found == set() and [p.fixed for p in programs] == [("x",), ("x",)]


def test_a_branch_that_rlx_cannot_build_is_built_when_it_is_taken() -> None:
    """Its shapes only fit where the other branch is not taken."""
    proto = choice([node("Neg", "x", "b")], [node("MatMul", "x x", "b")])
    with rlx.onnx.load(proto) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": X}, device="cpu")["y"], -X)


def loop(
    nodes: list[Any],
    state: list[str],
    rows: list[str] = (),
    limit: str = "m",
    going: str = "_",
    **inputs: Any,
) -> onnx.ModelProto:
    """A Loop whose body has the values v, …: `nodes` make `on`, each `<state>2` and the rows."""
    inner = body(
        nodes,
        [info("i", [], I64), info("go", [], BOOL), *(info(s, None) for s in state)],
        [info("on", [], BOOL), *(info(f"{s}2", None) for s in state), *(info(r, None) for r in rows)],
    )
    outer = " ".join(f"{s}0" for s in state)
    outs = [f"{s}9" for s in state] + [f"{r}9" for r in rows]
    made = [node("Loop", f"{limit} {going} {outer}", " ".join(outs), name="n", body=inner)]
    feeds = {f"{s}0": [3, 4] for s in state} | inputs
    return model(made, feeds, dict.fromkeys(outs), {"true": np.array(True)})


def repeated(v: np.ndarray, steps: Any, step: Callable[[Any], Any]) -> np.ndarray:
    for _ in range(int(steps)):
        v = step(v)
    return v


GOES_ON = node("Identity", "go", "on")
M = {"m": ([], I64)}


def test_the_number_of_steps_may_be_an_input(device: str) -> None:
    proto = loop([GOES_ON, node("Sin", "v", "s"), node("Add", "s v0", "v2")], ["v"], **M)
    feeds = [{"v0": X, "m": np.array(m)} for m in (0, 1, 5, 100, 3)]
    (program,), found = run(proto, device, lambda v0, m: (repeated(v0, m, lambda v: np.sin(v) + v0),), *feeds)
    assert found == {"while_loop"} and program.fixed == ()


def test_a_condition_ends_a_loop(device: str) -> None:
    """Halve until the largest is below 1; `i` counts along."""
    nodes = [
        node("Constant", "", "half", value_float=0.5), node("Constant", "", "one", value_float=1.0),
        node("Mul", "v half", "v2"), node("ReduceMax", "v2", "top", keepdims=0), node("Greater", "top one", "on"),
        node("Cast", "i", "f", to=TensorProto.FLOAT), node("Add", "n f", "n2"),
    ]  # fmt: skip
    proto = loop(nodes, ["v", "n"], limit="m", going="t", t=([], BOOL), **M)
    big = np.array(1 << 40)
    zero = np.zeros((3, 4), np.float32)
    feeds = [{"v0": X * s, "n0": zero, "m": m, "t": np.array(t)}
             for s, m, t in ((1, big, True), (100, big, True), (100, np.array(3), True), (1, big, False))]  # fmt: skip

    def wanted(v0: Any, n0: Any, m: Any, t: Any) -> Any:
        i, v, n, on = 0, v0, n0, bool(t)
        while on and i < m:
            v, n = v * 0.5, n + i
            i, on = i + 1, v.max() > 1
        return v, n

    (program,), found = run(proto, device, wanted, *feeds)
    assert found == {"while_loop"} and program.fixed == ()


def test_many_counted_steps_are_a_scan_and_few_are_written_out(device: str) -> None:
    nodes = [GOES_ON, node("Sin", "v", "v2"), node("Cast", "i", "f", to=1), node("Mul", "v2 f", "r")]
    for steps, wanted in ((100, {"scan"}), (4, set())):
        proto = loop(nodes, ["v"], ["r"])
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(steps), "m"))

        def rows(v0: Any, steps: int = steps) -> Any:
            made = [repeated(v0, i + 1, np.sin) for i in range(steps)]
            return made[-1], np.stack([i * v for i, v in enumerate(made)])

        assert run(proto, device, rows, {"v0": X}, {"v0": -X})[1] == wanted


def test_scan_outputs_whose_number_is_not_known_make_values_part_of_the_program() -> None:
    proto = loop([GOES_ON, node("Sin", "v", "v2"), node("Identity", "v", "r")], ["v"], ["r"], **M)

    def wanted(v0: Any, m: Any) -> Any:
        return repeated(v0, m, np.sin), np.stack([repeated(v0, i, np.sin) for i in range(m)])

    programs, found = run(proto, "cpu", wanted, {"v0": X, "m": np.array(3)}, {"v0": X, "m": np.array(30)})
    assert [p.fixed for p in programs] == [("m",), ("m",)] and found == {"scan"}


def test_a_state_that_grows_is_written_out() -> None:
    proto = loop([GOES_ON, node("Concat", "v v0", "v2", axis=0)], ["v"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(20), "m"))
    assert run(proto, "cpu", lambda v0: (np.concatenate([v0] * 21),), {"v0": X})[1] == set()


def test_shapes_may_follow_from_what_is_known_around_the_body(device: str) -> None:
    """A shape worked out before the loop is used in it; one that depends on the step has the loop written out."""
    around = [node("Shape", "v0", "sh"), node("Gather", "sh ix", "rs")]
    inside = [GOES_ON, node("Reshape", "v rs", "q"), node("Reshape", "q sh", "v1"), node("Cos", "v1", "v2")]
    proto = loop(inside, ["v"], **M)
    for n in reversed(around):
        proto.graph.node.insert(0, n)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 0]), "ix"))
    (program,), found = run(
        proto,
        device,
        lambda v0, m: (repeated(v0, m, np.cos),),
        {"v0": X, "m": np.array(50)},
        {"v0": X, "m": np.array(2)},
    )
    assert found == {"while_loop"} and program.fixed == ()
    stepwise = loop([GOES_ON, node("Gather", "v i", "g"), node("Add", "v g", "w"), node("Slice", "w z i1", "p"),
                     node("ReduceSum", "p", "t", keepdims=0), node("Add", "v t", "v2")], ["v"])  # fmt: skip
    stepwise.graph.node[0].attribute[0].g.node.insert(0, node("Reshape", "i i1s", "i1"))
    for name, value in (("m", np.array(3)), ("z", np.array([0])), ("i1s", np.array([1]))):
        stepwise.graph.initializer.append(onnx.numpy_helper.from_array(value, name))

    def wanted(v0: Any) -> Any:
        v = v0
        for i in range(3):
            v = v + (v + v[i])[:i].sum()
        return (v,)

    assert run(stepwise, device, wanted, {"v0": X})[1] == set()


@pytest.mark.sample(vulkan=0)
def test_a_long_scan_goes_either_way_along_any_axis(device: str) -> None:
    step = body(
        [
            node("MatMul", "h w", "hw"),
            node("Add", "hw x", "a"),
            node("Tanh", "a", "h2"),
            node("Mul", "h2 z", "y"),
        ],
        [info("h", [2, 4]), info("x", [2, 4]), info("z", [2, 4])],
        [info("h2", [2, 4]), info("y", [2, 4])],
    )
    ends = {"scan_input_axes": [1, 0], "scan_input_directions": [1, 0], "scan_output_axes": [1],
            "scan_output_directions": [1]}  # fmt: skip
    nodes = [node("Scan", "h0 xs zs", "h9 ys", body=step, num_scan_inputs=2, **ends)]
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((4, 4)) * 0.3).astype(np.float32)
    proto = model(
        nodes, {"h0": [2, 4], "xs": [2, 40, 4], "zs": [40, 2, 4]}, {"h9": None, "ys": None}, {"w": w}
    )
    feed = {
        n: rng.standard_normal(s).astype(np.float32)
        for n, s in (("h0", (2, 4)), ("xs", (2, 40, 4)), ("zs", (40, 2, 4)))
    }
    h, want = feed["h0"].astype(np.float64), np.zeros((2, 40, 4))
    for i in range(40):
        h = np.tanh(h @ w + feed["xs"][:, 39 - i])
        want[:, 39 - i] = h * feed["zs"][i]
    with rlx.onnx.load(proto) as loaded:
        made = loaded.run(feed, device=device)
        np.testing.assert_allclose(made["h9"], h, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(made["ys"], want, rtol=1e-4, atol=1e-6)
        assert {d.op for d in loaded.programs[0].report() if d.how == "control"} == {"scan"}


def test_the_old_scan_goes_over_each_of_a_batch(device: str) -> None:
    step = body([node("Add", "h x", "h2"), node("Identity", "h2", "y")], [info("h", [2]), info("x", [2])],
                [info("h2", [2]), info("y", [2])])  # fmt: skip
    nodes = [node("Scan", "_ h0 xs", "h9 ys", body=step, num_scan_inputs=1, directions=[1])]
    proto = model(nodes, {"h0": ["b", 2], "xs": ["b", "t", 2]}, {"h9": None, "ys": None}, opset=8)

    def wanted(h0: np.ndarray, xs: np.ndarray) -> tuple[Any, ...]:
        ys = h0[:, None] + np.cumsum(xs[:, ::-1], 1)
        return ys[:, -1], ys

    rng = np.random.default_rng(1)
    for t in (4, 40):
        h0, xs = rng.standard_normal((3, 2)), rng.standard_normal((3, t, 2))
        run(proto, device, wanted, {"h0": h0.astype(np.float32), "xs": xs.astype(np.float32)})
    with pytest.raises(ModelFormatError, match="expected one length, not 0"):
        run(
            proto, device, wanted, {"h0": np.zeros((0, 2), np.float32), "xs": np.zeros((0, 3, 2), np.float32)}
        )


def test_an_if_in_a_loop_in_a_scan(device: str) -> None:
    then, other = (
        body([node("Exp", "v", "b")], [], [info("b", None)]),
        body([node("Neg", "v", "b")], [], [info("b", None)]),
    )
    inner = body(
        [node("ReduceSum", "v", "s", keepdims=0), node("Greater", "s w", "c"),
         node("If", "c", "u", then_branch=then, else_branch=other), node("Mul", "u w", "v2"), GOES_ON],
        [info("i", [], I64), info("go", [], BOOL), info("v", [4])], [info("on", [], BOOL), info("v2", [4])],
    )  # fmt: skip
    step = body([node("Loop", "m true x", "l", body=inner), node("Add", "h l", "h2"), node("Identity", "l", "y")],
                [info("h", [4]), info("x", [4])], [info("h2", [4]), info("y", [4])])  # fmt: skip
    nodes = [node("Scan", "h0 xs", "h9 ys", body=step, num_scan_inputs=1)]
    weights = {"w": np.array(0.25, np.float32), "true": np.array(True)}
    proto = model(nodes, {"h0": [4], "xs": [20, 4], "m": ([], I64)}, {"h9": None, "ys": None}, weights)
    xs = np.linspace(-1, 1, 80).astype(np.float32).reshape(20, 4)
    feeds = [{"h0": np.zeros(4, np.float32), "xs": xs, "m": np.array(m)} for m in (0, 1, 4)]

    def wanted(h0: Any, xs: Any, m: Any) -> Any:
        ys = [repeated(x, m, lambda v: 0.25 * (np.exp(v) if v.sum() > 0.25 else -v)) for x in xs]
        return h0 + np.sum(ys, 0), np.stack(ys)

    (program,), found = run(proto, device, wanted, *feeds)
    assert found == CONTROL and program.fixed == ()


def test_weights_of_a_body_are_shared_by_the_programs() -> None:
    nodes = [GOES_ON, node("MatMul", "v k", "v2")]
    proto = loop(nodes, ["v"], **M)
    kernel = (np.eye(4) + np.arange(4)).astype(np.float32) / 8
    many = np.tile(kernel, (300, 1))
    first = onnx.numpy_helper.from_array(np.arange(4), "first")
    inner = proto.graph.node[0].attribute[0].g
    inner.initializer.append(onnx.numpy_helper.from_array(many, "many"))
    inner.initializer.append(first)
    inner.node.insert(0, node("Gather", "many first", "k"))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    with rlx.onnx.load(proto) as loaded:
        for rows in (3, 5):
            x = np.ones((rows, 4), np.float32)
            made = loaded.run({"v0": x, "m": np.array(3)}, device="cpu")["v9"]
            np.testing.assert_allclose(
                made, x @ np.linalg.matrix_power(kernel.astype(np.float64), 3), rtol=1e-5
            )
        one, two = (p.graph.weights for p in loaded.programs)
        assert one is two and len(one.dtypes()) == 1


def test_loops_over_constants_alone_run_on_the_device() -> None:
    """Not while building, where a loop may take long."""
    proto = loop([GOES_ON, node("Add", "v w", "v2")], ["v"])
    for name, value in (("m", np.array(1000)), ("w", np.ones((3, 4), np.float32))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(X, "v0"))
    del proto.graph.input[:]
    assert run(proto, "cpu", lambda: (X + 1000.0,), {})[1] == {"scan"}


def test_patterns_are_put_together_in_bodies_too() -> None:
    g = rlx.Graph()
    x = g.input("x", (4, 8))
    gelu = lambda t: (rlx.erf(t / 2**0.5) + 1) * t * 0.5  # noqa: E731
    g.output(
        "y", rlx.scan(lambda c, row: (rlx.cond(rlx.sum(row) > 0, gelu, lambda t: t, c), row), x[0], x)[0]
    )
    assert "gelu" in str(put_together(g, {})) and "gelu" not in str(g)


def lstm(x: Any, w: Any, r: Any, b: Any, lengths: Any) -> tuple[Any, Any, Any]:
    """Two directions by ONNX's equations, in float64."""
    x, w, r, b = (a.astype(np.float64) for a in (x, w, r, b))
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    y, last, cells = (
        np.zeros((steps, 2, batch, hidden)),
        np.zeros((2, batch, hidden)),
        np.zeros((2, batch, hidden)),
    )
    for k in range(2):
        for n in range(batch):
            h = cell = np.zeros(hidden)
            for t in range(lengths[n])[:: -1 if k else 1]:
                gates = w[k] @ x[t, n] + r[k] @ h + b[k, : 4 * hidden] + b[k, 4 * hidden :]
                i, o, f = (1 / (1 + np.exp(-g)) for g in np.split(gates, 4)[:3])
                cell = f * cell + i * np.tanh(np.split(gates, 4)[3])
                h = y[t, k, n] = o * np.tanh(cell)
            last[k, n], cells[k, n] = h, cell
    return y, last, cells


@pytest.mark.parametrize("steps", [5, 40])
@pytest.mark.sample(1, vulkan=0)
def test_a_long_sequence_is_a_scan_and_a_short_one_written_out(device: str, steps: int) -> None:
    rng = np.random.default_rng(1)
    shapes = {"x": (steps, 3, 4), "w": (2, 20, 4), "r": (2, 20, 5), "b": (2, 40)}
    arrays = {n: (rng.standard_normal(s) * 0.5).astype(np.float32) for n, s in shapes.items()}
    arrays["lens"] = np.array([steps, 1, steps - 2], np.int32)
    proto = model(
        [node("LSTM", "x w r b lens", "y h c", hidden_size=5, direction="bidirectional")],
        {"x": list(shapes["x"]), "lens": ([3], TensorProto.INT32)}, {"y": None, "h": None, "c": None},
        {n: arrays[n] for n in "wrb"},
    )  # fmt: skip
    wanted = lambda x, lens: lstm(x, arrays["w"], arrays["r"], arrays["b"], lens)  # noqa: E731
    (program,), found = run(proto, device, wanted, {"x": arrays["x"], "lens": arrays["lens"]})
    assert found == ({"scan"} if steps > 16 else set()) and program.fixed == ()
