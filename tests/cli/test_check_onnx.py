"""`rlx check model.onnx`: a table, status 0 for agreement; a fault leads back to the ONNX node that has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from rlx import devices
from tests.cli.conftest import Rlx
from tests.cli.test_check import one_nan, plant, rows, scale
from tests.onnx.models import I64, info, model, node


def save(folder: Path, proto: onnx.ModelProto) -> Path:
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [
        node("MatMul", "x w", "p", name="first_product"), node("Softmax", "p", "s", name="soft"),
        node("MatMul", "s v", "q", name="second_product"), node("Softmax", "q", "y", name="soft_again"),
    ]  # fmt: skip
    rng = np.random.default_rng(3)
    weights = {n: rng.standard_normal((40, 40)).astype(np.float32) for n in ("w", "v")}
    return save(tmp_path, model(nodes, {"x": ["n", 40]}, {"y": ["n", 40]}, weights))


def test_a_device_that_agrees(rlx: Rlx, file: Path, device: str) -> None:
    ran = rlx("check", file, "--device", device, "--dim", "n=3")
    assert ran.status == 0 and ran.err.startswith("input x: random, float32 [3, 40]")
    ((name, row),) = rows(ran.out).items()
    assert name.startswith(device) and row[1:3] == ["4", "0"] and row[-1] == "ok"
    assert row[-2] in {"first_product", "soft", "second_product", "soft_again"}
    assert 0 < float(row[3]) <= 1e-11 and 0 < float(row[4]) <= 1e-5


def test_all_devices_on_the_same_inputs(rlx: Rlx, file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 40), np.float32))
    names = [info.id for info in devices()]
    ran = rlx("check", file, "--input", f"x={tmp_path / 'x.npy'}", *(f"--device={name}" for name in names))
    assert (ran.status, ran.err) == (0, "")
    assert list(rows(ran.out)) == names


@pytest.mark.parametrize(("op", "name"), [("matmul", "second_product"), ("softmax", "soft_again")])
def test_a_kernel_that_is_off_by_a_thousandth(
    rlx: Rlx, file: Path, monkeypatch: pytest.MonkeyPatch, op: str, name: str
) -> None:
    plant(monkeypatch, op, scale)
    ran = rlx("check", file, "--device", "cpu", "-v")
    assert ran.status == 1 and rows(ran.out)["cpu"][-1].startswith("FAIL: ")
    assert f"cpu: the first node that strays: {name}\n" in ran.out
    assert ran.out.rstrip().endswith("so the error is its own")
    assert ran.out.count("  ok  nmse") == (2 if op == "matmul" else 3)


def test_a_single_nan(rlx: Rlx, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "matmul", one_nan)
    ran = rlx("check", file, "--device", "cpu")
    assert ran.status == 1 and "strays: second_product\n" in ran.out and "NaN or infinity in other" in ran.out


def test_a_node_that_magnifies_what_came_before_is_not_blamed(rlx: Rlx, tmp_path: Path, device: str) -> None:
    """A product less what it should be, in f32: nothing is left but how each was rounded."""
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 512), (512, 8)))
    right = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    nodes = [node("MatMul", "x w", "p", name="product"), node("Sub", "p right", "y", name="difference")]
    file = save(tmp_path, model(nodes, {"x": [4, 512]}, {"y": [4, 8]}, {"w": w, "right": right}))
    np.save(tmp_path / "x.npy", x)
    ran = rlx("check", file, "--device", device, "--input", f"x={tmp_path / 'x.npy'}")
    assert ran.status == 1 and "the first node that strays: difference\n" in ran.out
    assert ran.out.rstrip().endswith("it magnifies small errors of the nodes before it")


def test_a_node_in_which_numbers_cancel_is_not_blamed(rlx: Rlx, tmp_path: Path, device: str) -> None:
    """1 - sigmoid(22) is 0 in f32, 2.8e-10 in the reference."""
    nodes = [node("Sigmoid", "x", "s", name="gate"), node("Sub", "one s", "y", name="rest")]
    file = save(tmp_path, model(nodes, {"x": [4]}, {"y": [4]}, {"one": np.float32(1)}))
    np.save(tmp_path / "x.npy", np.full(4, 22, np.float32))
    ran = rlx("check", file, "--device", device, "--input", f"x={tmp_path / 'x.npy'}")
    assert ran.status == 1 and "the first node that strays: gate+rest\n" in ran.out
    assert "in its own precision its result is right" in ran.out


def test_integers_that_round_the_other_way_are_right(rlx: Rlx, tmp_path: Path, device: str) -> None:
    """Sums near a half are rounded up by one and down by the other; what follows is judged by what was read."""
    rng = np.random.default_rng(8)
    x = rng.integers(-4, 5, (64, 256)).astype(np.float32)
    w = np.where(rng.integers(0, 2, (256, 64)) == 1, 0.1, -0.1).astype(np.float32)
    nodes = [
        node("MatMul", "x w", "p", name="product"), node("Mul", "p five", "t"), node("Cast", "t", "q", to=7),
        node("Cast", "q", "r", to=1), node("MatMul", "r v", "y", name="after"),
    ]  # fmt: skip
    weights = {"w": w, "five": np.array(5, np.float32), "v": rng.standard_normal((64, 4)).astype(np.float32)}
    file = save(tmp_path, model(nodes, {"x": [64, 256]}, {"y": [64, 4], "q": ([64, 64], I64)}, weights))
    np.save(tmp_path / "x.npy", x)
    ran = rlx("check", file, "--device", device, "--input", f"x={tmp_path / 'x.npy'}")
    assert ran.status == 0, ran.out


@pytest.mark.parametrize(("limit", "status"), [(100, 2), (500, 2), (2000, 1)])
def test_loops_are_limited_in_the_run_and_in_the_reference(
    rlx: Rlx, tmp_path: Path, limit: int, status: int
) -> None:
    """Doubling one until it is infinite takes 128 steps in f32, 1,024 in the reference's float64."""
    boolean = onnx.TensorProto.BOOL
    inner = onnx.helper.make_graph(
        [node("Add", "v v", "v2"), node("IsInf", "v2", "end"), node("Not", "end", "on")], "body",
        [info("i", [], I64), info("go", [], boolean), info("v", [])], [info("on", [], boolean), info("v2", [])],
    )  # fmt: skip
    loop = node("Loop", "_ true x", "y", body=inner)
    file = save(tmp_path, model([loop], {"x": []}, {"y": []}, {"true": np.array(True)}))
    np.save(tmp_path / "x.npy", np.float32(1))
    ran = rlx(
        "check", file, "--device", "cpu", "--input", f"x={tmp_path / 'x.npy'}", "--max-steps", str(limit)
    )
    assert ran.status == status
    assert (f"more than {limit} steps together" in ran.err) == (status == 2)


def test_a_model_of_constants_has_nothing_to_compare(rlx: Rlx, tmp_path: Path) -> None:
    file = save(tmp_path, model([node("Shape", "x", "y")], {"x": ["n", 2]}, {"y": ([2], I64)}))
    ran = rlx("check", file, "--device", "cpu")
    assert ran.status == 0 and rows(ran.out)["cpu"][-1] == "nothing" and "nothing to compare: all" in ran.err


def test_what_is_behind_a_cut_is_not_called_right(rlx: Rlx, tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "e"), node("NonZero", "e", "i"), node("Neg", "i", "y")]
    ran = rlx("check", save(tmp_path, model(nodes, {"x": [3]}, {"y": None})), "--device", "cpu")
    assert ran.status == 0 and rows(ran.out)["cpu"][-1] == "part" and "2 of 3 nodes not compared" in ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--dim", "q=1"), "no dimensions ['q']; its inputs have ['n']"),
        (("--dtype", "f16"), "--dtype is for a sentence encoder's folder"),
        (("--device", "tpu"), "device 'tpu' is not understood"),
        (("--input", "z=z.npy"), "cannot be read"),
    ],
)
def test_bad_arguments(rlx: Rlx, file: Path, arguments: tuple[str, ...], text: str) -> None:
    ran = rlx("check", file, *arguments)
    assert ran.status == 2 and text in ran.err and ran.out == ""


def test_of_a_folder_inputs_are_not_asked(rlx: Rlx, tiny: Path) -> None:
    ran = rlx("check", tiny, "--dim", "batch=2")
    assert ran.status == 2 and "--input and --dim are for ONNX files" in ran.err


def test_a_device_that_cannot_run_does_not_stop_the_others(rlx: Rlx, file: Path) -> None:
    ran = rlx("check", file, "--device", "cpu", "--device", "cuda:99")
    assert ran.status == 2 and list(rows(ran.out)) == ["cpu"] and "rlx: cuda:99: " in ran.err


@pytest.mark.sample(vulkan=0)
def test_what_depends_on_halves_is_held_to_what_they_allow(rlx: Rlx, tmp_path: Path, device: str) -> None:
    nodes = [
        node("Cast", "x", "h", to=10), node("MatMul", "h w", "p"), node("Softmax", "p", "s"),
        node("Cast", "s", "f", to=1), node("Mul", "f f", "y"),
    ]  # fmt: skip
    w = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float16)
    file = save(tmp_path, model(nodes, {"x": [16, 64]}, {"y": [16, 64]}, {"w": w}))
    ran = rlx("check", file, "--device", device)
    assert ran.status == 0, ran.out
    ((_, row),) = rows(ran.out).items()
    assert float(row[3]) > 1e-11, "rounded to 16 bits on the way"
