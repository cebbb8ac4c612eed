"""Saved programs: the same results in another process, refusals with a reason, damaged files."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, ModelFormatError, ProgramMismatch, ShapeError, UnsupportedOp
from rlx.host.diskcache import DiskCache, key_of
from rlx.ir import TensorType
from rlx.runtime.saved.graph_data import array_of
from tests.devices import or_skip
from tests.formats import mutants
from tests.formats.mutations import sealed
from tests.full import full
from tests.runtime.saved_programs import PROGRAMS, Saved, of_op, ops

ROOT = Path(__file__).resolve().parents[2]


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name], name)


def changed(path: Path, change: Any) -> None:
    """The file with another table, under checksums that are right."""
    raw = path.read_bytes()
    at, size = struct.unpack_from("<QQ", raw, 8)
    table = json.loads(raw[at : at + size])
    change(table)
    path.write_bytes(sealed(raw[:at], json.dumps(table).encode()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loaded_program_computes_the_same_and_reports_the_same(session, name, tmp_path):
    made = PROGRAMS[name]()
    with made.compiled(session) as exe:
        exe.save(tmp_path / "m.rlx")
        with rlx.load_program(tmp_path / "m.rlx", session) as loaded:
            for _ in range(2):
                same(loaded.run(made.inputs), exe.run(made.inputs))
            assert str(loaded.report()) == str(exe.report())
            assert [repr(t) for t in loaded.weights.dtypes().items()] == [
                repr(t) for t in exe.weights.dtypes().items()
            ]
            with loaded.clone() as twin:
                same(twin.run(made.inputs), loaded.run(made.inputs))


@pytest.mark.parametrize("op", ops()[:: 1 if full() else 12])
def test_each_op_can_be_saved(op, tmp_path):
    made = of_op(op, 3)
    session = rlx.Session("cpu")
    with made.compiled(session) as exe:
        exe.save(tmp_path / "m.rlx")
        with rlx.load_program(tmp_path / "m.rlx", session) as loaded:
            same(loaded.run(made.inputs), exe.run(made.inputs))


def test_in_another_process_and_folder_nothing_is_optimized(tmp_path):
    made, session = PROGRAMS["dense"](), rlx.Session("cpu")
    (tmp_path / "there").mkdir()
    with made.compiled(session) as exe:
        exe.save(tmp_path / "m.rlx")
        np.savez(tmp_path / "wanted.npz", **exe.run(made.inputs))
    np.savez(tmp_path / "inputs.npz", **made.inputs)
    code = (
        "import numpy as np, rlx, rlx.passes\n"
        "def never(*given, **named): raise AssertionError('optimized again')\n"
        "rlx.passes.optimize = never\n"
        "found = rlx.load_program('../m.rlx').run(dict(np.load('../inputs.npz')))\n"
        "wanted = np.load('../wanted.npz')\n"
        "assert all(np.array_equal(found[n], wanted[n]) for n in wanted) and len(found) == len(wanted)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "there", env=env, check=True, timeout=120)


def test_programs_share_a_store(session, tmp_path):
    made = PROGRAMS["dense"]()
    with made.compiled(session) as exe:
        exe.save(tmp_path / "all.rlx")
        exe.save(tmp_path / "bare.rlx", weights=False)
        wanted = exe.run(made.inputs)
    assert (tmp_path / "bare.rlx").stat().st_size < (tmp_path / "all.rlx").stat().st_size
    with rlx.Weights(session.device) as store:
        first = rlx.load_program(tmp_path / "all.rlx", session, weights=store)
        held = store.nbytes
        second = rlx.load_program(tmp_path / "bare.rlx", session, weights=store)
        assert store.nbytes == held
        same(second.run(made.inputs), wanted)
        store.set("b", np.zeros(4, np.float32))
        same(first.run(made.inputs), second.run(made.inputs))
        first.close()
        second.close()
    with rlx.load_program(tmp_path / "bare.rlx", session) as bare:
        with pytest.raises(GraphError, match="weights not set"):
            bare.run(made.inputs)
        for name, array in made.weights.items():
            bare.set_param(name, array, "bf16" if name == "w" else None)
        same(bare.run(made.inputs), wanted)
        bare.set_param("w", made.weights["w"])  # another dtype: the program is optimized anew
        full = made.weights["w"].astype(np.float64)
        z = made.inputs["x"].astype(np.float64) @ full + made.weights["b"]
        e = np.exp(np.asarray(rlx.jit(rlx.gelu, device="cpu")(z.astype(np.float32)), np.float64))
        np.testing.assert_allclose(bare.run(made.inputs)["y"], e / e.sum(-1, keepdims=True), rtol=1e-4)
    other = rlx.Weights(session.device)
    other.declare({"w": TensorType((3,), rlx.f32)})
    with pytest.raises(ShapeError, match="shared store"):
        rlx.load_program(tmp_path / "all.rlx", session, weights=other)


def test_others_see_a_weight_of_a_shared_store_once_it_is_written(tmp_path, monkeypatch):
    made, path = PROGRAMS["dense"](), tmp_path / "m.rlx"
    with made.compiled(rlx.Session("cpu")) as exe:
        exe.save(path)
    missing, session = [], rlx.Session("cpu")
    with rlx.Weights(session.device) as store:

        def checking(*given):
            missing.append(len(store.missing(list(made.weights))))
            return array_of(*given)

        monkeypatch.setattr("rlx.runtime.saved.program.array_of", checking)
        with rlx.load_program(path, session, weights=store) as loaded:
            assert missing == [2, 1] and loaded.run(made.inputs)


def test_a_program_without_a_change_of_dtype_takes_one_later(session, tmp_path):
    made = PROGRAMS["dense"]()
    made.halves = ()
    with made.compiled(session) as exe:
        exe.save(tmp_path / "m.rlx")
        with rlx.load_program(tmp_path / "m.rlx", session) as loaded:
            for program in (exe, loaded):
                program.set_param("w", made.weights["w"], "bf16")
            found, wanted = loaded.run(made.inputs), exe.run(made.inputs)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-6)


def test_states_come_back_as_they_were(session, tmp_path):
    made = PROGRAMS["state"]()
    with made.compiled(session) as exe:
        exe.set_valid_rows("cache", 2)
        exe.save(tmp_path / "m.rlx")
        with rlx.load_program(tmp_path / "m.rlx", session) as loaded:
            assert loaded.valid_rows("cache") == 2
            np.testing.assert_array_equal(loaded.get_state("cache"), exe.get_state("cache"))
            assert loaded.get_state("at") == 2
        shared = rlx.State(session.device)
        with rlx.load_program(tmp_path / "m.rlx", session, state=shared) as first:
            first.run(made.inputs)
            with rlx.load_program(tmp_path / "m.rlx", session, state=shared) as second:
                assert second.get_state("at") == 3  # what the store holds stays as it is
        shared.close()


def test_elsewhere_a_program_is_refused_with_the_reason(tmp_path):
    path, made = tmp_path / "m.rlx", PROGRAMS["dense"]()
    with made.compiled(rlx.Session("cpu", precision="tf32")) as exe:
        exe.save(path)
    sound = path.read_bytes()
    for session, said in (
        (rlx.Session("cpu"), "saved for precision 'tf32', and cpu has 'f32'"),
        (rlx.Session("cpu", precision="tf32", fallback="error"), "saved for fallback 'host'"),
    ):
        with pytest.raises(ProgramMismatch, match=said):
            rlx.load_program(path, session)
    for part, key, value, said in (
        ("rlx", None, "9.9.9", "was saved by rlx '9.9.9'.*save it anew"),
        ("format", None, 1, "in format 1"),
        ("device", "driver", "NumPy 1.0", "saved for driver 'NumPy 1.0', and cpu has 'NumPy"),
        ("device", "name", "another", "saved for name 'another'"),
        ("device", "features", ["f64"], "saved for features"),
        ("device", "backend", "tpu", "'tpu'.*is not here"),
    ):
        def change(table: Any, part: str = part, key: str | None = key, value: Any = value) -> None:
            if key is None:
                table[part] = value
            else:
                table[part][key] = value

        path.write_bytes(sound)
        changed(path, change)
        with pytest.raises(ProgramMismatch, match=said) as error:
            rlx.load_program(path)
        assert str(path) in str(error.value) and isinstance(error.value, ModelFormatError)


def test_what_no_file_can_hold_is_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "m.rlx"
    path.write_bytes(b"before")
    with rlx.custom_op("saved_twice", lambda x: x * 2, lambda types, attrs: types[0]) as twice:
        g = rlx.Graph()
        g.output("y", twice(g.input("x", (3,))))
        with rlx.Session("cpu").compile(g) as exe, pytest.raises(UnsupportedOp, match=r"saved_twice.*user's own"):
            exe.save(path)
    made = PROGRAMS["dense"]()
    with rlx.Session("cpu").compile(made.graph) as exe:
        with pytest.raises(GraphError, match=r"weights not set.*weights=False"):
            exe.save(path)
        with pytest.raises(OSError, match="no-such-folder"):
            exe.save(tmp_path / "no-such-folder" / "m.rlx", weights=False)
    with pytest.raises(GraphError, match="closed"):
        exe.save(path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ModelFormatError, match="no saved program"):
        rlx.load_program(path)
    with pytest.raises(ModelFormatError, match="cannot be read"):
        rlx.load_program(tmp_path / "none.rlx")


def test_any_damaged_byte_is_found(tmp_path):
    path, made = tmp_path / "m.rlx", PROGRAMS["state"]()
    with made.compiled(rlx.Session("cpu")) as exe:
        exe.save(path)
    sound = path.read_bytes()
    for at in range(0, len(sound), 1 if full() else 17):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << at % 8
        for damaged in (sound[:at], bytes(flipped)):
            path.write_bytes(damaged)
            with pytest.raises(ModelFormatError):
                rlx.load_program(path, "cpu").close()


def test_damaged_programs_under_checksums_that_are_right(tmp_path):
    """Some of what `python -m tests.formats.mutants --format program --format ops` works on by the thousand."""
    folder = tmp_path / "programs"
    mutants.lay(folder, "program")
    originals = {name: (folder / name).read_bytes() for name in mutants.FILES["program"]}
    found = [mutants.attempt("program", seed, folder, originals) for seed in range(1000 if full() else 300)]
    assert [e for e in found if e["outcome"] not in ("loaded", "ModelFormatError")] == []
    assert {e["outcome"] for e in found} == {"loaded", "ModelFormatError"}


def test_a_graph_that_asks_for_more_than_its_file_says_is_refused(tmp_path):
    path = tmp_path / "m.rlx"
    g = rlx.Graph()
    g.output("y", g.input("x", (1000,)) + 1)
    with Saved(g).compiled(rlx.Session("cpu")) as exe:
        exe.save(path)

    def enlarge(table: Any) -> None:
        for graph in table["graphs"]:
            for node in graph["nodes"]:
                if "shape" in node[3]:
                    node[3]["shape"] = [1 << 50]

    changed(path, enlarge)
    with pytest.raises(ModelFormatError, match="contradicts itself"):
        rlx.load_program(path, "cpu")


def test_bodies_used_again_and_again_are_counted(tmp_path):
    """A body of four nodes whose bodies have four: sixteen levels of a short file would be planned 4 ** 16 times."""
    path = tmp_path / "m.rlx"
    g = rlx.Graph()
    g.output("y", g.input("x", (2,)) + 1)
    with Saved(g).compiled(rlx.Session("cpu")) as exe:
        exe.save(path)

    def nest(table: Any) -> None:
        leaf = ["input", 0, [], {"name": "x0", "shape": [2], "dtype": {"dtype": "f32"}}, "x0"]
        table["graphs"] = [{"name": "0", "nodes": [leaf], "outputs": {"y0": 0}, "updates": {}}]
        for level in range(12):
            attrs = {"body": {"graph": level}, "carries": 1, "length": 1, "reverse": False}
            nodes = [leaf, *(["scan", k + 1, [k], attrs, ""] for k in range(4))]
            table["graphs"].append({"name": "n", "nodes": nodes, "outputs": {"y0": 4}, "updates": {}})
        table["program"] = len(table["graphs"]) - 1

    changed(path, nest)
    with pytest.raises(ModelFormatError, match="steps to read and plan"):
        rlx.load_program(path, "cpu")


def test_a_trusted_file_lends_its_machine_code(tmp_path):
    cache = DiskCache("lent", tmp_path)
    key = ("text", b"bytes", 3)
    with cache.lending({key_of(key): b"code"}):
        assert cache.get(key) == b"code"
        assert cache.get(("other",)) is None
    assert cache.get(key) is None


@pytest.mark.parametrize("trusted", [False, True])
def test_machine_code_of_a_file_is_used_only_where_it_is_trusted(trusted, tmp_path, monkeypatch):
    with or_skip():
        session = rlx.Session("vulkan")
    made, path = PROGRAMS["dense"](), tmp_path / "m.rlx"
    monkeypatch.setattr(type(session.device.kernels), "codes", lambda self, kernels: {bytes(32): b"machine code"})
    with made.compiled(session) as exe:
        wanted = exe.run(made.inputs)
        exe.save(path)
    lent = []
    lending = DiskCache.lending
    monkeypatch.setattr(DiskCache, "lending", lambda self, codes: lent.append(codes) or lending(self, codes))
    with rlx.load_program(path, session, trusted=trusted) as loaded:
        same(loaded.run(made.inputs), wanted)
    assert lent == ([{bytes(32): b"machine code"}] if trusted else [])


@pytest.mark.parametrize("holds", [True, False])
def test_what_the_library_of_products_answered_is_a_hint(holds, tmp_path, monkeypatch):
    with or_skip():
        session = rlx.Session("vulkan")
    made, path, given = PROGRAMS["dense"](), tmp_path / "m.rlx", []

    @contextmanager
    def promising(products):
        given.append(products)
        yield
        if not holds:
            raise UnsupportedOp("the library has no such product")

    monkeypatch.setattr(type(session.device), "products", lambda self, steps: [("f32", len(steps))], raising=False)
    monkeypatch.setattr(type(session.device), "promising", staticmethod(promising), raising=False)
    with made.compiled(session) as exe:
        wanted = exe.run(made.inputs)
        exe.save(path)
        with rlx.load_program(path, session) as loaded:
            same(loaded.run(made.inputs), wanted)
        assert given == [[("f32", len(exe.executable.steps))]]
    for wrong in (1, [1]):
        changed(path, lambda table, wrong=wrong: table.update(products=wrong))
        with pytest.raises(ModelFormatError, match="contradicts itself"):
            rlx.load_program(path, session)


def test_dtypes_are_what_they_were(tmp_path):
    with PROGRAMS["dense"]().compiled(rlx.Session("cpu")) as exe:
        exe.save(tmp_path / "m.rlx")
        with rlx.load_program(tmp_path / "m.rlx", "cpu") as loaded:
            assert repr(loaded) == repr(exe)
            with pytest.raises(DTypeError, match="float64"):
                loaded.set_param("b", np.zeros(4))


def test_jitted_functions_and_onnx_programs_are_saved(tmp_path):
    onnx = pytest.importorskip("onnx")
    x, path = np.arange(6, dtype=np.float32).reshape(2, 3), tmp_path / "m.rlx"
    double = rlx.jit(lambda x, by: x * by, device="cpu")
    double.save(path, x, 2.0)
    with rlx.load_program(path) as loaded:
        names = list(loaded.graph.inputs)
        (y,) = loaded.run({names[0]: x, names[1]: np.float32(2)}).values()
        np.testing.assert_array_equal(y, double(x, 2.0))
    assert onnx
    g = rlx.Graph("exported")
    g.output("y", rlx.exp(g.input("x", (2, 3))))
    rlx.onnx.save(g, tmp_path / "m.onnx")
    with rlx.onnx.load(tmp_path / "m.onnx") as model:
        program = model.compile(device="cpu")
        program.save(path)
        with rlx.load_program(path) as loaded:
            same(loaded.run({"x": x}), program.run({"x": x}))


def test_the_command_line_runs_and_shows_saved_programs(tmp_path, capsys, monkeypatch):
    from rlx.cli import main

    with PROGRAMS["state"]().compiled(rlx.Session("cpu")) as exe:
        exe.save(tmp_path / "m.rlx")
    for command in ("inspect", "run"):
        monkeypatch.setattr(sys, "argv", ["rlx", command, str(tmp_path / "m.rlx")])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    told = capsys.readouterr()
    for line in ("input row: f32[1,4]", "state cache: f32[6,4]", "saved on cpu: ", "sum: float32 [4]"):
        assert line in told.out
    assert "input row: random" in told.err and "on cpu" in told.err


def test_a_folder_bytes_and_a_dict_of_weights_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    g = rlx.Graph("scaled")
    g.output("y", g.input("x", (2,)) * g.param("w", (2,)))
    with rlx.Session("cpu").compile(g) as exe:
        exe.set_param("w", np.ones(2, np.float32))
        with pytest.raises(IsADirectoryError, match=r"is a folder.*models"):
            exe.save(folder)
        assert list(tmp_path.iterdir()) == [folder]
        exe.save(folder / "m.rlx")
    with pytest.raises(GraphError, match=r"weights is dict.*rlx\.Weights.*set_params"):
        rlx.load_program(folder / "m.rlx", weights={"w": np.ones(2, np.float32)})
    with pytest.raises(GraphError, match=r"path of a file, got bytes"):
        rlx.load_program((folder / "m.rlx").read_bytes())


def test_a_jitted_functions_file_has_the_names_of_its_parameters(tmp_path: Path) -> None:
    def layer(x, params, *more, n0):  # type: ignore[no-untyped-def]
        return x @ params["w"] + params["b"][0] * 2 + more[0] + n0

    one = np.ones((2, 2), np.float32)
    given = (one, {"w": one, "b": (one, one)}, one)
    jitted = rlx.jit(layer, device="cpu")
    jitted.save(tmp_path / "layer.rlx", *given, n0=one)
    program = rlx.load_program(tmp_path / "layer.rlx")
    assert list(program.graph.inputs) == ["x", "params.b.0", "params.b.1", "params.w", "x2", "n0"]
    made = program.run(dict.fromkeys(program.graph.inputs, one))["y0"]
    np.testing.assert_array_equal(made, jitted(*given, n0=one))
    scaled = rlx.jit(lambda x, n0: x * n0 * 3.5, device="cpu").graph(one, 2.0)
    assert list(scaled.inputs) == ["x", "n0"]
    both = rlx.jit(lambda n0, rate: n0 * rate, device="cpu")
    assert list(both.graph(one, 2.0).inputs) == ["n0", "n0_"]
    np.testing.assert_array_equal(both(one, 2.0), one * 2)


def _nodes(table: Any) -> None:
    leaf = table["graphs"][0]["nodes"][0]
    table["graphs"][0]["nodes"] = [leaf, *(["neg", leaf[1] + n + 1, [leaf[1] + n], {}, ""] for n in range(20_000))]


def _bodies(table: Any) -> None:
    leaf = table["graphs"][0]["nodes"][0]
    attrs = {"body": {"graph": 0}, "carries": 1, "length": 1, "reverse": False}
    body = {"name": "", "nodes": [leaf], "outputs": {"y0": leaf[1]}, "updates": {}}
    uses = [["scan", leaf[1] + n + 1, [leaf[1]], attrs, ""] for n in range(3000)]
    table["graphs"] = [body, {"name": "", "nodes": [leaf, *uses], "outputs": {}, "updates": {}}]


def _trees(table: Any) -> None:
    chain = [["add", [n, 0], "f32", None] for n in range(180)]
    table["exprs"] = [["arg", [], "f32", 0], *chain]
    leaf, tree = table["graphs"][0]["nodes"][0], {"trees": [{"expr": 180}], "shape": [2]}
    uses = [["fused", leaf[1] + n + 1, [leaf[1]], tree, ""] for n in range(3000)]
    table["graphs"][0]["nodes"] = [leaf, *uses]


def _outputs(table: Any) -> None:
    graph = table["graphs"][0]
    graph["outputs"] = {f"y{n}": graph["nodes"][0][1] for n in range(20_000)}


@pytest.mark.parametrize("change", [_nodes, _bodies, _trees, _outputs])
def test_what_would_take_long_to_read_and_plan_is_refused(change: Any, tmp_path: Path) -> None:
    path, g = tmp_path / "m.rlx", rlx.Graph()
    g.output("y", g.input("x", (2,)) + 1)
    with Saved(g).compiled(rlx.Session("cpu")) as exe:
        exe.save(path)
    changed(path, change)
    with pytest.raises(ModelFormatError, match=r"steps to read and plan .* trusted=True"):
        rlx.load_program(path, "cpu")


def test_a_length_of_a_state_is_a_whole_number(tmp_path: Path) -> None:
    path, made = tmp_path / "m.rlx", PROGRAMS["state"]()
    with made.compiled(rlx.Session("cpu")) as exe:
        exe.save(path)

    def halve(table: Any) -> None:
        for entry in table["states"].values():
            entry[1] = 2.5

    changed(path, halve)
    with pytest.raises(ModelFormatError, match=r"2\.5 valid bytes"):
        rlx.load_program(path, "cpu")


def test_a_program_that_fails_to_load_leaves_the_callers_stores_as_they_were(tmp_path: Path) -> None:
    path, g = tmp_path / "m.rlx", rlx.Graph()
    y = g.input("x", (2,)) * g.param("w", (2,)) + g.param("v", (2,)) + g.state("s", (2,))
    g.output("y", y)
    g.update("s", y)
    one = np.ones(2, np.float32)
    with Saved(g, {"w": one, "v": one * 2}).compiled(rlx.Session("cpu")) as exe:
        exe.set_param("v", one * 2, "bf16")
        exe.set_state("s", one * 5)
        exe.save(path)
    device = rlx.Session("cpu").device
    weights, state = rlx.Weights(device), rlx.State(device)
    weights.declare({"w": g.params["w"].type})
    weights.set("w", one * 3)
    sound = path.read_bytes()

    def need(table: Any) -> None:
        table["plan_bytes"] += 1

    changed(path, need)
    for _ in range(2):
        with pytest.raises(ModelFormatError, match=r"contradicts itself|needs"):
            rlx.load_program(path, "cpu", weights=weights, state=state)
        assert weights.missing(["w", "v"]) == ["v"] and state.missing(["s"]) == ["s"]
        with pytest.raises(GraphError, match="'v'"):
            weights.type_of("v")
        state.check({"s": TensorType((3,), rlx.f32)})  # the name is free for another type
    path.write_bytes(sound)
    with rlx.load_program(path, "cpu", weights=weights, state=state) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": one})["y"], one * (3 + 2 + 5))
