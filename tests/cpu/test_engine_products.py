"""Products and convolutions of the compiled engine: what they compute, for each length of vectors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.compile import addresses
from rlx.backends.cpu.context import ArrayMemory
from rlx.backends.cpu.device import CpuBackend
from rlx.backends.cpu.gemm.product import choose_tile
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.packed.decode import FORMATS
from rlx.backends.cpu.step import EngineContext, EngineStep, binders_of, load_binders
from rlx.backends.cpu.weights import PackedWeights
from rlx.conformance.oracle import evaluate
from rlx.dtypes import PACKED, as_dtype
from rlx.ir import Node
from rlx.packed import PackedArray
from tests.cpu.processors import machines, on_machines, on_multipliers

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_RNG = np.random.default_rng(0)
_WIDE = ["q4_0", "q4_k", "q8_0", "mxfp4", "bf16", "f16"]
_SHAPES = [(1, 4352, 37), (3, 96, 5), (17, 1056, 50), (45, 544, 70)]
_KEPT = frozenset({"q4_0", "q4_k", "q6_k", "int4_zp", "q8_0", "nf4_64"})  # of the packed formats


def bound(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], machine: Machine, fixed: bool
) -> list[EngineStep]:
    device = CpuBackend().open(0)
    weights = PackedWeights([device.foreign(x.ctypes.data, x.nbytes, x) for x in ins], device.acquire)
    ctx = EngineContext(machine, 1, ArrayMemory(), lambda t: fixed, weights)
    load_binders()
    (binder, *_) = binders_of(node.op)
    steps = binder(node, ins, outs, ctx)
    assert steps is not None
    return [*(step for packed in weights.made for step in packed.steps), *steps]


def run(steps: Sequence[EngineStep], machine: Machine, pieces: int = 1) -> None:
    """Packs weights, then runs the steps, each in some pieces, of which the last comes first."""
    for prepare in (s.prepare for s in steps if s.prepare is not None):
        prepare()
    for step, place in zip(steps, addresses([s.spec for s in steps], machine), strict=True):
        words = np.array([w if w < 1 << 63 else w - (1 << 64) for w in step.words], np.int64)
        cuts = [step.items * i // pieces for i in range(pieces + 1)]
        for first, last in reversed(list(pairwise(cuts))):
            _CALL(place)(words.ctypes.data, first, last)


def floats(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def close(got: Array, wanted: Array) -> bool:
    return bool(((got - wanted) ** 2).sum() <= 1e-11 * (wanted**2).sum())


@on_machines
@pytest.mark.parametrize("fixed", [True, False], ids=["weights", "computed"])
@pytest.mark.parametrize(
    ("a", "b", "transposes"),
    [
        ((29, 37), (37, 75), (False, False)),
        ((37, 29), (75, 37), (True, True)),
        ((5, 37), (75, 37), (False, True)),
        ((2, 3, 13, 40), (3, 40, 21), (False, False)),
        ((2, 9, 4701), (4701, 80), (False, False)),  # in two parts, of which one is shorter
    ],
    ids=["plain", "transposed", "few rows", "batch", "long sums"],
)
@pytest.mark.sample(4)
def test_a_product_is_right_and_does_not_depend_on_its_pieces(
    a: tuple[int, ...], b: tuple[int, ...], transposes: tuple[bool, bool], fixed: bool, machine: Machine
) -> None:
    graph = rlx.Graph("product")
    x, w = graph.input("x", a), graph.input("w", b)
    n = b[-2 if transposes[1] else -1]
    bias = graph.input("bias", (n,))
    y = rlx.matmul(x, w, bias, transpose_a=transposes[0], transpose_b=transposes[1], activation="gelu")
    graph.output("y", y)
    given = {"x": floats(*a), "w": floats(*b), "bias": floats(n)}
    made = [np.full(y.shape, np.nan, np.float32) for _ in range(2)]
    for out, pieces in zip(made, (1, 3), strict=True):
        run(bound(y.node, list(given.values()), [out], machine, fixed), machine, pieces)
    assert close(made[0], evaluate(graph, given)[y.id])
    assert made[0].tobytes() == made[1].tobytes()


@on_machines
@pytest.mark.parametrize(("k", "m", "n"), [(256, 32, 32), (300, 45, 75), (1000, 64, 33)])
@pytest.mark.sample(2)
def test_a_long_sum_of_a_transposed_matrix_is_added_up_in_parts(k: int, m: int, n: int, machine: Machine) -> None:
    graph = rlx.Graph("gradient of a weight")
    y = rlx.matmul(graph.input("x", (k, m)), graph.input("d", (k, n)), transpose_a=True)
    graph.output("y", y)
    given = {"x": floats(k, m), "d": floats(k, n)}
    made = [np.full(y.shape, np.nan, np.float32) for _ in range(2)]
    for out, pieces in zip(made, (1, 3), strict=True):
        steps = bound(y.node, list(given.values()), [out], machine, fixed=False)
        assert sum(s.name == "matmul" for s in steps) == -(-k // 128)
        run(steps, machine, pieces)
    assert close(made[0], evaluate(graph, given, upcast=True)[y.id])
    np.testing.assert_array_equal(*made)


def network(graph: rlx.Graph) -> dict[str, Array]:
    """Convolutions of all kinds, a residual, pools and what stands between them, of an image of three channels."""
    values: dict[str, Array] = {"x": floats(2, 3, 21, 19)}

    def weight(*shape: int) -> rlx.Tensor:
        name = f"w{len(values)}"
        values[name] = floats(*shape) / np.sqrt(np.prod(shape[1:])).astype(np.float32)
        return graph.param(name, shape)

    x = graph.input("x", (2, 3, 21, 19))
    y = rlx.conv(x, weight(24, 3, 3, 3), weight(24), strides=2, pads=1, activation="relu")
    z = rlx.conv(y, weight(24, 1, 3, 3), pads=1, groups=24) * 0.5
    z = rlx.conv(z, weight(24, 24, 1, 1), weight(24))
    y = rlx.relu(z + y)
    y = rlx.conv(rlx.max_pool(y, 3, strides=2, pads=1), weight(40, 12, 3, 3), groups=2, dilations=2, pads=2)
    y = y * rlx.sigmoid(rlx.mean(y, axis=(2, 3), keepdims=True))
    graph.output("image", rlx.avg_pool(y, 2, pads=1))
    graph.output("flat", rlx.reshape(y, (2, -1)))
    return values


def test_images_lie_with_their_channels_last_between_convolutions() -> None:
    graph = rlx.Graph("network")
    values = network(graph)
    found = evaluate(graph, values)
    wanted = {name: found[t.id] for name, t in graph.outputs.items()}
    bits = set()
    for threads in (1, 2, 4):
        program = rlx.Session("cpu", threads=threads, engine="compiled").compile(graph)
        program.set_params({k: v for k, v in values.items() if k != "x"})
        got = program.run({"x": values["x"]})
        assert all(close(got[name], wanted[name]) for name in wanted)
        bits.add(b"".join(got[name].tobytes() for name in wanted))
    assert len(bits) == 1
    report = {d.op: d for d in program.report().nodes if d.by == "engine"}
    assert {"conv", "max_pool"} <= report.keys()
    assert any(d.within for d in program.report().nodes)  # the residual, in the product before it


@pytest.mark.parametrize("groups", [20, 4, 1])
def test_group_norm_of_images_whose_channels_lie_last(groups: int) -> None:
    graph = rlx.Graph("norms")
    values = {"x": floats(2, 20, 9, 8) * 3 + 50, "g": floats(20), "b": floats(20), "one": np.eye(20, dtype=np.float32)}
    g, b, one = graph.input("g", (20,)), graph.input("b", (20,)), graph.input("one", (20, 20))
    last = rlx.conv(graph.input("x", (2, 20, 9, 8)), one[:, :, None, None])
    graph.output("y", rlx.conv(rlx.group_norm(last, groups, g, b), one[:, :, None, None]))
    got = rlx.Session("cpu", engine="compiled").compile(graph)
    x = values["x"].astype(np.float64).reshape(2, groups, -1)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    wanted = x.reshape(2, 20, 9, 8) * values["g"][:, None, None] + values["b"][:, None, None]
    assert close(got.run(values)["y"], wanted)
    assert {d.op for d in got.report().nodes if d.by == "numpy"} <= {"reshape"}


def test_a_product_between_convolutions_keeps_the_order_of_its_shape() -> None:
    graph = rlx.Graph("mixed")
    values = {"x": floats(2, 8, 6, 7), "m": floats(7, 7), "w": floats(16, 8, 3, 3)}
    x, m, w = graph.input("x", (2, 8, 6, 7)), graph.param("m", (7, 7)), graph.param("w", (16, 8, 3, 3))
    y = rlx.conv(rlx.matmul(x, m), w, pads=1)
    graph.output("y", rlx.matmul(y, m))
    row = rlx.conv(rlx.matmul(x[:1, :, 0], m), w[:, :, 0], pads=1)  # one matrix, which is an image of one axis
    graph.output("row", row)
    found = evaluate(graph, values)
    program = rlx.Session("cpu", engine="compiled").compile(graph)
    program.set_params({"m": values["m"], "w": values["w"]})
    got = program.run({"x": values["x"]})
    assert all(close(got[name], found[t.id]) for name, t in graph.outputs.items())


def test_weights_are_packed_again_when_they_change() -> None:
    graph = rlx.Graph("linear")
    x, w = graph.input("x", (33, 40)), graph.param("w", (40, 50))
    graph.output("y", rlx.matmul(x, w))
    program = rlx.Session("cpu", engine="compiled").compile(graph)
    given = floats(33, 40)
    for _ in range(2):
        weight = floats(40, 50)
        program.set_params({"w": weight})
        assert close(program.run({"x": given})["y"], given.astype(np.float64) @ weight)


def test_weights_that_are_the_state_of_another_program_are_packed_again() -> None:
    training, graph = rlx.Graph("training"), rlx.Graph("linear")
    w = training.state("w", (40, 50))
    training.update("w", changed := w - training.input("step", (40, 50)))
    training.output("changed", changed)
    graph.output("y", rlx.matmul(graph.input("x", (33, 40)), graph.param("w", (40, 50))))
    session = rlx.Session("cpu", engine="compiled")
    state = rlx.State(session.device)
    trained, program = session.compile(training, state=state).bind(), session.compile(graph, weights=state).bind()
    program.inputs["x"] = given = floats(33, 40)

    def right() -> bool:
        program.run()
        return close(program.outputs["y"], given.astype(np.float64) @ state.get("w"))

    state.set("w", floats(40, 50))
    assert right()
    trained.inputs["step"] = floats(40, 50)
    trained.run()
    assert right()
    trained.outputs["changed"][...] = floats(40, 50)  # which may lie where the state does
    assert right()
    trained.outputs["changed"][...] = floats(40, 50)
    assert right()


@pytest.mark.parametrize("fixed", [True, False], ids=["weight", "computed"])
def test_a_matrix_that_several_products_share_is_packed_once(fixed: bool) -> None:
    graph = rlx.Graph("shared")
    shapes = {"x": (3, 2, 2, 40), "w": (2, 50, 40)}
    y = rlx.matmul(*(graph.input(name, shape) for name, shape in shapes.items()), transpose_b=True)
    given = {name: floats(*shape) for name, shape in shapes.items()}
    out = np.full(y.shape, np.nan, np.float32)
    (machine, *_) = machines()
    steps = bound(y.node, list(given.values()), [out], machine, fixed)
    assert sum(s.name == "pack" for s in steps) == 2  # one a matrix
    run(steps, machine)
    assert close(out, evaluate(graph, given)[y.id])


def packed_rows(name: str, n: int, k: int) -> PackedArray:
    """Random blocks whose scales are numbers."""
    dtype = PACKED[name]
    raw = _RNG.integers(0, 256, (n, k // dtype.storage.elements * dtype.storage.nbytes), np.uint8)
    at = 0
    for p in dtype.storage.planes:
        end = at + k // dtype.storage.elements * p.nbytes
        if p.name in ("d", "dm", "s", "e"):
            kind = np.float32 if p.name == "s" else np.float16 if p.name != "e" else np.uint8
            count = (end - at) // np.dtype(kind).itemsize
            whole = _RNG.uniform(0.01, 1, (n, count)) if p.name != "e" else _RNG.integers(100, 140, (n, count))
            if p.name == "e":
                whole[0, :3] = range(3)  # halves of powers of two that are no normal numbers
            raw[:, at:end] = whole.astype(kind).view(np.uint8)
        at = end
    return PackedArray(dtype, (n, k), raw)


@on_machines
@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.full(name=FORMATS.keys() - _KEPT)
def test_packed_weights_are_decoded_exactly(name: str, machine: Machine) -> None:
    n, k = 19, 4608  # more than is prepared at a time
    packed, places = packed_rows(name, n, k), _RNG.permutation(k)[:8]
    x = np.zeros((8, k), np.float32)
    x[np.arange(8), places] = 1
    graph = rlx.Graph("packed")
    q = graph.input("q", (n, k), packed.dtype)
    y, whole = rlx.packed_matmul(graph.input("x", (8, k)), q), rlx.dequantize(q)
    out = np.full((8, n), np.nan, np.float32)
    run(bound(y.node, [x, packed.data], [out], machine, True), machine)
    assert np.array_equal(out.T, packed.dequantize()[:, places])  # each is one product and zeros
    made = np.full((n, k), np.nan, np.float32)
    run(bound(whole.node, [packed.data], [made], machine, True), machine, 2)
    assert np.array_equal(made, packed.dequantize())


def by_rounded_rows(x: Array, w: Array, name: str, machine: Machine) -> tuple[Array, Array]:
    """The product at the precision "int8", and what it should be."""
    graph, packed = rlx.Graph("int8"), rlx.quantize(w, name)
    y = rlx.packed_matmul(graph.input("x", x.shape), graph.input("w", w.shape, PACKED[name]), precision="int8")
    graph.output("y", y)
    out = np.zeros(y.shape, np.float32)
    run(bound(y.node, [x, packed.data], [out], machine, True), machine, pieces=2)
    return out, evaluate(graph, {"x": x, "w": packed})[y.id]


@on_multipliers
@pytest.mark.parametrize("m", [1, 6])
@pytest.mark.parametrize("name", ["q4_1", "q2_k", "q8_0"])
@pytest.mark.sample(4)
def test_rounded_rows_of_huge_numbers(name: str, m: int, machine: Machine) -> None:
    """The sum of a block alone would be beyond f32; where the weight is 0, so is the minimum that it is times."""
    w = floats(9, 512) * np.float32(1e-4)
    w[3:5] = 0
    out, wanted = by_rounded_rows(np.full((m, 512), 3e37, np.float32), w, name, machine)
    terms = 2 * 512 * 3e37 * float(np.abs(w).max())  # the weight's numbers and its minimums, which cancel
    assert np.abs(out - wanted).max() <= 1e-6 * terms


@on_multipliers
@pytest.mark.parametrize("m", [1, 5, 40])
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "q6_k", "int4"])
@pytest.mark.sample(4)
def test_products_of_rows_rounded_to_bytes(name: str, m: int, machine: Machine) -> None:
    """A block with an infinity makes its row NaN, a block of tiny numbers is zeros. Other rows change no bit, of x and
    of the weight."""
    x, w = floats(m, 512), floats(67, 512)
    x[0, :32], x[-1, 40] = 1e-35, np.inf if m > 1 else 0.5

    def product(x: Array, rows: int) -> tuple[Array, Array]:
        return by_rounded_rows(x, w[:rows], name, machine)

    out, wanted = product(x, 67)
    assert np.isnan(out[m - 1 :]).all() == (m > 1)
    finite = slice(0, max(1, m - 1))
    assert close(out[finite], wanted[finite])
    others = np.concatenate([x[:1], floats(m - 1, 512)])
    assert product(others, 67)[0][0].tobytes() == out[0].tobytes()
    assert product(x, 21)[0][0].tobytes() == out[0, :21].tobytes()


@on_machines
@pytest.mark.parametrize("name", _WIDE)
@pytest.mark.parametrize(("m", "k", "n"), _SHAPES)
@pytest.mark.full(name=set(_WIDE) - {"q4_k", "bf16"})
@pytest.mark.full(m={m for m, _, _ in _SHAPES} - {1, 17})
def test_products_with_rows_that_are_decoded(name: str, m: int, k: int, n: int, machine: Machine) -> None:
    x, dtype = floats(m, k), as_dtype(name)
    graph = rlx.Graph("decoded")
    if dtype.is_packed:
        k = -(-k // dtype.storage.elements) * dtype.storage.elements
        x, packed = floats(m, k), packed_rows(name, n, k)
        raw, values = packed.data, packed.dequantize()
        y = rlx.packed_matmul(graph.input("x", (m, k)), graph.input("w", (n, k), dtype))
    else:
        x, raw = x[:, : k - 3], floats(n, k - 3).astype(dtype.np)  # terms that fill no vector
        x, values = np.ascontiguousarray(x), raw.astype(np.float32)
        y = rlx.matmul(graph.input("x", x.shape), graph.input("w", raw.shape, dtype), transpose_b=True)
    out = np.full((m, n), np.nan, np.float32)
    steps = bound(y.node, [x, raw], [out], machine, True)
    assert not any(s.prepare for s in steps)  # no copy of the weight is kept
    run(steps, machine, 3)
    wanted = x.astype(np.float64) @ values.astype(np.float64).T
    assert ((out - wanted) ** 2).sum() <= 2e-12 * (wanted**2).sum()


@on_machines
@pytest.mark.parametrize("name", ["q8_0", "bf16", "f32"])
@pytest.mark.sample(1)
def test_a_row_longer_than_a_cache(name: str, machine: Machine) -> None:
    """Several rows of the weight are read at once; what a row gives does not depend on those beside it."""
    k, n, dtype = 5120, 37, as_dtype(name)
    x = floats(1, k)
    if dtype.is_packed:
        packed = packed_rows(name, n, k)
        raw, values = packed.data, packed.dequantize()
    else:
        x, raw = np.ascontiguousarray(x[:, : k - 3]), floats(n, k - 3).astype(dtype.np)
        values = raw.astype(np.float32)
    made = []
    for rows in (n, 3):
        graph = rlx.Graph("long")
        given = graph.input("x", x.shape)
        if dtype.is_packed:
            y = rlx.packed_matmul(given, graph.input("w", (rows, k), dtype))
        else:
            y = rlx.matmul(given, graph.input("w", (rows, k - 3), dtype), transpose_b=True)
        out = np.full((1, rows), np.nan, np.float32)
        run(bound(y.node, [x, np.ascontiguousarray(raw[:rows])], [out], machine, True), machine, 2)
        made.append(out)
    wanted = x.astype(np.float64) @ values.astype(np.float64).T
    assert ((made[0] - wanted) ** 2).sum() <= 2e-12 * (wanted**2).sum()
    assert np.array_equal(made[0][:, :3], made[1])


@on_machines
@pytest.mark.parametrize("m", [1, 17])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "bf16"])
@pytest.mark.full(name=("q4_0", "bf16"))
@pytest.mark.sample(6)
def test_rows_of_a_weight_do_not_depend_on_those_beside_them(name: str, m: int, machine: Machine) -> None:
    """Also where some of these have special values; `rows_of_weights` compares all dtypes."""
    from tests.cpu.rows_of_weights import differing  # which imports this module

    assert differing(machine, name, m, 768, False, (1, 15, 17))[1] == 0
    assert differing(machine, name, m, 768, True, (1, 2, 16, 31))[1] == 0


@pytest.mark.parametrize("name", ["q1_0", "iq2_xxs", "nvfp4", "tq1_0"])
@pytest.mark.parametrize("m", [1, 17])
def test_rows_of_a_weight_that_numpy_decodes_do_not_either(name: str, m: int) -> None:
    """Of dtypes for which the engine has no decoder."""
    q, x = packed_rows(name, 37, 512), floats(m, 512)

    def product(first: int, count: int) -> Array:
        part = rlx.PackedArray(name, (count, 512), np.ascontiguousarray(q.data[first : first + count]))
        graph = rlx.Graph("rows")
        graph.output("y", rlx.packed_matmul(graph.input("x", x.shape), graph.constant(part)))
        with rlx.Session(device="cpu").compile(graph) as program:
            return program.run({"x": x})["y"]

    whole = product(0, 37)
    wanted = x.astype(np.float64) @ q.dequantize().astype(np.float64).T
    np.testing.assert_allclose(whole, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    for first, count in ((3, 1), (35, 2), (13, 15), (21, 16), (7, 17), (5, 31)):
        assert np.array_equal(product(first, count), whole[:, first : first + count]), (first, count)


@on_machines
@pytest.mark.parametrize("name", ["q4_k", "bf16"])
def test_rows_of_x_do_not_depend_on_what_stands_in_others(name: str, machine: Machine) -> None:
    """How many there are may decide the order of a sum, their values may not."""
    from tests.cpu.rows_of_weights import given, product, weight

    raw, special = weight(name, 768, False), given(33, 768, True)
    plain = np.where(np.isfinite(special) & (np.abs(special) > 1e-30), special, 1).astype(np.float32)
    got, wanted = (product(x, raw, as_dtype(name), machine) for x in (special, plain))
    alike = (special == plain).all(axis=1)
    assert 30 <= alike.sum() < 33 and np.array_equal(got[alike], wanted[alike])


@on_machines
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "q5_k", "q6_k"])
@pytest.mark.full(name=("q4_0", "q5_k"))
def test_one_row_of_any_size(name: str, machine: Machine) -> None:
    plain, w = floats(1, 1024), packed_rows(name, 20, 1024)  # of like sizes, as the digits of the matrix unit want them
    x = plain.copy()
    x[0, :128] *= 1e-30
    x[0, 128:256] *= 1e30
    x[0, 256:512] = 0
    x[0, 512:640] *= np.float32(1e-38)
    x[0, 700] = 1e6
    graph = rlx.Graph("sizes")
    y = rlx.packed_matmul(graph.input("x", x.shape), graph.input("w", w.shape, w.dtype))
    holes = [np.where(x == 1e6, hole, x) for hole in (np.nan, np.inf)]
    for special in (plain, x, x * np.float32(1e-20), 0 * x, *holes):
        given, out = special.astype(np.float32), np.zeros((1, 20), np.float32)
        run(bound(y.node, [given, w.data], [out], machine, True), machine, 2)
        with np.errstate(invalid="ignore"):
            wanted = given.astype(np.float64) @ w.dequantize().T.astype(np.float64)
        if np.isfinite(wanted).all():
            assert ((out - wanted) ** 2).sum() <= 2e-12 * (wanted**2).sum()
        else:
            with np.errstate(invalid="ignore"):
                assert np.array_equal(np.isnan(out), np.isnan(wanted)) and np.array_equal(out > 0, wanted > 0)


@on_machines
@pytest.mark.parametrize("name", ["q4_k", "q5_k"])
@pytest.mark.full(name=("q5_k",))
def test_minimums_beside_elements_of_one_sign(name: str, machine: Machine) -> None:
    """Sums of scaled integers and sums of minimums are both far greater than the result."""
    assert _nmse_of_one_row(floats(1, 4864) + 3, rlx.quantize(floats(64, 4864), name), machine) <= 2e-12


def _nmse_of_one_row(x: Array, w: PackedArray, machine: Machine) -> float:
    """The error of a product of a row of x beside float64's."""
    graph = rlx.Graph("row")
    y = rlx.packed_matmul(graph.input("x", x.shape), graph.input("w", w.shape, w.dtype))
    out = np.zeros(y.shape, np.float32)
    run(bound(y.node, [x, w.data], [out], machine, True), machine)
    wanted = x.astype(np.float64) @ w.dequantize().T.astype(np.float64)
    return float(((out - wanted) ** 2).sum() / (wanted**2).sum())


@on_machines
@pytest.mark.parametrize("bits", [0x3F7F7F7F, 0x3F7DFFFF, 0x3F7E0000, 0x3F7FFFFF, 0x3F800000])
def test_the_largest_digits(bits: int, machine: Machine) -> None:
    """Elements that are just below a power of two, or just below what three digits hold."""
    x, w = np.clip(floats(1, 512), -0.9, 0.9), packed_rows("q4_k", 20, 512)
    x[0, ::32] = np.array(bits, np.uint32).view(np.float32)
    x[0, 5::64] = -x[0, 0]
    assert _nmse_of_one_row(x, w, machine) <= 1e-12


@on_machines
@pytest.mark.parametrize("m", [1, 17])
@pytest.mark.parametrize("size", [2.0**30, 2.0**12])
def test_small_terms_beside_large_ones_that_count_nothing(m: int, size: float, machine: Machine) -> None:
    x, w = floats(m, 256), rlx.quantize(floats(33, 256), "q8_0")
    w.data.view(np.int8)[:, 16 + 5] = 0  # behind eight scales, the integer of the sixth term
    x[:, 5] = size
    graph = rlx.Graph("outlier")
    y = rlx.packed_matmul(graph.input("x", x.shape), graph.input("w", w.shape, w.dtype))
    out = np.zeros((m, 33), np.float32)
    run(bound(y.node, [x, w.data], [out], machine, True), machine)
    assert close(out, x.astype(np.float64) @ w.dequantize().T.astype(np.float64))


@on_machines
@pytest.mark.parametrize("sizes", [(1e-38, 1.0), (1e-20, 1e-20), (1.0, 1e-38), (0.0, 0.0)])
def test_tiny_rows(sizes: tuple[float, float], machine: Machine) -> None:
    x = floats(40, 64) * np.float32(sizes[0])
    w = (floats(50, 64) * np.float32(sizes[1])).astype(as_dtype("bf16").np)
    graph = rlx.Graph("tiny")
    y = rlx.matmul(graph.input("x", x.shape), graph.input("w", w.shape, w.dtype), transpose_b=True)
    out = np.full((40, 50), np.nan, np.float32)
    run(bound(y.node, [x, w], [out], machine, True), machine)
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.all(np.abs(out - wanted) <= 1e-5 * np.abs(wanted).max() + 64 * 2.0**-149)


@on_machines
def test_infinities_and_nans_stay_in_their_rows(machine: Machine) -> None:
    x, w = floats(40, 64), rlx.quantize(np.abs(floats(20, 64)) + 1, "q8_0")
    x[3, 5], x[4, 6], x[5, 7] = np.inf, np.nan, -np.inf
    x[6, 8] = np.array(0x7F800001, np.uint32).view(np.float32)  # a NaN by its last bit
    graph = rlx.Graph("special")
    y = rlx.packed_matmul(graph.input("x", x.shape), graph.input("w", w.shape, w.dtype))
    out = np.zeros((40, 20), np.float32)
    run(bound(y.node, [x, w.data], [out], machine, True), machine)
    assert np.isnan(out[[4, 6]]).all() and np.all(out[3] == np.inf) and np.all(out[5] == -np.inf)
    assert np.isfinite(np.delete(out, [3, 4, 5, 6], 0)).all()


@on_multipliers
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.uint8), (np.int8, np.int8)])
def test_products_of_bytes_are_exact(kinds: tuple[Any, Any], machine: Machine) -> None:
    a, b = (
        _RNG.integers(np.iinfo(t).min, np.iinfo(t).max + 1, s).astype(t)
        for t, s in zip(kinds, ((7, 203), (9, 203)), strict=True)
    )
    a[0], b[0] = np.iinfo(kinds[0]).max, np.iinfo(kinds[1]).min
    zeros = [np.array([131], np.int32), _RNG.integers(-300, 300, 9).astype(np.int32)]
    graph = rlx.Graph("bytes")
    tensors = [graph.input(n, x.shape, x.dtype) for n, x in zip("abcd", (a, b, *zeros), strict=True)]
    y = rlx.integer_matmul(*tensors)
    out = np.zeros((7, 9), np.int32)
    run(bound(y.node, [a, b, *zeros], [out], machine, False), machine, 2)
    wide = [x.astype(np.int64) - z.astype(np.int64)[:, None] for x, z in zip((a, b), zeros, strict=True)]
    assert np.array_equal(out, wide[0] @ wide[1].T)


@pytest.mark.parametrize("shape", [(1, 1), (16, 384), (49, 2048), (3136, 64), (1, 5)])
def test_a_tile_fits_into_the_registers(shape: tuple[int, int]) -> None:
    for machine in machines():
        for nbytes in (0, 1 << 24):
            tile = choose_tile(machine, *shape, nbytes)
            assert tile.rows * tile.vectors + tile.vectors + 1 <= machine.registers
