"""`rlx run` and `rlx inspect` on a small ONNX model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from rlx import Graph, Session
from rlx.cli.inputs import said
from rlx.errors import GraphError
from rlx.onnx import load
from tests.cli.conftest import Rlx
from tests.onnx.models import I64, model, node

FLOAT, UINT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [node("Gemm", "x w", "h"), node("Relu", "h", "r"), node("Gather", "r i", "y")]
    proto = model(
        nodes, {"x": ["n", 4], "i": (["k"], I64)}, {"y": ["k", 3]}, {"w": np.ones((4, 3), np.float32)}
    )
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.late("vulkan")
def test_run_with_files(rlx: Rlx, file: Path, tmp_path: Path, device: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    np.save(tmp_path / "i.npy", np.array([1, 0, 1]))
    ran = rlx(
        "run", file, "--device", device, "--input", f"x={tmp_path / 'x.npy'}", "--input", f"i={tmp_path / 'i.npy'}",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "y: float32 [3, 3], 6 to 22, mean 16.6667\n"
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [[22] * 3, [6] * 3, [22] * 3]


def test_run_with_random_inputs_is_seeded(rlx: Rlx, file: Path) -> None:
    first, again, other = (
        rlx("run", file, "--dim", "n=10", "--dim", "k=2", "--seed", s, "--device", "cpu") for s in (1, 1, 2)
    )
    assert (
        first.status == 0
        and "input x: random, float32 [10, 4]" in first.err
        and "y: float32 [2, 3]" in first.out
    )
    assert first == again and first.out != other.out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("--dim", "q=2"), "no dimensions ['q']; its inputs have ['k', 'n']"),
        (("--dim", "n=-2"), "expected symbol=length"),
        (("--dim", "n=2", "--dim", "n=3"), "--dim n=3: n is 2 already"),
        (("--input", "x"), "expected name=file.npy"),
        (("--input", "x=absent.npy"), "cannot be read"),
        (("--input", f"x={__file__}"), "is no array that NumPy's save has written"),
        (("--input", "x={empty}"), "is an empty file; expected an array"),
        (("--input", "x={x}", "--input", "x={x}"), "x has a file already"),
        (("--input", "z={x}"), "no input 'z'; it takes ['x', 'i']"),
        (("--input", "i={x}"), "is float32, expected int64; python -c "),
        (("--input", "x=random"), "there is no file random; an input that is not given is random"),
        (("--input", "x=[[1,2"), "no list in JSON, as in [[1,2],[3,4]]; x is float32 [n, 4]"),
        (("--input", "i=1,0,1"), "a list stands in brackets, as in i=[1,2]; i is int64"),
        (("--input", "i=[1.5,0]"), "int64 does not hold these values"),
    ],
)
def test_run_with_bad_arguments(
    rlx: Rlx, file: Path, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    (empty := tmp_path / "empty.npy").touch()
    given = (a.replace("{x}", str(tmp_path / "x.npy")).replace("{empty}", str(empty)) for a in arguments)
    ran = rlx("run", file, *given)
    assert ran.status == 2 and text in ran.err and ran.out == ""
    assert len(ran.err.splitlines()) == 1, "nothing is drawn before that is known"


def test_numbers_stand_for_a_file(rlx: Rlx, file: Path) -> None:
    run = ("run", file, "--device", "cpu")
    ran = rlx(*run, "--input", "x=[[0,1,2,3],[4,5,6,7.5]]", "--input", "i=[1,0,1]", "--dim", "k=3")
    assert ran.status == 0 and "to 22.5" in ran.out, ran


def test_lengths_in_the_place_of_shapes(file: Path) -> None:
    with pytest.raises(GraphError, match=r"given as dims=\{'n': 2, 'k': 3\}"):
        load(file).compile({"n": 2, "k": 3})


def test_a_picture_has_the_channels_and_the_type_of_the_input(
    rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    for shape, kind, words in (
        ([1, 1, 8, 9], FLOAT, ('convert("L").resize((9, 8))', "/ 255)[None, None]")),
        ([1, 8, 9, 1], FLOAT, ('convert("L")', "[None, :, :, None]")),
        ([1, 8, 9, 3], UINT8, ('convert("RGB")', "np.asarray(p, np.uint8)[None]", "pixels from 0 to 255")),
    ):
        port = (shape, kind)
        onnx.save(model([node("Identity", "x", "y")], {"x": port}, {"y": port}), "p.onnx")
        ran = rlx("run", "p.onnx", "--input", "x=p.png", "--device", "cpu")
        assert ran.status == 2 and all(word in ran.err for word in words), ran


def test_files_that_are_no_arrays_say_what_makes_one(
    rlx: Rlx, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that a message names makes a file that is taken."""
    monkeypatch.chdir(tmp_path)
    x, rest = np.arange(8, dtype=np.float32).reshape(2, 4), ("--dim", "k=1", "--device", "cpu")
    np.savetxt("x.csv", x, delimiter=",")
    np.savetxt("head.csv", x, delimiter=";", header="a;b;c;d", comments="")
    np.savez("x.npz", first=x, second=x)
    for name, words in (("x.csv", "but text"), ("head.csv", "but text"), ("x.npz", "holds first, second, and none by")):
        ran = rlx("run", file, "--input", f"x={name}", *rest)
        assert ran.status == 2 and words in ran.err and "x is float32 [n, 4]" in ran.err, ran
        if name == "head.csv":
            ran = ran._replace(err=ran.err.replace("head.npy", "x.npy"))
        code = shlex.split(ran.err[ran.err.index("python -c") : ran.err.index(" makes x.npy")])[2]
        subprocess.run([sys.executable, "-c", code], check=True)
        assert rlx("run", file, "--input", "x=x.npy", *rest).status == 0
        np.testing.assert_array_equal(np.load("x.npy"), x)
        Path("x.npy").unlink()
    nodes = [node("Relu", "x", "y")]
    onnx.save(model(nodes, {"x": [1, 3, 32, 48]}, {"y": [1, 3, 32, 48]}), "p.onnx")
    Path("photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    Path("a.wav").write_bytes(b"RIFF\0\0\0\0WAVEfmt ")
    for name, words in (("photo.png", "is a PNG picture"), ("a.wav", "is a WAV sound")):
        ran = rlx("run", "p.onnx", "--input", f"x={name}", "--device", "cpu")
        assert ran.status == 2 and words in ran.err and "x is float32 [1, 3, 32, 48]" in ran.err, ran
        assert name != "photo.png" or "resize((48, 32))" in ran.err


def test_random_inputs_are_as_long_as_those_from_files(rlx: Rlx, tmp_path: Path) -> None:
    proto = model([node("Add", "a b", "t"), node("Mul", "t c", "y")],
                  {"a": ["n", 3], "b": ["n", "m"], "c": ["m"]}, {"y": ["n", "m"]})  # fmt: skip
    onnx.save(proto, tmp_path / "m.onnx")
    np.save(tmp_path / "a.npy", np.ones((5, 3), np.float32))
    given = ("--input", f"a={tmp_path / 'a.npy'}", "--device", "cpu")
    ran = rlx("run", tmp_path / "m.onnx", *given, "--dim", "m=3")
    assert ran.status == 0 and "b: random, float32 [5, 3]" in ran.err and "taken as 1" not in ran.err
    ran = rlx("run", tmp_path / "m.onnx", *given)
    assert ran.status == 0 and "b: random, float32 [5, 1]" in ran.err
    assert "dimensions taken as 1: m; --dim m=8 sets one\n" in ran.err


class TestOpenDimensions:
    """Lengths that the file leaves open: said where they are taken, chosen where 1 does not fit, set by --dim."""

    def convolution(self, folder: Path, kernel: int) -> Path:
        w = np.full((2, 3, kernel, kernel), 0.1, np.float32)
        ins, outs = {"x": [None, 3, None, "wide"]}, {"y": [None, 2, None, None]}
        proto = model([node("Conv", "x w", "y")], ins, outs, {"w": w})
        onnx.save(proto, folder / "m.onnx")
        return folder / "m.onnx"

    def test_a_length_that_fits_is_found(self, rlx: Rlx, tmp_path: Path) -> None:
        ran = rlx("run", self.convolution(tmp_path, 9), "--device", "cpu")
        assert ran.status == 0
        assert "dimensions taken as 16 (1 for batches): x.0, x.2, wide; --dim x.0=64 sets one\n" in ran.err
        assert "x: random, float32 [1, 3, 16, 16]" in ran.err

    def test_unnamed_ones_are_set_by_input_and_axis(self, rlx: Rlx, tmp_path: Path) -> None:
        dims = ("--dim", "x.0=2", "--dim", "x.2=11", "--dim", "wide=12")
        ran = rlx("run", self.convolution(tmp_path, 9), "--device", "cpu", *dims)
        assert ran.status == 0 and "taken as" not in ran.err and "y: float32 [2, 2, 3, 4]" in ran.out
        ran = rlx("run", self.convolution(tmp_path, 9), "--device", "cpu", "--dim", "x.1=3")
        assert ran.status == 2 and "no dimensions ['x.1']" in ran.err

    @pytest.mark.parametrize("command", ["run", "check", "bench", "inspect"])
    def test_where_none_fits_the_error_says_what_was_taken(self, rlx: Rlx, tmp_path: Path, command: str) -> None:
        ran = rlx(command, self.convolution(tmp_path, 600), "--device", "cpu")
        assert ran.status == 2 and "use a smaller kernel" in ran.err
        assert "which were taken as 1: x.0, x.2, wide; others were tried and fail too." in ran.err
        assert ran.err.endswith("--dim x.0=224 --dim x.2=224 --dim wide=224\n")


@pytest.mark.parametrize("command", ["run", "check", "bench", "inspect"])
def test_outputs_of_other_shapes_than_declared(rlx: Rlx, tmp_path: Path, command: str) -> None:
    onnx.save(model([node("Relu", "x", "y")], {"x": [2, 3]}, {"y": [3, 2]}), tmp_path / "m.onnx")
    more = ("--runs", 1) if command == "bench" else ()
    ran = rlx(command, tmp_path / "m.onnx", "--device", "cpu", "--strict", *more)
    assert ran.status == 2 and "output 'y': is declared [3, 2]" in ran.err and "--no-strict" in ran.err
    ran = rlx(command, tmp_path / "m.onnx", "--device", "cpu", *more)
    assert ran.status == 0 and "rlx: warning: output 'y': is declared [3, 2], but comes out (2, 3)" in ran.err


def test_run_of_no_model(rlx: Rlx, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing of the kind")
    ran = rlx("run", tmp_path / "m.onnx")
    assert ran.status == 2 and "is not an ONNX file" in ran.err


def test_inspect(rlx: Rlx, file: Path, tmp_path: Path, device: str) -> None:
    ran = rlx("inspect", file, "--device", device, "--memory", tmp_path / "plan.svg")
    assert ran.status == 0 and ran.err == "dimensions taken as 1: n, k; --dim n=8 sets one\n"
    lines = ran.out.splitlines()
    assert lines[:5] == [
        "input x: float32 [n, 4]", "input i: int64 [k]", "output y: float32 [k, 3]", "weights: 1, 48 bytes",
        "operators: 3: 1 Gather, 1 Gemm, 1 Relu",
    ]  # fmt: skip
    titles = ["device", "nodes", "native", "alias", "decomposed", "control", "host", "arena", "bytes"]
    assert lines[5].split() == titles
    assert lines[6].startswith(device) and len(lines) == 7
    drawn = ElementTree.parse(tmp_path / "plan.svg").getroot()
    assert len([e for e in drawn.iter() if e.tag.endswith("title")]) >= 2
    assert any(e.text and e.text.startswith(f"m.onnx on {device}") for e in drawn.iter())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "has no graph: it is empty"),
        (b"PK\x03\x04" + bytes(60), "as PyTorch saves models; export the model with torch.onnx.export"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "convert it with tf2onnx"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"GGUF\x03\x00\x00\x00" + bytes(60), "is a GGUF file"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(60), "TensorFlow Lite"),
        (b"\x02" + bytes(7) + b'{"a": 1}', "take the folder that holds it"),
        (b"<!DOCTYPE html>\n<html>Not found", "a page of HTML or XML, as a download leaves that failed"),
        (b"\x89PNG\r\n\x1a\n" + bytes(60), "a PNG picture; `rlx run model.onnx --input NAME=FILE` says"),
        (b"RIFF\0\0\0\0WAVEfmt ", "a WAV sound; `rlx transcribe`"),
        (b"ply\nformat binary_little_endian 1.0\n", "a PLY file; `rlx view` and rlx.splats.read_ply"),
        (b"a,b,c\n1,2,3\n", "it is a text, which begins with 'a,b,c'"),
        (b"\x93NUMPY\x01\0" + bytes(60), "an array that NumPy has saved; --input"),
    ],
)
def test_files_that_are_taken_for_onnx_models(rlx: Rlx, tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    for command in ("run", "inspect", "check", "bench"):
        if command in ("inspect", "bench") and content.startswith(b"GGUF"):
            continue  # which they take, whatever their names
        ran = rlx(command, tmp_path / "m.onnx")
        assert (ran.status, ran.out) == (2, "") and f"{tmp_path / 'm.onnx'}: " in ran.err and text in ran.err


def test_a_folder_or_nothing_is_no_model(rlx: Rlx, tmp_path: Path) -> None:
    assert f"is a folder; give an ONNX file, such as {tmp_path / 'model.onnx'}" in rlx("run", tmp_path).err
    for name, words in (("m.gguf", "a GGUF file, such as"), ("adapter_config.json", "holds an adapter; rlx generate")):
        (tmp_path / name).touch()
        assert words in rlx("inspect", tmp_path).err
    for command in ("run", "inspect", "check", "bench"):
        ran = rlx(command, tmp_path / "absent.onnx")
        known = command in ("inspect", "bench")
        wanted = "absent.onnx does not exist" if known else "absent.onnx: cannot be read: No such file"
        assert ran.status == 2 and wanted in ran.err


def test_auto_says_where_it_ran(rlx: Rlx, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "cpu")
    assert re.search(r"^on cpu \(.+\)$", rlx("run", file).err, re.M)


def test_sequences_are_made_and_written_item_by_item(rlx: Rlx, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    graph = helper.make_graph(
        [node("Identity", "xs", "ys")], "g",
        [helper.make_value_info("xs", kind)], [helper.make_value_info("ys", kind)],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
        tmp_path / "m.onnx",
    )
    ran = rlx("run", tmp_path / "m.onnx", "--device", "cpu", "--out", tmp_path / "out")
    assert ran.status == 0 and ran.out.startswith("ys: 2 items; float32 [2], ")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["ys.0.npy", "ys.1.npy"]
    items = [f"xs={tmp_path / 'out' / f'ys.{k}.npy'}" for k in (1, 0, 1)]
    ran = rlx("run", tmp_path / "m.onnx", "--device", "cpu", *(a for i in items for a in ("--input", i)))
    assert (ran.status, ran.err) == (0, "") and ran.out.startswith("ys: 3 items; float32 [2], ")


def test_inspect_shows_what_it_cannot_run(rlx: Rlx, tmp_path: Path) -> None:
    onnx.save(model([node("Relu", "x", "y")], {"x": None}, {"y": None}), tmp_path / "m.onnx")
    ran = rlx("inspect", tmp_path / "m.onnx")
    assert ran.status == 2 and ran.err == (
        "rlx: input x: the model does not say its type and shape; give --input x=file.npy\n"
    )
    assert ran.out.startswith("input x: float32 any shape\n") and "operators: 1: 1 Relu" in ran.out


def test_words_in_and_out(rlx: Rlx, tmp_path: Path) -> None:
    from onnx import TensorProto

    kind = TensorProto.STRING
    proto = model([node("Identity", "x", "y")], {"x": (["n"], kind)}, {"y": (["n"], kind)})
    onnx.save(proto, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array(["a", "ß"]))
    again = ("run", tmp_path / "m.onnx", "--device", "cpu", "--out", tmp_path / "out")
    ran = rlx(*again, "--input", f"x={tmp_path / 'x.npy'}")
    assert ran == (0, "y: string [2], first 'a'\n", "")
    assert np.load(tmp_path / "out" / "y.npy").tolist() == ["a", "ß"]
    assert rlx(*again, "--dim", "n=3").status == 0


def test_nodes_are_listed_by_their_names(rlx: Rlx, file: Path) -> None:
    ran = rlx("inspect", file, "--device", "cpu", "--nodes")
    assert ran.status == 0 and re.search(r"native +matmul +Relu making r ", ran.out)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
@pytest.mark.late
def test_progress_is_drawn_on_a_terminal_only(file: Path, clean_env: dict[str, str]) -> None:
    import pty

    at_once = "from rlx.host import progress; progress.DRAWN_AFTER = 0; from rlx.cli import main; main()"
    command = [sys.executable, "-c", at_once, "run", str(file), "--device", "cpu", "--dim", "n=2"]
    piped = subprocess.run(command, capture_output=True, env=clean_env, check=True)
    assert b"building" not in piped.stderr
    parent, child = pty.openpty()
    made = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=child, env={**clean_env, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(child)
    drawn = b""
    try:
        while chunk := os.read(parent, 4096):
            drawn += chunk
    except OSError:  # Linux says so where the other end was closed
        pass
    os.close(parent)
    assert made.stdout is not None
    with made.stdout:
        assert made.stdout.read() == piped.stdout
    assert made.wait() == 0 and b"first run" in drawn


def test_names_that_would_steer_a_terminal_are_escaped(rlx: Rlx, tmp_path: Path) -> None:
    proto = model(
        [node("Neg", "\x1b[31mx", "\x1b]0;y", name="a\x1b[2Jb")],
        {"\x1b[31mx": ["n\x07"]},
        {"\x1b]0;y": ["n\x07"]},
    )
    onnx.save(proto, tmp_path / "m.onnx")
    for command in (("run",), ("inspect", "--nodes"), ("check", "-v"), ("bench", "--runs", "1")):
        ran = rlx(*command, tmp_path / "m.onnx", "--device", "cpu")
        assert ran.status == 0 and "\x1b" not in ran.out + ran.err and "\x07" not in ran.out + ran.err
        assert "\\x1b[" in ran.out + ran.err


def test_weights_that_were_left_behind(rlx: Rlx, tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "y")], {"x": [1, 64]}, {"y": None}, {"w": np.ones((64, 9), np.float32)}
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    ran = rlx("run", tmp_path / "m.onnx")
    assert (
        ran.status == 2 and "initializer 'w': its data is in the file 'm.data', which is not there" in ran.err
    )


def test_both_infinities_have_no_mean_and_no_warning() -> None:
    assert said(np.float32([np.inf, -np.inf])) == "float32 [2], -inf to inf, mean nan"
    assert said(np.float32([1, np.nan, 3])) == "float32 [3], 1 of 3 NaN, 1 to 3, mean 2"
    assert said(np.full(2, np.nan)) == "float64 [2], 2 of 2 NaN"


@pytest.mark.parametrize("command", ["run", "inspect", "check", "bench"])
def test_budgets_of_commands(rlx: Rlx, tmp_path: Path, command: str) -> None:
    nodes = [node("Expand", "x s", "t"), node("Exp", "t", "y")]
    onnx.save(model(nodes, {"x": [3]}, {"y": None}, {"s": np.array([100_000, 1])}), tmp_path / "m.onnx")
    for option, text in (("--max-bytes", "max_bytes= sets"), ("--max-steps", "max_steps=")):
        ran = rlx(command, tmp_path / "m.onnx", "--device", "cpu", option, "100")
        assert ran.status == 2 and text in ran.err


def test_a_saved_program_says_which_options_it_does_not_take(rlx: Rlx, tmp_path: Path) -> None:
    g = Graph("doubled")
    g.output("y", g.input("x", (2,)) * 2)
    file = tmp_path / "m.rlx"
    Session("cpu").compile(g).save(file)
    ran = rlx("inspect", file, "--nodes", "--memory", tmp_path / "p.svg")
    assert ran.status == 0 and "native" in ran.out and ElementTree.parse(tmp_path / "p.svg")
    for command, option in (("run", ("--dim", "n=2")), ("inspect", ("--device", "cpu"))):
        ran = rlx(command, file, *option)
        assert ran.status == 2 and f"takes no {option[0]}" in ran.err
    assert "is a program that rlx has saved" in rlx("check", file, "--device", "cpu").err


def test_a_model_that_rlx_cannot_run_is_shown_with_what_is_missing(rlx: Rlx, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "h"), node("Frob", "h", "g", domain="my.ops"), node("Relu", "g", "r"),
             node("Sofmax", "r", "y")]  # fmt: skip
    onnx.save(model(nodes, {"x": ["n", 3]}, {"y": ["n", 3]}, domains=["my.ops"]), tmp_path / "m.onnx")
    ran = rlx("inspect", tmp_path / "m.onnx", "--device", "cpu")
    assert ran.status == 2 and "rlx does not run it: 2 of this model's operators" in ran.err
    assert [line.split() for line in ran.out.splitlines()] == [
        ["input", "x:", "float32", "[n,", "3]"], ["output", "y:", "float32", "[n,", "3]"], ["weights:", "0"],
        ["operator", "nodes", "in", "rlx"], ["Sofmax", "1", "missing"], ["my.ops::Frob", "1", "missing"],
        ["Relu", "2"],
    ]  # fmt: skip


def test_random_lengths_and_indices_are_those_that_operators_take(rlx: Rlx, tmp_path: Path) -> None:
    """A cache that the update fills has one place for it; a total length is at least that of the new keys."""
    scatter = model([node("TensorScatter", "p u i", "y")],
                    {"p": [3, 4, 1], "u": [3, 4, 1], "i": ([3], I64)}, {"y": [3, 4, 1]}, opset=24)  # fmt: skip
    dims = {"q": [2, 3, 8], "k": [2, 3, 8], "v": [2, 3, 8], "pk": [2, 1, 5, 8], "pv": [2, 1, 5, 8]}
    lengths = {"n": ([2], onnx.TensorProto.INT32), "t": ([1], onnx.TensorProto.INT32)}
    grouped = node("GroupQueryAttention", "q k v pk pv n t", "y ok ov", domain="com.microsoft", num_heads=1,
                   kv_num_heads=1)  # fmt: skip
    attention = model([grouped], dims | lengths, {"y": [2, 3, 8], "ok": None}, domains=["com.microsoft"])
    for name, proto in (("scatter", scatter), ("grouped", attention)):
        onnx.save(proto, tmp_path / f"{name}.onnx")
        for seed in (0, 1, 2):
            ran = rlx("run", tmp_path / f"{name}.onnx", "--seed", seed, "--device", "cpu")
            assert ran.status == 0, ran.err


def test_inputs_without_a_name_and_of_several_arrays(
    rlx: Rlx, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, i = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([1, 0, 1])
    np.save("i.npy", i)
    np.savez("xi.npz", x=x, i=i)
    np.savez("one.npz", first=x)
    np.savez("odd.npz", x=x, I=i)
    np.save("pickled.npy", np.array(["a"], object))
    for given in (("xi.npz",), ("x=one.npz", "i.npy"), ("x=xi.npz", "i=xi.npz")):
        texts = [t if "=" in t or t.endswith(".npz") else f"i={t}" for t in given]
        ran = rlx("run", file, "--device", "cpu", *(word for text in texts for word in ("--input", text)))
        assert ran == (0, "y: float32 [3, 3], 6 to 22, mean 16.6667\n", ""), ran
    for text, words in (
        ("i.npy", "--input i.npy: expected name=file.npy, of the inputs x, i"),
        ("x=", "expected name=file.npy, of the inputs x, i"),
        ("odd.npz", "odd.npz holds x, I, and the model has no input 'I' (did you mean 'i'?); it takes x, i"),
        ("x=pickled.npy", "pickled.npy holds Python objects as a pickle"),
    ):
        ran = rlx("run", file, "--device", "cpu", "--input", text)
        assert ran.status == 2 and words in ran.err and ran.err.count("\n") == 1, ran
    onnx.save(model([node("Relu", "x", "y")], {"x": [2, 4]}, {"y": [2, 4]}), "single.onnx")
    np.save("x.npy", x)
    for name in ("one.npz", "x.npy"):
        ran = rlx("run", "single.onnx", "--device", "cpu", "--input", name)
        assert ran == (0, "y: float32 [2, 4], 0 to 7, mean 3.5\n", "")


def test_texts_as_they_are_and_from_files(rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message says gives a text, and makes a file of a list in a text file."""
    from onnx import TensorProto

    monkeypatch.chdir(tmp_path)
    kind = TensorProto.STRING
    onnx.save(model([node("Identity", "x", "y")], {"x": (["n", 1], kind)}, {"y": (["n", 1], kind)}), "m.onnx")
    Path("list.txt").write_text("a text\nanother\n")
    run = ("run", "m.onnx", "--device", "cpu", "--input")
    ran = rlx(*run, "x=list.txt")
    assert ran.status == 2 and ran.err.endswith("x is string [n, 1]\n"), ran
    code = shlex.split(ran.err[ran.err.index("python -c") : ran.err.index(" makes list.npy")])[2]
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    assert rlx(*run, "x=list.npy") == (0, "y: string [2, 1], first 'a text'\n", "")
    ran = rlx(*run, "x=it's ß")
    assert ran.status == 2 and ran.err.endswith("; x is string [n, 1]\n"), ran
    given = shlex.split(ran.err[ran.err.index("--input") : ran.err.rindex("; x is")])
    assert rlx(*run[:-1], *given) == (0, "y: string [1, 1], first \"it's ß\"\n", "")
    assert rlx(*run, 'x=[["a"],["b"]]') == (0, "y: string [2, 1], first 'a'\n", "")
    for text in ('x=["a"]', "x=[[1]]", 'x=[["a"'):
        ran = rlx(*run, text)
        assert ran.status == 2 and ran.err.count("\n") == 1, ran


def test_a_model_of_which_devices_run_nothing_is_not_called_ok(rlx: Rlx, tmp_path: Path) -> None:
    from onnx import TensorProto

    kind = TensorProto.STRING
    proto = model([node("StringConcat", "x x", "y")], {"x": ([2], kind)}, {"y": ([2], kind)}, opset=20)
    onnx.save(proto, tmp_path / "m.onnx")
    ran = rlx("check", tmp_path / "m.onnx", "--device", "cpu")
    assert ran.status == 0 and ran.out.splitlines()[-1].endswith("nothing") and "nothing to compare: all" in ran.err
    ran = rlx("inspect", tmp_path / "m.onnx", "--device", "cpu")
    assert ran.status == 0 and "cpu runs nothing: all operators were computed" in ran.err


@pytest.mark.parametrize(
    "words", [("run", "--out"), ("inspect", "--memory"), ("bench", "--json"), ("bench", "--profile")], ids="".join
)
def test_outputs_that_cannot_be_written_are_refused_before_the_work(
    rlx: Rlx, file: Path, tmp_path: Path, words: tuple[str, str]
) -> None:
    command, option = words
    (tmp_path / "taken").touch()
    place = tmp_path / "taken" / "out"
    ran = rlx(command, file, "--device", "cpu", option, place)
    assert (ran.status, ran.out) == (2, "") and f"rlx: {option}: {place} cannot be written: " in ran.err, ran
    if command == "run":
        assert rlx(command, file, "--device", "cpu", option, tmp_path / "new" / "folder").status == 0


def test_the_rows_of_a_zip_map_are_one_file(rlx: Rlx, tmp_path: Path) -> None:
    zipped = onnx.helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
    one = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 2])
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.STRING, onnx.helper.make_tensor_type_proto(1, []))
    rows = onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(kind))
    graph = onnx.helper.make_graph([zipped], "zip", [one], [rows])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "out"
    ran = rlx("run", tmp_path / "m.onnx", "--device", "cpu", "--input", tmp_path / "x.npy", "--out", out)
    assert ran.status == 0 and [p.name for p in out.iterdir()] == ["y.npy"], ran
    np.testing.assert_array_equal(np.load(out / "y.npy"), x)
