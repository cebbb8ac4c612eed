"""Every op with extreme sizes: 0, more than memory holds, more than 64 bits count; and with ranks that do not fit.

Each graph is refused in words of rlx's own, or found too large when compiled, or it runs and is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import rlx
from rlx.conformance.case import Case, InputSpec, cases_of
from rlx.errors import DTypeError, OutOfDeviceMemory, ShapeError
from rlx.ir import REGISTRY, verify
from tests.devices import session_here
from tests.full import full, sampled

SIZES = (0, 1 << 40, (1 << 32) + 1, 1 << 63)
SMALL = 1 << 16  # bytes of a graph that is run
LARGE = 1 << 32  # bytes of a graph that is not compiled where memory holds it: that would take minutes

Specs = tuple[InputSpec, ...]


def small_cases(op: str, count: int) -> list[Case]:
    """Some cases of an op that run quickly; always the same ones."""
    cases = cases_of(op)
    mixed = random.Random(op).sample(cases, len(cases))
    return list(islice((c for c in mixed if sum(t.type.nbytes for t in c.graph().tensors()) < SMALL), count))


def odd(case: Case) -> Iterator[Specs]:
    """The inputs with one size replaced everywhere, with one dimension replaced, and with axes too many or too few."""
    specs = case.inputs
    for old in sorted({d for s in specs for d in s.shape}):
        for new in SIZES:
            yield tuple(replace(s, shape=tuple(new if d == old else d for d in s.shape)) for s in specs)
    for i, spec in enumerate(specs):
        shapes: list[tuple[int, ...]] = [(), (2, *spec.shape), spec.shape[1:]]
        shapes += [
            (*spec.shape[:k], n, *spec.shape[k + 1 :]) for k in range(len(spec.shape)) for n in SIZES[:2]
        ]
        for shape in shapes:
            yield (*specs[:i], replace(spec, shape=shape), *specs[i + 1 :])


def outcome(session: rlx.Session, case: Case) -> str:
    try:
        g = case.graph()
        verify(g)
        if LARGE < sum(t.type.nbytes for t in g.tensors()) <= session.device.free_bytes():
            return "compiled"
        exe = session.compile(g)
    except (ShapeError, DTypeError):
        return "refused"
    except OutOfDeviceMemory as error:
        return "too large" if "argest tensors" in str(error) else f"too large, unsaid what: {error}"
    with exe:
        if sum(t.type.nbytes for t in g.tensors()) > 8 * SMALL:
            return "compiled"
        with np.errstate(all="ignore"):
            outputs = exe.run(case.feeds())
            if not any(t.size for t in g.outputs.values()):  # the references would iterate over the other dimensions
                assert {n: a.shape for n, a in outputs.items()} == {n: t.shape for n, t in g.outputs.items()}
                return "ran"
            verdict = case.check(outputs, session.device.info.preserves_subnormals)
    assert verdict.ok, f"{case.id} {[s.shape for s in case.inputs]}: {verdict.message}"
    return "ran"


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
@pytest.mark.parametrize("op", sorted(n for n, op in REGISTRY.items() if not op.leaf))
@pytest.mark.sample(50, vulkan=40)
@pytest.mark.late("vulkan")
def test_sizes_at_their_ends(op: str, device: str) -> None:
    session = session_here(device)
    cases = small_cases(op, 2 if device == "cpu" else 1)
    most = (24 if full() else 8) if device == "cpu" else (12 if full() else 6)
    found = {outcome(session, replace(case, inputs=specs)) for case in cases for specs in sampled(odd(case), most=most)}
    assert found <= {"refused", "too large", "compiled", "ran"}


@pytest.mark.parametrize("op", ["sort", "max", "layer_norm", "pad", "cumsum"])
def test_constants_without_elements_fold(op: str) -> None:
    g = rlx.Graph("nothing")
    x, row = g.constant(np.empty((1 << 40, 0), np.float32)), g.constant(np.empty(0, np.float32))
    g.output("y", {
        "sort": lambda: rlx.sort(x, axis=0), "max": lambda: rlx.max(g.constant(np.empty((0, 0), np.float32)), axis=1),
        "layer_norm": lambda: rlx.layer_norm(x, row, row),
        "pad": lambda: rlx.pad(x, ((1, 1), (0, 0)), mode="reflect"), "cumsum": lambda: rlx.cumsum(x, axis=0),
    }[op]())  # fmt: skip
    with rlx.Session("cpu").compile(g) as exe:
        assert {n.op.name for n in exe.program.nodes} == {"constant"}
        assert exe.run()["y"].shape == g.outputs["y"].shape


@pytest.mark.parametrize(
    "shape, text",
    [
        ((1,) * 65, "has 65 axes"),
        ((1 << 40, 1 << 40, 0), "no array can have even without elements"),
        ((1 << 63, 0), r"beyond 9223372036854775807"),
        ((-1, 2), "is negative"),
        ((2, 1.0), "not an integer"),
        ((2, True), "not an integer"),
    ],
)
def test_shapes_that_no_array_has(shape: tuple[int, ...], text: str) -> None:
    def compiled() -> None:
        g = rlx.Graph("odd")
        g.output("y", rlx.exp(g.input("x", shape)))
        rlx.Session("cpu").compile(g)

    with pytest.raises(ShapeError, match=text):
        compiled()


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("stride", [1 << 20, (1 << 31) - 1])
def test_strides_beyond_the_image(stride: int, groups: int, device: str) -> None:
    """There is one window: no loop may run along the strides."""
    rng = np.random.default_rng(stride % 97)
    x, w = rng.standard_normal((1, 8, 9, 10), np.float32), rng.standard_normal((8, 8 // groups, 3, 3), np.float32)
    g = rlx.Graph("strides")
    a = g.input("x", x.shape)
    g.output("conv", rlx.conv(a, g.input("w", w.shape), strides=stride, groups=groups))
    g.output("max", rlx.max_pool(a, 3, strides=stride))
    g.output("avg", rlx.avg_pool(a, 3, strides=stride))
    with session_here(device).compile(g) as exe:
        got = exe.run({"x": x, "w": w})
    seen = x[:, :, :3, :3].astype(np.float64)
    taps = w.astype(np.float64)
    full = (seen[0] * taps if groups == 1 else seen[0][:, None] * taps).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(got["conv"].ravel(), full, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["max"].ravel(), x[0, :, :3, :3].max(axis=(1, 2)))
    np.testing.assert_allclose(got["avg"].ravel(), seen[0].mean(axis=(1, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["strides", "dilations"])
def test_steps_beyond_32_bits(what: str) -> None:
    g = rlx.Graph("steps")
    x, w = g.input("x", (1, 2, 9, 9)), g.input("w", (2, 2, 1, 1))
    with pytest.raises(ShapeError, match=f"conv: {what} is .*; expected 2147483647 at most"):
        rlx.conv(x, w, **{what: 1 << 31})


def test_attributes_beyond_f32() -> None:
    g = rlx.Graph("beyond")
    x, row, q = g.input("x", (3, 8)), g.input("row", (8,)), g.input("q", (1, 2, 3, 8))
    with pytest.raises(DTypeError, match=r"layer_norm: eps is 1e.300; expected a float ≥ 0 that f32 holds"):
        rlx.layer_norm(x, row, row, eps=1e300)
    with pytest.raises(DTypeError, match="batch_norm: eps is inf"):
        rlx.batch_norm(x, row, row, row, row, eps=float("inf"))
    with pytest.raises(ShapeError, match=r"attention: scale is 1e.300; expected a number that f32 holds"):
        rlx.attention(q, q, q, scale=1e300)
    with pytest.raises(ShapeError, match=r"attention: softcap is 1e.300"):
        rlx.attention(q, q, q, softcap=1e300)
