"""Convolutions by matrix instructions: the CUDA text run on the CPU, whose body Vulkan's modules share; which tensors
lie with their channels last between them, and that programs give the same numbers with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.program.executable import load_rules, lower_graph
from rlx.backends.gpu.program.lowering import Lowering, kernel_name, runs_natively
from rlx.backends.gpu.rules.conv.choice import Problem, choose, forcing
from rlx.backends.gpu.rules.conv.units import in_parts, in_units
from rlx.backends.vulkan.target import vulkan_target
from rlx.conformance.oracle import evaluate
from rlx.driver import Limits, MemoryPlan
from rlx.driver.memory.planner import plan
from rlx.dtypes import bf16, f16, f32
from rlx.ir import Graph
from rlx.passes.pipeline import optimize
from tests.gpu import cuda_host, lowered
from tests.gpu.conv_matrices import FEATURES, LIMITS, cases, outcome
from tests.gpu.lowered import ROUNDED, carried_out, close
from tests.gpu.missed_barriers import every_barrier_is_missed

on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", FEATURES)
    load_rules()


NAMES = (
    "conv-bf16xbf16-n1c2o3-9x13-k2x3-s2x1-d1x2-p0_1_2_0-gelu", "conv-f32xf32-n1c65o66-9x8-k3x3-p1-bias_f32 in f16",
    "conv-f32xf32-n1c3o17-4x4x4-k2x2x2-s2 in bf16", "conv_grad_input-f16xf16-n2c32o34-6x7-k3x3-s2-g2-p1",
    "conv_grad_weight-f16xf16-n2c32o34-6x7-k3x3-s2-g2-p1",
)  # fmt: skip


@on_host
@pytest.mark.parametrize(
    "wishes",
    [
        {"tile": "s", "stages": 4},
        {"tile": "t", "stages": 1},
        {"tile": "m", "stages": 2},
        {"tile": "l", "warpgroups": True},
    ],
)
@pytest.mark.sample(2)
def test_cases_of_conformance(wishes: dict[str, Any]) -> None:
    """A sample of what `python -m tests.gpu.conv_matrices` runs."""
    named = {c.id: c for c in cases()}
    for number, name in enumerate(NAMES):
        ok, _, message = outcome(named[name], "host", None, {**wishes, "split_k": 3 if number == 1 else 1})
        assert ok, (name, message)


F32_NAMES = (
    "conv-f32xf32-n1c65o66-9x8-k3x3-p1-bias_f32", "conv_transpose-f32xf32-n1c4o6-31-k5-s2-p2_1-bias-e0",
    "conv_grad_weight-f32xf32-n2c32o34-6x7-k3x3-s2-g2-p1",
)  # fmt: skip


@on_host
@pytest.mark.parametrize("of", ["f32", "tf32"])
@pytest.mark.parametrize(
    "wishes", [{"tile": "s", "stages": 1}, {"tile": "t", "stages": 2}, {"tile": "m", "warpgroups": True}]
)
@pytest.mark.sample(2)
def test_cases_of_f32_in_parts(wishes: dict[str, Any], of: str) -> None:
    """A sample of what `python -m tests.gpu.conv_matrices --of f32 tf32` runs."""
    named = {c.id: c for c in cases(of)}
    for number, name in enumerate(F32_NAMES):
        ok, _, message = outcome(named[name], "host", None, {**wishes, "split_k": 3 if number == 0 else 1}, of)
        assert ok, (name, message)


@on_host
@pytest.mark.parametrize("op, precision", [("conv", "f32"), ("conv", "tf32"), ("conv_grad_weight", "f32")])
def test_sums_that_parts_cannot_express_are_computed_again(op: str, precision: str) -> None:
    """Infinities, whose parts times those of a number are no number, and the largest number, which has no part in bf16
    when it is rounded, and no tf32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 24, 6, 5)).astype(np.float32)
    other = rng.standard_normal((9, 24, 3, 3) if op == "conv" else (1, 9, 6, 5)).astype(np.float32)
    x[0, 3, 2, 2], x[0, 5, 0, 4], x[0, 7, 5, 0] = np.inf, -np.inf, np.finfo(np.float32).max
    other.reshape(-1)[::11] = 0.25
    attrs: dict[str, Any] = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1}
    attrs |= {"activation": None} if op == "conv" else {"kernel": (3, 3)}
    graph = Graph(op)
    inputs = {name: graph.input(name, a.shape, "f32") for name, a in (("x", x), ("other", other))}
    graph.output("y", graph.add(op, list(inputs.values()), attrs)[0])
    with np.errstate(over="ignore"):
        want = evaluate(graph, {"x": x, "other": other}, upcast=True)[graph.outputs["y"].id].astype(np.float32)
    assert np.isinf(want).any() and np.isfinite(want).any()
    for wishes in ({"tile": "s", "stages": 1}, {"tile": "m", "warpgroups": True}):
        with forcing(algorithm="matrices", split_k=1, **wishes):
            got = lowered.run(op, x, other, limits=LIMITS, backend="cuda", precision=precision, **attrs)
        assert ((got == want) | (np.isnan(got) & np.isnan(want)) | np.isfinite(want)).all()
        apart = np.isfinite(want)
        assert np.isfinite(got[apart]).all()
        near = 1e-6 if precision == "f32" else 5e-4
        assert np.abs(got[apart] - want[apart]).max() <= near * np.abs(want[apart]).max()


@on_host
@pytest.mark.parametrize("wishes", [{"tile": "s", "stages": 1}, {"tile": "m", "warpgroups": True}])
def test_errors_of_sums_by_parts_have_no_sign(wishes: dict[str, Any]) -> None:
    """Matrix units cut sums off, so that a chain of them is too near zero, and a network's layers add that up."""
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((1, 64, 9, 9)), 0).astype(np.float32)
    w = (rng.standard_normal((64, 64, 3, 3)) / 17).astype(np.float32)
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "activation": None}
    graph = Graph("conv")
    inputs = {name: graph.input(name, a.shape, "f32") for name, a in (("x", x), ("w", w))}
    graph.output("y", graph.add("conv", list(inputs.values()), attrs)[0])
    want = evaluate(graph, {"x": x, "w": w}, upcast=True)[graph.outputs["y"].id]
    with forcing(algorithm="matrices", split_k=1, **wishes):
        got = lowered.run("conv", x, w, limits=LIMITS, backend="cuda", **attrs)
    assert abs(((got - want) * want).sum() / (want * want).sum()) <= 1.5e-8


@on_host
def test_numbers_rounded_to_tf32_in_units() -> None:
    """To nearest, halfway away from zero; what would become infinite is cut off; infinities and NaN stay."""
    value = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    largest = np.finfo(np.float32).max
    value[0] = [np.inf, -np.inf, np.nan, largest, -largest, 1 + 2**-11]
    value.view(np.uint32)[1, :2] = [0x7FFFFFFF, 0x7F800001]
    graph = Graph("fours")
    x = graph.input("x", value.shape, "f32")
    graph.output("y", rlx.broadcast_to(x[:1, :1], (3, 8)))
    planned = plan(graph, planner="bump")
    lowering = Lowering(graph, planned, lowered.target("cuda"), "tf32")
    units = in_units(lowering, lowering.ref(x), f32, (3, 1, 1, 6), (6, 0, 0, 1), rounded=True)
    lowering.copy(units, lowering.ref(graph.outputs["y"]))
    got = carried_out(graph, planned, lowering, [value], "cuda")["y"]
    with np.errstate(invalid="ignore"):
        whole = value.astype(np.float64)
    _, exponents = np.frexp(whole)
    step = np.ldexp(1.0, exponents - 11)
    want = np.sign(whole) * np.floor(np.abs(whole) / step + 0.5) * step
    want[0, :6] = [np.inf, -np.inf, np.nan, 2.0**128 - 2.0**117, 2.0**117 - 2.0**128, 1 + 2**-10]
    want[1, :2] = np.nan
    np.testing.assert_array_equal(got[:, :6], want)
    assert not got[:, 6:].any()


@pytest.mark.vulkan
@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize("turned, channels", [(False, 16), (True, 11)])
def test_parts_add_up_to_what_was_split(backend: str, turned: bool, channels: int) -> None:
    """Three parts, of every magnitude; an infinity, no number, and what would round to infinity too."""
    rng = np.random.default_rng(0)
    shape = (2, channels, 15)
    value = (rng.standard_normal(shape) * 10.0 ** rng.integers(-25, 30, shape)).astype(np.float32)
    largest = np.finfo(np.float32).max
    value.reshape(-1)[:6] = [np.inf, -np.inf, np.nan, largest, -largest, 0.0]
    deep = -(-channels // 8)
    graph = Graph("parts")
    x = graph.input("x", value.shape, "f32")
    # A slot as large as three parts in bf16.
    graph.output("y", rlx.cast(rlx.broadcast_to(x[:1, :1, :1], (3, 2, 15, 8 * deep)), "bf16"))
    planned = plan(graph, planner="bump")
    lowering = Lowering(graph, planned, lowered.target(backend), "f32")
    dims, strides = (2, 15, 1, channels), (15 * channels, 1, 0, 15)
    if not turned:
        value, strides = value.reshape(2, 15, channels), (15 * channels, channels, 0, 1)
    lowering.copy(in_parts(lowering, lowering.ref(x), 3, dims, strides), lowering.ref(graph.outputs["y"]))
    got = carried_out(graph, planned, lowering, [value.reshape(x.shape)], backend)["y"]
    parts = got.astype(np.float64).reshape(3, 2, 15, 8 * deep)
    whole = value.transpose(0, 2, 1) if turned else value
    assert np.array_equal(parts.sum(axis=0)[..., :channels], whole, equal_nan=True)
    assert not parts[..., channels:].any()


@on_host
def test_every_barrier_is_needed_and_missed() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((1, 32, 9, 9), (65, 32, 3, 3)))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "activation": None}

    def run() -> None:
        # The last of nine slices, or of four, lies where the sums are put.
        for wishes in ({"tile": "s", "stages": 1}, {"tile": "s", "stages": 4}, {"tile": "m", "warpgroups": True}):
            with forcing(algorithm="matrices", split_k=1, **wishes):
                lowered.run("conv", x, w, limits=LIMITS, backend="cuda", **attrs)

    every_barrier_is_missed("conv_mma.h", run)


@on_host
def test_every_barrier_of_the_gradient_is_needed_and_missed() -> None:
    rng = np.random.default_rng(0)
    x, d = (rng.standard_normal(s).astype(np.float16) for s in ((3, 9, 9, 10), (3, 65, 9, 10)))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "kernel": (3, 3)}

    def run() -> None:
        for stages in (1, 4):  # the last of nine slices lies where the sums are put
            with forcing(algorithm="matrices", tile="s", stages=stages, split_k=1):
                lowered.run("conv_grad_weight", x, d, limits=LIMITS, backend="cuda", **attrs)

    every_barrier_is_missed("conv_weight_mma.h", run)


@pytest.mark.vulkan
@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize("groups, channels", [(1, 3), (3, 8), (2, 11)])
def test_channels_filled_up_to_units(groups: int, channels: int, backend: str) -> None:
    """A picture's, and a filter's, whose taps become the slower axis."""
    graph = Graph("units")
    x = graph.input("x", (2, groups * channels, 5, 3), "f16")
    deep = -(-channels // 8)
    y = rlx.pad(x, [(0, 0), (0, groups * (8 * deep - channels)), (0, 0), (0, 0)])  # a slot of as many bytes
    graph.output("y", y)
    planned = plan(graph, planner="bump")
    value = np.random.default_rng(0).standard_normal(x.shape).astype(np.float16)
    apart = value.reshape(2, groups, channels, 15)
    for turned in (apart.transpose(0, 3, 1, 2), apart.transpose(0, 1, 3, 2)):
        dims = (2, turned.shape[1], turned.shape[2], channels)
        lowering = Lowering(graph, planned, lowered.target(backend), "f32")
        strides = tuple(s // 2 for s in turned.strides)
        lowering.copy(in_units(lowering, lowering.ref(x), f16, dims, strides), lowering.ref(y))
        got = carried_out(graph, planned, lowering, [value], backend)["y"].reshape(*dims[:3], 8 * deep)
        assert (got[..., :channels] == turned).all() and not got[..., channels:].any()


def program(build: Callable[[Graph], None], planner: str = "reuse") -> tuple[Graph, MemoryPlan, Lowering]:
    """A graph as it is lowered for a CUDA device with matrix instructions."""
    graph = Graph("images")
    build(graph)
    target = cuda_target(FEATURES, LIMITS, software=True)
    passed, _ = optimize(graph, support=lambda n: "native" if n.op.leaf or runs_natively(n, target) else "host")
    planned = plan(passed, planner=planner)
    return passed, planned, lower_graph(passed, planned, target, "f32", batches=False)[0]


def _block(graph: Graph) -> None:
    """A residual network's parts: a stem, a pool, blocks, a dropout of fixed places, and a mean over the pixels."""

    def weight(*shape: int) -> rlx.Tensor:
        return graph.input(f"w{len(graph.inputs)}", shape, "bf16")

    def conv(x: rlx.Tensor, channels: int, k: int, stride: int = 1) -> rlx.Tensor:
        return rlx.conv(x, weight(channels, x.shape[1], k, k), weight(channels), strides=stride, pads=k // 2)

    x = graph.input("x", (2, 3, 11, 10), "bf16")
    y = rlx.max_pool(rlx.relu(conv(x, 24, 3)), 3, strides=2, pads=1)
    y = rlx.relu(rlx.conv(y, weight(24, 1, 5, 5), weight(24), pads=2, groups=24))
    z = conv(rlx.relu(conv(rlx.relu(conv(y, 16, 1)), 16, 3, 2)), 40, 1)
    y = rlx.relu(z + conv(y, 40, 1, 2))
    y = y * rlx.sigmoid(conv(rlx.mean(y, axis=(2, 3), keepdims=True), 40, 1))
    z = rlx.concat([conv(rlx.relu(conv(y, 16, 3)), 16, 3), y], axis=1)
    graph.output("flat", rlx.sum(z, axis=1))
    graph.output("y", rlx.relu(conv(rlx.avg_pool(z, 2), 32, 1)))


def _feeds(graph: Graph) -> dict[str, Any]:
    """Normal numbers in bf16, weights so large that a convolution keeps the size of what it reads."""
    rng = np.random.default_rng(0)
    scales = {name: np.prod(t.shape[1:]) ** -0.5 for name, t in graph.inputs.items()}
    return {n: (rng.standard_normal(t.shape) * scales[n]).astype(BF16) for n, t in graph.inputs.items()}


def _last(graph: Graph, lowering: Lowering) -> set[str]:
    """The ops of which a result lies with its channels last."""
    return {t.node.op.name for node in graph.nodes for t in node.outputs if t.id in lowering.last}


@on_host
@pytest.mark.vulkan
@pytest.mark.parametrize("planner", ["reuse", "bump"])
@pytest.mark.sample(1)
def test_a_network_whose_images_lie_with_their_channels_last(planner: str) -> None:
    with forcing(algorithm="matrices", tile="s", stages=4):
        graph, planned, lowering = program(_block, planner)
    feeds = _feeds(graph)
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")
    values = evaluate(graph, feeds, upcast=True)
    for name, t in graph.outputs.items():
        close(got[name], values[t.id], nmse=2e-5, worst=2e-2)
    assert {"conv", "max_pool", "fused"} <= _last(graph, lowering)
    assert not lowering.last & {t.id for t in (*graph.inputs.values(), *graph.outputs.values())}
    between = [s.label for s in lowering.steps if "transpose" in kernel_name(s)]
    assert not any("pool" in label or "mean" in label for label in between), between


def _sums(graph: Graph) -> None:
    """Sums of convolutions with what was rectified, with what they read, and with what another sum reads too."""
    x = graph.input("x", (1, 16, 6, 6), "bf16")
    weights = [graph.input(f"w{i}", (16, 16, 3, 3), "bf16") for i in range(6)]

    def conv(x: rlx.Tensor, i: int) -> rlx.Tensor:
        return rlx.conv(x, weights[i], pads=1)

    first = conv(rlx.relu(conv(x, 0)), 1)
    y = rlx.relu(first + rlx.relu(conv(rlx.silu(conv(x, 2)), 3)))
    z = y + conv(y, 4)
    graph.output("y", conv(z, 5) + first)


@on_host
@pytest.mark.vulkan
def test_a_sum_is_part_of_the_convolution_before_it() -> None:
    with forcing(algorithm="matrices", tile="s", stages=4, split_k=1):
        graph, planned, lowering = program(_sums)
    feeds = _feeds(graph)
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")
    close(got["y"], evaluate(graph, feeds, upcast=True)[graph.outputs["y"].id], nmse=2e-5, worst=2e-2)
    # The second sum is written where its convolution reads; the first convolution is read twice.
    assert list(lowering.within.values()) == ["add+relu"]


def _sums_of_products(graph: Graph) -> None:
    """Sums of products with what they read, with a product, and one whose bias is computed and overwritten by then."""
    x = graph.input("x", (1, 24, 6, 7), "f32")
    weights = [graph.input(f"w{i}", (24, 24, 1, 1), "f32") for i in range(4)]
    biases = [graph.input(f"b{i}", (24,), "f32") for i in range(6)]
    y = rlx.relu(rlx.conv(x, weights[0], biases[0]) + x)
    z = rlx.conv(y, weights[1], biases[1]) + rlx.conv(y, weights[2], biases[2])
    early = rlx.conv(z, weights[3], rlx.exp(biases[3]))
    z = early + rlx.conv(z, weights[2], rlx.exp(biases[4]))
    graph.output("y", rlx.relu(z + rlx.conv(z, weights[3], biases[5])))


@on_host
@pytest.mark.parametrize("planner", ["reuse", "bump"])
def test_a_sum_is_part_of_the_launch_that_adds_the_bias_of_a_product(planner: str) -> None:
    with forcing(algorithm="library"):
        graph, planned, lowering = program(_sums_of_products, planner)
    feeds = {n: a.astype(np.float32) for n, a in _feeds(graph).items()}
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")["y"]
    close(got, evaluate(graph, feeds, upcast=True)[graph.outputs["y"].id], nmse=1e-12, worst=1e-5)
    # Each of six products has a bias; without the exponentials of two, the launches are those that add these.
    assert [kernel_name(s) for s in lowering.steps].count("tree") == 2 + 6


def _gradients(graph: Graph) -> None:
    """Weights' gradients through convolutions, norms over a batch's pixels, sums, and what joins and cuts channels."""
    x, first = graph.input("x", (2, 8, 6, 6), "bf16"), graph.input("v", (16, 8, 3, 3), "bf16")
    weights = [first, *(graph.input(f"w{i}", (16, 16, k, k), "bf16") for i, k in enumerate((3, 1, 3)))]

    def normed(y: rlx.Tensor) -> rlx.Tensor:
        y = y - rlx.mean(y, axis=(0, 2, 3), keepdims=True)
        return rlx.relu(y * rlx.rsqrt(rlx.mean(y * y, axis=(0, 2, 3), keepdims=True) + 1e-3))

    y = normed(rlx.conv(x, weights[0], pads=1))
    y = rlx.max_pool(rlx.relu(normed(rlx.conv(y, weights[1], pads=1)) + rlx.conv(y, weights[2])), 2)
    z = rlx.concat([y[:, 3:11], rlx.relu(rlx.conv(y, weights[3], pads=1))[:, 8:]], axis=1)
    loss = rlx.mean(rlx.cast(z * z, "f32"))
    for i, slope in enumerate(rlx.gradients(loss, weights)):
        graph.output(f"d{i}", slope)


@on_host
@pytest.mark.vulkan
def test_gradients_whose_images_lie_with_their_channels_last() -> None:
    """Within what rounding every result to bf16 leaves of float64."""
    with forcing(algorithm="matrices", tile="s", stages=4, split_k=1):
        graph, planned, lowering = program(_gradients)
    feeds = _feeds(graph)
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")
    values = evaluate(graph, feeds, upcast=True)
    for name, t in graph.outputs.items():
        close(got[name], values[t.id], nmse=3e-4, worst=0.1)
    assert {"conv", "concat", "conv_grad_input"} <= _last(graph, lowering)


def _lying_last(op: str, backend: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    """An op whose first input, an image, and result lie with their channels last, beside the reference."""
    graph = Graph("image")
    ins = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(inputs)]
    y = graph.add(op, ins, attrs)[0]
    graph.output("y", y)
    planned = plan(graph, planner="bump")
    lowering = Lowering(graph, planned, lowered.target(backend, LIMITS), "f32")
    lowering.last = frozenset({ins[0].id, y.id})
    lowering.lower(y.node)
    assert not any("transpose" in kernel_name(s) for s in lowering.steps)
    feeds = [np.moveaxis(inputs[0], 1, -1), *inputs[1:]]
    got = carried_out(graph, planned, lowering, feeds, backend)["y"].reshape(y.shape[0], *y.shape[2:], y.shape[1])
    want = evaluate(graph, {f"x{i}": a for i, a in enumerate(inputs)}, upcast=True)[y.id]
    close(np.moveaxis(got, -1, 1), want, **ROUNDED[inputs[0].dtype.type])


@pytest.mark.vulkan
@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize("op, counted", [("max_pool", False), ("avg_pool", False), ("avg_pool", True)])
def test_pools_with_channels_last(op: str, counted: bool, backend: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 16, 7, 6)).astype(np.float16)
    x[0, 3, 2, 2], x[1, 5] = np.inf, -np.inf
    attrs = {"kernel": (3, 2), "strides": (2, 1), "pads": ((1, 1), (0, 1)), "dilations": (1, 2), "ceil_mode": False}
    if op == "avg_pool":
        x = np.where(np.isfinite(x), x, np.float16(0))
        attrs = {**attrs, "count_include_pad": counted}
    _lying_last(op, backend, [x], attrs)


@pytest.mark.vulkan
@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize(
    "sizes, kernel, strides, dilations, pads, bias",
    [
        ((9, 7), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), np.float32),
        ((8, 11), (5, 2), (2, 3), (1, 2), ((0, 3), (2, 0)), BF16),
        ((13,), (4,), (1,), (1,), ((0, 0),), None),
        ((5, 10), (2, 7), (1, 1), (1, 1), ((1, 0), (3, 3)), BF16),
        ((9,), (9,), (1,), (1,), ((4, 4),), None),
        ((3, 4, 5), (2, 2, 3), (1, 2, 1), (1, 1, 1), ((1, 0), (1, 1), (1, 1)), None),
    ],
)
@pytest.mark.sample(3, vulkan=1)
def test_channels_convolved_by_themselves(
    sizes: Any, kernel: Any, strides: Any, dilations: Any, pads: Any, bias: Any, backend: str
) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(BF16) for s in ((2, 24, *sizes), (24, 1, *kernel)))
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "groups": 24, "activation": "silu"}
    biases = [] if bias is None else [rng.standard_normal(24).astype(bias)]
    with forcing(algorithm="depthwise"):
        _lying_last("conv", backend, [x, w, *biases], attrs)


def test_what_depends_on_the_place_of_an_element_keeps_the_order_of_shapes() -> None:
    def build(graph: Graph) -> None:
        x, w = graph.input("x", (1, 16, 6, 6), "bf16"), graph.input("w", (16, 16, 3, 3), "bf16")
        y = rlx.conv(x, w, pads=1)
        y = rlx.where(rlx.random.bernoulli(rlx.random.key(1), 0.5, y.shape), y, 0.0)
        graph.output("y", rlx.conv(rlx.conv(y, w, pads=1), w))

    with forcing(algorithm="matrices"):
        graph, _, lowering = program(build)
    drawn = {t.id for n in graph.nodes if n.op.name == "fused" for t in n.outputs}
    assert lowering.last and not lowering.last & drawn


def _chosen(backend: str, problem: Problem) -> str:
    limits = Limits(shared_bytes=48 << 10, dynamic_shared_bytes=227 << 10)
    target = cuda_target(FEATURES, limits) if backend == "cuda" else vulkan_target(FEATURES, limits, False)
    return choose(target, problem, {}).algorithm


@pytest.mark.parametrize("backend", ["cuda", "vulkan"])
def test_where_they_are_taken(backend: str) -> None:
    pixels = 32 * 56 * 56
    assert _chosen(backend, Problem(64, pixels, 576, 1, 64 * pixels, bf16, False, bf16, 72)) == "matrices"
    assert _chosen(backend, Problem(64, pixels, 576, 1, 64 * pixels, f32)) == "tiles"
    assert _chosen(backend, Problem(1, pixels, 9, 64, 64 * pixels, bf16, False, bf16, 9, 128 * pixels)) == "direct"
    pointwise = Problem(64, pixels, 64, 1, 64 * pixels, bf16, True, bf16, 8)
    assert _chosen(backend, pointwise) == "matrices"  # nothing has to be transposed
    apart = Problem(64, pixels, 64, 1, 64 * pixels, bf16, True, bf16, 8, 128 * pixels)
    assert _chosen(backend, apart) == ("library" if backend == "cuda" else "matrices")


def test_a_device_without_matrices_has_no_images_with_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.test_conv_matrices.FEATURES", FEATURES - {"coopmat", "bf16_coopmat"})
    _, _, lowering = program(_block)
    assert not lowering.last
    assert all("conv_mma" not in kernel_name(s) for s in lowering.steps)


def _norms(graph: Graph) -> None:
    """Norms over the channels of images that lie with them last, by way of transpositions, as ConvNeXt has them."""
    x = graph.input("x", (2, 16, 6, 5), "bf16")
    weights = [graph.input(f"w{i}", (16, 16, 3, 3), "bf16") for i in range(3)]
    scale, shift = graph.input("s", (16,), "bf16"), graph.input("t", (16,), "bf16")
    y = rlx.conv(x, weights[0], pads=1)
    for w in weights[1:]:
        normed = rlx.layer_norm(rlx.conv(y, w, pads=1).transpose(0, 2, 3, 1), scale, shift)
        y = y + (normed * scale).transpose(0, 3, 1, 2)
    graph.output("y", rlx.conv(y, weights[0], pads=1))
    graph.output("z", y.transpose(0, 2, 3, 1))


@on_host
@pytest.mark.vulkan
@pytest.mark.parametrize("planner", ["reuse", "bump"])
def test_a_transposition_that_moves_no_byte_is_no_step(planner: str) -> None:
    """What it turns is made where the result lies; but not where something else reads it too."""
    with forcing(algorithm="matrices", tile="s", stages=4, split_k=1):
        graph, planned, lowering = program(_norms, planner)
    feeds = _feeds(graph)
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")
    values = evaluate(graph, feeds, upcast=True)
    for name, t in graph.outputs.items():
        close(got[name], values[t.id], nmse=1e-4, worst=5e-2)
    between = [kernel_name(s) for s in lowering.steps if "transpose" in s.label]
    assert len(between) == 1, between


def _updated(graph: Graph) -> None:
    """An image with its channels last, some rows of which are set before it is turned."""
    x = graph.input("x", (2, 16, 6, 5), "bf16")
    weights = [graph.input(f"w{i}", (16, 16, 3, 3), "bf16") for i in range(3)]
    one, other = (rlx.conv(x, w, pads=1).transpose(0, 2, 3, 1) for w in weights[:2])
    both = rlx.tanh(one).at[:, 2:4].set(rlx.exp(other)[:, 1:3])
    graph.output("y", rlx.conv(both.transpose(0, 3, 1, 2), weights[2], pads=1))


@on_host
@pytest.mark.vulkan
@pytest.mark.parametrize("planner", ["reuse", "bump"])
def test_what_is_made_by_more_than_one_write_is_moved_whole(planner: str) -> None:
    """An update writes a part of what it gives: the rest is a copy, or lies there already."""
    with forcing(algorithm="matrices", tile="s", stages=4, split_k=1):
        graph, planned, lowering = program(_updated, planner)
    feeds = _feeds(graph)
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")
    close(got["y"], evaluate(graph, feeds, upcast=True)[graph.outputs["y"].id], nmse=1e-4, worst=5e-2)


def _statistics(graph: Graph) -> None:
    """Gradients through norms over a batch's pixels, written with mean, var and batch_norm."""
    x, scale = graph.input("x", (2, 8, 6, 6), "bf16"), graph.input("s", (16,), "bf16")
    weights = [graph.input("v", (16, 8, 3, 3), "bf16"), graph.input("w", (16, 16, 3, 3), "bf16")]
    y = x
    for w in weights:
        y = rlx.conv(y, w, pads=1)
        mean, var = rlx.mean(y, axis=(0, 2, 3)), rlx.var(y, axis=(0, 2, 3))
        y = rlx.relu(rlx.batch_norm(y, scale, scale, mean, var))
    loss = rlx.mean(rlx.cast(y * y, "f32"))
    for i, slope in enumerate(rlx.gradients(loss, [*weights, scale])):
        graph.output(f"d{i}", slope)


@on_host
@pytest.mark.vulkan
@pytest.mark.parametrize("planner", ["reuse", "bump"])
def test_statistics_read_halves_as_they_are(planner: str) -> None:
    """No image is widened for a sum: the sum, and all that is elementwise, reads the halves. The gradient before a norm
    is a difference of near numbers, of which bf16 leaves few digits."""
    with forcing(algorithm="matrices", tile="s", stages=4, split_k=1):
        graph, planned, lowering = program(_statistics, planner)
    feeds = _feeds(graph)
    got = carried_out(graph, planned, lowering, [feeds[n] for n in graph.inputs], "cuda")
    values = evaluate(graph, feeds, upcast=True)
    for name, t in graph.outputs.items():
        close(got[name], values[t.id], nmse=5e-3, worst=0.2)
    image = 2 * 16 * 36 * 4
    casts = [s for s in lowering.steps if s.label.startswith("cast") and any(r.nbytes == image for r in s.writes)]
    assert not casts
    # The mean in bf16 is that of the variance, rounded.
    assert sum(node.op.name == "mean" and node.output.size == 16 for node in graph.nodes) == 4
