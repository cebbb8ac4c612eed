"""The likeliest mistakes raise a typed error that says what came, what was expected and what to do."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rlx
from rlx import train
from rlx.errors import DeviceUnavailable, DTypeError, GraphError, RlxError, ShapeError, TracedValueError
from rlx.host import other_attributes, other_names
from tests.outside import outside

ONES = np.ones((2, 3), np.float32)


class Pair(NamedTuple):
    a: Any
    b: Any


def compiled(dtype: str = "f32", **options: Any) -> rlx.CompiledGraph:
    g = rlx.Graph("double")
    g.output("y", g.input("x", (2, 3), dtype) * g.param("two", (), dtype))
    exe = rlx.Session("cpu").compile(g, **options)
    exe.set_param("two", 2)
    return exe


def traced(function: Callable[..., Any], *args: Any) -> Any:
    return rlx.jit(function, device="cpu")(*(args or (ONES,)))


def added_in_place(x: Any) -> Any:
    y = np.zeros((2, 3), np.float32)
    y += x
    return y


def assigned(x: Any) -> Any:
    x[0] = 0
    return x


@pytest.mark.parametrize(
    "given, error, text",
    [
        (ONES.astype(np.float64), DTypeError, r"expected dtype f32, got float64; convert it with \.astype"),
        (ONES[:1], ShapeError, r"expected shape \(2, 3\), got \(1, 3\)"),
        ([[1, 2, 3], [4, 5]], ShapeError, "the lists differ in length"),
        ([["1", "2", "3"]] * 2, DTypeError, "expected numbers, got a list of dtype <U1"),
        ([[1j] * 3] * 2, DTypeError, "expected numbers of f32"),
        ([[1e300] * 3] * 2, DTypeError, r"1e\+300 is beyond f32"),
        (None, DTypeError, "expected numbers, got a NoneType"),
    ],
)
def test_inputs_that_do_not_fit(given: Any, error: type[RlxError], text: str) -> None:
    with pytest.raises(error, match=f"input 'x': {text}"):
        compiled().run({"x": given})


@pytest.mark.parametrize("given", [[[0, 1, 2.5]] * 2, [[0, 1, 1 << 40]] * 2])
def test_lists_of_numbers_are_not_cut_into_integers(given: Any) -> None:
    with pytest.raises(DTypeError, match="is not a value of i32"):
        compiled("i32").run({"x": given})


def test_lists_and_arrays_in_any_order_of_memory_are_taken() -> None:
    wide = np.arange(12, dtype=np.float32).reshape(2, 6)
    for given in (
        [[1, 2.5, 3]] * 2,
        wide[:, ::2],
        wide[::-1, 5:2:-1],
        np.broadcast_to(np.float32(7), (2, 3)),
        wide.T[:3].T,
    ):
        np.testing.assert_array_equal(compiled().run({"x": given})["y"], 2 * np.asarray(given, np.float32))


@pytest.mark.parametrize("given", [3.0, [ONES]])
def test_inputs_go_by_name(given: Any) -> None:
    with pytest.raises(
        GraphError, match=r"expected a dict of arrays by name, got .*; the graph takes \['x'\]"
    ):
        compiled().run(given)


@pytest.mark.parametrize("name", [None, 0, rlx.f32])
def test_a_device_is_named_by_a_string(name: Any) -> None:
    with pytest.raises(DeviceUnavailable, match=r"named by a string.*rlx\.devices\(\)"):
        rlx.Session(name)


def test_a_wrong_device_of_the_environment_is_said_to_be_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "gpu")
    with pytest.raises(DeviceUnavailable, match=r"RLX_DEVICE: device 'gpu' is not understood .did you mean .auto"):
        rlx.Session()


@pytest.mark.parametrize("threads", [0, -1, "2"])
def test_threads_are_a_number(threads: Any) -> None:
    with pytest.raises(RlxError, match="is not a number of threads"):
        rlx.Session("cpu", threads=threads)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"storage": "f16"}, "storage 'f16' is not one of typed, f32"),
        ({"planner": "best"}, "planner 'best' is not one of"),
        ({"weights": {"two": 2}}, "weights is dict; expected a store"),
        ({"state": {}}, "state is dict; expected a store"),
    ],
)
def test_compile_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        compiled(**options)


def test_what_compiles_is_a_graph() -> None:
    with pytest.raises(GraphError, match=r"expected a Graph, got function; rlx\.jit"):
        rlx.Session("cpu").compile(added_in_place)  # type: ignore[arg-type]


def test_stores_belong_to_an_opened_device(session: rlx.Session) -> None:
    for kind in (rlx.Weights, rlx.State):
        with pytest.raises(
            DeviceUnavailable, match=r"'cpu' is no opened device; give Session\(...\)\.device"
        ):
            kind("cpu")  # type: ignore[arg-type]
    if session.info.id != "cpu":
        with pytest.raises(
            GraphError, match=f"the weights store is on {session.info.id}, the session on cpu"
        ):
            compiled(weights=rlx.Weights(session.device))
        with pytest.raises(GraphError, match=f"the state store is on {session.info.id}, the session on cpu"):
            compiled(state=rlx.State(session.device))


def test_a_value_is_of_the_program_that_runs() -> None:
    with compiled(planner="bump") as exe:
        exe.run({"x": ONES})
        assert exe.value(exe.program.outputs["y"])[0, 0] == 2
        with pytest.raises(GraphError, match="expected a tensor of `program`"):
            exe.value(exe.graph.outputs["y"])


def test_a_graph_that_grows_after_it_was_compiled_is_compiled_again() -> None:
    g = rlx.Graph("grown")
    x = g.input("x", (2,))
    y = g.output("y", x + 1)
    early, late = (rlx.Session("cpu").compile(g) for _ in range(2))
    early.run({"x": [1, 2]})
    unnamed = y * 2
    np.testing.assert_array_equal(late.run({"x": [1, 2]})["y"], [2, 3])
    late = rlx.Session("cpu").compile(g)
    g.output("z", unnamed)
    for use in (lambda: late.run({"x": [1, 2]}), lambda: early.run({"x": [1, 2]}), early.clone):
        with pytest.raises(GraphError, match=r"graph 'grown' was given other .* compile it again"):
            use()
    np.testing.assert_array_equal(rlx.Session("cpu").compile(g).run({"x": [1, 2]})["z"], [4, 6])


@pytest.mark.parametrize(
    "declare, error, text",
    [
        (lambda g: g.input("x", None), ShapeError, "input 'x': None is neither an int nor a sequence"),
        (lambda g: g.input("x", (None, 3)), ShapeError, "None is not an integer dimension"),
        (lambda g: g.input("x", (2,), None), DTypeError, "None is not an rlx dtype"),
        (lambda g: g.output(3, g.input("x", ())), GraphError, "the name must be a non-empty string, not 3"),
        (lambda g: g.output(g.input("x", ()), "y"), GraphError, "the name must be a non-empty string"),
        (lambda g: g.output("y", ONES), GraphError, "expected a Tensor of graph 'g', got ndarray"),
        (lambda g: g.input("x", (2,)) + "a", TypeError, "unsupported operand"),
        (
            lambda g: rlx.add(g.input("x", (2,)), "a"),
            DTypeError,
            "add: constant: expected numbers, got a str",
        ),
        (lambda g: g.input("x", (2,)) + 1e300, DTypeError, r"beyond f32.*or rlx\.cast the tensor beside it"),
        (lambda g: g.constant(None), DTypeError, "constant: expected numbers, got a NoneType"),
        (lambda g: g.constant([[1.0], [2.0, 3.0]]), ShapeError, "constant: the lists differ in length"),
        (
            lambda g: g.input("x", ()) + rlx.Graph("g").input("x", ()),
            GraphError,
            "not this one of the same name",
        ),
    ],
)
def test_declarations(declare: Callable[[rlx.Graph], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        declare(rlx.Graph("g"))


@pytest.mark.parametrize(
    "function, text",
    [
        (added_in_place, r"writing into an array.*write y = y \+ x"),
        (assigned, r"assignment to elements.*x\.at\[key\]\.set"),
        (lambda x: np.exp(x), r"np\.exp of Tensor.*use rlx\.exp"),
        (lambda x: np.mean(x), r"np\.mean of Tensor.*use rlx\.mean"),
        (lambda x: np.arctan2(ONES, x), r"np\.arctan2 of Tensor.*use rlx\.atan2"),
        (lambda x: np.vstack([x, x]), r"np\.vstack of Tensor.*use rlx\.vstack"),
        (lambda x: np.linalg.norm(x), r"np\.linalg\.norm of Tensor.*use rlx\.linalg\.norm"),
        (lambda x: np.fft.rfft(x), r"np\.fft\.rfft of Tensor.*use rlx\.fft\.rfft"),
        (lambda x: x.item(), r"item\(\) of Tensor.*return it from the function"),
        (lambda x: x.tolist(), r"tolist\(\) of Tensor.*return it from the function"),
        (eval("lambda x: float(x)"), r"float\(\) of .*\(<string>:1\)$"),
        (lambda x: range(x[0, 0]), r"rlx\.while_loop to repeat"),
    ],
)
def test_numpy_on_a_tensor(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(TracedValueError, match=text):
        traced(function)


def test_numpy_knows_what_is_known_of_a_tensor() -> None:
    assert traced(lambda x: x * (np.ndim(x) * 100 + np.size(x) * 10 + np.shape(x)[1]))[0, 0] == 263


def test_jit_takes_a_function_that_gives_tensors() -> None:
    with pytest.raises(GraphError, match=r"jit: expected a function, got 'cpu'; options go by name"):
        rlx.jit("cpu")  # type: ignore[call-overload]
    with pytest.raises(GraphError, match="the function gave None, no tensor; return what it computes"):
        traced(lambda x: None)
    with pytest.raises(DTypeError, match=r"argument 'y': .*float128.* is not an rlx dtype"):
        traced(lambda x, y: x, ONES, np.ones(2, np.longdouble))
    with pytest.raises(GraphError, match="a static argument cannot be hashed: a set"):
        traced(lambda p: p["x"], {"x": ONES, "names": {1, 2}})


def test_jit_keeps_structures() -> None:
    got = traced(lambda p, d: Pair(p.b, d[0] + d["a"]), Pair(ONES, 2 * ONES), {"a": ONES, 0: 3 * ONES})
    assert isinstance(got, Pair)
    assert got.a[0, 0] == 2 and got.b[0, 0] == 4


@pytest.mark.parametrize(
    "function, error, text",
    [
        (lambda x: x.sum(axis=2.5), ShapeError, "sum: axes: 2.5 is neither an int nor a sequence"),
        (lambda x: x.reshape(None), ShapeError, "reshape: shape: None is neither"),
        (lambda x: x.reshape(-1, -1), ShapeError, "leaves more than one dimension to be worked out"),
        (lambda x: rlx.pad(x, None), ShapeError, "pad: pads: None is neither"),
        (lambda x: rlx.expand_dims(x, None), ShapeError, "expand_dims: axis: None is neither"),
        (lambda x: rlx.max_pool(x[None], 2.5), ShapeError, "max_pool: kernel: 2.5 is neither"),
        (lambda x: rlx.top_k(x, np.ones(2)), ShapeError, "top_k: k is array"),
        (
            lambda x: rlx.group_norm(x[None], 1.5, ONES[0], ONES[0]),
            ShapeError,
            "groups is 1.5; expected a number",
        ),
        (lambda x: rlx.fake_quantize(x, "a"), DTypeError, "scale: expected numbers, got a str"),
        (lambda x: rlx.cast(x, x), DTypeError, "is not an rlx dtype"),
    ],
)
def test_attributes(function: Callable[..., Any], error: type[RlxError], text: str) -> None:
    with pytest.raises(error, match=text):
        traced(function)


def test_arrays_of_integers_are_attributes() -> None:
    kernel, two = np.ones((1, 1, 2, 2), np.float32), np.array([2, 2])
    one = np.ones((1, 1, 4, 4), np.float32)
    got = traced(lambda x: rlx.conv(x, kernel, strides=two, pads=np.array([1, 1])), one)
    np.testing.assert_array_equal(got[0, 0], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert traced(lambda x: x.reshape(np.array([3, 2])).sum(axis=np.array([0]))).shape == (2,)


@pytest.mark.parametrize(
    "function, text",
    [
        (
            lambda x: rlx.cond(rlx.any(x > 0), x, -x),
            r"cond: then_fn is Tensor; expected a function \(rlx\.where chooses",
        ),
        (lambda x: rlx.while_loop(rlx.all(x < 9), lambda c: 2 * c, x), "while_loop: cond_fn is Tensor"),
        (lambda x: rlx.scan(x, x[0], x), "scan: f is Tensor; expected a function"),
        (
            lambda x: rlx.scan(lambda c, r: (c + r,), x[0], x),
            r"f must give a pair \(carry, y\), it gave a tuple of 1",
        ),
    ],
)
def test_control_flow_takes_functions(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        traced(function)


def test_static_zeros_of_both_signs_are_two_programs() -> None:
    function = rlx.jit(lambda x, zero: x * zero, device="cpu")
    assert not np.signbit(function(ONES, 0.0)).any()
    assert np.signbit(function(ONES, -0.0)).all()


@pytest.mark.parametrize(
    "function, args, options, text",
    [
        (lambda x: rlx.sum(x), (ONES,), {"argnums": 1}, "there is no argument 1"),
        (lambda x: rlx.sum(x), (ONES,), {"argnums": "x"}, "argnums is 'x'; expected an int"),
        (
            lambda x, y: rlx.sum(x * y),
            (ONES, 3),
            {"argnums": 1},
            r"argument y is integer: a Python int, which has no gradient; pass a float",
        ),
        (lambda x, y: rlx.sum(x), (ONES, None), {"argnums": 1}, "argument y of <lambda> holds None"),
    ],
)
def test_grad_arguments(function: Any, args: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises((GraphError, DTypeError), match=text):
        rlx.grad(function, **options, device="cpu")(*args)


def test_the_gradient_of_a_structure_has_its_structure() -> None:
    def loss(p: dict[str, Any], x: Any, *, scale: float) -> Any:
        return rlx.sum(x @ p["w"] + p["layers"][0]) * scale

    p = {"w": np.ones((3, 2), np.float32), "layers": [np.ones(2, np.float32)], "none": None}
    got = rlx.grad(loss, device="cpu")(p, ONES, scale=2.0)
    np.testing.assert_array_equal(got["w"], np.full((3, 2), 4, np.float32))
    np.testing.assert_array_equal(got["layers"][0], np.full(2, 4, np.float32))
    assert got["none"] is None


def test_a_run_on_weights_that_were_closed_is_refused(session: rlx.Session) -> None:
    g = rlx.Graph("closed")
    g.output("y", g.input("x", (3,)) + g.param("w", (3,)))
    exe = session.compile(g)
    exe.set_param("w", [1, 2, 3])
    exe.run({"x": [0, 0, 0]})
    exe.weights.close()
    with pytest.raises(GraphError, match="weights not set"):
        exe.run({"x": [0, 0, 0]})
    exe.close()


def test_what_is_printed_tells_what_it_is() -> None:
    with compiled() as exe:
        assert repr(exe) == "CompiledGraph('double' on cpu: (x: f32[2,3]) -> (y: f32[2,3]))"
        assert repr(exe.weights) == f"Weights(1 of 1 set, {exe.weights.nbytes:,} bytes on cpu)"
        assert repr(exe.state) == "State(empty on cpu)"
        assert repr(exe.report()).startswith("device cpu: ")
        assert repr(exe.graph) == "Graph('double': 3 nodes, inputs ['x'], params ['two'], outputs ['y'])"
    assert repr(rlx.Session("cpu").device).startswith("CpuDevice(cpu: ")
    assert repr(rlx.Session("cpu")) == "Session(cpu, precision=f32, fallback=host)"
    assert repr(rlx.jit(assigned, device="cpu")) == "jit(assigned, device='cpu', 0 programs cached)"


def test_a_list_times_a_tensor_and_a_number_in_a_slice_say_what_to_write() -> None:
    with pytest.raises(TracedValueError, match="make the list a NumPy array"):
        traced(lambda x: x * [1.0, 2.0], ONES)
    with pytest.raises(TracedValueError, match='static_argnames="n" builds a program for each value'):
        traced(lambda x, n: x[:n], ONES, 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: x.reshape(n, 2), lambda x, n: x.reshape(-1, n), lambda x, n: x[:n], lambda x, n: rlx.arange(n),
        lambda x, n: rlx.zeros(n), lambda x, n: rlx.full((n, 2), 1.0), lambda x, n: rlx.sum(x, axis=n),
        lambda x, n: rlx.sort(x, axis=n), lambda x, n: rlx.random.normal(rlx.random.key(0), (n,)),
        lambda x, n: rlx.one_hot(np.array([1]), n), lambda x, n: rlx.top_k(x, n), lambda x, n: rlx.split(x, n),
        lambda x, n: rlx.tile(x, n), lambda x, n: rlx.scan(lambda c, _: (c, c), x, length=n),
    ],
)  # fmt: skip
def test_a_length_or_an_axis_that_a_run_gives_is_refused_by_what_to_write(use: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(TracedValueError, match="a length or an axis is fixed in a trace: make it a static argument"):
        rlx.jit(use, device="cpu")(ONES, np.int32(2))


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("rlx", "load", "rlx.onnx.load, rlx.models.load or rlx.load_program"),
        ("rlx", "tensor", "in rlx: rlx.array"),
        ("rlx", "svd", "did you mean rlx.linalg.svd"),
        ("rlx", "Softmax", "did you mean 'softmax'"),
        ("rlx", "is_available", "in rlx: rlx.devices()"),
        ("rlx.nn", "Linear", "did you mean 'linear'"),
        ("rlx.nn", "relu", "did you mean rlx.relu"),
        ("rlx.optim", "Adam", "did you mean 'adam'"),
        ("rlx.signal", "spectogram", "did you mean 'spectrogram'"),
        ("rlx.random", "randn", "a key, as in rlx.random.normal"),
        ("rlx.tree", "tree_map", "in rlx: rlx.tree.map"),
        ("rlx", "onnxruntime", "rlx.onnx, which has InferenceSession"),
        ("rlx.splats", "load", "in rlx: rlx.splats.read_ply"),
        ("rlx.signal", "remez", "scipy.signal's gives coefficients"),
        ("rlx.linalg", "tensorinv", "in rlx: nothing; numpy.linalg.tensorinv serves for NumPy arrays"),
        ("rlx", "vectorize", "in rlx: nothing; numpy.vectorize serves for NumPy arrays"),
        ("rlx.onnx", "InferenceSesion", "did you mean 'InferenceSession'"),
    ],
)
def test_names_that_a_module_has_not(module: str, name: str, said: str) -> None:
    found = importlib.import_module(module)
    assert not hasattr(found, name)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute '{name}'") as refused:
        getattr(found, name)
    assert said in str(refused.value)


@pytest.mark.judged
@pytest.mark.parametrize("module", ["rlx.signal", "rlx.fft", "rlx.linalg"])
def test_scipys_names_are_known_without_scipy(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = "scipy" + module[3:]
    names, theirs = other_names._SCIPY[peer].split(), dir(outside(peer))
    assert set(names) <= set(theirs) - set(dir(importlib.import_module(module)))
    with_scipy = [other_names.in_place_of(module, name) for name in names]
    monkeypatch.setitem(sys.modules, peer, None)
    assert [other_names.in_place_of(module, name) for name in names] == with_scipy


def test_names_of_language_models_and_encoders_elsewhere() -> None:
    for kind, name, said in (
        (rlx.models.LanguageModel, "create_chat_completion", "model.chat(messages)"),
        (rlx.models.SentenceEncoder, "similarity", "a @ b.T"),
    ):
        with pytest.raises(AttributeError, match=re.escape(said)):
            getattr(kind, name)


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [
        (rlx.array([1.0], device="cpu"), "cuda", 'rlx.array(x, device="cuda")'),
        (rlx.array([1.0], device="cpu"), "view", "x.reshape(shape)"),
        (rlx.devices()[-1], "total_memory", "device.memory_bytes"),
        (rlx.ones(3), "numpy", "np.asarray(x)"),
        (rlx.ones(3), "softmax", "rlx.softmax(x)"),
        (rlx.Graph().input("x", (2,)), "add_", "arrays never change"),
        (rlx.Graph(), "compile", "rlx.Session(device).compile(graph)"),
        (rlx.Session("cpu"), "close", "its programs have close()"),
        (rlx.jit(rlx.exp), "lower", "report() says what was compiled"),
        (rlx.optim.adam(0.1), "step", "rlx.optim.apply_updates(params, updates)"),
    ],
)
def test_attributes_that_other_libraries_objects_have(value: Any, name: str, said: str) -> None:
    assert not hasattr(value, name) and name not in dir(value)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as refused:
        getattr(value, name)
    assert said in str(refused.value)


@pytest.mark.judged
@pytest.mark.parametrize(("ours", "theirs"), [(o, t) for o, found in other_names._PEERS.items() for t in found])
def test_a_name_of_numpys_or_scipys_is_answered_by_no_other(ours: str, theirs: str) -> None:
    """A function that rlx has not is not mistaken for one that is spelled nearly so."""
    peer = outside(theirs) if theirs.startswith("scipy") else importlib.import_module(theirs)
    wrong = []
    for name in getattr(peer, "__all__", dir(peer)):
        if name[:1] == "_" or hasattr(importlib.import_module(ours), name):
            continue
        said = other_names.in_place_of(ours, name)
        alike = re.search(r"did you mean '(\w+)'", said)
        if not (alike and alike[1].lower() == name.lower()) and not said.startswith(" (in rlx: "):
            wrong.append(f"{name}{said}")
    assert wrong == []


def test_created_arrays_take_rlxs_dtypes() -> None:
    assert rlx.ones(3).astype(rlx.bfloat16).dtype == rlx.bfloat16.np


def test_every_name_of_rlx_that_a_hint_has_exists() -> None:
    """In place of names and of attributes that rlx has not."""
    texts = [*other_names._EXPLAINED.values()]
    for names in other_attributes._KINDS.values():
        texts += [text.replace("NAME", name) for of, text in names.items() for name in of]
    for path in {found for text in texts for found in re.findall(r"\brlx((?:\.[A-Za-z_]\w*)+)", text)}:
        at: Any = rlx
        for part in path[1:].split("."):
            at = importlib.import_module("rlx.finetune") if part == "finetune" else getattr(at, part)


def test_every_part_of_an_object_that_a_hint_has_exists() -> None:
    kinds: list[type] = [
        rlx.Array, rlx.Graph, rlx.Session, rlx.onnx.Model, rlx.models.LanguageModel, rlx.models.SentenceEncoder,
        rlx.splats.Camera, rlx.splats.Splats, rlx.splats.Rendered, train.Training, rlx.optim.Optimizer,
    ]  # fmt: skip
    called = r"(?<![\w.\"])(?:model|encoder|run|session|graph|x|made|camera|optimizer)\.([a-z]\w*)"
    missing = []
    for kind in kinds:
        source = inspect.getsource(kind)
        for text in other_attributes._KINDS[kind.__name__].values():
            parts = re.findall(called, text)
            missing += [(kind.__name__, p) for p in parts if not hasattr(kind, p) and f"self.{p}" not in source]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "said"), [
        ("Camera.from_matrix", "Camera(view, fx, fy, cx, cy, width, height)"),
        ("Camera.orbit", "Camera.look_at(eye, target"), ("Camera.pose", "np.linalg.inv(camera.view)"),
        ("Splats.xyz", "in rlx: splats.means"), ("Splats.save_ply", 'rlx.splats.write_ply("x.ply", *splats)'),
        ("Rendered.rgb", "in rlx: made.image"),
    ],
)  # fmt: skip
def test_what_others_call_the_parts_of_splats(name: str, said: str) -> None:
    kind, part = name.split(".")
    with pytest.raises(AttributeError, match=re.escape(said)) as caught:
        getattr(getattr(rlx.splats, kind), part)
    assert f"type object '{kind}' has no attribute '{part}'" in str(caught.value)


def test_the_calls_of_onnx_runtimes_sessions_on_a_model(tmp_path: Path) -> None:
    rlx.onnx.save(rlx.exp, tmp_path / "m.onnx", args=(ONES,))
    model = rlx.onnx.load(tmp_path / "m.onnx")
    for outputs in (None, ["y"]):
        with pytest.raises(GraphError, match="the inputs come first"):
            model.run(outputs, {"x": ONES})  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"in rlx: model\.inputs"):
        model.get_inputs()  # type: ignore[attr-defined]
