"""rlx.splats against a plain loop over pixels in float64, its gradients against finite differences; and odd scenes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CapacityExceeded, DTypeError, RlxError, ShapeError, TracedValueError
from tests.devices import session_here
from tests.ops.plain_splats import picture, rotation

Array = np.ndarray[Any, np.dtype[Any]]
CAMERA: dict[str, Any] = {"fx": 30.0, "fy": 31.0, "cx": 20.0, "cy": 11.0, "width": 40, "height": 24}
BACK = (0.1, 0.2, 0.3)


def scene(n: int, coefficients: int = 0, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shape = (n, coefficients, 3) if coefficients else (n, 3)
    return {
        "means": rng.uniform(-1, 1, (n, 3)) * [1.4, 1, 0.8] + [0, 0, 3],
        "scales": np.exp(rng.normal(-2, 0.7, (n, 3))),
        "rotations": rng.normal(size=(n, 4)),
        "opacities": rng.uniform(0.1, 1, n),
        "colors": rng.normal(size=shape) * 0.3 if coefficients else rng.uniform(0, 1, shape),
    }


def view(seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    made = np.eye(4)
    made[:3, :3] = rotation(rng.normal(size=4) * [1, 0.1, 0.1, 0.1] + [2, 0, 0, 0])
    made[:3, 3] = rng.normal(size=3) * 0.2
    return made


def drawn(
    splats: dict[str, Array], camera: Array, device: str = "cpu", dtype: Any = np.float64, **more: Any
) -> rlx.splats.Rendered:
    arrays = {name: a.astype(dtype) for name, a in splats.items()}
    return _render(device, **more)(arrays, camera.astype(dtype), np.array(BACK, dtype))  # type: ignore[no-any-return]


@cache
def _render(device: str, **more: Any) -> Any:
    """Keeps the programs of each number of splats."""
    return rlx.jit(
        lambda s, v, back: rlx.splats.render(**s, view=v, background=back, **(CAMERA | more)), device=device
    )


@pytest.mark.parametrize("coefficients", [0, 1, 4, 9, 16])
@pytest.mark.full(coefficients=(1, 9))
def test_a_picture_is_that_of_the_plain_loop(coefficients: int) -> None:
    splats, camera = scene(30, coefficients, coefficients), view(coefficients)
    image, light, depth = picture(**splats, view=camera, background=BACK, **CAMERA)
    assert (depth == 0).any() and depth.max() > 2
    for dtype, limit in ((np.float64, 1e-13), (np.float32, 1e-5)):
        made = drawn(splats, camera, dtype=dtype, depth=True)
        assert {a.dtype for a in (made.image, made.light, made.alpha, made.depth)} == {np.dtype(dtype)}
        np.testing.assert_allclose(made.image, image, atol=limit)
        np.testing.assert_allclose(made.light, light, atol=limit)
        np.testing.assert_allclose(made.alpha, 1 - light, atol=limit)
        np.testing.assert_allclose(made.depth, depth, rtol=limit, atol=limit)


@pytest.mark.parametrize("device", ["vulkan", "cuda"])
@pytest.mark.parametrize("coefficients", [0, 16])
@pytest.mark.sample(vulkan=1)
@pytest.mark.late
def test_a_picture_on_a_gpu(device: str, coefficients: int) -> None:
    session_here(device)
    splats, camera = scene(30, coefficients, 1), view(1)
    image, light, depth = picture(**splats, view=camera, background=BACK, **CAMERA)
    for dtype, limit in ((np.float32, 1e-5), (np.float64, 1e-13)):
        made = drawn(splats, camera, device, dtype, depth=True)
        assert made.image.dtype == dtype
        np.testing.assert_allclose(made.image, image, atol=limit)
        np.testing.assert_allclose(made.light, light, atol=limit)
        np.testing.assert_allclose(made.depth, depth, rtol=limit, atol=limit)


def test_gradients_are_finite_differences() -> None:
    """To every input and to the camera. Splats cover the picture well, so that no pixel is near a jump."""
    n = 3
    splats, camera = scene(n, 4, 5), view(2)
    splats["scales"] = splats["scales"] * 0.2 + 0.9
    splats["opacities"] = splats["opacities"] * 0.3 + 0.4
    weights = np.random.default_rng(1).normal(size=(6, 8, 3))
    size = {**CAMERA, "width": 8, "height": 6, "fx": 6.0, "fy": 6.5, "cx": 4.2, "cy": 3.1}

    def value(p: dict[str, Any], w: Any) -> Any:
        made = rlx.splats.render(**p, background=np.array(BACK), depth=True, **size)
        return rlx.sum(made.image * w) + rlx.sum(made.light) + rlx.sum(made.depth * w[..., 0])

    given = {**splats, "view": camera}
    slopes = rlx.grad(value, device="cpu")(given, weights)
    run = rlx.jit(value, device="cpu")
    for name, array in given.items():
        want = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            nudge = np.zeros_like(array)
            nudge[at] = 1e-5
            above, below = (run(given | {name: array + s * nudge}, weights) for s in (1, -1))
            want[at] = (above - below) / 2e-5
        np.testing.assert_allclose(slopes[name], want, rtol=1e-6, atol=1e-7, err_msg=name)


ODD: dict[str, tuple[str, float]] = {
    "NaN mean": ("means", np.nan), "infinite mean": ("means", np.inf), "huge mean": ("means", 1e30),
    "NaN scale": ("scales", np.nan), "infinite scale": ("scales", np.inf), "wide": ("scales", 1e7),
    "zero quaternion": ("rotations", 0.0), "NaN quaternion": ("rotations", np.nan),
    "NaN opacity": ("opacities", np.nan),
    "zero opacity": ("opacities", 0.0), "negative opacity": ("opacities", -1.0), "NaN colour": ("colors", np.nan),
    "infinite colour": ("colors", -np.inf), "behind": ("means", -3.0), "around the camera": ("means", 0.0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.full(dtype=np.float64)
def test_splats_that_are_not_drawn(dtype: Any) -> None:
    """The picture is that of the others, and so are the gradients; those of what is not drawn are zero."""

    def value(p: dict[str, Any], v: Any) -> Any:
        made = rlx.splats.render(**p, view=v, depth=True, **CAMERA)
        return rlx.sum(made.image * made.image) + rlx.mean(made.depth)

    whole = {k: a.astype(dtype) for k, a in scene(10 + len(ODD), 4, 3).items()}
    for row, (key, number) in enumerate(ODD.values(), 10):
        whole[key][row] = number
    few = {k: a[:10] for k, a in whole.items()}
    camera = np.eye(4, dtype=dtype)
    assert np.array_equal(drawn(whole, camera, dtype=dtype).image, drawn(few, camera, dtype=dtype).image)
    (slopes, turn), (own, own_turn) = (rlx.grad(value, (0, 1), device="cpu")(s, camera) for s in (whole, few))
    for key, slope in slopes.items():
        np.testing.assert_allclose(slope[:10], own[key], rtol=1e-5, atol=1e-6, err_msg=key)
        assert not slope[10:].any(), key
    np.testing.assert_allclose(turn, own_turn, rtol=1e-4, atol=1e-5)


def test_points_and_flat_splats_are_drawn() -> None:
    splats, camera = scene(30, 0, 4), view(4)
    splats["scales"][:6] = 0
    splats["scales"][6:, 2] = 0
    image, _, _ = picture(**splats, view=camera, background=BACK, **CAMERA)
    np.testing.assert_allclose(drawn(splats, camera).image, image, atol=1e-13)


def test_gradients_at_the_least_depth_are_numbers() -> None:
    """A splat far beside the picture and nearly at the camera has zeros, and leaves the camera's gradient as it is."""

    def value(p: dict[str, Any], v: Any) -> Any:
        return rlx.sum(rlx.splats.render(**p, view=v, near=1e-9, **(CAMERA | {"fx": 1e9})).image)

    splats = {name: a.astype(np.float32) for name, a in scene(2).items()}
    splats["means"] = np.array([[1e9, 1e9, 2e-9], [0, 0, 2]], np.float32)
    slopes, turn = rlx.grad(value, (0, 1), device="cpu")(splats, np.eye(4, dtype=np.float32))
    assert np.isfinite(turn).all() and not any(a[0].any() for a in slopes.values())


def test_no_splats_are_the_background() -> None:
    made = drawn(scene(0), view(0), depth=True)
    assert made.pairs == 0 and not made.alpha.any() and not made.depth.any()
    np.testing.assert_array_equal(made.image, np.broadcast_to(BACK, (24, 40, 3)))
    np.testing.assert_array_equal(made.light, 1)


def test_no_splats_have_empty_gradients() -> None:
    def value(p: dict[str, Any], v: Any) -> Any:
        return rlx.sum(rlx.splats.render(**p, view=v, **CAMERA).image)

    slopes, turn = rlx.grad(value, (0, 1), device="cpu")(scene(0, 4), view(0))
    assert {name: a.shape for name, a in slopes.items()} == {name: a.shape for name, a in scene(0, 4).items()}
    assert not turn.any()


def test_a_camera_inside_of_splats() -> None:
    """Their means lie ahead, so they are drawn: by the same ellipses, here wider than the picture."""
    splats, camera = scene(30, 0, 6), np.eye(4)
    splats["means"] = splats["means"] * [1, 1, 0] + [0, 0, 0.4]
    splats["scales"] = splats["scales"] + 2
    splats["opacities"] *= 0.1
    image, light, _ = picture(**splats, view=camera, background=BACK, **CAMERA)
    made = drawn(splats, camera)
    assert made.light.max() < 0.9
    np.testing.assert_allclose(made.image, image, atol=1e-13)
    np.testing.assert_allclose(made.light, light, atol=1e-13)


def test_negative_scales_are_as_their_absolute_values() -> None:
    splats, camera = scene(30), view(0)
    image = drawn(splats, camera).image
    splats["scales"] *= [-1, 1, -1]
    np.testing.assert_allclose(drawn(splats, camera).image, image, atol=1e-14)


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
@pytest.mark.late("vulkan")
def test_a_camera_that_is_none_in_a_run_gives_nan(device: str) -> None:
    session_here(device)

    def run(s: dict[str, Any], v: Any, numbers: dict[str, Any]) -> Any:
        made = rlx.splats.render(**s, view=v, **(CAMERA | numbers))
        return made, rlx.gradients(rlx.sum(made.image), [*s.values(), v]) if device == "cpu" else []

    jitted = rlx.jit(run, device=device)
    splats, good = {k: a.astype(np.float32) for k, a in scene(6, 4).items()}, view(0).astype(np.float32)
    for name, number in (
        ("fx", 0.0), ("fy", -20.0), ("fx", np.nan), ("cx", np.inf), ("cy", -1e10), ("view", np.nan), ("view", np.inf)
    ):  # fmt: skip
        numbers, camera = {k: float(CAMERA[k]) for k in ("fx", "fy", "cx", "cy")}, good.copy()
        if name == "view":
            camera[1, 2] = number
        else:
            numbers[name] = number
        made, slopes = jitted(splats, camera, numbers)
        assert np.isnan(made.image).all() and np.isnan(made.light).all() and made.pairs == 0, (name, number)
        assert not any(slope.any() for slope in slopes), (name, number)


def test_a_scaled_view_in_a_run_is_used_as_it_is() -> None:
    """Twice as far away, of twice the size: the same ellipses."""
    splats, camera = scene(30), view(1)
    image = drawn(splats, camera).image
    camera[:3] *= 2
    np.testing.assert_allclose(drawn(splats, camera).image, image, atol=1e-12)


def test_too_many_pairs_are_seen() -> None:
    splats, camera = scene(30), view(0)
    pairs = int(drawn(splats, camera).pairs)
    rlx.splats.check_pairs(pairs, pairs)
    exact = drawn(splats, camera, max_pairs=pairs)
    assert np.array_equal(exact.image, drawn(splats, camera).image)
    over = drawn(splats, camera, max_pairs=pairs - 1, depth=True)
    assert over.pairs == pairs and all(np.isnan(a).all() for a in (over.image, over.light, over.alpha, over.depth))
    with pytest.raises(
        CapacityExceeded, match=f"touch {pairs} tiles.*room for {pairs - 1}.*max_pairs={pairs}"
    ):
        rlx.splats.check_pairs(over.pairs, pairs - 1)


def test_pairs_beyond_31_bits_are_counted_as_many() -> None:
    depth = np.zeros(1 << 16, np.float32)
    rects = np.full((1 << 16, 4), [0, 0, 4000, 4000], np.int32)
    g = rlx.Graph()
    ins = [g.input("depth", depth.shape), g.input("rects", rects.shape, "i32")]
    g.output("total", g.add("splat_tiles", ins, {"across": 4000, "down": 4000, "max_pairs": 10})[4])
    assert rlx.Session("cpu").compile(g).run({"depth": depth, "rects": rects})["total"] == 2**31 - 1
    with pytest.raises(CapacityExceeded, match="at least 2,147,483,647"):
        rlx.splats.check_pairs(2**31 - 1, 10)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"means": np.zeros((3, 2))}, ShapeError, r"means is f64\[3,2\]; expected \(n, 3\)"),
        ({"rotations": np.zeros((4, 3))}, ShapeError, "rotations"),
        ({"opacities": np.zeros((5, 1))}, ShapeError, "opacities"),
        ({"colors": np.zeros((5, 2, 3))}, ShapeError, "1, 4, 9 or 16"),
        ({"scales": np.zeros((5, 3), np.int32)}, DTypeError, "scales"),
        ({"width": 0}, ShapeError, "width is 0"),
        ({"height": 1 << 20}, ShapeError, "height"),
        ({"height": -3}, ShapeError, "height is -3"),
        ({"width": 40.0}, ShapeError, r"width is 40\.0; expected an int"),
        ({"near": 0}, ShapeError, "near is 0"),
        ({"near": 1e-30}, ShapeError, "near is 1e-30; expected a distance from 1e-9"),
        ({"near": np.float32(np.nan)}, ShapeError, "near is .*nan"),
        ({"near": True}, ShapeError, "near is True"),
        ({"fx": 0}, ShapeError, "fx is 0; expected a focal length"),
        ({"fy": -31.0}, ShapeError, "fy is -31; .* to mirror a picture negate a row of view"),
        ({"fx": np.nan}, ShapeError, "fx is nan"),
        ({"cy": np.inf}, ShapeError, "cy is inf; expected a place"),
        ({"view": np.full((4, 4), np.nan)}, ShapeError, "view has NaN"),
        ({"view": 2 * np.eye(4)}, ShapeError, "view's upper 3 x 3 part is no rotation.*scale means"),
        ({"view": np.eye(4) + 0.1}, ShapeError, "no rotation"),
        ({"view": np.eye(3)}, ShapeError, "view is"),
        ({"max_pairs": 0}, ShapeError, "max_pairs is 0"),
        ({"depth": 1}, DTypeError, "depth is 1; expected True or False"),
        ({"max_pairs": 1 << 29}, ShapeError, "max_pairs is 536870912"),
        ({"fx": np.zeros(2)}, ShapeError, "fx"),
        ({"background": np.zeros(4)}, ShapeError, "background"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {**scene(5), "view": view(0), **CAMERA} | change
    g = rlx.Graph()
    tensors = {k: g.constant(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    with pytest.raises(error, match=f"^splats.render: .*{words}"):
        rlx.splats.render(**tensors)
    if not change.keys() & {"max_pairs", "background", "depth"}:
        with pytest.raises(error, match=f"^splats.project: .*{words}"):
            rlx.splats.project(**tensors)


def test_cameras_that_are_taken() -> None:
    """A reflection, a rotation of bf16, numbers of NumPy."""
    g = rlx.Graph()
    splats = {name: g.constant(a) for name, a in scene(2).items()}
    mirror = np.diag([-1.0, 1, 1, 1])
    numbers = {"fx": np.float32(30), "near": np.float32(0.5), "width": np.int64(40)}
    for camera in (mirror, rlx.dtypes.bf16.np.type(1) * view(2).astype(rlx.dtypes.bf16.np)):
        rlx.splats.render(**splats, view=camera, **(CAMERA | numbers))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((-1, 40, 24), "count is -1; expected an int from 0"),
        ((2.5, 40, 24), "count is 2.5"),
        ((float("nan"), 40, 24), "count is nan"),
        ((True, 40, 24), "count is True"),
        ((1 << 31, 40, 24), "count is 2147483648"),
        ((5, 0, 24), "width is 0; expected an int from 1 to 65536"),
        ((5, 40, 1 << 17), "height is 131072"),
        ((5, 40.0, 24), "width is 40"),
    ],
)
def test_default_pairs_of_no_sizes(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ShapeError, match=f"^splats.default_pairs: {words}"):
        rlx.splats.default_pairs(*arguments)


def test_default_pairs() -> None:
    assert rlx.splats.default_pairs(0, 40, 24) == 1
    assert rlx.splats.default_pairs(np.int64(10), 40, 24) == 60
    assert rlx.splats.default_pairs(10**5, 1920, 1080) == 8 * 10**5
    assert rlx.splats.default_pairs(2**31 - 1, 1 << 16, 1 << 16) == 1 << 28


@pytest.mark.parametrize(
    "pairs, room, error, words",
    [
        (5, 0, ShapeError, "max_pairs is 0; expected an int from 1"),
        (5, 2.5, ShapeError, "max_pairs is 2.5"),
        (5, float("nan"), ShapeError, "max_pairs is nan"),
        (5, 1 << 29, ShapeError, "max_pairs is 536870912"),
        (2.5, 10, DTypeError, "pairs is 2.5; expected the integers"),
        (float("nan"), 10, DTypeError, "pairs is nan"),
        (True, 10, DTypeError, "pairs is True"),
        (None, 10, DTypeError, "pairs is None"),
        (1 << 70, 10, DTypeError, "pairs is"),
        (-1, 10, ShapeError, "pairs is -1; expected integers from 0"),
        ([[1], [1, 2]], 10, ShapeError, "pairs is"),
        (np.array([3, 11]), 10, CapacityExceeded, "touch 11 tiles"),
    ],
)
def test_check_pairs_of_no_counts(pairs: Any, room: Any, error: type[RlxError], words: str) -> None:
    with pytest.raises(error, match=rf"^splats\.(check_pairs|render): .*{words}"):
        rlx.splats.check_pairs(pairs, room)
    rlx.splats.check_pairs([], 10)


def test_check_pairs_while_tracing() -> None:
    def run(s: dict[str, Any], v: Any) -> Any:
        made = rlx.splats.render(**s, view=v, **CAMERA)
        rlx.splats.check_pairs(made.pairs, 100)
        return made.image

    with pytest.raises(TracedValueError, match=r"check_pairs: pairs is a tensor.*make it an output"):
        rlx.jit(run, device="cpu")(scene(3), view(0))
