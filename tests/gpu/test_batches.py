"""Equal elementwise launches that do not need each other run as one: which ones do, in which order the steps stay, and
that every bit of the results is that of the single launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.program import batches
from rlx.backends.gpu.program.barriers import place_barriers
from rlx.backends.gpu.program.batches import find_batches
from rlx.backends.gpu.program.casts import stores
from rlx.backends.gpu.program.executable import load_rules, lower_graph
from rlx.backends.gpu.program.lowering import Lowering, runs_natively
from rlx.backends.gpu.program.steps import (
    Copy,
    FileKernel,
    HostCall,
    Launch,
    Ref,
    Step,
    TreeKernel,
    TreeOperand,
)
from rlx.backends.gpu.program.target import Target
from rlx.conformance.hazards import check_recording
from rlx.driver import Dispatch, Limits, Slot
from rlx.driver.memory.plan import align
from rlx.driver.memory.planner import plan
from rlx.driver.registry import open_device
from rlx.dtypes import as_dtype, f16, f32
from rlx.errors import RlxError
from rlx.ir import Graph, Tensor, expr
from rlx.passes import optimize
from tests.cuda.compiled import UNOPTIMIZED, compiled
from tests.devices import device_here
from tests.full import full
from tests.gpu import lowered

BACKENDS = ("vulkan", "cuda")
DTYPES = ("f32", "f16", "bf16", "f64", "i32", "i64", "u8", "i8", "bool")
FLAT = TreeOperand(f32, "flat")
ONE = TreeKernel((expr.arg(0, f32) + 1.0,), (FLAT,), (FLAT,), 0)
TWO = TreeKernel((expr.arg(0, f32) * 2.0,), (FLAT,), (FLAT,), 0)


def lower(graph: Graph, target: Target) -> tuple[Lowering, list[Dispatch]]:
    """The graph as a device of this target would run it, its states in a segment of their own."""
    load_rules()
    made, _ = optimize(graph, support=lambda n: "native" if n.op.leaf or runs_natively(n, target) else "host")
    slots: dict[str, Slot] = {}
    end = 0
    for name, t in made.states.items():
        slots[name] = Slot("state", end, t.type.nbytes, t.dtype)
        end += align(t.type.nbytes)
    return lower_graph(made, plan(made, state_slots=slots), target, "f32")


def steps(graph: Graph, backend: str = "vulkan", on: bool = True) -> list[Step]:
    return lower(graph, replace(lowered.target(backend), batches=on))[0].steps


def trees(found: Sequence[Step]) -> list[int]:
    """How many single launches each elementwise launch stands for."""
    return [s.groups[2] for s in found if isinstance(s, Launch) and isinstance(s.kernel, TreeKernel)]


def six(shapes: Sequence[tuple[int, ...]], dtype: str = "f32") -> Graph:
    g = Graph("six")
    for i, shape in enumerate(shapes):
        g.output(f"y{i}", rlx.gelu(g.input(f"x{i}", shape, dtype)))
    return g


def adam(shapes: Sequence[tuple[int, ...]], dtype: str = "f32", guarded: bool = False) -> Graph:
    """A step of Adam (Kingma and Ba, 2014) over parameters of these shapes, which are states as their moments are.
    `guarded`: nothing changes where a gradient, of bf16 before, is not finite."""
    g = Graph("adam")
    rate, t = g.input("rate", (), dtype), g.input("t", (), dtype)
    slopes = [g.input(f"g{k}", shape, "bf16" if guarded else dtype) for k, shape in enumerate(shapes)]
    slopes = [rlx.cast(slope, dtype) for slope in slopes]
    fine = rlx.all_finite(*slopes) if guarded else None
    for k, (shape, slope) in enumerate(zip(shapes, slopes, strict=True)):
        p, m, v = (g.state(f"{name}{k}", shape, dtype) for name in "pmv")
        m1, v1 = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope * slope
        small = rlx.sqrt(v1 / (1 - rlx.pow(0.999, t))) + 1e-8
        p1 = p - rate * (m1 / (1 - rlx.pow(0.9, t))) / small
        for name, old, new in zip("pmv", (p, m, v), (p1, m1, v1), strict=True):
            g.update(f"{name}{k}", new if fine is None else rlx.where(fine, new, old))
    return g


# -- which launches become one


@pytest.mark.parametrize("backend", BACKENDS)
def test_six_gelus_are_one_launch(backend: str) -> None:
    assert trees(steps(six([(40, 30)] * 6), backend)) == [6]
    assert trees(steps(six([(40, 30)] * 6), backend, on=False)) == [1] * 6
    # Contiguous operands are flat, whatever their shapes.
    assert trees(steps(six([(1200,), (40, 30), (30, 40), (2, 20, 30), (1, 1200), (1200, 1)]), backend)) == [6]
    assert trees(steps(six([(1200,), (7,), (30, 40), (7, 1), (1200, 1), (8,)]), backend)) == [3, 2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_adam_is_a_launch_for_each_size(backend: str) -> None:
    shapes = [(16, 8), (32,), (8, 8, 3)] * 4
    assert sorted(trees(steps(adam(shapes), backend))) == [1, 1, 4, 4, 4]  # two of numbers alone
    assert len(steps(adam(shapes), backend, on=False)) == 14
    found = steps(adam(shapes, guarded=True), backend)
    assert sorted(trees(found)) == [1, 1, 4, 4, 4] and len(found) == 7  # all gradients are looked at by two


def test_only_equal_launches_become_one() -> None:
    g = Graph("unequal")
    x, y, z = g.input("x", (12,)), g.input("y", (12,)), g.input("z", (12,), "f16")
    for k, t in enumerate((x + 1, y * 2, z + 1, rlx.exp(y), x + rlx.reshape(z, (12,)))):
        g.output(f"y{k}", t)
    assert trees(steps(g)) == [1] * 5


def test_what_depends_on_another_stays_behind_it() -> None:
    chain = Graph("chain")
    t = chain.input("x", (6, 6))
    for k in range(4):
        t = chain.output(f"y{k}", rlx.transpose(rlx.sin(t), (1, 0)))  # data movement, so that the sines stay apart
    found = [s.kernel for s in steps(chain) if isinstance(s, Launch)]
    assert len(found) >= 4 and not any(isinstance(k, TreeKernel) and k.batched for k in found)

    # The new value is made in the state's memory, once the old one is read.
    renewed = Graph("renewed")
    state = renewed.state("s", (8,))
    renewed.output("y", rlx.sin(state))
    renewed.update("s", rlx.sin(renewed.input("x", (8,))))
    assert trees(steps(renewed)) == [1, 1]

    # Each state's new value is made of the other's old one, and the second in its own memory, which the first reads.
    crossed = Graph("crossed")
    a, b = crossed.state("a", (8,)), crossed.state("b", (8,))
    crossed.update("a", rlx.sin(b))
    crossed.update("b", rlx.sin(a))
    assert trees(steps(crossed)) == [1, 1]


def test_launches_of_many_elements_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_ELEMENTS", 99)
    assert trees(steps(six([(99,)] * 3 + [(100,)] * 3))) == [3, 1, 1, 1]


def test_a_batch_has_at_most_as_many_launches_as_the_grid_has_layers() -> None:
    target = replace(lowered.target(), limits=Limits(max_groups=(65535, 65535, 4)))
    assert trees(lower(six([(30,)] * 6), target)[0].steps) == [4, 2]


def test_a_batch_takes_no_memory_but_a_table_of_addresses() -> None:
    for graph, operands in ((six([(50,)] * 6), 12), (adam([(16, 8), (32,)] * 6), 120)):
        target = lowered.target()
        on, off = lower(graph, target)[0], lower(graph, replace(target, batches=False))[0]
        assert on.plan.total_bytes == off.plan.total_bytes and on.scratch_bytes == off.scratch_bytes
        assert 0 < len(on.args) - len(off.args) <= 8 * operands + 16 * 3
        assert len(on.addresses) <= operands


def descend(loss: Tensor, weights: Sequence[Tensor]) -> None:
    """A step of gradient descent with momentum: renews the weights, which are states, and their velocities."""
    g = loss.graph
    g.output("loss", loss)
    for t, slope in zip(weights, rlx.gradients(loss, weights), strict=True):
        name = t.node.attrs["name"]
        speed = 0.9 * g.state(f"speed of {name}", t.shape) - 0.1 * slope
        g.update(f"speed of {name}", speed)
        g.update(name, t + speed)


def encoder(layers: int, training: bool) -> Graph:
    """A BERT-like encoder (Devlin et al., 2018), or its training step."""
    g, weights, width, rows = Graph("encoder"), list[Tensor](), 16, 6
    x = g.input("x", (rows, width))

    def weight(name: str, *shape: int) -> Tensor:
        weights.append(g.state(name, shape))
        return weights[-1]

    for k in range(layers):
        parts = [x @ weight(f"{n}{k}", width, width) + weight(f"{n} bias {k}", width) for n in ("q", "k", "v")]
        heads = [rlx.transpose(rlx.reshape(t, (1, rows, 2, width // 2)), (0, 2, 1, 3)) for t in parts]
        mixed = rlx.reshape(rlx.transpose(rlx.attention(*heads), (0, 2, 1, 3)), (rows, width))
        x = rlx.layer_norm(x + mixed, weight(f"scale {k}", width), weight(f"shift {k}", width))
        x = x + rlx.gelu(x @ weight(f"up {k}", width, 32)) @ weight(f"down {k}", 32, width)
    if training:
        descend(rlx.mean(x * x), weights)
    else:
        g.output("y", x)
    return g


def residual(blocks: int) -> Graph:
    """Residual blocks of convolutions (He et al., 2015)."""
    g = Graph("residual")
    x = g.input("x", (1, 4, 6, 6))
    for k in range(blocks):
        a, b, c = (g.state(f"{n}{k}", (4, 4, side, side)) for n, side in (("a", 3), ("b", 3), ("c", 1)))
        x = rlx.relu(rlx.conv(rlx.relu(rlx.conv(x, a, pads=1)), b, pads=1) + rlx.conv(x, c))
    g.output("y", x)
    return g


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", ["encoder", "training", "residual"])
def test_networks_take_no_more_memory_and_no_more_barriers(network: str, backend: str) -> None:
    graph = residual(3) if network == "residual" else encoder(3, network == "training")
    target = lowered.target(backend)
    on, off = lower(graph, target)[0], lower(graph, replace(target, batches=False))[0]
    assert on.plan.total_bytes == off.plan.total_bytes and on.scratch_bytes == off.scratch_bytes
    assert len(place_barriers(on.steps)) <= len(place_barriers(off.steps))
    # 30 weights of three sizes are renewed.
    assert len(on.steps) <= len(off.steps) - (25 if network == "training" else 0)


def named(count: int) -> Graph:
    g = six([(5,)] * count)
    for k in range(count):
        g.outputs[f"y{k}"].node.label = f"layer {k}"
    return g


def test_the_report_names_the_launch_that_computes_a_node() -> None:
    lowering, dispatch = lower(named(3), lowered.target())
    assert [(d.node, d.steps, d.within) for d in dispatch] == [
        ("layer 0", ("tree",), ""),
        ("layer 1", (), "layer 0"),
        ("layer 2", (), "layer 0"),
    ]
    assert [s.label for s in lowering.steps] == ["layer 0, layer 1, layer 2"]


# -- the order of steps


def launch(kernel: TreeKernel | FileKernel, reads: list[Ref], writes: list[Ref]) -> Launch:
    return Launch(kernel, (1, 1, 1), (*reads, *writes, 4), tuple(reads), tuple(writes))


def host_step(reads: list[Ref], writes: list[Ref]) -> HostCall:
    g = Graph("host")
    return HostCall(rlx.sin(g.input("x", (1,))).node, tuple(reads), tuple(writes))


def _conflict(a: Step, b: Step) -> bool:
    pairs = [(x, y) for x in a.writes for y in (*b.reads, *b.writes)] + [(x, y) for x in a.reads for y in b.writes]
    return any(x.overlaps(y) for x, y in pairs)


places = st.builds(
    lambda s, k, n: Ref(s, 16 * k, 16 * n), st.sampled_from(["a", "b"]), st.integers(0, 9), st.integers(1, 3)
)
some = st.lists(places, min_size=1, max_size=2)
any_step = st.one_of(
    st.builds(lambda k, r, w: launch(k, r, [w]), st.sampled_from([ONE, TWO]), some, places),
    st.builds(lambda r, w: launch(FileKernel("k"), r, w), some, some),
    st.builds(lambda r, w: host_step(r, w), some, some),
    st.builds(Copy, st.sampled_from([Ref("c", 16 * k, 16) for k in range(3)]), places.filter(lambda r: r.nbytes == 16)),
)


@given(st.lists(any_step, max_size=14), st.integers(1, 4))
@settings(max_examples=400 if full() else 120)
def test_any_steps_keep_their_effect(given_steps: list[Step], most: int) -> None:
    with mock.patch.object(batches, "MIN_COPIES", 2):
        found = find_batches(given_steps, most)
    assert sorted(i for batch in found for i in batch) == list(range(len(given_steps)))
    at = {i: place for place, batch in enumerate(found) for i in batch}
    for batch in found:
        assert len(batch) <= most and list(batch) == sorted(batch)
        steps_of = [given_steps[i] for i in batch]
        copies = all(isinstance(s, Copy) for s in steps_of)
        kernels = {s.kernel if isinstance(s, Launch) else None for s in steps_of}
        assert len(kernels) == 1 and (len(batch) == 1 or copies or all(isinstance(k, TreeKernel) for k in kernels))
    for j, later in enumerate(given_steps):
        for i, earlier in enumerate(given_steps[:j]):
            fence = isinstance(earlier, HostCall) or isinstance(later, HostCall)
            assert at[i] < at[j] or not (fence or _conflict(earlier, later)), (i, j)


A, B, C, D, E, F = (Ref("a", 16 * k, 16) for k in range(6))
OTHER = FileKernel("k")


@pytest.mark.parametrize(
    "given_steps, wanted",
    [
        ([launch(ONE, [A], [B]), launch(ONE, [C], [D])], [(0, 1)]),
        ([launch(ONE, [A], [B]), launch(ONE, [A], [D])], [(0, 1)]),  # an operand of both
        ([launch(ONE, [A], [A]), launch(ONE, [B], [B])], [(0, 1)]),  # in place
        ([launch(ONE, [A], [B]), launch(ONE, [B], [C])], [(0,), (1,)]),
        ([launch(ONE, [A], [B]), launch(ONE, [C], [A])], [(0,), (1,)]),  # the memory of A used again
        ([launch(ONE, [A], [B]), launch(ONE, [C], [B])], [(0,), (1,)]),
        ([launch(ONE, [A], [B]), launch(TWO, [C], [D])], [(0,), (1,)]),
        # ahead, past a step that needs neither
        ([launch(ONE, [A], [B]), launch(OTHER, [B], [E]), launch(ONE, [C], [D])], [(0, 2), (1,)]),
        # back, since the second's operand is made in between
        ([launch(ONE, [A], [B]), launch(OTHER, [E], [C]), launch(ONE, [C], [D])], [(1,), (0, 2)]),
        ([launch(ONE, [A], [B]), launch(OTHER, [B], [C]), launch(ONE, [C], [D])], [(0,), (1,), (2,)]),
        ([launch(ONE, [A], [B]), host_step([E], [F]), launch(ONE, [C], [D])], [(0,), (1,), (2,)]),
        ([Copy(A, B), Copy(C, D)], [(0,), (1,)]),  # fewer than make up for a kernel
        ([Copy(A, Ref("b", 16 * k, 16)) for k in range(4)], [tuple(range(4))]),
        ([Copy(A, Ref("b", 16 * k + 2, 16)) for k in range(4)], [(k,) for k in range(4)]),  # not at words
        (
            [launch(ONE, [A], [B]), launch(TWO, [B], [C]), launch(ONE, [D], [E]), launch(TWO, [E], [F])],
            [(0, 2), (1, 3)],
        ),
    ],
)
def test_where_a_launch_may_go(given_steps: list[Step], wanted: list[tuple[int, ...]]) -> None:
    assert find_batches(given_steps, 8) == wanted


# -- numbers


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> str:
    device_here(request.param)
    return str(request.param)


def values(t: Tensor, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if t.dtype.is_float:
        return rng.uniform(0.1, 2, t.shape).astype(t.dtype.np)
    return rng.integers(0, 2 if t.dtype.name == "bool" else 100, t.shape).astype(t.dtype.np)


def both(
    graph: Graph, device: str, monkeypatch: pytest.MonkeyPatch, runs: int = 1, packs: bool = False
) -> tuple[int, int]:
    """Runs the graph with and without batches, and compares every bit of results and states. Returns the steps of
    each."""
    opened: Any = open_device(device)
    found: list[dict[str, bytes]] = []
    counts = []
    for on in (True, False):
        monkeypatch.setattr(
            opened, "target", replace(opened.target, batches=on, packs=packs or opened.target.packs)
        )
        with rlx.Session(device).compile(graph) as exe:
            for k, (name, t) in enumerate(graph.states.items()):
                exe.set_state(name, values(t, 100 + k))
            for k, (name, t) in enumerate(graph.params.items()):
                exe.set_param(name, values(t, 200 + k))
            made: dict[str, bytes] = {}
            for number in range(runs):
                out = exe.run({n: values(t, 7 * number + k) for k, (n, t) in enumerate(graph.inputs.items())})
                made |= {f"{number} {n}": np.asarray(a).tobytes() for n, a in out.items()}
                made |= {f"{number} state {n}": np.asarray(exe.get_state(n)).tobytes() for n in graph.states}
            found.append(made)
            executable: Any = exe.executable
            counts.append(len(executable.steps))
            for recorded, arena in executable.recordings:
                assert check_recording(recorded, arena) == []
        monkeypatch.undo()
    assert found[0] and found[0] == found[1]
    return counts[0], counts[1]


def _in_words(device: str, dtype: str) -> bool:
    """Whether the device has to convert such elements in workspace, before and after each launch."""
    opened: Any = open_device(device)
    return not stores(as_dtype(dtype), opened.target.features, doubles=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph("dtypes")
    for k in range(5):
        x, y = g.input(f"x{k}", (3, 11), dtype), g.input(f"y{k}", (33,), dtype)
        t = rlx.maximum(x, rlx.reshape(y, (3, 11)))
        g.output(f"z{k}", rlx.sqrt(t) * x if x.dtype.is_float else t)
    on, off = both(g, device, monkeypatch)
    assert (on, off) == (1, 5) or (_in_words(device, dtype) and on <= off)


def test_elements_are_counted_within_their_set(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers depend on the key and on the number of the element."""
    g = Graph("random")
    for k in range(4):
        words = [g.input(f"{name}{k}", (), "i32") for name in ("first", "second", "offset")]
        attrs = {"shape": (5, 9), "axes": 2, "word": "xor", "stream": 0}
        g.output(f"y{k}", g.add("random_bits", words, attrs)[0])
    assert both(g, device, monkeypatch) == (1, 4)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bool"])
def test_broadcasts_and_odd_sizes(
    device: str, dtype: str, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands read flat, as one number, through strides, in packs and by elements that packs leave over."""
    flat = rlx.maximum if packs else rlx.minimum  # another kernel, since a device keeps those that it has compiled
    g = Graph("layouts")
    one, row = g.input("one", (), dtype), g.input("row", (8,), dtype)
    for k in range(4):
        x, column = g.input(f"x{k}", (6, 8), dtype), g.input(f"column{k}", (6, 1), dtype)
        g.output(f"flat {k}", flat(x, rlx.reshape(g.input(f"y{k}", (48,), dtype), (6, 8))))
        g.output(f"row {k}", rlx.maximum(x, row))
        g.output(f"column {k}", rlx.minimum(x, column))
        g.output(f"one {k}", rlx.minimum(rlx.reshape(g.input(f"odd{k}", (9, 5), dtype), (45,)), one))
        g.output(f"turned {k}", rlx.maximum(rlx.transpose(x, (1, 0)), column[:1]))
    on, off = both(g, device, monkeypatch, packs=packs)
    assert off >= 16 and on <= off - 9


@pytest.mark.parametrize("dtype, length", [("f32", 6), ("f16", 6), ("u8", 8), ("u8", 6), ("i64", 5)])
def test_copies_of_equally_many_words_are_one_launch(
    device: str, dtype: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = Graph("copies")
    g.output("y", rlx.concat([g.input(f"x{k}", (length,), dtype) for k in range(9)]))
    few = length * as_dtype(dtype).itemsize % 4 == 0
    assert both(g, device, monkeypatch) == (1 if few else 9, 9)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_adam_in_place(device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(16, 8), (32,), (8, 8, 3)] * 4
    on, off = both(adam(shapes, dtype), device, monkeypatch, runs=3)
    assert (on, off) == (5, 14) or (_in_words(device, dtype) and on <= off)


@pytest.mark.late
def test_a_training_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph("training")
    h, weights = g.input("x", (5, 12)), []
    for k in range(4):
        w, b = g.state(f"w{k}", (12, 12)), g.state(f"b{k}", (12,))
        weights += [w, b]
        h = rlx.tanh(h @ (w * 0.1) + b)
    descend(rlx.mean(h * h), weights)
    on, off = both(g, device, monkeypatch, runs=3)
    assert on < off - 5


def test_bodies_of_loops(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operands of a batch in a body lie in the memory of the program around it, too."""
    g = Graph("loop")
    a, b, c = (g.input(n, (4, 7)) for n in "abc")

    def body(carry: Any, row: Tensor) -> Any:
        x, y, z = carry
        return (rlx.sin(x) * a, rlx.sin(y) * b, rlx.sin(z) * c), x + row

    (x, y, z), rows = rlx.scan(body, (a, b, c), g.input("rows", (3, 4, 7)))
    for name, t in zip(("x", "y", "z", "rows"), (x, y, z, rows), strict=True):
        g.output(name, t)
    both(g, device, monkeypatch, runs=2)


def test_a_function_that_fails_leaves_every_state_as_it_was(device: str) -> None:
    def fails(x: Any) -> Any:
        raise RlxError("it fails")

    with rlx.custom_op("fails_between", fails, lambda types, attrs: types[0]) as op:
        g = Graph("fails")
        states = [g.state(f"s{k}", (9,)) for k in range(3)]
        g.update("s0", states[0] * 3)
        g.output("y", op(g.input("x", (9,))))
        for k in (1, 2):
            g.update(f"s{k}", states[k] * 3)
        with rlx.Session(device).compile(g) as exe:
            for k in range(3):
                exe.set_state(f"s{k}", np.full(9, k + 1, np.float32))
            with pytest.raises(RlxError, match="it fails"):
                exe.run({"x": np.zeros(9, np.float32)})
            for k in range(3):
                np.testing.assert_array_equal(exe.get_state(f"s{k}"), k + 1)


def test_weights_that_move_are_found(device: str) -> None:
    """A weight that changes its dtype gets another place: a program that is recorded anew reads it there."""
    g = Graph("moving")
    for k in range(4):
        g.output(f"y{k}", g.param(f"w{k}", (30,)) * g.input(f"x{k}", (30,)))
    feeds = {f"x{k}": np.full(30, k + 1, np.float32) for k in range(4)}
    with rlx.Session(device).compile(g) as exe:
        for dtype in ("f32", "bf16", "f32"):
            for k in range(4):
                exe.set_param(f"w{k}", np.full(30, 2**k, np.float32), dtype)
            for k in range(4):
                np.testing.assert_array_equal(exe.run(feeds)[f"y{k}"], np.full(30, 2.0**k * (k + 1)))


def test_a_program_shows_what_runs_as_one(device: str) -> None:
    with rlx.Session(device).compile(named(3)) as exe:
        lines = str(exe.report()).splitlines()
        assert [line.split("with ")[-1] for line in lines[-2:]] == ["layer 0", "layer 0"]
        (line,) = exe.executable.listing()
        assert "x3 " in line and line.endswith("layer 0, layer 1, layer 2")


# -- kernels


@pytest.mark.parametrize(("rank", "packed"), [(0, False), (2, False), (2, True)])
def test_cuda_kernels_read_global_memory_through_the_table(rank: int, packed: bool) -> None:
    operands = (FLAT, TreeOperand(f16, "strided" if rank else "flat"), TreeOperand(f32, "scalar"))
    tree = expr.arg(0, f32) * expr.cast(expr.arg(1, f16), f32) + expr.arg(2, f32)
    source = kernel_source(TreeKernel((tree,), operands, (FLAT,), rank, packed, batched=True))
    text = compiled(source, "compute_80").decode("ascii", "replace")
    assert "ld.global" in text and "ld.f32" not in text and "st.f32" not in text and "ld.v4" not in text
    assert source.options == BASE_OPTIONS
    assert compiled(source, "sm_90", UNOPTIMIZED)
