"""Weights of the compiled engine lie in the order of its products only, and whoever asks gets them in their own."""

import gc
import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.arena import CpuBuffer
from rlx.backends.cpu.choice import why_not
from rlx.backends.cpu.context import Array
from rlx.errors import OutOfDeviceMemory

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no compiled engine: {why_not()}")
RNG = np.random.default_rng(0)
W, X = (RNG.standard_normal(s).astype(np.float32) for s in ((300, 200), (16, 300)))
W2 = RNG.standard_normal((300, 200)).astype(np.float32)
NBYTES = 4 * 300 * 200


def product(rows: int = 16, transposed: bool = False) -> rlx.Graph:
    g = rlx.Graph("product")
    w = g.param("w", (200, 300) if transposed else (300, 200), "f32")
    g.output("y", rlx.matmul(g.input("x", (rows, 300), "f32"), w, transpose_b=transposed))
    return g


def compiled(
    g: rlx.Graph, weights: rlx.Weights | None = None, engine: Any = "compiled", **options: Any
) -> rlx.CompiledGraph:
    return rlx.Session("cpu", engine=engine, threads=2, **options).compile(g, weights=weights)


def buffer_of(exe: rlx.CompiledGraph) -> CpuBuffer:
    (buffer,) = exe.weights.segments().values()
    assert isinstance(buffer, CpuBuffer)
    return buffer


def close(got: Array, w: Array, x: Array = X) -> None:
    np.testing.assert_allclose(got, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_weight_takes_its_memory_once(transposed: bool) -> None:
    w = np.ascontiguousarray(W.T) if transposed else W
    with compiled(product(transposed=transposed)) as exe:
        exe.set_param("w", w)
        close(exe.run({"x": X})["y"], W)
        freed = buffer_of(exe).forms.freed_bytes
        assert NBYTES - 2 * 4096 < freed <= NBYTES
        assert exe.weights.room_bytes < exe.weights.nbytes + NBYTES // 4  # edges of panels and of pages
        np.testing.assert_array_equal(exe.weights.get("w"), w)
        np.testing.assert_array_equal(exe.weights.get("w", out="device").numpy(), w)
        assert buffer_of(exe).forms.freed_bytes == freed
        exe.set_param("w", -w)
        close(exe.run({"x": X})["y"], -W)
        np.testing.assert_array_equal(exe.weights.get("w"), -w)
        assert buffer_of(exe).forms.freed_bytes == freed


def test_a_filter_and_a_constant_take_their_memory_once() -> None:
    w, x = RNG.standard_normal((64, 32, 3, 3)).astype(np.float32), RNG.standard_normal((1, 32, 6, 6)).astype(np.float32)
    g = rlx.Graph("conv")
    y = rlx.conv(g.input("x", x.shape, "f32"), g.param("w", w.shape, "f32"))
    g.output("y", rlx.matmul(y, g.constant(RNG.standard_normal((4, 6000)).astype(np.float32))))
    made = {}
    for engine in ("compiled", "numpy"):
        with compiled(g, engine=engine) as exe:
            exe.set_param("w", w)
            made[engine] = exe.run({"x": x})["y"]
            if engine == "compiled":
                assert buffer_of(exe).forms.freed_bytes > w.nbytes - 8192
                constants = exe.arena.buffer("const")
                assert isinstance(constants, CpuBuffer)
                assert constants.forms.freed_bytes > 80_000
                np.testing.assert_array_equal(exe.weights.get("w"), w)
    np.testing.assert_allclose(made["compiled"], made["numpy"], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [2, 3])
def test_a_filter_of_a_transposed_convolution_takes_its_memory_once(stride: int, kernel: int) -> None:
    """Its phases' panels are the whole filter together. Where a tap lies outside of the image, the elements at the
    edges are computed from the filter itself, if that is not finite: then the panels are a second copy."""
    w, x = (RNG.standard_normal(s).astype(np.float32) for s in ((64, 96, kernel, kernel), (1, 64, 6, 6)))
    g = rlx.Graph("spread")
    y = rlx.conv_transpose(g.input("x", x.shape, "f32"), g.param("w", w.shape, "f32"), strides=stride)
    g.output("y", y)
    with compiled(g) as exe, compiled(g, engine="numpy") as plain:
        for bad in (0.0, np.inf):
            w[3, 5, 0, 1] = bad
            for e in (exe, plain):
                e.set_param("w", w)
            made, wanted = (e.run({"x": x})["y"] for e in (exe, plain))
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(exe.weights.get("w"), w)
        assert (buffer_of(exe).forms.freed_bytes > w.nbytes - 8192) == (stride == kernel)


def test_a_weight_that_a_product_reads_twice() -> None:
    """In panels, and row by row: on both sides, and beside the product."""
    g = rlx.Graph("twice")
    w = g.param("w", (200, 200), "f32")
    g.output("square", rlx.matmul(w, w))
    g.output("sum", rlx.matmul(g.input("x", (200, 200), "f32"), w) + w)
    given, x = W[:200], RNG.standard_normal((200, 200)).astype(np.float32)
    with compiled(g) as exe:
        exe.set_param("w", given)
        for _ in range(2):
            made = exe.run({"x": x})
            close(made["square"], given, given)
            np.testing.assert_allclose(made["sum"], x.astype(np.float64) @ given + given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("repeated", [False, True])
def test_programs_share_a_stack_of_weights(repeated: bool) -> None:
    """One matrix for each head, or one for all; products of few rows and of many read them in other orders."""
    weights = rlx.Weights(rlx.Session("cpu").device)
    w = RNG.standard_normal((1 if repeated else 3, 64, 200)).astype(np.float32)
    for rows in (1, 64, 7):
        g = rlx.Graph("heads")
        x = RNG.standard_normal((3, rows, 64)).astype(np.float32)
        g.output("y", rlx.matmul(g.input("x", x.shape, "f32"), g.param("w", w.shape, "f32")))
        exe = compiled(g, weights)
        weights.set("w", w)
        np.testing.assert_allclose(exe.run({"x": x})["y"], x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(weights.get("w"), w)


def test_programs_share_a_weight() -> None:
    """Of both engines, with tiles of several widths, and through a view of the host."""
    weights = rlx.Weights(rlx.Session("cpu").device)
    one = compiled(product(), weights)
    one.set_param("w", W)
    close(one.run({"x": X})["y"], W)
    forms = buffer_of(one).forms
    freed = forms.freed_bytes
    assert freed
    many = compiled(product(64), weights)
    x = RNG.standard_normal((64, 300)).astype(np.float32)
    close(many.run({"x": x})["y"], W, x)
    assert forms.freed_bytes == freed
    plain = compiled(product(), weights, "numpy")
    close(plain.run({"x": X})["y"], W)
    assert forms.freed_bytes == 0  # its steps read the weight where it lies
    weights.set("w", W2)
    for exe, given in ((one, X), (many, x), (plain, X)):
        close(exe.run({"x": given})["y"], W2, given)
    plain.close()
    assert forms.freed_bytes == freed
    one.close()
    many.close()
    np.testing.assert_array_equal(weights.get("w"), W2)
    with compiled(product(), weights) as again:
        close(again.run({"x": X})["y"], W2)
        seen = again.arena.view(again.program.params["w"].id)
        assert seen is not None
        assert forms.freed_bytes == 0
        seen.view(np.float32)[: W.size].reshape(W.shape)[...] = W  # the host writes it by addresses
        close(again.run({"x": X})["y"], W)
    weights.close()


def test_programs_that_are_dropped_leave_nothing() -> None:
    weights = rlx.Weights(rlx.Session("cpu").device)
    with compiled(product(), weights) as exe:
        exe.set_param("w", W)
        exe.run({"x": X})
        extra = weights.room_bytes
        for rows, engine in ((64, "compiled"), (16, "numpy")):
            dropped = compiled(product(rows), weights, engine)
            dropped.run({"x": np.zeros((rows, 300), np.float32)})
            del dropped
        gc.collect()
        with compiled(product(), weights) as again:
            close(again.run({"x": X})["y"], W)
        assert weights.room_bytes == extra
    weights.close()


def test_the_engine_counts_in_the_limit() -> None:
    with compiled(product(), memory_limit=4 << 20) as exe:
        exe.set_param("w", W)
        exe.run({"x": X})
        own = getattr(exe.executable, "own_bytes")  # noqa: B009
        assert own > 0 and exe.options.room.taken == exe.weights.room_bytes + exe.plan.total_bytes + own
        assert exe.report().engine_bytes == own + exe.weights.room_bytes - exe.weights.nbytes
        least = exe.weights.nbytes + exe.plan.total_bytes
    # The weight fits, and so does the plan, but not what the engine needs beside them.
    with compiled(product(), memory_limit=least + 64) as exe:
        exe.set_param("w", W)
        with pytest.raises(OutOfDeviceMemory, match="memory_limit"):
            exe.run({"x": X})


def test_weights_are_written_and_read_by_other_threads() -> None:
    with compiled(product()) as exe:
        exe.set_param("w", W)
        failed: list[str] = []
        ended = threading.Event()

        def read_and_write() -> None:
            for turn in range(30):
                wanted = W if turn % 2 else W2
                exe.weights.set("w", wanted)
                if not np.array_equal(exe.weights.get("w"), wanted):
                    failed.append(f"turn {turn}")
            ended.set()

        thread = threading.Thread(target=read_and_write)
        thread.start()
        while not ended.is_set():
            exe.run({"x": X})
        thread.join()
        assert not failed
        exe.weights.set("w", W)
        close(exe.run({"x": X})["y"], W)


def test_many_and_few_rows_read_a_weight_where_it_lies() -> None:
    """A prompt and a step of a language model: a weight in the order of its rows is not copied for either."""
    weights = rlx.Weights(rlx.Session("cpu").device)
    x = RNG.standard_normal((130, 300)).astype(np.float32)
    with compiled(product(130, True), weights) as prompt, compiled(product(1, True), weights) as step:
        weights.set("w", np.ascontiguousarray(W.T))
        close(prompt.run({"x": x})["y"], W, x)
        close(step.run({"x": x[:1]})["y"], W, x[:1])
        assert weights.room_bytes == weights.nbytes
    weights.close()


def test_a_view_of_a_whole_buffer_outlives_a_program_that_reads_it() -> None:
    """The program's range is that of the view."""
    given, x = (np.ascontiguousarray(a[:128, :128]) for a in (W, X[:, :128]))
    g = rlx.Graph("square")
    g.output("y", rlx.matmul(g.input("x", x.shape), g.param("w", given.shape)))
    weights = rlx.Weights(rlx.Session("cpu").device)
    with compiled(g, weights) as exe:
        exe.set_param("w", given)
        exe.run({"x": x})
        plain = compiled(g, weights, "numpy")
        plain.run({"x": x})
        assert buffer_of(exe).nbytes == given.nbytes
        seen = exe.arena.view(exe.program.params["w"].id)
        assert seen is not None
        plain.close()
        close(exe.run({"x": x})["y"], given, x)
        np.testing.assert_array_equal(seen.view(np.float32).reshape(given.shape), given)
        seen.view(np.float32)[:] = -given.ravel()
        close(exe.run({"x": x})["y"], -given, x)
    weights.close()


@pytest.mark.parametrize("timings", [False, True])
def test_weights_that_another_program_trains(timings: bool) -> None:
    training = rlx.Graph("training")
    w = training.state("w", W.shape)
    training.update("w", w - training.input("step", W.shape))
    session = rlx.Session("cpu", engine="compiled", timings=timings)
    state = rlx.State(session.device)
    with session.compile(training, state=state) as train, session.compile(product(), weights=state) as exe:
        state.set("w", W)
        close(exe.run({"x": X})["y"], W)
        train.run({"step": W2})
        close(exe.run({"x": X})["y"], W - W2)
    state.close()


def test_weights_that_a_run_of_another_program_left_midway() -> None:
    """A run that takes them over as an input, and then breaks off."""
    g = rlx.Graph("endless")
    w, end = g.input("w", W.shape), g.input("end", (), "i32")
    steps = rlx.while_loop(lambda n: n < end, lambda n: n + 1, g.constant(np.int32(0)), max_steps=3)
    g.output("w", w + rlx.cast(steps, "f32"))
    session = rlx.Session("cpu", engine="compiled")
    state = rlx.State(session.device)
    with session.compile(g, state=state, donate=("w",)) as broken, session.compile(product(), weights=state) as exe:
        state.set("w", W)
        close(exe.run({"x": X})["y"], W)
        with pytest.raises(rlx.RlxError, match="max_steps"):
            broken.run({"w": W2, "end": np.int32(9)})
        close(exe.run({"x": X})["y"], state.get("w"))
    state.close()
