"""Arguments of jit: arrays of any library, Python's numbers, static arguments, and those that it refuses."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, RlxError, TracedValueError
from rlx.runtime.jit import CACHE_SIZE
from tests.devices import device_here
from tests.outside import outside

X = np.arange(1, 4, dtype=np.float32)
DTYPES = [np.uint8, np.int8, np.int32, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.bool_]
NUMBERS = [0, 1, 2, -3, 1000, 2**40, 2**63, 2**70, True, 0.1, -0.0, 2.5, 1e300, math.inf, -math.inf, math.nan]


def jit(function: Callable[..., Any], **options: Any) -> Any:
    return rlx.jit(function, device="cpu", **options)


def outcome(run: Callable[[], Any]) -> Any:
    """The dtype and bits of the result, or the class of the error."""
    try:
        with np.errstate(all="ignore"):
            made = run()
    except RlxError as error:
        return type(error)
    return made.dtype, made.tobytes()


class Wrapped:
    """An array of a library that is not NumPy."""

    def __init__(self, array: Any) -> None:
        self.array = array


class WithArray(Wrapped):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.array, dtype)


class WithInterface(Wrapped):
    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


class WithDLPack(Wrapped):
    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnDevice(Wrapped):
    """An array like those of a GPU library: its memory is a device's, and it refuses to become a NumPy array."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not the host's memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("implicit conversion is not allowed")


class OnDeviceWithGet(OnDevice):
    def get(self) -> Any:
        return self.array.copy()


@pytest.mark.parametrize("kind", [WithArray, WithInterface, WithDLPack, OnDeviceWithGet])
@pytest.mark.parametrize("nest", [lambda a: a, lambda a: {"w": [a]}, lambda a: (a, None)])
def test_arrays_of_any_library_are_read_anew_at_each_call(kind: type, nest: Callable[[Any], Any]) -> None:
    def first(tree: Any) -> Any:
        while isinstance(tree, dict | list | tuple):
            tree = tree["w"] if isinstance(tree, dict) else tree[0]
        return tree

    traces = []
    f = jit(lambda tree, x: (traces.append(1), x * first(tree))[1])
    array = np.ones(3, np.float32)
    given = nest(kind(array))
    np.testing.assert_array_equal(f(given, X), X)
    array += 1
    np.testing.assert_array_equal(f(given, X), 2 * X)
    np.testing.assert_array_equal(f(nest(kind(array + 1)), X), 3 * X)
    assert len(traces) == 1
    np.testing.assert_array_equal(f(nest(kind(np.ones(3))), X).dtype, np.float64)  # another dtype, another program


def test_arrays_of_other_libraries_beside_tensors() -> None:
    w = WithArray(X)
    for function in (lambda x: x + w, lambda x: w + x, lambda x: rlx.add(x, w), lambda x: rlx.where(x > 0, x + x, w)):
        np.testing.assert_array_equal(jit(function)(X), 2 * X)


def test_an_array_that_lies_on_a_device_says_how_to_copy_it() -> None:
    with pytest.raises(DTypeError, match=r"argument 'a': a \w+.OnDevice cannot be read.*copy it to the host"):
        jit(lambda a: a)(OnDevice(X))
    g = rlx.Graph()
    g.output("y", g.input("x", (3,)) + g.param("w", (3,)))
    exe = rlx.Session("cpu").compile(g)
    with pytest.raises(DTypeError, match=r"weight 'w'.*copy it to the host"):
        exe.set_param("w", OnDevice(X))
    exe.set_param("w", OnDeviceWithGet(X))
    with pytest.raises(DTypeError, match=r"input 'x'.*copy it to the host"):
        exe.run({"x": OnDevice(X)})
    np.testing.assert_array_equal(exe.run({"x": WithDLPack(X)})["y"], 2 * X)


@pytest.mark.judged
def test_tensors_of_torch() -> None:
    torch = outside("torch")
    f = jit(lambda a: a * 2)
    t = torch.ones(3)
    np.testing.assert_array_equal(f(t), [2, 2, 2])
    t += 1
    np.testing.assert_array_equal(f(t), [4, 4, 4])
    np.testing.assert_array_equal(f(torch.arange(8)[1::3]), [2, 8, 14])
    assert f(t.to(torch.bfloat16)).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(f(torch.tensor([1.0, -0.0, math.inf]).bfloat16()).astype("f4"), [2, 0, math.inf])
    for leaf in (torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))):
        with pytest.raises(DTypeError, match=r"argument 'a': a torch\.\w+ cannot be read.*\.detach\(\)ed"):
            f(leaf)
        np.testing.assert_array_equal(f(leaf.detach()).astype("f4"), [2, 2, 2])
    with pytest.raises(GraphError, match="argument 'm' is or holds a Linear, which is compared by identity"):
        jit(lambda m, x: x)(torch.nn.Linear(2, 2), X)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.sample(7)
def test_a_number_is_weak_as_a_constant_is(dtype: Any, number: Any) -> None:
    x = np.ones(3, dtype)
    for op in (rlx.mul, rlx.maximum, rlx.less, lambda a, n: rlx.where(a == a, n, a), lambda a, n: n - a):
        given = jit(lambda x, n, op=op: op(x, n))
        built = jit(lambda x, n, op=op: op(x, n), static_argnames="n")
        wanted = outcome(lambda built=built: built(x, number))
        assert outcome(lambda given=given: given(x, number)) == wanted
        if type(number) is not bool:  # the program of another number gives the same, and the same errors
            warm = jit(lambda x, n, op=op: op(x, n))
            outcome(lambda warm=warm: warm(x, 1 if isinstance(number, int) else 1.0))
            assert outcome(lambda warm=warm: warm(x, number)) == wanted


ARITHMETIC: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda x, a, b: x + (a + b),
    "adam": lambda x, a, b: x / (1 - a**b) * (2 / b - 1),
    "integers": lambda x, a, b: x * (b // 2 % 5 - b * 3 + (b << 2) - (~b & 6 | 1 ^ b)),
    "rounded": lambda x, a, b: x * (round(a * 10) + math.floor(a) - math.ceil(a) + math.trunc(a * 7) + abs(-b)),
    "compared": lambda x, a, b: rlx.where(a > b, x, -x) + ((a < b) + (a == b)) * x,
    "reflected": lambda x, a, b: x * (3 - a) + (2.0**a) * x + (7 % b) * x + 7 // b,
    "used twice": lambda x, a, b: x * a + rlx.cast(x, "f64") * a + rlx.cast(x, "bf16") * a,
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int32])
def test_arithmetic_of_numbers_is_pythons_and_stays_weak(name: str, dtype: Any) -> None:
    function, x = ARITHMETIC[name], np.arange(1, 4).astype(dtype)
    given, built = jit(function), jit(function, static_argnames=("a", "b"))
    for a, b in ((0.3, 2), (0.9, 7), (2.5, 1)):
        got, want = given(x, a, b), built(x, a, b)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=1e-6 if dtype != np.float16 else 2e-3)
    assert given.cache_info()["size"] == 1 and built.cache_info()["size"] == 3


def test_a_changing_learning_rate_does_not_compile_again(caplog: pytest.LogCaptureFixture) -> None:
    traces = []

    @rlx.jit(device="cpu")
    def step(w: Any, grad: Any, options: Any, *, t: int) -> Any:
        traces.append(1)
        return w - options["rate"] * grad / (1 - 0.9**t), {"rate": options["rate"] * 0.5, "t": t + 1}

    w, want = np.ones(3, np.float32), np.ones(3)
    state: dict[str, Any] = {"rate": 0.1, "t": 1}
    with caplog.at_level("INFO", logger="rlx.jit"):
        for i in range(20):
            want -= 0.1 * 0.5**i * X / (1 - 0.9 ** (i + 1))
            w, state = step(w, X, {"rate": state["rate"]}, t=state["t"])
    np.testing.assert_allclose(w, want, rtol=1e-5)
    assert state == {"rate": 0.1 * 0.5**20, "t": 21} and type(state["rate"]) is float and type(state["t"]) is int
    assert traces == [1] and len(caplog.records) == 1
    step(w, X, {"rate": 1}, t=1)  # an int is another program than a float
    assert len(traces) == 2


def test_numbers_alone_give_arrays() -> None:
    got = jit(lambda a, b: {"sum": a + b, "exp": rlx.exp(a)})(1.5, 2)
    assert got["sum"] == 3.5 and got["exp"].dtype == np.float32
    np.testing.assert_allclose(jit(lambda a: a * a)(1.5), np.float32(2.25))
    assert jit(lambda n: n * 2)(2**40).dtype == np.int64


def test_numbers_in_control_flow() -> None:
    def f(x: Any, n: Any, rate: Any) -> Any:
        doubled = rlx.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]
        counted = rlx.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] + rate), (n, x))[1]
        chosen = rlx.cond(n > 2, lambda: x * rate, lambda: -x)
        carry, rows = rlx.scan(lambda c, r: (c * rate + r, c + n), rate, x)
        return doubled, counted, chosen, carry, rows

    traced = jit(f)
    for n, rate in ((3, 0.5), (1, 0.25), (4, 2.0)):
        doubled, counted, chosen, carry, rows = traced(X, n, rate)
        np.testing.assert_array_equal(doubled, X * 2**n)
        np.testing.assert_array_equal(counted, X + n * rate)
        np.testing.assert_array_equal(chosen, X * rate if n > 2 else -X)
        c, wanted = rate, []
        for r in X.tolist():
            wanted.append(c + n)
            c = c * rate + r
        assert carry == c and rows.tolist() == wanted
    assert traced.cache_info()["size"] == 1


def test_numbers_may_index() -> None:
    ways = lambda x, n: x[n], lambda x, n: rlx.gather(x, n), lambda x, n: rlx.dynamic_slice(x, (n,), (1,))[0]
    for function in ways:
        f = jit(function)
        assert [float(f(X, n)) for n in (0, 2, 1)] == [1, 3, 2]
        assert f.cache_info()["size"] == 1
    assert jit(lambda x, n: x[n])(X, -1) == 3


def _branch(x: Any, n: Any) -> Any:
    return x if n > 1 else -x


SHAPING: dict[str, Callable[[Any, Any], Any]] = {
    "if": _branch,
    "range": lambda x, n: [x for _ in range(n)],
    "reshape": lambda x, n: x.reshape(n, -1),
    "reshape to one": lambda x, n: rlx.reshape(x, n),
    "expand": lambda x, n: rlx.expand(x, (n, 3)),
    "axis": lambda x, n: rlx.sum(x, n),
    "axis by name": lambda x, n: rlx.softmax(x, axis=n),
    "transpose": lambda x, n: rlx.transpose(x, (n,)),
    "slice": lambda x, n: x[:n],
    "list": lambda x, n: [x, -x][n],
    "dict": lambda x, n: {1: x}[n],
    "top k": lambda x, n: rlx.top_k(x, n),
    "one hot": lambda x, n: rlx.one_hot(rlx.cast(x, "i32"), n),
    "math": lambda x, n: x * math.exp(n),
    "float": lambda x, n: x * float(n),
    "int": lambda x, n: x * int(n),
    "NumPy": lambda x, n: x * np.sqrt(n),
    "an array": lambda x, n: x * np.full(3, n),
    "a list for NumPy": lambda x, n: x * np.array([n, n, n]),
    "zeros": lambda x, n: x + np.zeros(n, np.float32),
    "text": lambda x, n: rlx.tile(x, len(f"{n:.2f}")),
    "cached": lambda x, n: x * functools.lru_cache(lambda v: 2)(n),
    "slope": lambda x, n: rlx.leaky_relu(x, n),
    "eps": lambda x, n: rlx.layer_norm(x, x, x, n),
    "computed": lambda x, n: x.reshape(2 * n - 1, -1),
    "derived": lambda x, n: x * math.sin(n / 3),
    "tile": lambda x, n: rlx.tile(x, n),
    "concat": lambda x, n: rlx.concat([x] * n),
    "length": lambda x, n: rlx.scan(lambda c, _: (c, c), x, None, length=n),
}


@pytest.mark.parametrize("name", SHAPING)
@pytest.mark.parametrize("number", [1, 1.0], ids=["int", "float"])
def test_a_number_whose_value_is_needed_names_the_way_out(name: str, number: Any) -> None:
    with pytest.raises(RlxError, match=r"static_argnames=\"n\""):
        jit(SHAPING[name])(X, number)
    with pytest.raises(RlxError, match=r"static_argnames=\"n\""):
        jit(lambda x, *, n: SHAPING[name](x, n))(X, n=number)
    with pytest.raises(RlxError, match=r"static_argnums=1"):
        jit(lambda *args: SHAPING[name](*args))(X, number)


@pytest.mark.parametrize("options", [{"static_argnames": "n"}, {"static_argnums": 1}, {"static_argnums": [-1]}])
@pytest.mark.parametrize("name", ["if", "range", "reshape", "math", "dict"])
def test_static_numbers_are_built_in(name: str, options: dict[str, Any]) -> None:
    f, want = jit(SHAPING[name], **options), SHAPING[name]
    for n in (1, 3) if name != "dict" else (1, 1):
        plain = jit(lambda x, n=n: want(x, n))(X)
        np.testing.assert_array_equal(f(X, n), plain)
        np.testing.assert_array_equal(f(X, n=n), plain)


def test_grad_takes_numbers_as_jit_does() -> None:
    def loss(w: Any, x: Any, rate: Any, power: int) -> Any:
        return rlx.sum(sum((w * x) ** i for i in range(1, power)) * rate)

    f = rlx.grad(loss, device="cpu", static_argnames="power")
    for rate in (0.5, 2.0):
        np.testing.assert_allclose(f(X, X, rate, 3), rate * (X + 2 * X**3), rtol=1e-6)
    assert f.cache_info()["size"] == 1
    with pytest.raises(TracedValueError, match='static_argnames="power"'):
        rlx.grad(loss, device="cpu")(X, X, 0.5, 3)
    by_rate = rlx.grad(lambda w, rate: rlx.sum(w * rate * rate), argnums=(1, 0), device="cpu")
    of_rate, of_w = by_rate(X, 0.5)
    assert of_rate.shape == () and of_rate == 6 and of_w.tolist() == [0.25] * 3
    inside = jit(lambda w, rate: w - rate * rlx.grad(lambda v: rlx.sum(v * v * rate))(w))
    np.testing.assert_allclose(inside(X, 0.5), X - 0.5 * X)
    with pytest.raises(DTypeError, match="argument w is integer: a Python int, which has no gradient; pass a float"):
        rlx.grad(lambda w: w * w, device="cpu")(3)


def test_numbers_in_a_jitted_function_inside_another() -> None:
    inner = jit(lambda x, n: x * n)
    assert jit(lambda x, n: inner(x, n) + inner(x, n + 1) + inner(x, 2))(X, 3.5).tolist() == (X * 10).tolist()
    assert jit(lambda x, n: x * inner(n, 2))(X, 3.5).tolist() == (X * 7).tolist()


def test_what_python_cannot_compute_is_pythons_error() -> None:
    f = jit(lambda x, n: x * (1 / n))
    with pytest.raises(ZeroDivisionError):
        f(X, 0.0)
    np.testing.assert_array_equal(f(X, 2.0), X / 2)
    with pytest.raises(ZeroDivisionError):
        f(X, 0.0)
    g = jit(lambda x, n: x * (n**-1 if isinstance(n, float) else n**-n))
    np.testing.assert_array_equal(jit(lambda x, a, b: x * a**b)(X, 2, 3), 8 * X)
    h = jit(lambda x, a, b: x * a**b)
    h(X, 2, 3)
    with pytest.raises(TracedValueError, match=r"is 0.125 in this call; .* built for a int: static_argnames=\"a\""):
        h(X, 2, -3)
    with pytest.raises(TracedValueError, match=r"expected a bool, an int or a float"):
        jit(lambda x, n: x * n**0.5)(X, -2.0)
    with pytest.raises(TracedValueError, match=r"formatting of TracedNumber.*static_argnames=\"n\""):
        jit(lambda x, n: x.astype(f"f{n}"))(X, 32)
    assert g.cache_info()["size"] == 0


def test_an_error_of_the_function_comes_out_with_its_cause() -> None:
    reason, error = KeyError("reason"), ValueError("mine")

    def f(x: Any) -> Any:
        raise error from reason

    with pytest.raises(ValueError, match="mine") as told:
        jit(f)(X)
    assert told.value is error and error.__cause__ is reason


def test_a_number_does_not_outlive_its_call() -> None:
    kept: list[Any] = []
    f = jit(lambda x, n: (kept.append(n), x * 2)[1])
    f(X, 3.0)
    for use in (lambda x: x * kept[0], lambda x, n: x * (n + kept[0])):
        with pytest.raises(GraphError):
            jit(use)(X, *([2.0] if use.__code__.co_argcount == 2 else []))
    np.testing.assert_array_equal(f(X, 4.0), 2 * X)


def test_threads_share_one_program() -> None:
    f = jit(lambda x, n: x * n + (n + 1))
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(30):
            n = float(k * 100 + i)
            if f(X, n).tolist() != (X * np.float32(n) + np.float32(n + 1)).tolist():
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and f.cache_info()["size"] == 1


def test_the_cache_is_bounded() -> None:
    f = jit(lambda x, n: x + n, static_argnames="n")
    for n in range(CACHE_SIZE + 5):
        np.testing.assert_array_equal(f(X, n), X + n)
    assert f.cache_info()["size"] == CACHE_SIZE


def test_a_program_that_leaves_the_cache_before_it_runs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens where other threads fill the cache between a call's look-up and its run."""
    f = jit(lambda x, n: x + n, static_argnames="n")
    shipped, evict = rlx.CompiledGraph.run, [True]

    def run(self: rlx.CompiledGraph, *args: Any) -> Any:
        if evict and evict.pop():
            for n in range(CACHE_SIZE):
                f(X, n)
        return shipped(self, *args)

    monkeypatch.setattr(rlx.CompiledGraph, "run", run)
    np.testing.assert_array_equal(f(X, -1), X - 1)


@pytest.mark.parametrize("name", ["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_numbers_cost_no_step_on_any_device(name: str) -> None:
    device_here(name)
    f = rlx.jit(lambda x, rate, t: (x * rate / (1 - 0.5**t)).astype("f16") * rate, device=name)
    for rate, t in ((0.5, 1), (0.25, 2)):
        want = (X * rate / (1 - 0.5**t)).astype(np.float16) * np.float16(rate)
        np.testing.assert_allclose(f(X, rate, t), want, rtol=1e-3)
    (program,) = [exe for exe, _ in f._cache.values()]
    assert all(n.how in ("native", "alias") for n in program.report().nodes)
