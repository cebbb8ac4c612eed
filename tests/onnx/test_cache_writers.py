"""Operators that write into a cache: what does not fit is refused, wherever the index comes from. The operators' texts
say which indices there are; ONNX Runtime refuses the others too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import rlx
from rlx.errors import CapacityExceeded, ModelFormatError
from tests.onnx.microsoft import DOMAIN, microsoft
from tests.onnx.models import I64, model, node

LENGTH = 6
BAD = "row 1 has index 5 .*2 positions.*length 6; expected an index of 0 to 4"
WRITE = {"axis": 1, "name": "write"}
PAST = np.zeros((2, LENGTH, 1), np.float32)
UPDATE = np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1)
P, U = list(PAST.shape), list(UPDATE.shape)


def by_the_text(past: np.ndarray, update: np.ndarray, start: Any, circular: bool = False) -> np.ndarray:
    """The pseudocode of TensorScatter for axis 1. Raises: IndexError where an index is outside."""
    present = past.copy()
    for b in range(len(past)):
        for s in range(update.shape[1]):
            place = start[b] + s
            if circular:
                place %= past.shape[1]
            if not 0 <= place < past.shape[1]:
                raise IndexError(place)
            present[b, place] = update[b, s]
    return present


def scatter(
    before: list[Any], inputs: dict[str, Any], weights: dict[str, np.ndarray] | None = None, **attributes: Any
) -> onnx.ModelProto:
    """TensorScatter with the write indices `w` that `before` makes of the inputs."""
    nodes = [*before, node("TensorScatter", "p u w", "y", **{**WRITE, **attributes})]
    return model(nodes, {"p": P, "u": U, **inputs}, {"y": P}, weights, opset=24)


FED = scatter([], {"w": ([2], I64)})
# The index of the greatest number of each row: no arithmetic of integers, so that only the device knows it.
COMPUTED = scatter([node("ArgMax", "m", "w", axis=1, keepdims=0)], {"m": [2, 9]})
DERIVED = scatter(
    [node("Cast", "n", "a", to=I64), node("Reshape", "a two", "b"), node("Sub", "b one", "w")],
    {"n": ([2, 1], TensorProto.INT32)}, {"two": np.array([2]), "one": np.array(1)},
)  # fmt: skip


def peaks(*places: int) -> np.ndarray:
    made = np.zeros((len(places), 9), np.float32)
    made[np.arange(len(places)), places] = 1
    return made


def given(**more: Any) -> dict[str, Any]:
    return {"p": PAST, "u": UPDATE, **more}


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_each_index_writes_as_the_text_says_or_is_refused(mode: str) -> None:
    loaded = rlx.onnx.load(scatter([], {"w": ([2], I64)}, mode=mode))
    for start in range(-LENGTH - 1, 2 * LENGTH + 1):
        run = given(w=np.array([1, start]))
        try:
            want = by_the_text(PAST, UPDATE, run["w"], mode == "circular")
        except IndexError:
            with pytest.raises(CapacityExceeded, match=f"'write' .*row 1 has index {start} .*not begun"):
                loaded.run(run, device="cpu")
        else:
            np.testing.assert_array_equal(loaded.run(run, device="cpu")["y"], want)


@pytest.mark.parametrize("start", [2**63 - 1, -(2**63), 2**62 + 3])
def test_a_circular_index_at_the_end_of_the_integers(start: int) -> None:
    w = np.array([start, 1])
    want = by_the_text(PAST, UPDATE, [start, 1], circular=True)
    for inputs, weights in (({"w": ([2], I64)}, {}), ({}, {"w": w})):
        loaded = rlx.onnx.load(scatter([], inputs, weights, mode="circular"))
        np.testing.assert_array_equal(loaded.run(given(**({"w": w} if inputs else {})), device="cpu")["y"], want)


@pytest.mark.parametrize("steps", [1, 3, 18])
def test_an_update_of_no_rows_in_a_loop(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = model([node("TensorScatter", "q u v", "q2", **WRITE)], {"q": P, "v": ([2], I64)}, {"q2": P}).graph
    made = model([node("Scan", "p w", "y", body=body, num_scan_inputs=1)],
                 {"p": P, "u": [2, 0, 1], "w": ([steps, 2], I64)}, {"y": P}, opset=24)  # fmt: skip
    inputs = {"p": PAST, "u": UPDATE[:, :0], "w": np.zeros((steps, 2), np.int64)}
    for engine in ("compiled", "numpy"):
        monkeypatch.setenv("RLX_CPU", engine)
        np.testing.assert_array_equal(rlx.onnx.load(made).run(inputs, device="cpu")["y"], PAST)


@pytest.mark.parametrize("domain", ["", DOMAIN])
@pytest.mark.parametrize("form", ["fed", "constant", "by the device"])
def test_positions_outside_the_tables_of_a_rotary_embedding(domain: str, form: str) -> None:
    """They were clamped, where ONNX Runtime refuses them."""
    x, table = np.ones((2, 2, 4), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    order = "x at c s" if domain else "x c s at"
    for places, says in (([[0, 1], [1, 2]], ""), ([[0, 1], [1, 3]], "has 3"), ([[0, -1], [0, 0]], "has -1")):
        at, inputs, weights, before = np.array(places), {"x": list(x.shape)}, {"c": table, "s": table + 1}, []
        run: dict[str, Any] = {"x": x}
        if form == "fed":
            inputs["at"], run["at"] = ([2, 2], I64), at
        elif form == "constant":
            weights["at"] = at
        else:
            before = [node("Cast", "f", "at", to=I64)]
            inputs["f"], run["f"] = [2, 2], at.astype(np.float32)
        made = model([*before, node("RotaryEmbedding", order, "y", name="turn", domain=domain, num_heads=1)], inputs,
                     {"y": None}, weights, opset=23, domains=[DOMAIN])  # fmt: skip
        loaded = rlx.onnx.load(made)
        if not says:
            low, high = x[..., :2], x[..., 2:]
            cos, sin = table[at], table[at] + 1
            want = np.concatenate([low * cos - high * sin, low * sin + high * cos], -1)
            np.testing.assert_allclose(loaded.run(run, device="cpu")["y"], want, rtol=1e-6)
            continue
        with pytest.raises((CapacityExceeded, ModelFormatError), match=f"turn.*position_ids: row . {says}; .*0 to 2"):
            loaded.run(run, device="cpu")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "ReverseSequence"])
def test_lengths_of_sequences_beyond_their_axis(kind: str) -> None:
    """They were cut to it, where ONNX Runtime refuses them; so is one length for a batch of two."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}.get(kind, 0)
    x = np.ones((3, 2, 4), np.float32)
    weights = {"w": np.ones((1, 2 * gates, 4), np.float32), "r": np.ones((1, 2 * gates, 2), np.float32)}
    code = TensorProto.INT32 if gates else I64
    for lengths, says in (([3, 0], ""), ([4, 1], "row 0 has 4; expected 0 to 3"), ([1, -1], "row 1 has -1"),
                          ([3], r"\(1,\)")):  # fmt: skip
        n = np.array(lengths, np.int32 if gates else np.int64)
        for known in (False, True):
            one = node(kind, "x w r _ n" if gates else "x n", "y", **({"hidden_size": 2} if gates else {}))
            inputs = {"x": [3, 2, 4], **({} if known else {"n": (list(n.shape), code)})}
            held = {**(weights if gates else {}), **({"n": n} if known else {})}
            loaded = rlx.onnx.load(model([one], inputs, {"y": None}, held, opset=22))
            run = {"x": x, **({} if known else {"n": n})}
            if says:
                with pytest.raises((CapacityExceeded, ModelFormatError), match=says):
                    loaded.run(run, device="cpu")
            else:
                loaded.run(run, device="cpu")


@pytest.mark.judged
def test_refused_where_onnx_runtime_refuses() -> None:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    judge = ort.InferenceSession(FED.SerializeToString(), options, providers=["CPUExecutionProvider"])
    loaded = rlx.onnx.load(FED)
    for start in range(-3, LENGTH + 3):
        run = given(w=np.array([start, 0]))
        try:
            want = judge.run(["y"], run)[0]
        except Exception:  # noqa: BLE001 its errors have no common base
            with pytest.raises(CapacityExceeded):
                loaded.run(run, device="cpu")
        else:
            np.testing.assert_array_equal(loaded.run(run, device="cpu")["y"], want)


def test_constant_indices_are_refused_while_compiling() -> None:
    for start in ([0, 5], [-1, 0]):
        fixed = rlx.onnx.load(scatter([], {}, {"w": np.array(start)}))
        with pytest.raises(ModelFormatError, match=r"'write'.*has index .*expected an index of 0 to 4"):
            fixed.compile(device="cpu")
    np.testing.assert_array_equal(
        rlx.onnx.load(scatter([], {}, {"w": np.array([0, 4])})).run(given(), device="cpu")["y"],
        by_the_text(PAST, UPDATE, [0, 4]),
    )


def test_updates_that_no_index_suits_are_refused() -> None:
    for shape in ([2, LENGTH + 1, 1], [2, 2, 2], [1, 2, 1]):
        for mode in ("linear", "circular"):
            made = model([node("TensorScatter", "p u", "y", **WRITE, mode=mode)], {"p": P, "u": shape},
                         {"y": None}, opset=24)  # fmt: skip
            with pytest.raises(ModelFormatError, match=r"the update is .*expected the cache's shape"):
                rlx.onnx.load(made).compile(device="cpu")
    with pytest.raises(ModelFormatError, match=r"write_indices are \(1,\); expected \(2,\)"):
        rlx.onnx.load(scatter([], {"w": ([1], I64)})).compile(device="cpu")


def test_an_index_that_follows_from_the_callers_arrays(device: str) -> None:
    """Through a cast, a reshape and a subtraction it is known before the run."""
    loaded = rlx.onnx.load(DERIVED)
    fine = given(n=np.array([[1], [5]], np.int32))
    np.testing.assert_array_equal(loaded.run(fine, device=device)["y"], by_the_text(PAST, UPDATE, [0, 4]))
    with pytest.raises(CapacityExceeded, match=f"'write'.*{BAD}.*the run was not begun"):
        loaded.run(given(n=np.array([[1], [6]], np.int32)), device=device)
    with pytest.raises(CapacityExceeded, match="row 0 has index -1"):
        loaded.run(given(n=np.array([[0], [6]], np.int32)), device=device)


def test_an_index_that_the_device_makes(device: str) -> None:
    program = rlx.onnx.load(COMPUTED).compile(device=device)
    assert list(program.run(given(m=peaks(0, 4)))) == ["y"]
    for out in ("host", "device"):
        with pytest.raises(CapacityExceeded, match=f"'write'.*{BAD}.*results"):
            program.run(given(m=peaks(0, 5)), out=out)
    np.testing.assert_array_equal(program.run(given(m=peaks(3, 0)))["y"], by_the_text(PAST, UPDATE, [3, 0]))


def test_a_launch_says_so_when_its_results_are_read(device: str) -> None:
    program = rlx.onnx.load(FED).compile(device=device)
    on_device = program.graph.device
    bad, fine = (rlx.array(np.array([0, k]), device=on_device) for k in (5, 2))
    launch = program.launch(given(w=bad))
    with pytest.raises(CapacityExceeded, match=BAD):
        launch.results["y"].numpy()
    for _ in range(2):
        with pytest.raises(CapacityExceeded, match=BAD):
            launch.wait()
    assert "failed" in repr(launch)
    # A run that reads the results of such a launch has its fault too, however many runs lie between.
    late = program.launch(given(p=program.launch(given(w=bad)).results["y"], w=fine))
    later = program.launch(given(p=late.results["y"].copy(), w=np.array([0, 0])))
    with pytest.raises(CapacityExceeded, match=BAD):
        later.results["y"].numpy()
    with pytest.raises(CapacityExceeded, match=BAD):
        program.run(given(p=program.launch(given(w=bad)).results["y"], w=fine))
    np.testing.assert_array_equal(program.launch(given(w=fine)).wait("host")["y"], by_the_text(PAST, UPDATE, [0, 2]))


def test_one_index_of_many_caches_is_read_once() -> None:
    nodes = [node("ArgMax", "m", "w", axis=1, keepdims=0)]
    nodes += [node("TensorScatter", f"p{k} u w", f"y{k}", axis=1, name=f"layer {k}") for k in range(8)]
    caches = {f"p{k}": P for k in range(8)}
    made = model(nodes, {**caches, "u": U, "m": [2, 9]}, {f"y{k}": P for k in range(8)}, opset=24)
    program = rlx.onnx.load(made).compile(device="cpu")
    hidden = len(program.graph.graph.outputs) - 8
    assert hidden == 2  # the index and its limits
    with pytest.raises(CapacityExceeded, match="layer 0"):
        program.run({**dict.fromkeys(caches, PAST), "u": UPDATE, "m": peaks(8, 0)})


@pytest.mark.parametrize("steps", [3, 40])
def test_in_a_loop(steps: int) -> None:
    """Unrolled, and compiled: the first step that writes outside is told, whatever the later ones do."""
    inner = [node("TensorScatter", "q u v", "q2", **WRITE), node("Add", "v one", "v1"), node("Mod", "v1 seven", "v2"),
             node("Identity", "c", "c2")]  # fmt: skip
    body = model(inner, {"i": ([], I64), "c": ([], TensorProto.BOOL), "q": P, "v": ([2], I64)},
                 {"c2": ([], TensorProto.BOOL), "q2": P, "v2": ([2], I64)}).graph  # fmt: skip
    inputs = {"p": P, "u": U, "w": ([2], I64), "n": ([], I64)}
    weights = {"one": np.array(1), "seven": np.array(7)}
    made = model([node("Loop", "n _ p w", "y last", body=body)], inputs, {"y": P}, weights, opset=24)
    for known in (False, True):
        loaded = rlx.onnx.load(made)
        count = {"n": np.array(steps)}
        values = count if known else {}
        program = loaded.compile(values=values, device="cpu")
        run = given(w=np.array([0, 1]), **({} if known else count))
        if steps == 3:
            want = PAST
            for k in range(3):
                want = by_the_text(want, UPDATE, [k, k + 1])
            np.testing.assert_array_equal(program.run(run)["y"], want)
            run["w"] = np.array([0, 3])
        with pytest.raises(CapacityExceeded, match=r"'write'.*row [01] has index 5 "):
            program.run(run)


def test_in_padded_batches() -> None:
    """Rows of the padding write nothing, and fail nothing: their index is -1 here."""
    dims = {"p": ["B", LENGTH, 1], "u": ["B", 2, 1], "m": ["B", 9]}
    nodes = [node("ArgMax", "m", "a", axis=1, keepdims=0), node("Sub", "a one", "w"),
             node("TensorScatter", "p u w", "y", **WRITE)]  # fmt: skip
    made = model(nodes, dims, {"y": ["B", LENGTH, 1]}, {"one": np.array(1)}, opset=24)
    loaded = rlx.onnx.load(made, dims={"B": rlx.Dim("B", max=8)})
    past, update = np.zeros((3, LENGTH, 1), np.float32), np.ones((3, 2, 1), np.float32)
    run = {"p": past, "u": update, "m": peaks(1, 2, 5)}
    np.testing.assert_array_equal(loaded.run(run, device="cpu")["y"], by_the_text(past, update, [0, 1, 4]))
    for place, index in ((0, -1), (6, 5)):
        with pytest.raises(CapacityExceeded, match=f"row 2 has index {index} "):
            loaded.run({**run, "m": peaks(1, 2, place)}, device="cpu")
    assert len(loaded.programs) == 1


def test_group_query_attention() -> None:
    """seqlens_k is one less than each row's keys: its new ones must lie within the cache, as in ONNX Runtime."""
    names, attributes = "q k v pk pv n t", {"num_heads": 1, "kv_num_heads": 1}

    def run(past: int, length: int, total: int, lengths: list[int]) -> np.ndarray:
        batch = len(lengths)
        new, old = np.ones((batch, length, 8), np.float32), np.zeros((batch, 1, past, 8), np.float32)
        feeds = {"q": new, "k": new, "v": new, "pk": old, "pv": old, "n": np.array(lengths, np.int32),
                 "t": np.array([total], np.int32)}  # fmt: skip
        loaded = rlx.onnx.load(microsoft("GroupQueryAttention", feeds, names, "y ok ov", **attributes))
        return loaded.run(feeds, device="cpu")["ok"][:, 0, :, 0]

    np.testing.assert_array_equal(run(4, 1, 4, [3]), [[0, 0, 0, 1]])
    np.testing.assert_array_equal(run(4, 1, 5, [4]), [[0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(run(4, 1, 5, [3, 4]), [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(run(4, 2, 2, [0]), [[1, 1, 0, 0]])
    for past, length, total, lengths, says in (
        (4, 1, 4, [4], "row 0 has index 4 .*length 4; expected an index of 0 to 3"),
        (4, 1, 4, [-1], "row 0 has index -1 "),
        (4, 2, 4, [0], "row 0 has index -1 and writes 2 positions"),
        (4, 1, 5, [5], "row 0 has index 5 .*length 5; expected an index of 4"),
        (4, 1, 5, [3], "row 0 has index 3 .*expected an index of 4"),
        (4, 1, 5, [3, 5], "row 1 has index 5 .*length 5; expected an index of 0 to 4"),
        (4, 2, 2, [-1], "row 0 has index -1 "),
    ):
        with pytest.raises(CapacityExceeded, match=says):
            run(past, length, total, lengths)
