"""Collectives of ranks that are threads: values, gradients, batches, and ranks that disagree, fail or do not come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, RankLost, RanksDisagree, ShapeError, UnsupportedOp
from rlx.ranks.mesh import ranks_along
from tests.ranks.collectives import faults

P = rlx.P
Array = np.ndarray[Any, Any]


def threads(*sizes: int, timeout: float = 30.0) -> rlx.Mesh:
    axes = dict(zip("ab", sizes, strict=False))
    return rlx.Mesh(axes, devices=("cpu",) * int(np.prod(sizes)), timeout=timeout)


def test_all_collectives() -> None:
    mesh = rlx.Mesh({"r": 2}, devices=("cpu",) * 2)
    for count, wrong in mesh.run(lambda: faults(mesh, "cpu", True, (rlx.f32, rlx.bf16, rlx.i64, rlx.u8, rlx.bool_))):
        assert wrong == [] and count > 200


@pytest.mark.late
def test_all_collectives_in_every_dtype() -> None:
    mesh = rlx.Mesh({"r": 3}, devices=("cpu",) * 3)
    for count, wrong in mesh.run(lambda: faults(mesh, "cpu", True)):
        assert wrong == [] and count > 600


def test_groups_along_one_axis_and_both() -> None:
    assert ranks_along({"a": 2, "b": 3}, ("b",), 4) == (3, 4, 5)
    assert ranks_along({"a": 2, "b": 3}, ("a",), 4) == (1, 4)
    assert ranks_along({"a": 2, "b": 3}, ("b", "a"), 0) == (0, 3, 1, 4, 2, 5)
    mesh = threads(2, 2)
    x = np.arange(16, dtype=np.int32).reshape(4, 4)

    def sums(x: Any) -> Any:
        return (
            rlx.all_reduce(x, "a"), rlx.all_reduce(x, ("a", "b")), rlx.all_gather(x, ("b", "a")),
            rlx.reshape(rlx.axis_index(("a", "b")), (1, 1)),
        )  # fmt: skip

    specs = (P(None, "b"), P(), P(), P("a", "b"))
    a, both, whole, index = rlx.shard_map(sums, mesh, P("a", "b"), specs)(x)
    blocks = [[x[i : i + 2, j : j + 2] for j in (0, 2)] for i in (0, 2)]
    np.testing.assert_array_equal(a, np.hstack([blocks[0][j] + blocks[1][j] for j in (0, 1)]))
    np.testing.assert_array_equal(both, blocks[0][0] + blocks[0][1] + blocks[1][0] + blocks[1][1])
    np.testing.assert_array_equal(whole, np.vstack([blocks[i][j] for j in (0, 1) for i in (0, 1)]))
    np.testing.assert_array_equal(index, [[0, 1], [2, 3]])


LOSSES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: rlx.sum(rlx.sin(rlx.all_reduce(x, "a")) * x),
    "mean": lambda x: rlx.sum(rlx.sin(rlx.all_reduce(x, "a", op="mean"))),
    "max": lambda x: rlx.sum(rlx.all_reduce(x, "a", op="max") ** 2),
    "min": lambda x: rlx.sum(rlx.all_reduce(x, "a", op="min") * x),
    "gather": lambda x: rlx.sum(rlx.all_gather(x, "a") ** 2) * rlx.sum(x),
    "gather 1": lambda x: rlx.sum(rlx.sin(rlx.all_gather(x, "a", axis=1))),
    "scatter": lambda x: rlx.sum(rlx.reduce_scatter(x * x, "a") ** 2),
    "scatter 1": lambda x: rlx.sum(rlx.sin(rlx.reduce_scatter(x, "a", axis=1, op="mean"))),
    "exchange": lambda x: rlx.sum(rlx.all_to_all(x, "a", 0, 1) ** 2 * rlx.cast(rlx.axis_index("a") + 1, "f64")),
    "broadcast": lambda x: rlx.sum(rlx.sin(rlx.broadcast(x, "a", root=1)) * x),
    "in a scan": lambda x: rlx.sum(rlx.scan(lambda c, r: (rlx.all_reduce(c * r, "a"), c), x[0], x)[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_the_sum_over_all_ranks(name: str) -> None:
    mesh, loss = threads(2), LOSSES[name]
    x = np.random.default_rng(0).standard_normal((4, 2))
    total = rlx.shard_map(lambda x: rlx.reshape(loss(x), (1,)), mesh, P("a"), P("a"))
    slopes = rlx.shard_map(rlx.grad(loss), mesh, P("a"), P("a"))(x)
    for at in ((0, 0), (1, 1), (2, 0), (3, 1)):
        step = np.zeros_like(x)
        step[at] = 1e-6
        slope = (total(x + step).sum() - total(x - step).sum()) / 2e-6
        assert slope == pytest.approx(slopes[at], rel=1e-6, abs=1e-7), at
    direction = np.random.default_rng(1).standard_normal(x.shape)
    tangent = rlx.shard_map(
        lambda x, d: rlx.reshape(rlx.jvp(loss, (x,), (d,))[1], (1,)), mesh, (P("a"), P("a")), P("a")
    )(x, direction)
    assert tangent.sum() == pytest.approx((slopes * direction).sum(), rel=1e-9)


def test_equal_elements_share_the_gradient_of_the_largest() -> None:
    x = np.array([[1.0, 5.0], [2.0, 5.0], [0.0, 5.0]])
    slopes = rlx.shard_map(
        rlx.grad(lambda x: rlx.sum(rlx.all_reduce(x, "a", op="max"))), threads(3), P("a"), P("a")
    )(x)
    np.testing.assert_allclose(slopes, [[0, 1], [3, 1], [0, 1]])


def test_batches_and_second_derivatives() -> None:
    mesh = threads(2)
    x = np.random.default_rng(0).standard_normal((3, 4, 2))

    def parts(x: Any) -> Any:
        return (
            rlx.all_gather(x, "a"), rlx.reduce_scatter(x, "a"), rlx.all_to_all(x, "a", 0, 1), rlx.all_reduce(x, "a"),
            rlx.broadcast(x, "a"),
        )  # fmt: skip

    batched = rlx.shard_map(rlx.vmap(parts), mesh, P(None, "a"), P(None, "a"))(x)
    for i in range(3):
        alone = rlx.shard_map(parts, mesh, P("a"), P("a"))(x[i])
        for many, one in zip(batched, alone, strict=True):
            np.testing.assert_array_equal(many[i], one)
    curve = rlx.shard_map(rlx.hessian(lambda x: rlx.sum(rlx.all_reduce(x, "a") ** 3)), mesh, P("a"), P("a"))
    y = np.array([1.0, 2.0])
    np.testing.assert_allclose(curve(y), [[4 * 6 * 3.0], [4 * 6 * 3.0]])  # through both ranks' outputs, twice


def test_gradients_that_there_are_none_of() -> None:
    mesh = threads(2)
    for loss in (
        lambda x: rlx.sum(rlx.all_reduce(x, "a", op="prod")),
        lambda x: rlx.sum(rlx.reduce_scatter(x, "a", op="max")),
    ):
        with pytest.raises(UnsupportedOp, match="has none; "):
            rlx.shard_map(rlx.grad(loss), mesh, P(), P())(np.ones(2))


def test_one_rank_alone_has_no_nodes_of_it_and_the_same_checks() -> None:
    mesh = rlx.Mesh({"a": 1})
    with mesh:
        f = rlx.jit(lambda x: rlx.all_reduce(x, "a") + rlx.all_gather(x, "a") + rlx.cast(rlx.axis_index("a"), "f32"))
        assert [n.op.family for n in f.graph(np.ones(3, np.float32)).nodes if n.op.family == "collectives"] == []
        np.testing.assert_array_equal(f(np.ones(3, np.float32)), [2, 2, 2])
        with pytest.raises(DTypeError, match="mean of i32"):
            rlx.jit(lambda x: rlx.all_reduce(x, "a", op="mean"))(np.ones(3, np.int32))


def test_calls_outside_a_trace() -> None:
    mesh = threads(3)

    def work() -> list[Any]:
        x = np.full((3, 2), mesh.rank, np.float32)
        return [np.asarray(f(rlx.array(x), "a")) for f in (rlx.all_reduce, rlx.all_gather, rlx.reduce_scatter)]

    for reduced, gathered, scattered in mesh.run(work):
        np.testing.assert_array_equal(reduced, np.full((3, 2), 3))
        np.testing.assert_array_equal(gathered, np.repeat([[0.0], [1.0], [2.0]], 3, 0).repeat(2, 1))
        np.testing.assert_array_equal(scattered, np.full((1, 2), 3))


@pytest.mark.parametrize(
    "error, text, call",
    [
        (GraphError, "no axis 'data'", lambda x: rlx.all_reduce(x, "data")),
        (GraphError, "the axis is None; expected a name of a", lambda x: rlx.all_reduce(x, None)),
        (GraphError, "each once", lambda x: rlx.all_reduce(x, ("a", "a"))),
        (ShapeError, "op is 'median'", lambda x: rlx.all_reduce(x, "a", op="median")),
        (ShapeError, "does not divide among 2", lambda x: rlx.reduce_scatter(x, "a")),
        (ShapeError, "does not divide among 2", lambda x: rlx.all_to_all(x, "a", 0, 1)),
        (ShapeError, "is a scalar", lambda x: rlx.all_gather(rlx.sum(x), "a")),
        (ShapeError, "root is 2", lambda x: rlx.broadcast(x, "a", root=2)),
        (DTypeError, "the sum of bools", lambda x: rlx.all_reduce(x > 0, "a")),
        (ShapeError, "axis 2", lambda x: rlx.all_gather(x, "a", axis=2)),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(error: type[Exception], text: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(error, match=text):
        rlx.shard_map(call, threads(2), P(), P())(np.ones((3, 2), np.float32))


def test_specs_and_meshes_that_do_not_fit() -> None:
    mesh = threads(2)
    with pytest.raises(GraphError, match="no axis 'rows'"):
        rlx.shard_map(lambda x: x, mesh, P("rows"), P())
    with pytest.raises(GraphError, match="for 2 arguments"):
        rlx.shard_map(lambda x: x, mesh, (P(),), P())(1.0, 2.0)
    with pytest.raises(ShapeError, match=r"argument 0, \(3,\), does not divide among 2 ranks"):
        rlx.shard_map(lambda x: x, mesh, P("a"), P())(np.ones(3))
    with pytest.raises(GraphError, match="in a traced function"):
        rlx.jit(rlx.shard_map(lambda x: x, mesh, P(), P()))(np.ones(3))
    with pytest.raises(GraphError, match="within no mesh"):
        rlx.jit(lambda x: rlx.all_reduce(x, "a"))(np.ones(3))
    with pytest.raises(GraphError, match=r"mesh\.run\(f\) calls f on each"):
        _ = mesh.rank
    with pytest.raises(ShapeError, match="are 3 ranks; there are 2 devices"):
        rlx.Mesh({"a": 3}, devices=("cpu", "cpu"))
    with pytest.raises(ShapeError, match="are 2 ranks; there is 1 device;"):
        rlx.Mesh({"a": 2}, devices=("cpu",))
    with pytest.raises(GraphError, match="devices is 'cpu'; expected a name for each rank"):
        rlx.Mesh({"a": 3}, devices="cpu")
    with pytest.raises(ShapeError, match="axis 'a' has size True"):
        rlx.Mesh({"a": True})
    assert rlx.Mesh({"a": np.int64(2)}, devices=("cpu", "cpu")).axes == {"a": 2}
    with pytest.raises(ShapeError, match="start the program by mpiexec"):
        rlx.Mesh({"a": 2})
    with pytest.raises(ShapeError, match="both -1"):
        rlx.Mesh({"a": -1, "b": -1})
    assert rlx.Mesh({"a": 2, "b": -1}, devices=("cpu",) * 6).axes == {"a": 2, "b": 3}


def test_trees_of_arguments_and_results() -> None:
    mesh = threads(2)

    def f(p: Any, x: Any) -> Any:
        return {"whole": rlx.all_reduce(x @ p["w"], "a"), "own": x + 1}

    p, x = {"w": np.eye(2), "unused": np.ones(3)}, np.arange(8.0).reshape(2, 4)
    out = rlx.shard_map(f, mesh, ({"w": P("a"), "unused": None}, P(None, "a")), {"whole": P(), "own": P(None, "a")})(
        {"w": np.arange(8.0).reshape(4, 2), "unused": p["unused"]}, x
    )
    np.testing.assert_allclose(out["whole"], x @ np.arange(8.0).reshape(4, 2))
    np.testing.assert_allclose(out["own"], x + 1)


# -- ranks that go apart


def _apart(mesh: rlx.Mesh, *calls: Callable[[], Any]) -> BaseException:
    """The error of ranks of which each does its own."""
    with pytest.raises((RanksDisagree, RankLost, ValueError)) as error:
        mesh.run(lambda: calls[mesh.rank]())
    return error.value


def _program(factor: float, op: Callable[..., Any] = rlx.all_reduce, n: int = 3) -> Callable[[], Any]:
    return lambda: rlx.jit(lambda x: op(x * factor, "a"), device="cpu")(np.ones(n, np.float32))


def test_ranks_with_other_programs_are_told() -> None:
    mesh = threads(2)
    other = _apart(mesh, _program(2.0), _program(3.0))
    assert isinstance(other, RanksDisagree)
    assert "rank 0 has '%1: f32[] = constant() {value=2.0}', rank 1 '%1: f32[] = constant() {value=3.0}'" in str(other)
    other = _apart(mesh, _program(2.0), _program(2.0, rlx.all_gather))
    assert isinstance(other, RanksDisagree) and "rank 0 is at all_reduce of" in str(other)
    assert "rank 1 is at all_gather of" in str(other)
    other = _apart(mesh, _program(2.0), _program(2.0, n=4))
    assert isinstance(other, RanksDisagree) and "f32[3]" in str(other) and "f32[4]" in str(other)
    assert len(mesh.run(_program(2.0))) == 2  # the mesh can be used again


def test_a_rank_that_fails_ends_the_others() -> None:
    def fails() -> Any:
        raise ValueError("bad data")

    mesh = threads(2)
    assert str(_apart(mesh, _program(2.0), fails)) == "bad data"
    seen: list[str] = []

    def notes() -> Any:
        try:
            _program(2.0)()
        except RankLost as error:
            seen.append(str(error))
            raise

    _apart(mesh, notes, fails)
    assert seen == ["rank 1 ended: ValueError: bad data"]


def test_calls_of_several_threads_take_turns() -> None:
    """Otherwise ranks of one call would meet those of another call in a collective."""
    mesh, wrong = threads(2), list[Any]()
    f = rlx.shard_map(lambda x: rlx.all_reduce(rlx.sum(x), "a"), mesh, P("a"), P())

    def work(k: int) -> None:
        for _ in range(20):
            try:
                wrong.extend(x for x in [float(f(np.arange(8.0) + k))] if x != 28 + 8 * k)
            except rlx.errors.RlxError as error:
                wrong.append(error)
                return

    callers = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []
    with pytest.raises(GraphError, match="call the function itself"):
        mesh.run(f, np.arange(8.0))


def test_a_rank_that_does_not_come_is_named() -> None:
    over = threading.Event()
    error = _apart(threads(2, timeout=0.2), lambda: _until(over), lambda: over.wait(20))
    assert isinstance(error, RankLost) and "rank 1 did not come to all_reduce of f32[3]" in str(error)


def _until(over: threading.Event) -> None:
    try:
        _program(2.0)()
    finally:
        over.set()


def test_a_rank_that_has_returned_is_not_waited_for() -> None:
    """As one of MPI that has ended; what it gave before counts."""
    mesh = threads(3)
    error = _apart(mesh, _program(2.0), lambda: None, _program(2.0))
    assert isinstance(error, RankLost) and str(error).startswith("rank 1 ended before all_reduce of f32[3]")
    assert len(mesh.run(_program(2.0))) == 3


def test_collectives_are_computed_in_runs_alone() -> None:
    """Of a constant too, which passes would fold, and each time."""
    mesh = threads(2)

    def work() -> list[float]:
        f = rlx.jit(lambda x: rlx.all_reduce(rlx.ones((2,)), "a") * x, device="cpu")
        assert sum(n.op.family == "collectives" for n in rlx.Session("cpu").compile(f.graph(1.0)).program.nodes) == 1
        return [f(3.0)[0], f(4.0)[0]]

    assert mesh.run(work) == [[6.0, 8.0], [6.0, 8.0]]


def test_programs_and_meshes_are_no_files() -> None:
    import pickle

    with pytest.raises(GraphError, match="cannot be pickled"):
        pickle.dumps(threads(2))
