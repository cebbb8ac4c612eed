"""What may be called and given: methods, dataclasses and registered classes, bare inputs; and what notebooks show."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, ShapeError, TracedValueError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Layer:
    """A class as users write it: arrays and sizes as attributes."""

    def __init__(self, w: Any, heads: int = 1, inner: Any = ()) -> None:
        self.w, self.heads, self.inner = w, heads, list(inner)

    @rlx.jit(device="cpu")
    def apply(self, x: Any, *, scale: float = 1.0) -> Any:
        for layer in self.inner:
            x = layer.shift(x)
        return (x * self.w).reshape(self.heads, -1) * scale

    def shift(self, x: Any) -> Any:
        return x + self.w

    @rlx.jit(device="cpu")
    def remember(self, x: Any) -> Any:
        self.last = x * 2
        return x

    @rlx.jit(device="cpu", static_argnums=1)
    def power(self, n: int) -> Any:
        return self.w**n


def test_a_method_reads_its_objects_arrays_at_each_call() -> None:
    layer = Layer(np.full(3, 2.0, np.float32), 2, [Layer(np.ones(3, np.float32))])
    size = Layer.apply.cache_info()["size"]
    np.testing.assert_array_equal(layer.apply(X), 2 * (X + 1))
    layer.w = layer.w + 1
    layer.inner[0].w[:] = 5
    np.testing.assert_array_equal(layer.apply(X, scale=2.0), 6 * (X + 5))
    np.testing.assert_array_equal(Layer.apply(layer, X, scale=0.5), 1.5 * (X + 5))
    assert Layer.apply.cache_info()["size"] == size + 2
    layer.heads = 3  # sizes are built in, so that another one is another program
    assert layer.apply(X).shape == (3, 2) and Layer.apply.cache_info()["size"] == size + 3
    np.testing.assert_array_equal(layer.power(2), [9, 9, 9])
    assert layer.apply.launch(X).wait("host").shape == (3, 2)
    assert [*layer.apply.graph(X).inputs] == ["self.inner.0.w", "self.w", "x"]
    outer = rlx.jit(lambda x: layer.apply(x).sum(), device="cpu")
    assert outer(X) == 3 * (X + 5).sum()


def test_a_method_that_sets_attributes_says_what_to_write() -> None:
    with pytest.raises(TracedValueError, match=r"sets self\.last.*return the new value.*model\.last = model\.remember"):
        Layer(X).remember(X)


@dataclasses.dataclass
class Params:
    w: Any
    b: Any = 0.0
    name: str = dataclasses.field(default="", metadata={"static": True})
    size: int = dataclasses.field(default=1, metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Config:
    size: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Both:
    params: Params
    x: Any


def test_dataclasses_hold_arrays() -> None:
    @rlx.jit(device="cpu", out="device")
    def step(p: Params, config: Config) -> Params:
        return Params(rlx.reshape(p.w * p.size, (config.size, -1)), p.b + 1, p.name + "!", p.size)

    made = step(Params(X, X, "net", 3), Config())
    assert isinstance(made, Params) and (made.name, made.size) == ("net!", 3)
    np.testing.assert_array_equal(made.w.numpy(), 3 * X)
    step(Params(X, X, "net", 3), Config())
    assert step.cache_info()["size"] == 1
    assert step(Params(X, X, "net", 3), Config(3)).w.shape == (3, 2) and step.cache_info()["size"] == 2

    def loss(both: Both) -> Any:
        return rlx.sum(both.x * both.params.w + both.params.b * 3)

    found = rlx.grad(loss, device="cpu")(Both(Params(X, 0.5), 2 * X))
    assert isinstance(found, Both) and isinstance(found.params, Params)
    np.testing.assert_array_equal(found.params.w, 2 * X)
    np.testing.assert_array_equal(found.x, X)
    assert found.params.b == 18
    carried, _ = rlx.scan(lambda p, x: (dataclasses.replace(p, w=p.w + x), None), Params(X[0] * 0, X[0]), X)
    np.testing.assert_array_equal(carried.w.numpy(), X.sum(0))


@rlx.tree.register_pytree_node_class
class Pair:
    def __init__(self, a: Any, b: Any, tag: str) -> None:
        assert not isinstance(a, str)
        self.a, self.b, self.tag = a, b, tag

    def tree_flatten(self) -> Any:
        return (self.a, self.b), self.tag

    @classmethod
    def tree_unflatten(cls, tag: str, children: Any) -> Pair:
        return cls(*children, tag)


class Named:
    def __init__(self, w: Any, note: str) -> None:
        self.w, self.note = w, note


rlx.tree.register_pytree_with_keys(
    Named, lambda x: ((("weight", x.w),), x.note), lambda note, items: Named(*items, note)
)
Plain = type("Plain", (), {"__init__": lambda self, w, n: self.__dict__.update(w=w, n=n)})
rlx.tree.register_dataclass(Plain, data_fields=["w"], meta_fields=["n"])


def test_registered_classes_hold_arrays() -> None:
    f = rlx.jit(lambda p: Pair(p.b * 2, p.a, p.tag), device="cpu")
    made = f(Pair(X, 3 * X, "t"))
    assert made.tag == "t" and made.a.sum() == 6 * X.sum() and made.b.sum() == X.sum()
    f(Pair(X, X, "u"))
    assert f.cache_info()["size"] == 2  # what stands beside the children is built in
    named = rlx.grad(lambda n: rlx.sum(n.w * n.w), device="cpu")
    assert isinstance(named(Named(X, "n")), Named) and named(Named(X, "n")).w.sum() == 2 * X.sum()
    assert [*named.graph(Named(X, "n")).inputs] == ["n.weight"]
    assert rlx.jit(lambda p: p.w * p.n, device="cpu")(Plain(X, 2)).sum() == 2 * X.sum()
    with pytest.raises(GraphError, match=r"Pair.* is a container.*once"):
        rlx.tree.register_pytree_node(Pair, lambda x: ((), None), lambda rest, items: None)
    with pytest.raises(GraphError, match=r"Params has the fields.*\['b', 'name', 'size'\].*list each once"):
        rlx.tree.register_dataclass(Params, data_fields=["w"], meta_fields=[])
    with pytest.raises(GraphError, match="has no tree_flatten"):
        rlx.tree.register_pytree_node_class(Layer)


def test_the_report_of_a_jitted_function() -> None:
    f = rlx.jit(lambda x: rlx.exp(x) + 1, device="cpu")
    with pytest.raises(GraphError, match="no program is compiled yet; call it first"):
        f.report()
    f(X), f(X[:1])
    report = f.report()
    assert [len(one.nodes) > 0 for one in report] == [True, True]
    assert "f32[2,3]" in str(report).splitlines()[0] and "device cpu" in str(report)
    assert report[-1].counts and "<pre>" in report._repr_html_() and "<pre>" in report[0]._repr_html_()
    assert "f32[1,3]" in f._repr_html_()


def doubled() -> rlx.CompiledGraph:
    g = rlx.Graph("doubled")
    g.output("y", g.input("x", (2, 3)) * 2.0)
    return rlx.Session("cpu").compile(g)


def test_a_program_with_one_input_takes_it_bare() -> None:
    exe = doubled()
    for given in (X, rlx.array(X, device="cpu")):
        np.testing.assert_array_equal(exe.run(given)["y"], 2 * X)
        np.testing.assert_array_equal(exe(given), 2 * X)
    np.testing.assert_array_equal(exe(x=X.tolist()), 2 * X)
    assert isinstance(exe({"x": X}, out="device"), rlx.Array) and exe.launch(X).wait("host")["y"].sum() == 30
    with pytest.raises(GraphError, match=r"doubled: 2 inputs given in order; the model takes \['x'\]"):
        exe(X, X)
    g = rlx.Graph("two")
    a, b = g.input("a", (2,)), g.input("b", (2,))
    g.output("sum", a + b)
    g.output("product", a * b)
    two = rlx.Session("cpu").compile(g)
    assert {n: v.tolist() for n, v in two(X[0, :2], b=X[1, :2]).items()} == {"sum": [3, 5], "product": [0, 4]}
    with pytest.raises(GraphError, match="expected a dict of arrays by name"):
        two.run(X)


def model_of(inputs: list[str]) -> rlx.onnx.Model:
    from onnx import helper

    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in (*inputs, "y")]
    node = helper.make_node("Sum" if len(inputs) > 1 else "Neg", inputs, ["y"])
    graph = helper.make_graph([node], "g", ports[:-1], ports[-1:])
    return rlx.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def test_an_onnx_model_takes_inputs_bare_and_in_order() -> None:
    one, two = model_of(["x"]), model_of(["a", "b"])
    np.testing.assert_array_equal(one.run(X, "cpu")["y"], -X)
    np.testing.assert_array_equal(one(X, device="cpu"), -X)
    np.testing.assert_array_equal(two(X, b=X, device="cpu"), 2 * X)
    assert isinstance(one(X, device="cpu", out="device"), rlx.Array)
    with pytest.raises(GraphError, match="missing"):
        two(X, device="cpu")


def test_gradients_do_not_go_through_runs() -> None:
    exe, model = doubled(), model_of(["x"])
    runs: list[Any] = [lambda w: exe(w), lambda w: exe.run({"x": w})["y"], lambda w: model(w, device="cpu"),
                       lambda w: model.run({"x": w}, "cpu")["y"]]  # fmt: skip
    for run in runs:
        with pytest.raises(TracedValueError, match=r"input 'x': given Tensor.*neither a trace nor a gradient goes"):
            rlx.grad(lambda w, run=run: rlx.sum(run(w)), device="cpu")(X)
        with pytest.raises(GraphError, match=r"depends on none of its arguments.*a model gave.*without gradients"):
            rlx.grad(lambda w, run=run: rlx.sum(run(X)), device="cpu")(X)
        fixed = rlx.grad(lambda w, run=run: rlx.sum(run(X) * w), device="cpu")(X)  # a teacher's results
        np.testing.assert_array_equal(np.abs(fixed), np.abs(run(X)))


LEAKS: list[Any] = []


def test_a_value_that_leaves_its_trace() -> None:
    LEAKS.clear()
    f = rlx.jit(lambda x: (LEAKS.append(x * 2), x)[1], device="cpu")
    f(X)
    (leaked,) = LEAKS
    uses: list[Any] = [
        lambda: leaked + 1, lambda: rlx.exp(leaked), lambda: leaked[0], lambda: np.asarray(leaked),
        lambda: float(leaked), lambda: rlx.jit(lambda x: x + leaked, device="cpu")(X), lambda: rlx.concat([X, leaked]),
        lambda: rlx.array(X, device="cpu") + leaked,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(TracedValueError, match=r"while it was traced, which is over.*is its result; return it"):
            use()
    f(X)
    assert f.graph(X).outputs  # a graph that is asked for takes more nodes
    rlx.exp(f.graph(X).outputs["y0"])


@pytest.mark.parametrize(
    "loss, args, kind, text",
    [
        (lambda x: x * 2, (X,), ShapeError, r"must give a rank-0 tensor, it gave \(2, 3\); sum it first"),
        (lambda x: (x.sum(), x), (X,), ShapeError, "it gave tuple; with has_aux=True"),
        (lambda x: 2.0, (X,), ShapeError, "it gave float, which depends on no argument"),
        (lambda x: None, (X,), ShapeError, "it gave NoneType; return one number"),
        (lambda x: [x.sum()], (X,), ShapeError, "it gave list; return one number"),
        (lambda x: rlx.fft.fft(x)[0, 0], (X,), ShapeError, r"it gave complex64\[\]; take rlx.real or rlx.abs of it"),
        (lambda x: x.sum(), (X.astype(np.int64),), DTypeError, r"argument x is integer: i64\[2,3\].*np\.float32"),
        (lambda x: x * 1.0, (3,), DTypeError, "argument x is integer: a Python int.*pass a float"),
        (lambda p: p["b"][0].sum(), ({"a": X, "b": [X > 1]},), DTypeError, r"argument p is bool at b\.0: bool\[2,3\]"),
        (lambda p: p.w.sum(), (Params(X, np.arange(3)),), DTypeError, r"argument p is integer at b: i64\[3\]"),
    ],
)  # fmt: skip
def test_what_has_no_gradient(loss: Any, args: Any, kind: Any, text: str) -> None:
    for transform in (rlx.grad, rlx.value_and_grad):
        with pytest.raises(kind, match=text):
            transform(loss, device="cpu")(*args)


@pytest.mark.parametrize(
    "given, text",
    [
        ([1, 2], r"a list in argument 'option'; write tuple\("),
        ({"a": 1}, r"a dict in argument 'option'; write tuple\(sorted"),
        ({1, 2}, r"a set in argument 'option'; write frozenset\("),
        (X, "a ndarray in argument 'option'; write it as an argument that is not static"),
        ((1, [2]), r"a list in argument 'option'; write tuple\("),
    ],
)
def test_a_static_argument_without_a_hash(given: Any, text: str) -> None:
    with pytest.raises(GraphError, match=f"a static argument cannot be hashed: {text}"):
        rlx.jit(lambda x, option: x, static_argnames="option", device="cpu")(X, given)


def test_trees_that_do_not_match() -> None:
    with pytest.raises(GraphError, match=r"cond: .*\{'a': \*\} and \[\*\]; return one structure from both"):
        rlx.cond(np.array(True), lambda x: {"a": x}, lambda x: [x], X)
    with pytest.raises(GraphError, match=r"Params\(\*, \*\) and comes back as \(\*,\); expected one structure"):
        rlx.scan(lambda p, x: ((p.w,), None), Params(X, X), X)


def test_what_notebooks_show() -> None:
    matrix, vector = rlx.array(X, device="cpu"), rlx.array(np.ones(2000, np.float32), device="cpu")
    assert "<td>5</td>" in matrix._repr_html_() and "f32[2,3] on cpu" in matrix._repr_html_()
    assert "8,000 bytes" in vector._repr_html_()
    matrix.close()
    assert "was closed" in matrix._repr_html_()
    assert "<td>cpu</td>" in rlx.Session("cpu")._repr_html_()
