"""Lengths that vary, in buckets: results are those of float64 at the true length, and programs are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError, ShapeError, UnsupportedOp
from rlx.ir import Graph, verify
from rlx.ops.interpret import evaluate
from rlx.ops.pytree import flatten
from rlx.passes.lengths import Refused, Unlike, padded
from rlx.runtime import buckets
from tests.devices import device_here, or_skip
from tests.full import full
from tests.lengths.networks import NETWORKS, poisoned
from tests.lengths.random_lengths import LARGEST, LEAST, graph_of_length


def leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    flatten(value, found)
    return found


def close(got: Any, wanted: Any, what: str) -> None:
    """Within the rounding of sums of f32 in any order; what is not float, exactly."""
    assert got.shape == wanted.shape, what
    if got.dtype.kind == "f":
        np.testing.assert_allclose(
            got, wanted, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(wanted).max()), err_msg=what
        )
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=what)


# The other networks compile too many pipelines for every run.
ON_VULKAN = {"mean over a sequence", "gradient of a mean loss"}


@pytest.mark.parametrize(
    ("device", "name"), [(device, name) for name in NETWORKS for device in ("cpu", "vulkan")]
)
@pytest.mark.full(device="vulkan", name=NETWORKS.keys() - ON_VULKAN)
def test_networks_give_what_float64_gives_at_the_true_length(device: str, name: str) -> None:
    device_here(device)
    network = NETWORKS[name]
    rng = np.random.default_rng(0)
    f = rlx.jit(network.function, dims=network.dims, device=device)
    lengths = (1, 3, 5, 8, 6, 13) if device == "cpu" else (3, 4)
    for n in lengths:
        arrays = network.arrays(rng, n)
        wide = [
            {k: v.astype(np.float64) for k, v in a.items()}
            if isinstance(a, dict)
            else a.astype(np.float64)
            if a.dtype.kind == "f"
            else a
            for a in arrays
        ]
        for i, (x, y) in enumerate(zip(leaves(f(*arrays)), leaves(network.oracle(*wide)), strict=True)):
            close(x, np.asarray(y), f"{name}, length {n}, result {i}")
    assert len(f.report().programs) == len({1 << (n - 1).bit_length() for n in lengths})


@pytest.mark.parametrize(
    ("function", "oracle", "shape"),
    [
        (lambda x: rlx.sum(x[:-1]), lambda x: x[:-1].sum(), (-1,)),
        (lambda x: rlx.mean(rlx.pad(x, ((0, -1),))), lambda x: x[:-1].mean(), (-1,)),
        (lambda x: x[:, :-1] @ x[:, :-1].T, lambda x: x[:, :-1] @ x[:, :-1].T, (3, -1)),
        (lambda x: rlx.sum(rlx.transpose(x)[:-1], axis=0), lambda x: x[:, :-1].sum(1), (2, -1)),
        (
            lambda x: rlx.conv(x[:, :, :-1], np.ones((1, 2, 3), np.float32), pads=1),
            lambda x: np.convolve(x[0, :, :-1].sum(0), np.ones(3))[None, None, 1:-1],
            (1, 2, -1),
        ),
        (lambda x: rlx.sum(x[:, : x.shape[0]]), lambda x: x[:, : len(x)].sum(), (-1, 9)),
    ],
)
def test_true_elements_that_a_slice_cuts_off_count_nothing(function: Any, oracle: Any, shape: Any) -> None:
    """They lie where the padding of the result is, which is then not zero although that of the input was."""
    rng = np.random.default_rng(6)
    f = rlx.jit(function, dims={"x": {shape.index(-1): rlx.Dim("n", max=8)}}, device="cpu")
    for n in (4, 5, 8, 7, 3):
        x = rng.standard_normal([n if k == -1 else k for k in shape], dtype=np.float32)
        close(np.asarray(f(x)), np.asarray(oracle(x.astype(np.float64))), f"length {n}")


def test_a_thousand_batches_take_seven_programs() -> None:
    rng = np.random.default_rng(1)
    w, v = (rng.standard_normal(s, dtype=np.float32) for s in ((8, 16), (16, 4)))
    traced = []

    def mlp(x: Any, w: Any, v: Any) -> Any:
        traced.append(x.shape[0])
        y = rlx.gelu(x @ w) @ v
        return y, rlx.mean(y, axis=0), rlx.argmax(y, axis=0)

    f = rlx.jit(mlp, dims={"x": (rlx.Dim("batch", max=64), None)}, device="cpu")
    exact = rlx.jit(mlp, device="cpu")
    for step in range(1000):
        x = rng.standard_normal((int(rng.integers(1, 65)), 8), dtype=np.float32)
        got = f(x, w, v)
        if step % 20 == 0:
            for a, b in zip(got, exact(x, w, v), strict=True):
                close(a, b, f"batch {len(x)}")
    report = f.report()
    assert sorted(p.sizes["batch"] for p in report.programs) == [1, 2, 4, 8, 16, 32, 64]
    assert sum(p.runs for p in report.programs) == 1000 and not any(p.exact for p in report.programs)
    assert report.asked <= report.ran < 2 * report.asked
    assert "7 programs, 1000 runs" in str(report) and "2 masks" in str(report)
    assert len(traced) < 300  # some graphs for each length; not one for each call


def test_rows_that_do_not_meet_keep_their_bits() -> None:
    x = np.random.default_rng(2).standard_normal((5, 7), dtype=np.float32)

    def rows(x: Any) -> Any:
        return rlx.softmax(rlx.gelu(x) * 2.0), rlx.layer_norm(
            x, np.ones(7, np.float32), np.zeros(7, np.float32)
        )

    bucketed = rlx.jit(rows, dims={"x": rlx.Dim("n", max=8)}, device="cpu")
    for a, b in zip(bucketed(x), rlx.jit(rows, device="cpu")(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_lengths_at_once() -> None:
    rng = np.random.default_rng(3)

    def flat(x: Any, w: Any) -> Any:
        rows = rlx.reshape(poisoned(x), (-1, 3)) @ w
        return (
            rlx.reshape(rows, x.shape),
            rlx.sum(rows, axis=0),
            rlx.mean(rlx.softmax(x, axis=1), axis=(0, 1)),
        )

    f = rlx.jit(flat, dims={"x": (rlx.Dim("batch", max=8), rlx.Dim("time", max=8), None)}, device="cpu")
    w = rng.standard_normal((3, 3), dtype=np.float32)
    for b, t in ((3, 5), (7, 3), (4, 8), (3, 7), (1, 5)):
        x = rng.standard_normal((b, t, 3), dtype=np.float32)
        wide = x.astype(np.float64)
        e = np.exp(wide)
        rows = wide @ w
        wanted = (rows, rows.sum((0, 1)), (e / e.sum(1, keepdims=True)).mean((0, 1)))
        for i, (got, want) in enumerate(zip(f(x, w), wanted, strict=True)):
            close(got, want, f"{b} x {t}, result {i}")
    assert [tuple(p.sizes.values()) for p in f.report().programs] == [(4, 8), (8, 4), (1, 8)]


def test_draws_of_rows_are_those_of_the_exact_program() -> None:
    key = np.array([1, 2], np.int32)

    def noisy(x: Any, key: Any) -> Any:
        return x + rlx.random.normal(key, x.shape)

    x = np.ones((5, 3), np.float32)
    dim = rlx.Dim("n", max=8)
    got = rlx.jit(noisy, dims={"x": dim}, device="cpu")(x, key)
    np.testing.assert_array_equal(got, rlx.jit(noisy, device="cpu")(x, key))
    with pytest.raises(UnsupportedOp, match=r"random_bits.*row-major order"):
        rlx.jit(noisy, dims={"x": (None, dim)}, device="cpu")(x.reshape(3, 5), key)


def test_what_cannot_be_masked_is_refused_with_its_name_or_run_exactly() -> None:
    x = np.random.default_rng(4).standard_normal((3, 2), dtype=np.float32)
    dims = {"x": rlx.Dim("n", max=8)}

    def transform(x: Any) -> Any:
        return rlx.fft.rfft(x, axis=0)

    with pytest.raises(
        UnsupportedOp, match=r"lengths n 3 .* bucket n 4: rfft.*its n depends on the length.*exact"
    ):
        rlx.jit(transform, dims=dims, device="cpu")(x)
    f = rlx.jit(transform, dims=dims, otherwise="exact", device="cpu")
    close(f(x), np.stack([np.fft.rfft(x, axis=0).real, np.fft.rfft(x, axis=0).imag], -1), "exact")
    assert "rfft" in f.report().programs[0].exact and f.report().ran == f.report().asked

    def branch(x: Any) -> Any:
        return x * 2 if x.shape[0] > 6 else rlx.exp(x) + 1

    f = rlx.jit(branch, dims=dims, device="cpu")
    np.testing.assert_array_equal(f(np.ones((4, 1), np.float32)), np.exp(np.ones((4, 1), np.float32)) + 1)
    with pytest.raises(UnsupportedOp, match="another structure"):
        f(np.ones((5, 1), np.float32))


def test_a_number_that_differs_at_one_length_alone() -> None:
    """Neither the bucket's size nor its least length tells; the graph of the length itself does."""

    def odd(x: Any) -> Any:
        return rlx.sum(x * (3.0 if x.shape[0] == 11 else 2.0), axis=0)

    f = rlx.jit(odd, dims={"x": rlx.Dim("n", max=16)}, device="cpu")
    for n in (9, 13, 11, 13, 16, 11):
        assert f(np.ones((n, 1), np.float32)) == n * (3.0 if n == 11 else 2.0)
    assert len(f.report().programs) == 1 and f.report().asked == 9 + 13 + 11 + 13 + 16 + 11


def test_two_lengths_that_each_tell_of_another_number_take_one_program() -> None:
    traced = []

    def odd(x: Any) -> Any:
        traced.append(x.shape[0])
        return x * (2.0 if x.shape[0] == 6 else 1.0) + (3.0 if x.shape[0] == 7 else 0.0)

    f = rlx.jit(odd, dims={"x": rlx.Dim("n", max=8)}, device="cpu")
    for n in (6, 7) * 2:
        np.testing.assert_array_equal(f(np.ones(n, np.float32)), np.full(n, 2.0 if n == 6 else 4.0))
    known = len(traced)
    for n in (6, 7) * 4:
        f(np.ones(n, np.float32))
    assert len(traced) == known


def test_exact_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "KEPT_EXACT", 2)
    dims = {"x": rlx.Dim("n", max=16)}
    f = rlx.jit(lambda x: rlx.fft.rfft(x, axis=0), dims=dims, otherwise="exact", device="cpu")
    for n in (9, 10, 9, 11, 12, 9, 10):
        x = np.arange(n, dtype=np.float32)
        close(f(x)[:, 0], np.fft.rfft(x).real, f"length {n}")
    assert [p.sizes["n"] for p in f.report().programs] == [9, 10]


def test_limits_of_clip_that_depend_on_the_length() -> None:
    i = np.arange(2**31, 2**31 + 9)
    dims = {"x": rlx.Dim("n", max=8)}
    f = rlx.jit(lambda x, i: (x, rlx.clip(i, 0, 2**31 + x.shape[0])), dims=dims, device="cpu")
    for n in (5, 8, 6):
        np.testing.assert_array_equal(f(np.ones(n, np.float32), i)[1], np.minimum(i, 2**31 + n))
    f = rlx.jit(
        lambda x, i: (x, rlx.clip(i, x.shape[0], 3 if x.shape[0] == 6 else None)), dims=dims, device="cpu"
    )
    f(np.ones(5, np.float32), i)
    with pytest.raises(UnsupportedOp, match="it has a max at some lengths only"):
        f(np.ones(6, np.float32), i)
    np.testing.assert_array_equal(f(np.ones(7, np.float32), i)[1], i)  # what fits runs on


def test_an_error_at_a_length_that_no_call_gave_names_that_length() -> None:
    f = rlx.jit(lambda x, y: x + y, dims={"x": rlx.Dim("n", max=8)}, device="cpu")
    x = np.ones(7, np.float32)
    with pytest.raises(
        UnsupportedOp, match=r"at n 8 too, .* ShapeError: add.*Every argument that has the len"
    ):
        f(x, x)


def _scanned(x: Any, w: Any) -> Any:
    last, _ = rlx.scan(lambda h, r: (h * 0.5 + r * float(x.shape[0] % 3), None), rlx.sum(w) * 0, w)
    return rlx.sum(x) * last


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: rlx.sum(x) * rlx.sum(w[x.shape[0] % 3 : x.shape[0] % 3 + 2]),
        lambda x, w: rlx.sum(x) * rlx.sum(rlx.clip(w, 0.0, float(x.shape[0] % 3))),
        lambda x, w: (
            rlx.sum(x) * rlx.cond(rlx.sum(w) > 0, lambda: w[0] * float(x.shape[0] % 3), lambda: w[1])
        ),
        _scanned,
        lambda x, w: rlx.scan(lambda h, _: (h * 1.5, None), x, length=2 + x.shape[0] % 3)[0],
        lambda x, w: rlx.scan(lambda h, _: (h * 1.5, None), x, length=20 - x.shape[0])[0],
    ],
)
def test_what_depends_on_the_length_where_nothing_is_padded(function: Any) -> None:
    """The bucket's size and its least length agree on it: 8 % 3 == 5 % 3. Others run rightly or are refused."""
    w = np.arange(1, 5, dtype=np.float32) * 0.5
    dims = {"x": (rlx.Dim("n", max=8),)}
    f = rlx.jit(function, dims=dims, otherwise="exact", device="cpu")
    exact = rlx.jit(function, device="cpu")
    for n in (8, 5, 6, 7, 5):
        x = np.ones(n, np.float32)
        close(f(x, w), exact(x, w), f"length {n}")


def test_a_reshape_of_no_elements() -> None:
    f = rlx.jit(lambda x: (x * 2, rlx.reshape(x[:0], (3, 0))), dims={"x": (rlx.Dim("n", max=8),)}, device="cpu")
    for n in (5, 8, 7):
        double, empty = f(np.ones(n, np.float32))
        assert double.shape == (n,) and empty.shape == (3, 0)


def test_another_structure_before_a_node_that_was_decomposed() -> None:
    def scaled(x: Any) -> Any:
        y = rlx.exp(rlx.exp(x) + 1) if x.shape[0] == 7 else x
        return rlx.rms_norm(y, rlx.abs(y))

    f = rlx.jit(scaled, dims={"x": rlx.Dim("n", max=8)}, otherwise="exact", device="cpu")
    for n in (5, 7, 6):
        x = np.arange(1, n + 1, dtype=np.float32) / n
        y = np.exp(np.exp(x.astype(np.float64)) + 1) if n == 7 else x.astype(np.float64)
        close(f(x), y * np.abs(y) / np.sqrt((y * y).mean() + 1e-6), f"length {n}")


def test_a_table_that_is_cut_to_the_length() -> None:
    """At the bucket's size the slice is the whole table, and there is none in the graph."""
    table = np.arange(8, dtype=np.float32)

    def placed(x: Any, table: Any) -> Any:
        return x + table[: x.shape[1]]

    f = rlx.jit(placed, dims={"x": (None, rlx.Dim("n", max=8))}, device="cpu")
    for n in (5, 8, 7, 3):
        np.testing.assert_array_equal(f(np.ones((2, n), np.float32), table), np.ones((2, n)) + table[:n])


def test_declarations_and_lengths_that_do_not_fit() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y

    batch = rlx.Dim("batch", max=4)
    for dims, text in (
        ({"z": (batch,)}, "names \\['z'\\]"), ({"x": ("n",)}, "no Dim 'n'"), ({"x": 3}, "expected an rlx.Dim"),
        ({"x": (batch,), "y": (rlx.Dim("batch", max=8),)}, "twice"), ({}, "expected a dict"),
    ):  # fmt: skip
        with pytest.raises(GraphError, match=text):
            rlx.jit(f, dims=dims)
    with pytest.raises(GraphError, match="otherwise"):
        rlx.jit(f, dims={"x": batch}, otherwise="guess")  # type: ignore[call-overload]
    with pytest.raises(ShapeError, match="expected an int of 1 or more"):
        rlx.Dim("n", max=0)
    g = rlx.jit(f, dims={"x": batch, "y": ("batch",)}, device="cpu")
    with pytest.raises(ShapeError, match="'batch' is 5; it was declared from 1 to 4"):
        g(np.ones((5, 2)), np.ones((5, 2)))
    with pytest.raises(ShapeError, match=r"3 in argument 'y' of shape .*, and 2 in argument 'x'"):
        g(np.ones((2, 2)), np.ones((3, 2)))
    with pytest.raises(GraphError, match="leave out dims"):
        g.launch(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(GraphError, match="donate"):
        rlx.jit(f, dims={"x": batch}, donate="x")
    with pytest.raises(GraphError, match="no program is compiled yet"):
        rlx.jit(f).report()
    assert rlx.Dim("n", max=50).buckets == (1, 2, 4, 8, 16, 32, 50)
    assert rlx.Dim("n", max=200, buckets=(10, 48)).buckets == (10, 48, 64, 128, 200)
    assert rlx.Dim("n", min=5, max=16).buckets == (8, 16)


def test_random_graphs_are_what_the_references_give_at_the_true_length() -> None:
    """The oracle is each op's NumPy definition in float64, on the graph of the exact length."""
    padded_graphs = 0
    seeds = 2000 if full() else 25
    for seed in range(seeds):
        at = {n: graph_of_length(seed, n, poisoned=seed % 3 > 0) for n in (LARGEST, LEAST, 13)}
        exact = at[13]
        try:
            program = padded(at[LARGEST].graph, [at[LEAST].graph])
            fit = program.fit(exact.graph)
        except (Refused, Unlike):
            continue  # not one program at all lengths
        padded_graphs += 1
        verify(program.graph)
        feeds = exact.of(exact.graph.inputs)
        more = {name: exact.feeds[name] for name in (*exact.graph.params, *exact.graph.states)}
        got = fit.cut(outputs(program.graph, fit.pad(feeds) | more))
        for name, wanted in outputs(exact.graph, feeds | more).items():
            assert got[name].shape == wanted.shape, (seed, name)
            np.testing.assert_allclose(got[name], wanted, rtol=1e-9, atol=1e-9, err_msg=f"{seed}: {name}")
    assert padded_graphs > seeds // 3


def outputs(graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        found = evaluate(graph, feeds)
    return {n: found[t.id] for n, t in graph.outputs.items()}


def test_what_a_declaration_cannot_be_is_said() -> None:
    with pytest.raises(ShapeError, match=r"buckets \[100\] are above max, which is 64"):
        rlx.Dim("b", max=64, buckets=(8, 100))
    f = rlx.jit(lambda x: x * 2, dims={"x": (rlx.Dim("b", max=8), None, None)}, device="cpu")
    with pytest.raises(ShapeError, match=r"has 3 entries.*shape \(2, 3\)"):
        f(np.ones((2, 3), np.float32))


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_arrays_of_a_device_are_padded_and_cut_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with or_skip():
        session = rlx.Session(device)
    batch, words = rlx.Dim("batch", max=16), rlx.Dim("words", max=8)

    def f(x: Any, y: Any) -> Any:
        return x * 2 + y, rlx.sum(x, axis=0)

    first = rlx.jit(f, device=session, dims={"x": batch, "y": batch}, out="device")
    second = rlx.jit(f, device=session, dims={"x": (None, words), "y": (None, words)}, out="device")
    rows = np.random.default_rng(1).standard_normal((11, 3)).astype(np.float32)
    held = rlx.array(rows, device=session)
    first(rows, rows)
    with monkeypatch.context() as patch:
        patch.setattr(rlx.Array, "numpy", lambda self: pytest.fail("a copy to the host"))
        made, total = first(held, first(held, rows)[0])
    np.testing.assert_allclose(made, rows * 5, rtol=1e-5)
    np.testing.assert_allclose(total, rows.sum(axis=0), rtol=1e-4, atol=1e-5)
    for function in (first, second):
        for n in (3, 5):
            x = np.random.default_rng(n).standard_normal((n, n)).astype(np.float32)
            for given in (x, rlx.array(x, device=session)):
                made, total = function(given, x)
                assert isinstance(made, rlx.Array) and made.device is session.device
                np.testing.assert_allclose(made, x * 3, rtol=1e-5)
                np.testing.assert_allclose(total, x.sum(axis=0), rtol=1e-4, atol=1e-5)
