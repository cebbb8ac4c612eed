"""A plan decides where tensors lie, not which kernels run nor the bits of results: the compiled engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.conformance.fuzz import PlanVariant, check, run
from rlx.conformance.random_graphs import RandomGraph
from rlx.driver.registry import open_device
from tests.cpu.programs import Array, data, graph_of
from tests.full import some

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", "compiled")


def given(build: Callable[..., object], *arrays: Array) -> RandomGraph:
    return RandomGraph(0, graph_of(build, list(arrays)), {f"x{i}": a for i, a in enumerate(arrays)})


OF_THREE: dict[str, Callable[[rlx.Tensor, rlx.Tensor, rlx.Tensor], rlx.Tensor]] = {
    "where": lambda a, b, c: rlx.where(rlx.greater(a, b), b, c),
    "cbrt": lambda a, b, c: rlx.cbrt(a * b + c),
    "pow": lambda a, b, c: rlx.pow(rlx.abs(a), b) - c,
}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", OF_THREE)
def test_a_result_over_an_input_of_another_rank_is_the_engine_s(name: str, number: int) -> None:
    """The input of that number has an axis of one element more, so that the result lies over one with fewer axes."""

    def build(*xs: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
        a, b, c = (rlx.reshape(t, (1, 3, 5)) if i == number else t for i, t in enumerate(map(rlx.exp, xs)))
        return (OF_THREE[name](a, b, c),)

    made = given(build, *(data((3, 5), seed=i) for i in range(3)))
    assert check(made, open_device("cpu"), optimize=False) == []
    by: dict[str, str] = {}
    run(made.graph, made, open_device("cpu"), PlanVariant("reuse"), by)
    assert set(by.values()) == {"engine"}


def over_its_image(x: rlx.Tensor, w: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
    """Results whose channels do not lie last, over images whose channels do."""
    y = rlx.relu(rlx.conv(x, w))
    return (rlx.cbrt(rlx.exp(y) * y), rlx.reshape(rlx.tanh(rlx.conv(y, w)) * 0.3, (2, -1)))


def test_a_result_in_another_order_of_axes_is_the_engine_s() -> None:
    made = given(over_its_image, data((2, 16, 9, 7)), data((16, 16, 3, 3)))
    assert check(made, open_device("cpu")) == []


FOLLOWING: dict[str, Callable[[rlx.Tensor], rlx.Tensor]] = {
    "exp": rlx.exp,
    "square": lambda y: y * y,
    "cast": lambda y: rlx.cast(y, "f32") * 3.7,
    "add": lambda y: (y + y[:1]) * 0.3,
}


@pytest.mark.parametrize("name", FOLLOWING)
@pytest.mark.parametrize("dtype", some(["bf16", "f32", "f16"], 1))
@pytest.mark.parametrize("rows", [1, 40])
def test_a_product_and_the_node_behind_it(name: str, dtype: str, rows: int) -> None:
    def product(x: rlx.Tensor, w: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
        return (FOLLOWING[name](x @ w), FOLLOWING[name](x @ rlx.transpose(w, (1, 0))))

    made = given(product, data((rows, 48), dtype), data((48, 48), dtype))
    for optimize in (False, True):
        assert check(made, open_device("cpu"), optimize=optimize) == []


@pytest.mark.parametrize("name", FOLLOWING)
@pytest.mark.parametrize("dtype", some(["bf16", "f32", "f16"], 1))
def test_a_convolution_and_the_node_behind_it(name: str, dtype: str) -> None:
    def product(x: rlx.Tensor, w: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
        y = FOLLOWING[name](rlx.conv(x, w))
        return (y, FOLLOWING[name](rlx.conv(y, w)) if y.dtype == x.dtype else y)

    made = given(product, data((2, 16, 9, 7), dtype), data((16, 16, 3, 3), dtype))
    for optimize in (False, True):
        assert check(made, open_device("cpu"), optimize=optimize) == []
