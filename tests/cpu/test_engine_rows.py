"""The compiled engine's row kernels, attention, copies and pools: cases of every op, on vectors of several lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice, program
from rlx.backends.cpu.machine import Machine, this_machine
from rlx.conformance.case import all_cases
from rlx.conformance.oracle import evaluate
from rlx.conformance.runner import run_case, sample
from rlx.dtypes import as_dtype
from rlx.ir.graph import apply_multi
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, close, run
from tests.full import full

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
OPS = frozenset(
    """softmax log_softmax logsumexp softmax_grad layer_norm rms_norm add_layer_norm add_rms_norm group_norm
    layer_norm_channels sum mean max min attention transpose expand slice concat pad gather gather_elements
    dynamic_slice dynamic_update_slice one_hot max_pool avg_pool resize rope argmax cumsum grid_sample
    attention_grad layer_norm_grad rms_norm_grad cross_entropy cross_entropy_grad conv_transpose conv_grad_input
    conv_grad_weight max_pool_grad sort argsort top_k prod cumprod group_norm_grad selective_scan selective_scan_grad
    gated_delta_rule gated_delta_rule_grad causal_conv paged_attention""".split()
)
CASES = [c for c in all_cases() if c.op in OPS]


def session(threads: int = 1) -> rlx.Session:
    return rlx.Session("cpu", threads=threads, engine="compiled")


@pytest.mark.parametrize("withheld", ["", "avx512f"])
@pytest.mark.late
def test_cases_on_wide_and_narrow_vectors(withheld: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_machine()
    assert machine is not None
    if withheld:
        monkeypatch.setattr(program, "this_machine", lambda: machine.without(withheld))
    outcomes = {c.id: run_case(session(), c) for c in sample(CASES, 20 if full() else 1)}
    assert not {name: o.message for name, o in outcomes.items() if o.status != "pass"}


def several(x: rlx.Tensor, image: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
    heads = rlx.reshape(x, (4, 8, 64, 32))
    return (
        rlx.softmax(x),
        rlx.softmax(x, axis=0),
        rlx.sum(x),
        rlx.mean(x, axis=0),
        rlx.attention(heads, heads, heads, causal=True),
        rlx.transpose(heads, (0, 3, 1, 2)),
        rlx.max_pool(image, 3, strides=2, pads=1),
        rlx.cumsum(x, axis=1),
    )


def test_any_number_of_threads_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, image = (rng.standard_normal(s).astype(np.float32) for s in ((512, 128), (2, 5, 40, 41)))
    made = [rlx.jit(several, device=session(n))(x, image) for n in (1, 2, 5)]
    for other in made[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(made[0], other, strict=True))


def gradients_of(threads: int, causal: bool) -> tuple[list[Array], set[str]]:
    """Gradients of a norm before an attention of heads that share keys, and the ops that the engine ran."""
    graph = rlx.Graph("training")
    x, scale, bias = graph.input("x", (2, 96, 64)), graph.input("scale", (64,)), graph.input("bias", (64,))
    rows = rlx.layer_norm(x, scale, bias)
    q = rlx.transpose(rlx.reshape(rows, (2, 96, 4, 16)), (0, 2, 1, 3))
    y = rlx.attention(q, q[:, :2], q[:, 2:], causal=causal)
    for i, slope in enumerate(rlx.gradients(rlx.sum(y * y), [x, scale, bias])):
        graph.output(f"slope{i}", slope)
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(t.shape).astype(np.float32) for n, t in graph.inputs.items()}
    program = session(threads).compile(graph)
    made = list(program.run(given).values())
    return made, {d.op for d in program.report().nodes if d.by == "engine"}


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_have_the_same_bits_for_any_number_of_threads(causal: bool) -> None:
    made, ran = gradients_of(1, causal)
    assert {"attention_grad", "layer_norm_grad"} <= ran
    for threads in (2, 5):
        other, _ = gradients_of(threads, causal)
        assert all(np.array_equal(a, b) for a, b in zip(made, other, strict=True))


def test_a_sum_that_leaves_the_range_midway_is_finite() -> None:
    x = np.array([3e38, 3e38, 3e38, -3e38, -3e38] * 31 + [-3e38] * 30, np.float32)
    run = rlx.jit(
        lambda x: (rlx.sum(x), rlx.mean(x), rlx.sum(rlx.expand_dims(x, 1), axis=0)), device=session()
    )
    total, mean, columns = run(x)
    assert total == columns[0] == x[0] and np.isclose(mean, x[0] / x.size, rtol=1e-6)


def test_any_nan_makes_its_row_nan() -> None:
    """Also one whose low bits would change the exponent of an exponential."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 2, 20, 17)).astype(np.float32)
    q = x.copy()
    q.view(np.uint32)[0, 1, 3, 2] = 0x7FC00155

    def build(q: rlx.Tensor, x: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
        one = rlx.attention(q[:, :, 3:4], x, x)
        return rlx.softmax(q), rlx.softmax(q, axis=2), rlx.logsumexp(q, axis=3), rlx.attention(q, x, x), one

    rows, columns, sums, blocks, one = (np.isnan(a) for a in rlx.jit(build, device=session())(q, x))
    assert rows[0, 1, 3].all() and rows.sum() == 17
    assert columns[0, 1, :, 2].all() and columns.sum() == 20
    assert sums[0, 1, 3] and sums.sum() == 1
    assert blocks[0, 1, 3].all() and blocks.sum() == one.sum() == 17


@pytest.mark.parametrize(("dtype", "atol"), [(np.float32, 2e-6), (np.float16, 2e-3)])
def test_attention_of_many_queries(dtype: Any, atol: float) -> None:
    """Keys and values are packed first; 200 queries are blocks of four vectors of 16 and one of five."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, h, 40)).astype(dtype) for n, h in ((200, 4), (131, 2), (131, 2)))

    def build(q: rlx.Tensor, k: rlx.Tensor, v: rlx.Tensor) -> rlx.Tensor:
        heads = (rlx.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        return rlx.transpose(rlx.attention(*heads, scale=0.2), (0, 2, 1, 3))

    made = rlx.jit(build, device=session())(q, k, v)
    wide = [np.repeat(x.astype(np.float64), n, 2) for x, n in ((q, 1), (k, 2), (v, 2))]
    scores = np.exp(0.2 * np.einsum("bqhd,bkhd->bhqk", *wide[:2]))
    expected = np.einsum("bhqk,bkhd->bqhd", scores / scores.sum(3, keepdims=True), wide[2])
    np.testing.assert_allclose(made, expected, rtol=0, atol=atol)


def test_heads_too_large_for_the_stack_are_left_to_numpy() -> None:
    x = np.ones((1, 1, 3, 40_000), np.float32)
    assert (rlx.jit(lambda x: rlx.attention(x, x, x), device=session())(x) == 1).all()


@on_machines
def test_the_gradient_of_a_group_norm_does_not_depend_on_the_order_of_images_nor_on_pieces(machine: Machine) -> None:
    shape, rng = (2, 6, 5, 7), np.random.default_rng(0)
    graph = rlx.Graph("groups")
    values = {n: rng.standard_normal(s).astype(np.float32) for n, s in {"d": shape, "x": shape, "gamma": (6,)}.items()}
    ins = [graph.input(n, x.shape) for n, x in values.items()]
    made = apply_multi("group_norm_grad", *ins, groups=3, eps=1e-5, beta=as_dtype("f32"))
    for i, t in enumerate(made):
        graph.output(f"y{i}", t)
    wanted = evaluate(graph, values)
    found = []
    for last in (False, True):
        arrays = [np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if last and x.ndim == 4 else x
                  for x in values.values()]  # fmt: skip
        outs = [np.full_like(arrays[1] if t.ndim == 4 else arrays[2], np.nan) for t in made]
        run(bound(made[0].node, arrays, outs, machine, False), machine, 1 + 2 * last)
        found.append(outs)
    for plain, turned, t in zip(*found, made, strict=True):
        assert np.array_equal(plain, turned)
        assert close(plain, wanted[t.id])


@pytest.mark.parametrize(("shape", "axis"), [((70_001,), 0), ((5, 9001), 1), ((9001, 37), 0), ((30, 40, 50), (0, 2))])
@on_machines
def test_sums_of_f64_are_as_good_as_pairwise_ones(
    shape: tuple[int, ...], axis: int | tuple[int, ...], machine: Machine
) -> None:
    x = np.random.default_rng(0).random(shape)
    wanted = np.sum(x.astype(np.longdouble), axis)
    y = rlx.sum(rlx.Graph("sum").input("x", shape, rlx.dtypes.f64), axis)
    found = []
    for pieces in (1, 3):
        out = np.empty(y.shape)
        run(bound(y.node, [x], [out], machine, False), machine, pieces)
        found.append(out)
    assert np.array_equal(found[0], found[1])
    assert (abs(found[0] - wanted) <= 2 * np.spacing(found[0])).all()


def test_partial_sums_of_f64_may_leave_its_range() -> None:
    x = np.full((3, 40, 5), 1.7e308)
    x[:, 1::2] *= -1.0
    x[1, 0, 0], x[2, :, 1] = np.inf, 1.7e308
    graph = rlx.Graph("sums")
    given = graph.input("x", x.shape, rlx.dtypes.f64)
    graph.output("sum", rlx.sum(given, 1))
    graph.output("mean", rlx.mean(given, 1))
    made = session().compile(graph).run({"x": x})
    sums, means = np.zeros((3, 5)), np.zeros((3, 5))
    sums[1, 0] = means[1, 0] = sums[2, 1] = np.inf
    means[2, 1] = 1.7e308
    assert np.array_equal(made["sum"], sums)
    np.testing.assert_allclose(made["mean"], means, rtol=1e-15)


@pytest.mark.parametrize("shape, axes", [((3,), ()), ((2, 3), ()), ((3, 1), (1,)), ((1, 1), (0, 1)), ((2, 3), (1,))])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_bools_are_counted_over_axes_of_one_element_and_over_none(
    op: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """The result is i32: what one bool in it is, is 0 or 1 in four bytes."""
    x = np.arange(np.prod(shape)).reshape(shape) % 2 == 0
    graph = rlx.Graph(op)
    graph.output("y", getattr(rlx, op)(graph.input("x", shape, "bool"), axes))
    with session().compile(graph) as program:
        np.testing.assert_array_equal(program.run({"x": x})["y"], getattr(np, op)(x, axis=axes))
