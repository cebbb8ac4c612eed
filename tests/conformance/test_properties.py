"""Properties that hold for any shape and any values, always with special values among them, on the CPU and on Vulkan.

The judge is NumPy in float64; each example compiles a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.driver import DeviceInfo
from rlx.errors import DeviceUnavailable
from tests.full import full
from tests.hypothesis_strategies import Array, broadcasting, plain_arrays, shapes, special_arrays

DEVICES = ("cpu", "vulkan")
EXAMPLES = 20 if full() else 10
LEAST = 2.0**-126  # results below it may be flushed to zero


@pytest.fixture(scope="module")
def sessions() -> dict[str, rlx.Session]:
    found = {}
    for name in DEVICES:
        try:
            found[name] = rlx.Session(name)
        except DeviceUnavailable:
            continue
    return found


def opened(sessions: dict[str, rlx.Session], name: str) -> rlx.Session:
    if name not in sessions:
        pytest.skip(f"{name}: no device")
    return sessions[name]


def compute(session: rlx.Session, build: Callable[..., rlx.Tensor], *arrays: Array) -> Array:
    graph = rlx.Graph("property")
    inputs = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    graph.output("y", build(*inputs))
    with session.compile(graph) as compiled:
        result: Array = compiled.run({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    return result


def close(got: Array, want: Array, ulp: float, info: DeviceInfo, size: Array | None = None) -> None:
    """Checks results against `want`, which is float64. `size` is the number whose ULP measures the error, where it is
    not the result."""
    with np.errstate(over="ignore"):
        stored = want.astype(np.float32).astype(np.float64)
    want = np.where(np.isinf(stored), stored, want)  # values beyond the range of f32 are infinite
    value = got.astype(np.float64)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(value), np.isnan(want))
    np.testing.assert_array_equal(value[np.isinf(want)], want[np.isinf(want)])
    finite = np.isfinite(want)
    scale = np.maximum(np.abs(want), 0 if size is None else size)[finite]
    allowed = ulp * 2.0**-23 * scale + 2.0**-149
    if not info.preserves_subnormals:
        allowed = np.maximum(allowed, np.where(scale < LEAST, LEAST, 0))
    assert (np.abs(value[finite] - want[finite]) <= allowed).all()


_BINARY: dict[str, tuple[Callable[..., rlx.Tensor], Any, float]] = {
    "add": (rlx.add, np.add, 0.5),
    "sub": (rlx.sub, np.subtract, 0.5),
    "mul": (rlx.mul, np.multiply, 0.5),
    "div": (rlx.div, np.divide, 1.0),
    "maximum": (rlx.maximum, np.maximum, 0),
    "minimum": (rlx.minimum, np.minimum, 0),
}


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_binary_ops_broadcast_as_numpy(sessions: dict[str, rlx.Session], device: str, data: st.DataObject) -> None:
    session = opened(sessions, device)
    build, judge, ulp = _BINARY[data.draw(st.sampled_from(sorted(_BINARY)))]
    a, b = (data.draw(special_arrays(s)) for s in data.draw(broadcasting()))
    with np.errstate(all="ignore"):
        want = judge(a.astype(np.float64), b.astype(np.float64))
    close(compute(session, build, a, b), want, ulp, session.info)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_comparisons_are_exact(sessions: dict[str, rlx.Session], device: str, data: st.DataObject) -> None:
    session = opened(sessions, device)
    names = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    name = data.draw(st.sampled_from(names))
    a, b = (data.draw(special_arrays(s, scale=1.0)) for s in data.draw(broadcasting()))
    np.testing.assert_array_equal(compute(session, getattr(rlx, name), a, b), getattr(np, name)(a, b))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_reductions_over_any_axes(sessions: dict[str, rlx.Session], device: str, data: st.DataObject) -> None:
    session = opened(sessions, device)
    x = data.draw(special_arrays(data.draw(shapes(1, empty=False))))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))))
    keepdims = data.draw(st.booleans())
    name = data.draw(st.sampled_from(("sum", "mean", "max", "min")))
    if name in ("max", "min"):
        got = compute(session, lambda t: getattr(rlx, name)(t, axis=axes, keepdims=keepdims), x)
        np.testing.assert_array_equal(got, getattr(np, name)(x, axis=axes, keepdims=keepdims))
        return
    x = np.where(np.abs(x) > 1e30, np.float32(0), x)  # sums of the largest numbers depend on their order
    got = compute(session, lambda t: getattr(rlx, name)(t, axis=axes, keepdims=keepdims), x)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = getattr(np, name)(wide, axis=axes, keepdims=keepdims)
        terms = getattr(np, name)(np.abs(wide), axis=axes, keepdims=keepdims)
    close(got, want, 8.0, session.info, terms)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_what_is_moved_away_comes_back(
    sessions: dict[str, rlx.Session], device: str, data: st.DataObject
) -> None:
    """Data transposed, flattened, cut in two, reversed, and all of that undone, has the same bits."""
    session = opened(sessions, device)
    x = data.draw(special_arrays(data.draw(shapes(1))))
    perm = data.draw(st.permutations(range(x.ndim)))
    axis = data.draw(st.integers(0, x.ndim - 1))
    middle = data.draw(st.integers(0, x.shape[perm[axis]]))

    def there_and_back(t: rlx.Tensor) -> rlx.Tensor:
        moved = rlx.transpose(t, perm)
        shape = moved.shape
        moved = rlx.reshape(rlx.reshape(moved, (moved.size,))[::-1], shape)
        head = [slice(None)] * axis
        pieces = [moved[(*head, slice(0, middle))], moved[(*head, slice(middle, None))]]
        joined = rlx.concat(pieces, axis=axis)
        back = rlx.reshape(rlx.reshape(joined, (joined.size,))[::-1], shape)
        return rlx.transpose(back, tuple(int(i) for i in np.argsort(perm)))

    got = compute(session, there_and_back, x)
    assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20 if full() else 4)
@given(data=st.data())
def test_matrix_products(sessions: dict[str, rlx.Session], device: str, data: st.DataObject) -> None:
    session = opened(sessions, device)
    m, k, n = (data.draw(st.sampled_from((1, 2, 5, 16, 17, 33, 65))) for _ in range(3))
    batch = data.draw(st.sampled_from(((), (1,), (3,), (2, 3))))
    a = data.draw(plain_arrays((*batch, m, k)))
    b = data.draw(plain_arrays((k, n) if data.draw(st.booleans()) else (*batch, k, n)))
    if data.draw(st.booleans()):  # NaN and infinities in a row and a column reach only the results that depend on them
        a.reshape(-1)[data.draw(st.integers(0, a.size - 1))] = data.draw(st.sampled_from((np.nan, np.inf)))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = wide_a @ wide_b
        terms = np.sqrt(np.nan_to_num(wide_a, posinf=0) ** 2 @ wide_b**2)
    close(compute(session, rlx.matmul, a, b), want, 64.0, session.info, terms)


def _program(x: Any, w: Any) -> Any:
    h = rlx.tanh(rlx.matmul(x, w)) + rlx.mean(x, axis=-1, keepdims=True)
    return rlx.softmax(h * 0.5 - rlx.maximum(h, 0.25), axis=-1), rlx.sum(h, axis=0)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=5 if full() else 2)
@given(data=st.data())
@pytest.mark.late("vulkan")
def test_jit_equals_the_graph(sessions: dict[str, rlx.Session], device: str, data: st.DataObject) -> None:
    session = opened(sessions, device)
    m, k, n = (data.draw(st.sampled_from((1, 3, 8, 17))) for _ in range(3))
    x, w = data.draw(special_arrays((m, k))), data.draw(plain_arrays((k, n)))
    graph = rlx.Graph("program")
    made = _program(graph.input("x", x.shape), graph.input("w", w.shape))
    for name, t in zip(("y", "s"), made, strict=True):
        graph.output(name, t)
    with session.compile(graph) as compiled:
        want = compiled.run({"x": x, "w": w})
    got = rlx.jit(_program, device=device)(x, w)
    for name, value in zip(("y", "s"), got, strict=True):
        np.testing.assert_array_equal(value, want[name])


@settings(max_examples=50)
@given(data=st.data())
def test_special_values_are_always_there(data: st.DataObject) -> None:
    x = data.draw(special_arrays(data.draw(shapes(empty=False)), scale=1e-3))
    ordinary = np.isfinite(x) & (np.abs(x) < 0.5) & (x != 0) & (np.abs(x) > 2.0**-126)
    assert not ordinary.all()
