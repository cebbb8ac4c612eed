"""A GPU's programs of ONNX files in the disk's cache: the same results without reading the file into a graph."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rlx
from rlx.onnx import kept_program, ready
from tests.devices import session_here
from tests.onnx.models import info, node

X = np.linspace(-1, 1, 3 * 160, dtype=np.float32).reshape(3, 160)
WEIGHTS = {
    "long": np.random.default_rng(0).standard_normal((160, 120)).astype(np.float32),
    "short": np.linspace(0, 1, 120, dtype=np.float32),
}


def written(path: Path, factor: float = 1.0) -> Path:
    """A product with a weight that is apart in the file, and a bias that is not."""
    nodes = [node("MatMul", "x long", "m"), node("Add", "m short", "z"), node("Relu", "m", "r")]
    held = [numpy_helper.from_array(w * np.float32(factor), name) for name, w in WEIGHTS.items()]
    ports = [info("x", ("N", 160))], [info("z", ("N", 120)), info("r", ("N", 120))]
    graph = helper.make_graph(nodes, "kept", *ports, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> rlx.Session:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    return session_here("vulkan")


def unread(model: Any) -> bool:
    return type(model) is ready.ReadyModel and model._whole is None


@pytest.mark.parametrize("large", [False, True])
def test_a_second_load_runs_what_the_first_kept(
    session: rlx.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(ready, "MOST_BYTES", 1000)
    path = written(tmp_path / "net.onnx")
    with rlx.onnx.load(path) as first:
        wanted = first.run({"x": X}, device=session)
        assert not unread(first)
    with rlx.onnx.load(path) as again:
        got, other = again.run({"x": X}, device=session), again.run({"x": X[::-1]}, device=session)
        assert unread(again) and list(got) == list(wanted) == ["z", "r"]
        again(X[:1], device=session)
        assert not unread(again)
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)
        np.testing.assert_array_equal(other[name], value[::-1])
    np.testing.assert_allclose(wanted["z"], X @ WEIGHTS["long"] + WEIGHTS["short"], rtol=1e-5, atol=1e-5)


def test_another_process_imports_neither_onnx_nor_the_ops_of_other_programs(
    session: rlx.Session, tmp_path: Path
) -> None:
    path = written(tmp_path / "net.onnx")
    with rlx.onnx.load(path) as first:
        wanted = first.run({"x": X}, device=session)
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, rlx\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        f"z = rlx.onnx.load({str(path)!r}).run({{'x': x}}, device={session.info.id!r})['z']\n"
        f"np.save({str(tmp_path / 'z.npy')!r}, z)\n"
        "names = 'onnx google.protobuf rlx.onnx.model rlx.ops.linalg rlx.ops.signal rlx.ops.collectives.records'\n"
        "print(*(name for name in names.split() if name in sys.modules))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    text = subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120, stdout=subprocess.PIPE)
    assert text.stdout.strip() == b""
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), wanted["z"])


def test_other_weights_and_other_settings_are_read_anew(session: rlx.Session, tmp_path: Path) -> None:
    path = written(tmp_path / "net.onnx")
    with rlx.onnx.load(path) as first:
        first.run({"x": X}, device=session)
    with rlx.onnx.load(written(path, 2.0)) as other:
        doubled = other.run({"x": X}, device=session)["z"]
    np.testing.assert_allclose(doubled, 2 * (X @ WEIGHTS["long"] + WEIGHTS["short"]), rtol=1e-5, atol=1e-5)
    with rlx.onnx.load(path) as model:
        model.run({"x": X}, device=session_here("vulkan", precision="f16"))
        assert not unread(model)


def test_a_damaged_entry_is_not_used(session: rlx.Session, tmp_path: Path) -> None:
    path = written(tmp_path / "net.onnx")
    with rlx.onnx.load(path) as first:
        wanted = first.run({"x": X}, device=session)["z"]
    cache = ready.shared(ready.KIND)
    with rlx.onnx.load(path) as model:
        key = ready._program_key(model._key, session, {"x": X})
        assert key is not None
        cache.put(key, b"no program")
        np.testing.assert_array_equal(model.run({"x": X}, device=session)["z"], wanted)
        assert not unread(model)


def test_a_weight_with_a_normalization_folded_in_is_made_again_from_the_file(
    session: rlx.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_program, "_MOST_BYTES", 500)
    rng = np.random.default_rng(1)
    held = {"w": rng.standard_normal((24, 80, 3, 3)), **{n: rng.uniform(0.5, 2, 24) for n in ("g", "b", "m", "v")}}
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c g b m v", "y")]
    initializers = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    ports = [info("x", (2, 80, 9, 9))], [info("y", (2, 24, 7, 7))]
    proto = helper.make_graph(nodes, "folded", *ports, initializers)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = rng.standard_normal((2, 80, 9, 9)).astype(np.float32)
    with rlx.onnx.load(path) as first:
        wanted = first.run({"x": x}, device=session)["y"]
    with rlx.onnx.load(path) as again:
        np.testing.assert_array_equal(again.run({"x": x}, device=session)["y"], wanted)
        assert unread(again)
