"""The runtime uses the arena's contract: typed access, look-ups of half-precision weights, lengths and copies of
compiled programs."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.driver import BufferArena, DeviceArena
from rlx.dtypes import DType, bf16, f16, f32
from rlx.errors import ArenaError, DTypeError, GraphError, RlxError, ShapeError

W = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4) + np.float32(1e-3)
X = np.arange(16, dtype=np.float32).reshape(2, 8) / 7


def layer(dtype: str = "f32") -> rlx.Graph:
    g = rlx.Graph("layer")
    g.output("y", g.input("x", (2, 8)) @ rlx.cast(g.param("w", (8, 4), dtype), "f32") + g.param("b", (4,)))
    return g


def node(exe: rlx.CompiledGraph, name: str) -> int:
    graph = exe.program
    return {**graph.inputs, **graph.outputs, **graph.params, **graph.states}[name].id


def expected(w: np.ndarray) -> np.ndarray:
    return X.astype(np.float64) @ w.astype(np.float64) + 1


@pytest.fixture
def exe(session: rlx.Session):
    with session.compile(layer()) as compiled:
        compiled.set_params({"w": W, "b": np.ones(4, np.float32)})
        yield compiled


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_a_half_weight_is_found_where_the_store_keeps_it(exe: rlx.CompiledGraph, dtype: DType) -> None:
    arena = exe.arena
    assert not arena.is_half(node(exe, "w")) and arena.half_at(arena.elem_offset(node(exe, "w"))) is None
    exe.set_param("w", W, dtype=dtype)
    arena, w, b = exe.arena, node(exe, "w"), node(exe, "b")
    assert arena.is_half(w) and not arena.is_half(b) and not arena.is_half(node(exe, "x"))
    np.testing.assert_array_equal(arena.read_half(w), W.astype(dtype.np).astype(np.float32).reshape(-1))
    assert arena.half_off(w) == arena.byte_offset(w) == exe.weights.slot("w").offset
    assert (
        arena.half_at(arena.elem_offset(w), arena.slot(w).segment) == arena.half_at(arena.elem_offset(w)) == w
    )
    with pytest.raises(ArenaError, match="no half"):
        arena.half_off(b)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.sample(vulkan=1)
@pytest.mark.late("vulkan")
def test_registering_a_half_weight_changes_what_the_program_computes(
    exe: rlx.CompiledGraph, dtype: DType
) -> None:
    np.testing.assert_allclose(exe.run({"x": X})["y"], expected(W), rtol=1e-5)
    with exe.clone() as twin:
        arena, w = exe.arena, node(exe, "w")
        at = arena.register_half_param(w, dtype, 2 * W)
        rounded = (2 * W).astype(dtype.np).astype(np.float32)
        assert arena.is_half(w) and arena.half_off(w) == at
        np.testing.assert_array_equal(arena.read_half(w), rounded.reshape(-1))
        for program in (exe, twin):
            np.testing.assert_allclose(program.run({"x": X})["y"], expected(rounded), rtol=1e-5)
            assert program.program.params["w"].dtype == dtype  # read in 16 bits, not widened beforehand
            assert program.arena.is_half(node(program, "w"))
    assert exe.weights.dtypes()["w"] == dtype
    with pytest.raises(ArenaError, match="closed"):
        arena.is_half(w)  # the old program's arena, which the run closed
    again = exe.arena
    again.register_half_param(node(exe, "w"), dtype, W)  # in place, where the program reads it
    assert exe.arena is again
    rounded = W.astype(dtype.np).astype(np.float32)
    np.testing.assert_allclose(exe.run({"x": X})["y"], expected(rounded), rtol=1e-5)


def test_a_weight_declared_in_half_is_half(session: rlx.Session) -> None:
    with session.compile(layer("bf16")) as compiled:
        compiled.set_params({"w": W.astype(bf16.np), "b": np.ones(4, np.float32)})
        arena, w = compiled.arena, node(compiled, "w")
        assert arena.is_half(w)
        arena.register_half_param(w, bf16, -W)
        np.testing.assert_array_equal(arena.read_half(w), -W.astype(bf16.np).astype(np.float32).reshape(-1))
        rounded = -W.astype(bf16.np).astype(np.float32)
        np.testing.assert_allclose(compiled.run({"x": X})["y"], expected(rounded), rtol=1e-5)
        with pytest.raises(DTypeError):
            compiled.arena.register_half_param(w, f16, W)


def test_what_register_half_param_refuses_of_a_program(exe: rlx.CompiledGraph) -> None:
    exe.run({"x": X})
    arena, w = exe.arena, node(exe, "w")
    wrong: list[tuple[type[RlxError], object]] = [
        (ArenaError, lambda: arena.register_half_param(node(exe, "x"), f16, X)),
        (ArenaError, lambda: arena.register_half_param(w, f16, np.zeros(33))),
        (ShapeError, lambda: arena.register_half_param(w, f16, W[:4])),
        (DTypeError, lambda: arena.register_half_param(w, f32, W)),
        (DTypeError, lambda: arena.register_half_param(w, f16, None)),  # type: ignore[arg-type]
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()  # type: ignore[operator]
    assert exe.arena is arena and not arena.is_half(w)
    np.testing.assert_allclose(exe.run({"x": X})["y"], expected(W), rtol=1e-5)


@pytest.mark.parametrize("storage", ["typed", "f32"])
@pytest.mark.parametrize("dtype", [d.name for d in rlx.dtypes.ALL])
def test_what_goes_through_a_port_comes_back_bit_by_bit(
    session: rlx.Session, dtype: str, storage: str
) -> None:
    g = rlx.Graph("ports")
    x = g.input("x", (3, 5), dtype)
    g.output("same", x)
    g.output("moved", rlx.transpose(x, (1, 0)))
    values = np.array([[0, 1, 2, 3, 4], [5, 0, 7, 1, 9], [1, 1, 0, 0, 1]]).astype(x.dtype.np)
    if x.dtype.is_float:
        values[0, :4] = np.nan, np.inf, -np.inf, -0.0
    with session.compile(g, storage=storage) as compiled:
        for feed in (values, np.asfortranarray(values), np.repeat(values, 2, 0)[::2]):
            got = compiled.run({"x": feed})
            assert got["same"].dtype == x.dtype.np
            np.testing.assert_array_equal(got["same"].astype("f8"), values.astype("f8"))
            np.testing.assert_array_equal(got["moved"].astype("f8"), values.T.astype("f8"))
            np.testing.assert_array_equal(
                np.signbit(got["same"].astype("f8")), np.signbit(values.astype("f8"))
            )
        stored = compiled.program.inputs["x"].dtype
        if stored in (f32, f16, bf16):  # the typed helpers read the values that the ports wrote
            held = compiled.arena.read_output_f32(node(compiled, "x"), stored, 15)
            np.testing.assert_array_equal(held.reshape(3, 5), values.astype(np.float32))


def test_a_closed_program_keeps_no_port_open(session: rlx.Session) -> None:
    compiled = session.compile(layer())
    compiled.set_params({"w": W, "b": np.ones(4, np.float32)})
    compiled.run({"x": X})
    arena = compiled.arena
    write = arena.input_writer(node(compiled, "x"), f32, (2, 8))
    compiled.close()
    with pytest.raises(ArenaError, match="closed"):
        write.call(X)


def cache(rows: int = 2, length: int = 7, dtype: str = "f32") -> rlx.Graph:
    g = rlx.Graph("cache")
    held, x = g.state("held", (length, 3), dtype), g.input("x", (rows, 3), dtype)
    g.output("new", x * 2)
    g.output("sum", rlx.sum(rlx.cast(held, "f32"), axis=0))
    return g


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_rows_of_a_run_are_fed_into_a_resident_cache(session: rlx.Session, dtype: str) -> None:
    with session.compile(cache(dtype=dtype)) as exe:
        assert exe.valid_rows("held") == 7
        exe.set_valid_rows("held", 0)
        want = np.zeros((7, 3))
        for k in range(3):
            x = np.arange(6).reshape(2, 3) + 10 * k
            got = exe.run({"x": x.astype(exe.graph.inputs["x"].dtype.np)})
            np.testing.assert_array_equal(got["sum"], want.sum(0))
            assert exe.feed_rows("held", "new") == 2 * k + 2 == exe.valid_rows("held")
            want[2 * k : 2 * k + 2] = 2 * x
            np.testing.assert_array_equal(exe.get_state("held").astype("f8"), want)
        before = exe.get_state("held")
        for wrong in (lambda: exe.feed_rows("held", "new"), lambda: exe.feed_rows("held", "new", 7),
                      lambda: exe.feed_rows("held", "new", -1), lambda: exe.feed_rows("held", "new", 2.5),
                      lambda: exe.set_valid_rows("held", 8), lambda: exe.set_valid_rows("held", -1)):  # fmt: skip
            with pytest.raises(ArenaError):
                wrong()
        with pytest.raises(ShapeError, match="feed_rows"):
            exe.feed_rows("held", "sum")
        for names in (("held", "old"), ("hold", "new")):
            with pytest.raises(GraphError):
                exe.feed_rows(*names)
        np.testing.assert_array_equal(exe.get_state("held"), before)
        assert exe.feed_rows("held", "new", 1) == 6  # over existing rows
        want[1:3] = want[4:6]
        np.testing.assert_array_equal(exe.get_state("held").astype("f8"), want)


def test_a_clone_takes_the_valid_rows_of_a_cache(session: rlx.Session) -> None:
    with session.compile(cache()) as exe:
        full = np.arange(21, dtype=np.float32).reshape(7, 3) + 1
        exe.set_state("held", full)
        exe.set_valid_rows("held", 4)
        exe.prepare()
        with exe.clone() as twin:
            np.testing.assert_array_equal(twin.get_state("held"), np.r_[full[:4], np.zeros((3, 3))])
            assert twin.valid_rows("held") == 4
            assert twin.arena.len_of(node(twin, "held")) == 4 * 12
            twin.set_state("held", full)
            assert (twin.valid_rows("held"), exe.valid_rows("held")) == (7, 4)
        np.testing.assert_array_equal(exe.get_state("held"), full)


def test_lengths_of_a_state_are_those_of_its_store(session: rlx.Session) -> None:
    state = rlx.State(session.device)
    with session.compile(cache(), state=state) as one, session.compile(cache(1), state=state) as two:
        one.set_valid_rows("held", 3)
        assert two.valid_rows("held") == 3
        two.arena.set_actual_len(node(two, "held"), 24)
        assert one.valid_rows("held") == 2
        assert one.arena.read_bytes(node(one, "held")).nbytes == 24
    state.close()


def test_rows_of_a_scan_go_through_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, which runs scans step by step: the contract's calls copy rows in and out, and carries, within the
    slots."""
    made: list[tuple[int, int]] = []
    shipped = BufferArena.range_copier

    def watched(self: DeviceArena, source: int, target: int) -> object:
        made.append((source, target))
        return shipped(self, source, target)

    monkeypatch.setattr(BufferArena, "range_copier", watched)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    g = rlx.Graph("scan")
    last, rows = rlx.scan(lambda c, x: (c + x, c * 2), g.input("c", (3,)), g.input("x", (4, 3)))
    g.output("last", last)
    g.output("rows", rows)
    with rlx.Session("cpu").compile(g) as exe:
        got = exe.run({"x": x, "c": np.ones(3, np.float32)})
    sums = np.cumsum(np.r_[np.ones((1, 3)), x], 0)
    np.testing.assert_array_equal(got["last"], sums[-1])
    np.testing.assert_array_equal(got["rows"], 2 * sums[:-1])
    assert len(made) == 2
