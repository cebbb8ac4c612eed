"""States updated in place: no copy is made where nothing still reads the old value, and none is missing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.runner import find_run_hazards
from rlx.driver.memory.views import update_copies
from tests.threads import at_once

SHAPE = (1, 4, 256, 32)
NBYTES = 4 * int(np.prod(SHAPE))


def put(cache: Any, row: Any, at: Any) -> Any:
    return rlx.dynamic_update_slice(cache, row, [0, 0, at, 0])


def copies(exe: rlx.CompiledGraph) -> int:
    return len(update_copies(exe.program, exe.plan))


def rows(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal((1, 4, 1, 32)).astype(np.float32) for n in "qkv"}


@pytest.mark.late("vulkan")
def test_a_row_of_a_cache_copies_no_cache(session: rlx.Session) -> None:
    g = rlx.Graph("cache")
    q, k, v = (g.input(n, (1, 4, 1, 32)) for n in "qkv")
    at = g.input("at", (), "i32")
    keys, values = put(g.state("keys", SHAPE), k, at), put(g.state("values", SHAPE), v, at)
    g.output("y", rlx.attention(q, keys, values, kv_len=rlx.reshape(at + 1, (1,))))
    g.update("keys", keys)
    g.update("values", values)
    want = np.zeros((2, *SHAPE), np.float32)
    with session.compile(g) as exe, session.compile(g, planner="bump") as apart:
        assert copies(exe) == 0 and copies(apart) == 2
        assert exe.plan.arena_bytes < NBYTES
        for at_row in (0, 1, 2, 255):
            feeds = rows(at_row) | {"at": np.array(at_row, np.int32)}
            np.testing.assert_array_equal(exe.run(feeds)["y"], apart.run(feeds)["y"])
            for held, name in zip(want, "kv", strict=True):
                held[:, :, at_row] = feeds[name][:, :, 0]
        assert find_run_hazards(exe) == []
        for held, name in zip(want, ("keys", "values"), strict=True):
            np.testing.assert_array_equal(exe.get_state(name), held)


def test_several_writes_one_after_the_other_and_views_between(session: rlx.Session) -> None:
    g = rlx.Graph("writes")
    row, at = g.input("k", (1, 4, 1, 32)), g.input("at", (), "i32")
    s = g.state("s", SHAPE)
    twice = put(put(s, row, at), row * 2, at + 1)
    flat = rlx.reshape(twice, (4, 256, 32))
    last = rlx.dynamic_update_slice(flat, rlx.reshape(row * 3, (4, 1, 32)), [0, at + 2, 0])
    g.update("s", rlx.reshape(last, SHAPE))
    g.output("new", rlx.reshape(last, SHAPE))
    g.output("part", rlx.reshape(last, (4, 256, 32))[:1])
    with session.compile(g) as exe:
        assert copies(exe) == 0
        k = rows(0)["k"]
        got = exe.run({"k": k, "at": np.array(7, np.int32)})
        want = np.zeros(SHAPE, np.float32)
        for i in range(3):
            want[:, :, 7 + i] = k[:, :, 0] * (i + 1)
        np.testing.assert_array_equal(exe.get_state("s"), want)
        np.testing.assert_array_equal(got["new"], want)
        np.testing.assert_array_equal(got["part"], want[0, :1])


@pytest.mark.parametrize("planner", ["reuse", "bump"])
def test_the_old_value_and_what_lies_between_are_results(session: rlx.Session, planner: Any) -> None:
    g = rlx.Graph("results")
    x = g.input("x", (8, 64))
    a, _ = g.state("a", (8, 64)), g.state("b", (8, 64))
    first = rlx.dynamic_update_slice(a, x[:1], [1, 0])
    new = rlx.dynamic_update_slice(first, x[1:2], [2, 0])
    g.output("between", first)
    g.output("sum of the new", rlx.sum(new, 0))
    g.output("old", a)
    g.output("view of the old", rlx.reshape(a, (512,)))
    g.output("sum of the old", rlx.sum(a, 0))
    g.update("a", new)
    g.update("b", first)
    with session.compile(g, planner=planner) as exe:
        held = np.arange(512, dtype=np.float32).reshape(8, 64)
        exe.set_state("a", held)
        for i in range(2):
            feed = np.random.default_rng(i).standard_normal((8, 64)).astype(np.float32)
            got = exe.run({"x": feed})
            one = held.copy()
            one[1] = feed[0]
            two = one.copy()
            two[2] = feed[1]
            np.testing.assert_array_equal(got["between"], one)
            np.testing.assert_array_equal(got["old"], held)
            np.testing.assert_array_equal(got["view of the old"], held.reshape(-1))
            np.testing.assert_allclose(got["sum of the old"], held.sum(0), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got["sum of the new"], two.sum(0), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(exe.get_state("a"), two)
            np.testing.assert_array_equal(exe.get_state("b"), one)
            held = two


def test_one_value_of_two_states_and_a_swap(session: rlx.Session) -> None:
    g = rlx.Graph("two")
    x = g.input("x", (64,))
    a, _, c, d = (g.state(n, (64,)) for n in "abcd")
    g.update("a", a + x)
    g.update("b", g.updates["a"])
    g.update("c", d)
    g.update("d", rlx.reshape(rlx.reshape(c, (8, 8)), (64,)))
    with session.compile(g) as exe:
        for i, n in enumerate("abcd"):
            exe.set_state(n, np.full(64, i, np.float32))
        exe.run({"x": np.ones(64, np.float32)})
        assert [exe.get_state(n)[0] for n in "abcd"] == [1, 1, 3, 2]
        exe.run({"x": np.ones(64, np.float32)})
        assert [exe.get_state(n)[0] for n in "abcd"] == [2, 2, 2, 3]


@pytest.fixture
def stumbles() -> Iterator[Any]:
    def numpy(x: Any) -> Any:
        if x[0] < 0:
            raise ValueError("stumbled")
        return x

    with rlx.custom_op("stumbles", numpy, lambda types, attrs: types[0]) as op:
        yield op


@pytest.mark.parametrize("early", [True, False])
def test_a_run_that_fails_leaves_every_state_as_it_was(
    session: rlx.Session, stumbles: Any, early: bool
) -> None:
    g = rlx.Graph("fails")
    x = g.input("x", (64,))
    a, b = g.state("a", (64,)), g.state("b", (64,))
    x = stumbles(x) if early else x
    new = rlx.dynamic_update_slice(a, rlx.abs(x[:1]) + 1, [3])
    g.update("a", new)
    g.update("b", b + rlx.sum(new))
    g.output("y", x + 0 if early else stumbles(x + 0 * rlx.sum(new)))
    with session.compile(g) as exe:
        assert (copies(exe) == 0) is early
        exe.run({"x": np.ones(64, np.float32)})
        before = [exe.get_state(n) for n in "ab"]
        with pytest.raises(ValueError, match="stumbled"):
            exe.run({"x": np.full(64, -5, np.float32)})
        for n, held in zip("ab", before, strict=True):
            np.testing.assert_array_equal(exe.get_state(n), held)


def test_a_loop_at_its_limit_leaves_the_state(session: rlx.Session) -> None:
    g = rlx.Graph("limit")
    x, a = g.input("x", (4,)), g.state("a", (4,))
    new = a + x
    looped = rlx.while_loop(lambda c: rlx.all(c < 100), lambda c: c + 1, new, max_steps=3)
    g.update("a", new)
    g.output("y", looped)
    with session.compile(g) as exe:
        with pytest.raises(rlx.errors.StepLimitExceeded):
            exe.run({"x": np.ones(4, np.float32)})
        np.testing.assert_array_equal(exe.get_state("a"), 0)
        exe.run({"x": np.full(4, 98, np.float32)})
        np.testing.assert_array_equal(exe.get_state("a"), 98)


def test_a_state_read_by_a_branch_and_written_by_another_program(session: rlx.Session) -> None:
    g = rlx.Graph("writer")
    x, a = g.input("x", (16, 16)), g.state("a", (16, 16))
    new = rlx.dynamic_update_slice(a, x[:1], [0, 0])
    g.output("y", rlx.cond(rlx.sum(x) > 0, lambda t: t * 2, lambda t: rlx.cumsum(t, 0), new))
    g.output("first", rlx.cond(rlx.sum(x) > 0, lambda t: t + 1, lambda t: t - 1, a))
    g.update("a", new)
    h = rlx.Graph("reader")
    h.output("y", h.state("a", (16, 16)) * 1)
    state = rlx.State(session.device)
    with state, session.compile(g, state=state) as writer, session.compile(h, state=state) as reader:
        got = writer.run({"x": np.full((16, 16), 2, np.float32)})
        want = np.zeros((16, 16), np.float32)
        np.testing.assert_array_equal(got["first"], want + 1)
        want[0] = 2
        np.testing.assert_array_equal(got["y"], want * 2)
        np.testing.assert_array_equal(reader.run({})["y"], want)


def test_training_writes_weights_where_they_lie(session: rlx.Session) -> None:
    g = rlx.Graph("sgd")
    x, w, m = g.input("x", (4, 64)), g.state("w", (64, 64)), g.state("m", (64, 64))
    loss = rlx.mean((x @ w - 1) ** 2)
    (grad,) = rlx.gradients(loss, [w])
    speed = m * 0.5 + grad
    g.update("m", speed)
    g.update("w", w - speed * 0.1)
    g.output("loss", loss)
    with session.compile(g) as exe, session.compile(g, planner="bump") as apart:
        assert copies(exe) == 0
        feed = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
        losses = [[float(e.run(feed)["loss"]) for _ in range(20)] for e in (exe, apart)]
        assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
        assert find_run_hazards(exe) == []


@pytest.mark.parametrize("dtype", ["f32", "f16", "i32"])
@pytest.mark.parametrize("size", [1, 63, 4096, 300_001])
def test_one_node_renews_states_that_all_its_results_read(
    session: rlx.Session, size: int, dtype: Any
) -> None:
    g = rlx.Graph("pair")
    x = g.input("x", (size,), dtype)
    a, b, c = (g.state(n, (size,), dtype) for n in "abc")
    t = a + b * x
    g.update("a", t)
    g.update("b", t - a - c)
    g.update("c", t - b)
    rng = np.random.default_rng(size)
    kind = g.states["a"].dtype.np
    held = {n: rng.integers(-8, 8, size).astype(kind) for n in "abc"}
    feed = rng.integers(-3, 3, size).astype(kind)
    with session.compile(g) as exe:
        assert copies(exe) == 0
        for n in "abc":
            exe.set_state(n, held[n])
        exe.run({"x": feed})
        new = held["a"] + held["b"] * feed
        np.testing.assert_array_equal(exe.get_state("a"), new)
        np.testing.assert_array_equal(exe.get_state("b"), new - held["a"] - held["c"])
        np.testing.assert_array_equal(exe.get_state("c"), new - held["b"])


def _steps(op: str, g: rlx.Graph, state: Any) -> Any:
    """A decoding step of a recurrence, with inputs of the graph."""
    if op == "selective_scan":
        given = [g.input(n, (2, 1, 16)) for n in ("x", "delta", "b", "c")]
        return rlx.selective_scan(given[0], given[1], g.input("a", (16, 16)), *given[2:], state=state)
    given = [g.input(n, (2, 1, 2, 16)) for n in "qkv"]
    return rlx.gated_delta_rule(*given, None, g.input("beta", (2, 1, 2)), state)


@pytest.mark.parametrize("op, shape", [("selective_scan", (2, 16, 16)), ("gated_delta_rule", (2, 2, 16, 16))])
def test_a_decoding_step_renews_its_state_in_place(
    session: rlx.Session, op: str, shape: tuple[int, ...]
) -> None:
    """The last state is made over the first; y, which has the size of neither, is made elsewhere."""
    g = rlx.Graph("decode")
    y, last = _steps(op, g, g.state("s", shape))
    g.output("y", y)
    g.update("s", last)
    rng = np.random.default_rng(3)
    with session.compile(g) as exe, session.compile(g, planner="bump") as apart:
        assert copies(exe) == 0 and copies(apart) == 1
        for _ in range(3):
            feeds = {n: rng.random(t.shape, np.float32) * 0.5 for n, t in g.inputs.items()}
            np.testing.assert_array_equal(exe.run(feeds)["y"], apart.run(feeds)["y"])
        np.testing.assert_array_equal(exe.get_state("s"), apart.get_state("s"))
        assert find_run_hazards(exe) == []


@pytest.mark.parametrize("cache", ["f32", "bf16"])
def test_a_step_of_attention_writes_both_caches_in_place(session: rlx.Session, cache: Any) -> None:
    g = rlx.Graph("step")
    q, k, v = (g.input(n, (1, h, 64)) for n, h in (("q", 4), ("k", 2), ("v", 2)))
    keys, values = (g.state(n, (1, 300, 2, 64), cache) for n in ("keys", "values"))
    made, *caches = rlx.attention_step(q, k, v, keys, values, g.input("at", (1,), "i32"))
    g.output("y", made)
    for name, t in zip(("keys", "values"), caches, strict=True):
        g.update(name, t)
    rng = np.random.default_rng(5)
    with session.compile(g) as exe, session.compile(g, planner="bump") as apart:
        assert copies(exe) == 0 and copies(apart) == 2
        assert exe.plan.arena_bytes < 300 * 2 * 64
        for at in (0, 1, 2, 299):
            feeds: dict[str, Any] = {n: rng.standard_normal((1, h, 64)).astype(np.float32)
                                     for n, h in (("q", 4), ("k", 2), ("v", 2))}  # fmt: skip
            feeds["at"] = np.array([at], np.int32)
            np.testing.assert_array_equal(exe.run(feeds)["y"], apart.run(feeds)["y"])
            row = exe.get_state("values")[0, at].astype(np.float32)
            np.testing.assert_allclose(row, feeds["v"][0], rtol=2**-8)
        assert find_run_hazards(exe) == []
        assert "attention_step" in {n.op.name for n in exe.program.nodes}


def test_rows_of_8_bits_are_written_in_place(session: rlx.Session) -> None:
    """Round and round a cache of three rows, by one launch on a GPU."""
    g = rlx.Graph("rows")
    codes, scales = g.state("codes", (2, 3, 1, 64), "i8"), g.state("scales", (2, 3, 1, 2), "f16")
    made = rlx.q8_0_update(g.input("x", (2, 1, 64)), codes, scales, g.input("at", (2,), "i32"))
    for name, t in zip(("codes", "scales"), made, strict=True):
        g.update(name, t)
    want = np.zeros((2, 3, 64))
    with session.compile(g) as exe:
        assert copies(exe) == 0
        for at in range(5):
            x = np.random.default_rng(at).standard_normal((2, 1, 64)).astype(np.float32)
            exe.run({"x": x, "at": np.array([at, 7 * at], np.int32)})
            want[0, at % 3], want[1, 7 * at % 3] = x[:, 0]
        held, by = exe.get_state("codes"), exe.get_state("scales").astype(np.float64)
        numbers = (held.reshape(2, 3, 2, 32) * by.reshape(2, 3, 2, 1)).reshape(want.shape)
        np.testing.assert_allclose(numbers, want, atol=3.5 / 127 / 2)
        if session.info.backend != "cpu":
            assert len(exe.executable.steps) == 1


def test_only_the_last_state_is_made_over_the_first(session: rlx.Session) -> None:
    """Here y has the type of the state, which its workgroups still read when others write y."""
    g = rlx.Graph("square")
    x, delta, b, c = (g.input(n, (1, 8, 8)) for n in ("x", "delta", "b", "c"))
    y, last = rlx.selective_scan(x, delta, g.input("a", (8, 8)), b, c, state=g.state("s", (1, 8, 8)))
    g.update("s", y)
    g.output("last", last)
    with session.compile(g) as exe:
        assert copies(exe) == 1


def donor(session: rlx.Session, **options: Any) -> rlx.CompiledGraph:
    g = rlx.Graph("donor")
    cache, row, at = g.input("cache", SHAPE), g.input("row", (1, 4, 1, 32)), g.input("at", (), "i32")
    made = put(cache, row, at)
    g.output("made", made)
    g.output("total", rlx.sum(made, (2, 3)))
    return session.compile(g, donate=("cache",), **options)


def test_a_donated_cache_is_written_where_it_lies(session: rlx.Session) -> None:
    exe, want = donor(session), np.zeros(SHAPE, np.float32)
    assert copies(exe) == 0 and exe.plan.arena_bytes < NBYTES
    cache, places = rlx.array(want, device=session), set()
    for at in (3, 0, 255):
        row = rows(at)["q"]
        given, results = cache, exe.run({"cache": cache, "row": row, "at": np.array(at, np.int32)}, "device")
        cache = results["made"]
        places.add((cache._alive().address, cache._offset))  # which do not copy it out, as any use does
        want[:, :, at] = row[:, :, 0]
        np.testing.assert_allclose(results["total"], want.sum((2, 3)), rtol=1e-5, atol=1e-5)
        with pytest.raises(rlx.errors.ArenaError, match="was donated to a run of 'donor', as its input 'cache'"):
            given.numpy()
    assert len(places) == 1
    np.testing.assert_array_equal(cache, want)


def test_a_result_that_is_kept_is_not_overwritten(session: rlx.Session) -> None:
    state = rlx.State(session.device)
    exe, other = donor(session, state=state), donor(session, state=state)
    row, zeros, at = rows(0)["q"], np.zeros(SHAPE, np.float32), np.array(7, np.int32)
    want = zeros.copy()
    want[:, :, 7] = row[:, :, 0]
    kept = [exe.run({"cache": zeros, "row": row, "at": at}, "device")["made"]]
    kept.append(other.launch({"cache": kept[0].copy(), "row": row * 2, "at": at}).results["made"])
    kept.append(exe.launch({"cache": zeros + 1, "row": row, "at": at}).results["made"])
    exe.set_state("cache", zeros)
    for held, factor, base in zip(kept, (1, 2, 1), (0, 0, 1), strict=True):
        expected = np.full(SHAPE, base, np.float32)
        expected[:, :, 7] = row[:, :, 0] * np.float32(factor)
        np.testing.assert_array_equal(held, expected)
    passed_on = other.run({"cache": exe.run({"cache": zeros, "row": row, "at": at}, "device")["made"],
                           "row": row, "at": np.array(8, np.int32)}, "device")["made"]  # fmt: skip
    exe.close()
    other.close()
    state.close()
    want[:, :, 8] = row[:, :, 0]
    np.testing.assert_array_equal(passed_on, want)


def adder(session: rlx.Session, **options: Any) -> rlx.CompiledGraph:
    g = rlx.Graph("adder")
    g.output("y", g.input("x", (64,)) + 1.0)
    return session.compile(g, donate=["x"], **options)


def filled(value: float) -> Any:
    return np.full(64, value, np.float32)


def test_a_lent_result_never_changes(session: rlx.Session) -> None:
    exe = adder(session)
    bound = exe.bind()
    bound.write("x", filled(1))
    bound.run()
    twice = [bound.read("y", "device") for _ in range(2)]
    bound.run()
    assert [y.tolist()[0] for y in twice] == [2, 2] and bound.read("y")[0] == 3
    to, source = adder(session), adder(session)
    lent = to.run({"x": filled(3)}, "device")["y"]
    source.set_state("x", filled(9))
    source.state.copy_to(to.state)
    assert lent.tolist()[0] == 4 and to.get_state("x")[0] == 9


@pytest.mark.parametrize("port", ["x", "y"])
def test_what_is_written_in_place_changes_no_result(session: rlx.Session, port: str) -> None:
    if session.info.kind == "discrete":
        pytest.skip("the host cannot address the memory")
    exe = adder(session)
    before = exe.run({"x": filled(3)}, "device")["y"]
    view = {**exe.bind().inputs, **exe.bind().outputs}[port]
    view[...] = 50
    after = exe.run({"x": filled(4)}, "device")["y"]
    view[...] = 60
    assert before.tolist()[0] == 4 and after.tolist()[0] == 5


def test_one_array_for_two_donated_inputs_is_refused(session: rlx.Session) -> None:
    g = rlx.Graph("pair")
    for name in "ab":
        g.output(f"new {name}", g.input(name, (64,)) * g.input(f"by {name}", (64,)))
    exe, x = session.compile(g, donate=["a", "b"]), rlx.array(filled(3), device=session)
    with pytest.raises(rlx.errors.GraphError, match=r"donated inputs 'a' and 'b'.*\.copy\(\)"):
        exe.run({"a": x, "b": x, "by a": x, "by b": x})
    made = exe.run({"a": x, "b": x.copy(), "by a": x, "by b": x}, "device")
    assert made["new a"].tolist() == made["new b"].tolist() == [9] * 64


def test_programs_of_one_state_take_turns(session: rlx.Session) -> None:
    state = rlx.State(session.device)
    exes = [adder(session, state=state) for _ in range(2)]

    def work(k: int) -> list[float]:
        return [exes[k].run({"x": filled(i)}, "device")["y"].tolist()[-1] for i in range(100)]

    assert at_once(2, work) == [[i + 1 for i in range(100)]] * 2


def test_a_training_step_donates_its_parameters(session: rlx.Session) -> None:
    step = rlx.jit(
        lambda params, g, rate: {n: p - rate * g for n, p in params.items()},
        device=session.info.id, out="device", donate="params",
    )  # fmt: skip
    start = {"a": np.ones((3, 2), np.float32), "b": np.zeros((3, 2), np.float32)}
    params: Any = start
    for _ in range(4):
        params = step(params, np.ones((3, 2), np.float32), 0.5)
    np.testing.assert_array_equal(params["a"], np.full((3, 2), -1))
    np.testing.assert_array_equal(params["b"], np.full((3, 2), -2))


def test_donations_that_no_output_takes_are_refused() -> None:
    session = rlx.Session("cpu")
    g = rlx.Graph("refused")
    g.output("y", rlx.sum(g.input("x", (2,))))
    for donate, message in (
        (("x",), r"no output of type f32\[2\] is left for input 'x'"), ("x", "is a string"),
        (("z",), r"no inputs \['z'\]"), ({"x": "y"}, r"'y' is f32\[\]"), ({"x": "w"}, "no output 'w'"),
    ):  # fmt: skip
        with pytest.raises((rlx.errors.GraphError, rlx.errors.ShapeError), match=message):
            session.compile(g, donate=donate)  # type: ignore[arg-type]
    with pytest.raises(rlx.errors.GraphError, match="donate names"):
        rlx.jit(lambda x: x + 1, device="cpu", donate="y")(np.ones(2, np.float32))
