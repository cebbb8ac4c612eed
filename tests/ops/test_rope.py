"""Rope tables against the papers' formulas at each position, rope on a grid, and the errors of rope."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.oracle import evaluate
from rlx.dtypes import f16, f64, i64
from rlx.errors import DTypeError, ShapeError, UnsupportedOp
from rlx.ir import Graph
from rlx.ops.rope.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)
from rlx.ops.rope.table import axial_rope_table, rope_frequencies
from tests.outside import outside

LLAMA3 = Llama3Scaling(8.0, 1.0, 4.0, 8192)
YARN = YarnScaling(4.0, 4096)


def _llama3(f: float) -> float:
    """Llama 3.1's rule, in wavelengths as it was published."""
    wave, old = 2 * math.pi / f, 8192
    if wave < old / 4.0:
        return f
    if wave > old / 1.0:
        return f / 8.0
    smooth = (old / wave - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * f / 8.0 + smooth * f


def _yarn(i: int, width: int, base: float) -> float:
    """YaRN's rule by the turns within the old length (the paper's r), its ends rounded outwards as in its code."""

    def pair_with(turns: float) -> float:
        return width * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_with(32)), 0), min(math.ceil(pair_with(1)), width - 1)
    f = base ** (-2 * i / width)
    gamma = min(max((i - low) / (high - low), 0.0), 1.0)
    return f / 4.0 * gamma + f * (1 - gamma)


@pytest.mark.parametrize(
    "scaling, rule, magnitude",
    [
        (None, lambda i, f: f, 1.0),
        (LinearScaling(2.5), lambda i, f: f / 2.5, 1.0),
        (LLAMA3, lambda i, f: _llama3(f), 1.0),
        (YARN, lambda i, f: _yarn(i, 128, 500000.0), 0.1 * math.log(4.0) + 1.0),
        (ProportionalScaling(0.3, 2.0), lambda i, f: f / 2 if i < 19 else 0.0, 1.0),  # 0.3 · 64 pairs
        # 131,072 positions are 32 times the length: the base grows by 4 · 32 - 3.
        (DynamicScaling(4.0, 4096), lambda i, f: (500000.0 * 125 ** (128 / 126)) ** (-2 * i / 128), 1.0),
        (DynamicScaling(4.0, 131072), lambda i, f: f, 1.0),
    ],
    ids=["plain", "linear", "llama3", "yarn", "proportional", "dynamic", "dynamic, not longer"],
)
def test_tables(scaling: Scaling | None, rule: Any, magnitude: float) -> None:
    """Large positions too, where an angle computed in f32 would be wrong by large parts of a turn."""
    rows, width, base = 131072, 128, 500000.0
    cos, sin = rlx.rope_table(rows, width, base=base, scaling=scaling)
    assert cos.shape == sin.shape == (rows, width // 2)
    assert cos.dtype == sin.dtype == np.float32
    for p in (0, 1, 2, 1000, 4097, 131071):
        for i in range(width // 2):
            angle = p * rule(i, base ** (-2 * i / width))
            # An angle of 1e5 has 1e-11 of a radian in float64.
            assert abs(float(cos[p, i]) - magnitude * math.cos(angle)) < 1e-7, (p, i)
            assert abs(float(sin[p, i]) - magnitude * math.sin(angle)) < 1e-7, (p, i)


def test_configurations_of_models() -> None:
    llama = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    assert rlx.rope_scaling(llama) == LLAMA3
    assert rlx.rope_scaling({"type": "linear", "factor": 2}) == LinearScaling(2)
    assert rlx.rope_scaling({"type": "yarn", "factor": 4.0}, 4096) == YARN
    assert rlx.rope_scaling(None) is None
    assert rlx.rope_scaling({"rope_type": "default"}) is None
    deep = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32}
    made = rlx.rope_scaling(deep, 4096)
    assert made == YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=0.5)
    _, magnitude = rope_frequencies(64, scaling=made)
    assert math.isclose(magnitude, (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1))
    _, magnitude = rope_frequencies(64, scaling=YarnScaling(4.0, 4096, attention_factor=0.7))
    assert magnitude == 0.7
    long = {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 4.0], "original_max_position_embeddings": 64}
    made = rlx.rope_scaling(long, 256)
    assert made == LongRopeScaling(4.0, 64, (1.0, 1.5), (2.0, 4.0))
    for length, first in ((64, [1, 1.5]), (65, [2, 4.0])):
        found, magnitude = rope_frequencies(4, scaling=made, length=length)
        assert np.array_equal(found, np.array([1.0, 0.01]) / first)
        assert math.isclose(magnitude, math.sqrt(4 / 3), rel_tol=1e-12)
    with pytest.raises(DTypeError, match="short is no factor above 0 for each of 4 frequencies"):
        rope_frequencies(8, scaling=made)
    with pytest.raises(DTypeError, match="long_factor is None; longrope needs a list"):
        rlx.rope_scaling({**long, "long_factor": None})
    with pytest.raises(UnsupportedOp, match="'mrope' is none of default, linear, dynamic"):
        rlx.rope_scaling({"rope_type": "mrope"})
    with pytest.raises(DTypeError, match="dynamic needs the length"):
        rlx.rope_scaling({"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(DTypeError, match="factor"):
        rlx.rope_scaling({"rope_type": "linear"})
    with pytest.raises(DTypeError, match="original_max_position_embeddings"):
        rlx.rope_scaling({"rope_type": "yarn", "factor": 4.0})


@pytest.mark.judged
def test_transformers_agree() -> None:
    """The rules of the package transformers, where it is installed."""
    utils = outside("transformers.modeling_rope_utils")
    configuration = outside("transformers").LlamaConfig
    kinds = {
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "yarn": {"factor": 4.0},
        "dynamic": {"factor": 4.0}, "proportional": {"factor": 2.0, "partial_rotary_factor": 0.3},
        "longrope": {"factor": 4.0, "short_factor": [1.0 + i / 9 for i in range(32)], "long_factor": [3.0] * 32},
    }
    for kind, some in kinds.items():
        given = {**some, "original_max_position_embeddings": 512}
        config = configuration(
            hidden_size=256, num_attention_heads=4, max_position_embeddings=2048,
            rope_scaling={"rope_type": kind, "rope_theta": 10000.0, **given},
        )  # fmt: skip
        length = 5000 if kind == "dynamic" else 1
        want, magnitude = utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        scaling = rlx.rope_scaling({"rope_type": kind, **given}, 2048)
        got, mine = rope_frequencies(64, scaling=scaling, length=length)
        np.testing.assert_allclose(got, want.double().numpy(), rtol=1e-6)
        assert math.isclose(mine, magnitude, rel_tol=1e-12)


def _run(build: Any, x: np.ndarray) -> np.ndarray:
    g = Graph()
    t = build(g.input("x", x.shape, f64))
    return evaluate(g, {"x": x})[t.id]


def test_the_grid_turns_as_complex_numbers() -> None:
    """Each pair is a complex number, multiplied by e^(i x f) in the first half of the size, by e^(i y f) in the
    second."""
    rows, columns, size = 3, 5, 16
    x = np.random.default_rng(0).standard_normal((2, 3, rows * columns, size))
    got = _run(lambda t: rlx.axial_rope(t, rows, columns, base=100.0), x)
    place = np.arange(rows * columns)
    f = 100.0 ** (-np.arange(0, size, 4)[: size // 4] / size)
    angles = np.concatenate([np.outer(place % columns, f), np.outer(place // columns, f)], axis=1)
    z = x.reshape(2, 3, rows * columns, size // 2, 2)
    want = (z[..., 0] + 1j * z[..., 1]) * np.exp(1j * angles)
    np.testing.assert_allclose(got, np.stack([want.real, want.imag], -1).reshape(x.shape), atol=1e-6)


def test_the_grid_in_halves() -> None:
    """Rope is applied to each half of the size alone, by the row to one and by the column to the other."""
    rows, columns, size = 4, 3, 12
    x = np.random.default_rng(1).standard_normal((2, rows * columns, 5, size))
    got = _run(lambda t: rlx.axial_rope(t, rows, columns, interleaved=False, order="yx", axis=1), x)
    cos, sin = rlx.rope_table(rows * columns, size // 2)
    y, c = np.divmod(np.arange(rows * columns, dtype=np.int32), columns)
    for part, place in ((slice(0, 6), y), (slice(6, 12), c)):
        alone = np.ascontiguousarray(x[..., part])
        want = _run(lambda t, p=place: rlx.rope(t, cos, sin, np.tile(p, (2, 1)), axis=1), alone)
        np.testing.assert_allclose(got[..., part], want, atol=1e-7)


def test_a_step_of_decoding_is_the_row_of_the_whole() -> None:
    cos, sin = rlx.rope_table(12, 8)
    x = np.random.default_rng(2).standard_normal((2, 3, 12, 8))
    whole = _run(lambda t: rlx.rope(t, cos, sin), x)
    for p in (0, 5, 11):
        one = np.ascontiguousarray(x[:, :, p : p + 1])
        np.testing.assert_array_equal(_run(lambda t, p=p: rlx.rope(t, cos, sin, offset=p), one), whole[:, :, p : p + 1])
        place = np.array(p, np.int64)
        np.testing.assert_array_equal(_run(lambda t, q=place: rlx.rope(t, cos, sin, q), one), whole[:, :, p : p + 1])
    np.testing.assert_allclose(_run(lambda t: rlx.rope(rlx.rope(t, cos, sin), cos, sin, inverse=True), x), x, atol=1e-6)


def test_what_is_refused() -> None:
    g = Graph()
    x = g.input("x", (2, 3, 5, 8))
    cos, sin = rlx.rope_table(5, 8)
    with pytest.raises(ShapeError, match=r"hold 4 positions; the sequence of 5 from position 0 needs 5"):
        rlx.rope(x, cos[:4], sin[:4])
    with pytest.raises(ShapeError, match="from position 1 needs 6"):
        rlx.rope(x, cos, sin, offset=1)
    with pytest.raises(ShapeError, match="hold 4 positions"):
        rlx.rope(x, cos[:4], sin[:4], g.input("first", (), "i32"))
    with pytest.raises(ShapeError, match="hold 0 positions"):
        rlx.rope(x, cos[:0], sin[:0], g.input("each", (5,), "i32"))
    with pytest.raises(ShapeError, match="positions 0 to 7 lie outside the tables of 5"):
        rlx.rope(x, cos, sin, np.array([0, 1, 2, 3, 7]))
    with pytest.raises(ShapeError, match="positions 1 to 5 lie outside"):
        rlx.rope(x, cos, sin, np.array(1))
    with pytest.raises(ShapeError, match=r"positions are \(4,\).*expected one of \(\), \(5,\), \(2, 5\)"):
        rlx.rope(x, cos, sin, g.input("p", (4,), "i32"))
    with pytest.raises(DTypeError, match="positions are f32"):
        rlx.rope(x, cos, sin, g.input("q", (5,)))
    with pytest.raises(ShapeError, match="rotate 8 elements"):
        rlx.rope(x[..., :6], cos, sin)
    with pytest.raises(ShapeError, match="3 sections"):
        rlx.rope(x, cos, sin, sections=3)
    with pytest.raises(ShapeError, match="axis"):
        rlx.rope(x, cos, sin, axis=-1)
    with pytest.raises(ShapeError, match="tables are"):
        rlx.rope(x, cos, sin[:, :3])
    with pytest.raises(ShapeError, match="offset"):
        rlx.rope(x, cos, sin, offset=-1)
    with pytest.raises(DTypeError, match="cos table must be a float"):
        g.add("rope", (x, g.input("c", (5, 4), "i32"), g.input("s", (5, 4))),
              {"axis": 2, "offset": 0, "interleaved": False, "sections": 1, "inverse": False})  # fmt: skip
    with pytest.raises(ShapeError, match="6 by 2"):
        rlx.axial_rope(x, 6, 2)
    with pytest.raises(ShapeError, match="multiple of 4"):
        axial_rope_table(2, 2, 6)
    with pytest.raises(ShapeError, match="even"):
        rlx.rope_table(4, 7)
    with pytest.raises(DTypeError, match="base"):
        rlx.rope_table(4, 8, base=1.0)
    with pytest.raises(DTypeError, match="low_freq_factor"):
        rlx.rope_table(4, 8, scaling=Llama3Scaling(8.0, 4.0, 1.0, 8192))


def test_positions_of_each_element_may_share_a_short_table() -> None:
    cos, sin = rlx.rope_table(8, 8)
    x, at = np.arange(80, dtype=np.float32).reshape(2, 5, 8), np.array([0, 1, 1, 0, 1])
    assert np.array_equal(rlx.rope(x, cos[:2], sin[:2], at), rlx.rope(x, cos, sin, at))


def test_positions_of_64_bits_saturate() -> None:
    """A position that does not fit 32 bits is far out of range, and does not wrap into it."""
    g = Graph()
    cos, sin = rlx.rope_table(9, 4)
    x, p = g.input("x", (3, 4), f64), g.input("p", (3,), i64)
    y = rlx.rope(x, cos, sin, p)
    value = np.ones((3, 4))
    far = evaluate(g, {"x": value, "p": np.array([2**32 + 1, -(2**40), 8])})[y.id]
    near = evaluate(g, {"x": value, "p": np.array([8, 0, 8])})[y.id]
    np.testing.assert_array_equal(far, near)
    assert rlx.rope(g.input("h", (3, 4), f16), cos, sin).dtype == f16
