"""Arguments of the image family: the shapes of the results, and the errors of bad arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
import rlx.ops as ops
from rlx.conformance.oracle import evaluate
from rlx.dtypes import bf16, f16, f32, i32, u8
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.ir import Graph, Tensor, apply
from tests.devices import session_here


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


def _inputs(*shapes: tuple[int, ...], dtype: Any = f32) -> list[Tensor]:
    g = Graph()
    return [g.input(f"x{i}", s, dtype) for i, s in enumerate(shapes)]


SHAPES: list[tuple[Callable[..., Tensor], list[tuple[int, ...]], tuple[int, ...]]] = [
    (lambda x, w: ops.conv(x, w, strides=2, pads=3), [(2, 3, 224, 224), (64, 3, 7, 7)], (2, 64, 112, 112)),
    (lambda x, w: ops.conv(x, w, pads=((2, 0),)), [(2, 3, 9), (5, 3, 3)], (2, 5, 9)),
    (lambda x, w: ops.conv(x, w, groups=4, dilations=(1, 2, 1)), [(1, 8, 5, 9, 7), (4, 2, 3, 3, 3)], (1, 4, 3, 5, 5)),
    (lambda x, w: ops.conv_transpose(x, w, strides=2, pads=1, output_padding=1), [(1, 4, 7, 7), (4, 6, 3, 3)],
     (1, 6, 14, 14)),
    (lambda x: ops.max_pool(x, 3, strides=2, pads=1), [(1, 64, 112, 112)], (1, 64, 56, 56)),
    (lambda x: ops.max_pool(x, 2, ceil_mode=True), [(1, 1, 5)], (1, 1, 3)),
    # The last window would begin in the padding at the end, so that it does not count.
    (lambda x: ops.avg_pool(x, 2, strides=3, pads=1, ceil_mode=True), [(1, 1, 3)], (1, 1, 2)),
    (lambda x: ops.avg_pool(x, (2, 3)), [(1, 2, 4, 6)], (1, 2, 2, 2)),
    (lambda x: ops.global_avg_pool(x), [(2, 5, 7, 7)], (2, 5, 1, 1)),
    (lambda x: ops.global_max_pool(x), [(2, 5, 7)], (2, 5, 1)),
    (lambda x: ops.resize(x, (10, 3), mode="linear"), [(1, 3, 5, 6)], (1, 3, 10, 3)),
    (lambda x: ops.resize(x, scales=0.5), [(4, 5)], (4, 2)),
    (lambda x: ops.upsample2x(x), [(1, 3, 5, 6)], (1, 3, 10, 12)),
    (lambda x: ops.im2col(x, (3, 2), pads=1), [(2, 4, 5, 6)], (2, 24, 35)),
    (lambda x, g: ops.grid_sample(x, g), [(2, 3, 5, 6), (2, 7, 8, 2)], (2, 3, 7, 8)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shapes(number: int) -> None:
    build, shapes, expected = SHAPES[number]
    assert build(*_inputs(*shapes)).shape == expected


X, W = (1, 4, 8, 8), (6, 4, 3, 3)
BAD: list[tuple[Callable[..., Any], list[tuple[int, ...]], type[RlxError], str]] = [
    (lambda x, w: ops.conv(x, w), [(1, 4), W], ShapeError, "conv.*one, two or three spatial axes"),
    (lambda x, w: ops.conv(x, w), [X, (6, 3, 3, 3)], ShapeError, "conv.*4 channels.*expected 3 channels"),
    (lambda x, w: ops.conv(x, w), [X, (6, 4, 3)], ShapeError, "conv.*expected equal ranks"),
    (lambda x, w: ops.conv(x, w, groups=4), [X, W], ShapeError, "groups is 4.*divides the 6 output channels"),
    (lambda x, w: ops.conv(x, w, strides=(1, 2, 3)), [X, W], ShapeError, "strides is .*2 ints"),
    (lambda x, w: ops.conv(x, w, strides=0), [X, W], ShapeError, "strides is .*≥ 1"),
    (lambda x, w: ops.conv(x, w, pads=-1), [X, W], ShapeError, "pads is .*≥ 0"),
    (lambda x, w: ops.conv(x, w, pads=((1, 2, 3), 1)), [X, W], ShapeError, "conv: pads is .*begin, end"),
    (lambda x, w: ops.conv(x, w, dilations=5), [X, W], ShapeError, "window of 11 .*longer than spatial axis 0"),
    (lambda x, w: ops.conv(x, w, activation="selu?"), [X, W], ShapeError, "activation 'selu\\?'.*relu"),
    (lambda x, w, b: ops.conv(x, w, b), [X, W, (4,)], ShapeError, r"bias is \(4,\); expected \(6,\)"),
    (lambda x, w: ops.conv_transpose(x, w), [X, W], ShapeError, "conv_transpose.*4 channels.*expected 4 first"),
    (lambda x, w: ops.conv_transpose(x, w, output_padding=1), [X, (4, 2, 3, 3)], ShapeError, "output_padding 1"),
    (lambda x, w: ops.conv_transpose(x, w, pads=9), [X, (4, 2, 3, 3)], ShapeError, "at least 1"),
    (lambda x, d: apply("max_pool_grad", x, d, kernel=(2, 2), strides=(2, 2), dilations=(1, 1),
                        pads=((0, 0), (0, 0)), ceil_mode=False), [X, (1, 4, 3, 4)], ShapeError, "expected.*4, 4"),
    (lambda x: ops.max_pool(x, 3, pads=3), [X], ShapeError, "max_pool: pads .*expected at most 2"),
    (lambda x: ops.max_pool(x, 9), [X], ShapeError, "max_pool: a window of 9"),
    (lambda x: ops.avg_pool(x, (2, 2, 2)), [X], ShapeError, "avg_pool: kernel is .*2 ints"),
    (lambda x: ops.avg_pool(x, 2), [(1, 1, 0, 4)], ShapeError, "avg_pool.*at least one element"),
    (lambda x: ops.global_avg_pool(x), [(3, 4)], ShapeError, "global_avg_pool"),
    (lambda x: ops.resize(x), [X], ShapeError, "exactly one"),
    (lambda x: ops.resize(x, 3, scales=2.0), [X], ShapeError, "exactly one"),
    (lambda x: ops.resize(x, (1,) * 5), [X], ShapeError, "at most 4"),
    (lambda x: ops.resize(x, scales=-1.0), [X], ShapeError, "scales is -1.0"),
    (lambda x: ops.resize(x, 3, mode="area"), [X], ShapeError, "mode is 'area'.*linear"),
    (lambda x: ops.resize(x, 3, coordinates="tf_crop_and_resize"), [X], ShapeError, "coordinates.*half_pixel"),
    (lambda x: ops.resize(x, 3), [(2, 0)], ShapeError, "axis 1 .*empty"),
    (lambda x, g: ops.grid_sample(x, g), [X, (1, 3, 3, 3)], ShapeError, "grid is .*expected"),
    (lambda x, g: ops.grid_sample(x, g), [X, (2, 3, 3, 2)], ShapeError, "grid is .*expected"),
    (lambda x, g: ops.grid_sample(x, g, padding="wrap"), [X, (1, 3, 3, 2)], ShapeError, "padding is 'wrap'.*border"),
    (lambda x, g: ops.grid_sample(x, g, mode="cubic"), [(1, 1, 3, 3, 3), (1, 2, 2, 2, 3)], ShapeError, "cubic.*two"),
    (lambda x: ops.im2col(x, 9), [X], ShapeError, "im2col: a window of 9"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments_are_told_what_was_expected(number: int) -> None:
    build, shapes, error, words = BAD[number]
    with pytest.raises(error, match=words):
        build(*_inputs(*shapes))


def test_ops_want_floats_and_functions_cast_integers() -> None:
    x, w = _inputs((1, 2, 4, 4), (2, 2, 3, 3), dtype=i32)
    assert ops.conv(x, w).dtype == f32
    assert ops.avg_pool(x, 2).dtype == f32
    assert ops.resize(x, (8, 8)).dtype == i32
    assert ops.resize(x, (8, 8), mode="linear").dtype == f32
    node = ops.resize(x, (8, 8)).node
    with pytest.raises(DTypeError, match="resize: mode linear of i32"):
        apply("resize", x, **{**node.attrs, "mode": "linear"})
    with pytest.raises(DTypeError, match="conv: the input is i32"):
        apply("conv", x, w, **ops.conv(x, w).node.attrs)


@pytest.mark.parametrize("pair, result", [((f32, bf16), f32), ((f16, f16), f16), ((f16, bf16), f32)])
def test_weights_of_another_dtype_are_promoted(pair: Any, result: Any) -> None:
    g = Graph()
    x, w = g.input("x", (1, 2, 4), pair[0]), g.input("w", (2, 2, 3), pair[1])
    assert ops.conv(x, w).dtype == result


def test_global_pools_are_means_and_maxima() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    (t,) = _inputs(x.shape)
    mean, most = ops.global_avg_pool(t), ops.global_max_pool(t)
    values = evaluate(t.graph, {"x0": x})
    np.testing.assert_allclose(values[mean.id], x.mean((2, 3), keepdims=True))
    np.testing.assert_array_equal(values[most.id], x.max((2, 3), keepdims=True))


def test_upsampling_repeats_every_element() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    (t,) = _inputs(x.shape, dtype=u8)
    y = ops.upsample2x(t)
    np.testing.assert_array_equal(evaluate(t.graph, {"x0": x})[y.id], x.repeat(2, 2).repeat(2, 3))


def test_nan_wins_and_nowhere_is_minus_one() -> None:
    x = np.array([[[1.0, np.nan, 3.0, 4.0]]])
    t, g = _inputs(x.shape, (1, 1, 1, 2))
    y = ops.max_pool(t, 2)
    corner = ops.where(ops.not_equal(t, t), 2.0, t)
    z = ops.grid_sample(ops.reshape(corner, (1, 1, 2, 2)), g, align_corners=True)
    values = evaluate(t.graph, {"x0": x, "x1": np.full((1, 1, 1, 2), np.nan)})
    np.testing.assert_array_equal(values[y.id], [[[np.nan, 4.0]]])
    assert values[z.id].item() == 1.0


# Results of torch.nn.functional.interpolate(…, align_corners=True) in float64, for [0, 1, 2, 3] and for an image.
ENDS: list[tuple[float, list[float]]] = [
    (1.7, [0.0, 0.6, 1.2, 1.8, 2.4, 3.0]),
    (2.5, [i / 3 for i in range(10)]),
    (0.8, [0.0, 1.5, 3.0]),
    (0.3, [0.0]),
    (1.1, [0.0, 1.0, 2.0, 3.0]),
]
IMAGE = (np.arange(12.0) ** 1.5 / 3).reshape(1, 1, 3, 4)
LINEAR = [
    [0.0, 0.25, 0.6380711874576984, 1.1401194830787669, 1.7320508075688774],
    [1.7777777777777777, 2.391167759027603, 3.0879435451745683, 3.85843285811233, 4.692963419734544],
    [4.291935221996614, 5.186373786748978, 6.132074071671101, 7.127037544279428, 8.169265672090408],
    [7.542472332656508, 8.635618083164127, 9.770462766947299, 10.945933541580064, 12.160957564636467],
]
CUBIC = [
    [0.0, 0.19353185889564176, 0.5953297718964345, 1.1859022702928093, 1.7320508075688774],
    [1.2854043087171774, 1.7935943168220865, 2.521834460438909, 3.372694427057583, 4.109929010203691],
    [4.497938820774581, 5.334626416795881, 6.423272587338765, 7.582793852813196, 8.551870777102852],
    [7.542472332656508, 8.507259397964544, 9.755227982878699, 11.0704835307625, 12.160957564636467],
]


@pytest.mark.parametrize("session", ["cpu", "vulkan", "cuda"], indirect=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_aligned_corners_end_at_the_last_element_whatever_the_scale(session: rlx.Session, dtype: Any) -> None:
    g = Graph()
    line, image = g.input("line", (4,), dtype), g.input("image", IMAGE.shape, dtype)
    for i, (scale, _) in enumerate(ENDS):
        g.output(f"line{i}", ops.resize(line, scales=scale, mode="linear", coordinates="align_corners"))
    for mode in ("linear", "cubic"):
        g.output(mode, ops.resize(image, scales=(1.4, 1.3), mode=mode, coordinates="align_corners"))
    with session.compile(g) as compiled:
        got = compiled.run({"line": np.arange(4, dtype=dtype), "image": IMAGE.astype(dtype)})
    near = 1e-6 if dtype is np.float32 else 1e-14
    for i, (_, want) in enumerate(ENDS):
        np.testing.assert_allclose(got[f"line{i}"], want, rtol=near, atol=near)
    for mode, table in (("linear", LINEAR), ("cubic", CUBIC)):
        np.testing.assert_allclose(got[mode][0, 0], table, rtol=near, atol=10 * near)
