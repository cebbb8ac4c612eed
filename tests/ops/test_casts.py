"""Casts to floats narrower than their source round once, wherever rlx converts: the judge is exact arithmetic, since
torch and ml_dtypes go by way of f32 too. `python -m tests.exact_casts` tries thousands of numbers for each pair."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.driver.memory.typed import write_typed_from_f32
from rlx.dtypes import rounded
from rlx.passes import optimize
from tests.devices import run, session_here
from tests.exact_casts import FORMATS, OWN, hard_numbers, nearest, without_subnormals, wrong

BF16, TIE = np.dtype(ml_dtypes.bfloat16), 1 + 2.0**-8  # between 1 and ABOVE, and even is 1
BESIDE, ABOVE = TIE + 2.0**-40, 1.0078125


def test_the_judge() -> None:
    """Where a type needs no second rounding, the libraries are right, and agree with it."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(400) * 2.0 ** rng.integers(-30, 20, 400)
    for name, to in FORMATS.items():
        kind = np.dtype(getattr(ml_dtypes, name, name))
        given = x if kind.kind == "f" and kind.itemsize > 1 else x.astype(np.float32)
        with np.errstate(over="ignore"):
            want = given.astype(kind).astype(np.float64)
        np.testing.assert_array_equal([nearest(v, to) for v in given.tolist()], want, err_msg=name)


@pytest.mark.parametrize("device", ["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_every_device_rounds_once(device: str) -> None:
    sessions = [session_here(device)] + ([session_here(device, engine="numpy")] if device == "cpu" else [])
    for source, name in OWN:
        x, kind = hard_numbers(source, FORMATS[name], 300), getattr(ml_dtypes, name, name)
        x = x if sessions[0].info.preserves_subnormals else without_subnormals(x)

        def both(t: rlx.Tensor, kind: object = kind) -> tuple[rlx.Tensor, rlx.Tensor]:
            made = rlx.cast(t, np.dtype(kind))
            return made, rlx.cast(rlx.cast(t + 0, np.dtype(kind)), "f64") * 0.5

        for session in sessions:
            plain, fused = run(session, both, x)
            for made in (plain, fused * 2):
                at = wrong(made, x, FORMATS[name])
                assert not len(at), (device, session.options.engine, source, name, x[at[:3]], made[at[:3]])


@pytest.mark.parametrize(("source", "name"), OWN, ids=lambda v: str(v))
def test_the_reference_and_a_folded_constant(source: np.dtype, name: str) -> None:
    x, kind = hard_numbers(source, FORMATS[name], 300), np.dtype(getattr(ml_dtypes, name, name))
    assert not len(wrong(rlx.ir.get_op("cast").reference(x, dtype=rlx.dtypes.as_dtype(kind)), x, FORMATS[name]))
    g = rlx.Graph("known")
    g.output("y", rlx.cast(g.constant(x), kind))
    folded = optimize(g)[0].outputs["y"].node
    assert folded.op.is_constant and not len(wrong(folded.attrs["value"], x, FORMATS[name]))


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("float64", "float32")])
@pytest.mark.parametrize("source", ["float64", "int64", "uint64", "int32"])
def test_arrays_on_the_host(source: str, name: str) -> None:
    x = hard_numbers(np.dtype(source), FORMATS[name], 200)
    x = x[~np.isnan(x)] if name == "float4_e2m1fn" else x  # which has no NaN
    assert not len(wrong(rounded(x, np.dtype(getattr(ml_dtypes, name, name))), x, FORMATS[name]))


def test_numbers_lists_and_arrays_that_callers_give() -> None:
    g = rlx.Graph("given")
    x = g.input("x", (1,), "bf16")
    g.output("sum", x * 1)
    g.output("constant", g.constant([BESIDE], "bf16") + x * 0)
    g.output("beside", x * 0 + BESIDE)
    g.output("full", rlx.full((1,), BESIDE, "bf16") + x * 0)
    g.output("padded", rlx.pad(x * 0, ((0, 1),), value=BESIDE)[1:])
    with session_here("cpu").compile(g) as program:
        made = program.run({"x": [BESIDE]})
    assert {k: float(v[0]) for k, v in made.items()} == dict.fromkeys(made, ABOVE)
    held = rlx.array([BESIDE, TIE], dtype="bf16", device="cpu")
    assert held.numpy().astype(np.float64).tolist() == [ABOVE, 1]
    wide = rlx.array(np.array([BESIDE, TIE]), device="cpu")
    assert np.asarray(wide, dtype=BF16).astype(np.float64).tolist() == [ABOVE, 1]
    made = write_typed_from_f32(np.array([BESIDE, TIE]), rlx.dtypes.bf16).view(BF16)
    assert made.astype(float).tolist() == [ABOVE, 1]
    half = 1 + 2.0**-11
    made = write_typed_from_f32(np.array([half + 2.0**-40, half]), rlx.dtypes.f16).view(np.float16)
    assert made.astype(float).tolist() == [1 + 2.0**-10, 1]
    scaled = rlx.jit(lambda x, by: x * by, device="cpu")
    assert float(scaled(np.ones(1, BF16), BESIDE)[0]) == ABOVE
    one = rlx.array(np.ones(1, BF16), device="cpu")
    for at_once in (one * BESIDE, rlx.add(one * 0, BESIDE), rlx.maximum(one, BESIDE)):
        assert float(at_once.numpy()[0]) == ABOVE


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 8), ("f16", 11)])
def test_bounds_of_clip(dtype: str, bits: int) -> None:
    """A bound is the number of x's dtype that is nearest to it, as beside maximum and minimum."""
    beside, above = 1 + 2.0**-bits + 2.0**-40, 1 + 2.0 ** (1 - bits)
    x = np.array([0, above, 4], rlx.dtypes.as_dtype(dtype).np)
    for engine in ("compiled", "numpy"):
        made = run(session_here("cpu", engine=engine), lambda t: (rlx.clip(t, beside, 3), rlx.clip(-t, -3, -beside)), x)
        assert [part.astype(float).tolist() for part in made] == [[above, above, 3], [-above, -above, -3]]
