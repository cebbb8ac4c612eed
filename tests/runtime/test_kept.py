"""Prepared graphs in the disk's cache: what is found there is what the passes would make, and nothing else is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import passes
from rlx.host import sources
from rlx.host.diskcache import DiskCache
from rlx.runtime import kept
from rlx.runtime.saved import ready

LAYERS = 45
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
W = (np.arange(9, dtype=np.float32).reshape(3, 3) - 4) / 8


def network(offset: float = 0.5, op: str = "tanh", table: float = 1.0) -> rlx.Graph:
    """A graph with all that graphs have: a weight, a state, a constant array, a loop, a number in a tree, labels."""
    graph = rlx.Graph("network")
    x, w, s = graph.input("x", (2, 3)), graph.param("w", (3, 3)), graph.state("s", (3,))
    for layer in range(LAYERS):
        x = getattr(rlx, op)(x @ w + s) * (offset + layer) + np.full((2, 3), table, np.float32)
    carry, ys = rlx.scan(lambda c, row: (c + row, c * 2), s, x)
    graph.output("y", ys)
    graph.output("mean", rlx.mean(x))
    graph.update("s", carry)
    return graph


def run(graph: rlx.Graph, dtype: str | None = None, **options: Any) -> list[bytes]:
    """The bits of two runs."""
    session = rlx.Session("cpu", engine="numpy", **options)
    with session.compile(graph) as program:
        program.set_param("w", W, dtype)
        program.set_state("s", np.array([0.25, -1, 3], np.float32))
        runs = [program.run({"x": X}) for _ in range(2)]
        return [out.tobytes() for outs in runs for out in outs.values()] + [program.get_state("s").tobytes()]


class Passes:
    """Counts the graphs that go through the passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count, real = 0, passes.optimize

        def counted(*args: Any, **options: Any) -> Any:
            self._count += 1
            return real(*args, **options)

        monkeypatch.setattr(passes, "optimize", counted)

    def since(self) -> int:
        count, self._count = self._count, 0
        return count


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Passes:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    return Passes(monkeypatch)


def records() -> list[Path]:
    folder = Path(os.environ["RLX_CACHE_DIR"]) / kept.KIND
    return sorted(folder.glob("*.bin")) if folder.exists() else []


def test_a_large_graph_is_prepared_once_and_gives_the_same_bits(passed: Passes) -> None:
    wanted = run(network())
    assert passed.since() == 1 and len(records()) == 1
    assert run(network()) == wanted
    assert passed.since() == 0
    with rlx.Session("cpu").compile(network()) as found:
        text, plan = str(found.program), found.plan
    records()[0].unlink()
    with rlx.Session("cpu").compile(network()) as fresh:
        assert text == str(fresh.program)
        assert plan.slots == fresh.plan.slots and plan.total_bytes == fresh.plan.total_bytes


def test_whatever_changes_the_program_changes_the_key(passed: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []

    def new(graph: rlx.Graph, session: rlx.Session, **options: Any) -> None:
        with session.compile(graph, **options) as program:
            texts.append(str(program.program))
        assert passed.since() >= 1

    cpu = rlx.Session("cpu")
    new(network(), cpu)
    new(network(offset=0.25), cpu)
    new(network(op="sin"), cpu)
    new(network(table=2.0), cpu)
    new(network(), cpu, planner="bump")
    new(network(), cpu, storage="f32")
    new(network(), cpu, optimize=False)
    new(network(), rlx.Session("cpu", precision="bf16"))
    new(network(), rlx.Session("cpu", fallback="error"))
    monkeypatch.setattr(kept, "stamp", lambda *folders: b"other sources")
    new(network(), cpu)
    assert len(records()) == len(texts)
    run(network(), "bf16")  # prepared for NumPy, then for the weight's other dtype
    assert passed.since() == 2
    run(network(), "bf16")
    assert passed.since() == 0


def test_a_record_that_is_damaged_is_prepared_anew(passed: Passes) -> None:
    wanted = run(network())
    (path,) = records()
    sound = path.read_bytes()
    for damaged in (sound[:100], sound[:-1], sound[:200] + b"?" + sound[201:]):
        path.write_bytes(damaged)
        passed.since()
        assert run(network()) == wanted
        assert passed.since() == 1
        assert path.read_bytes() == sound


def test_a_record_whose_checksum_is_right_and_whose_graph_is_wrong_is_prepared_anew(
    passed: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run(network())
    assert passed.since() == 1
    get, changes = DiskCache.get, [
        lambda b: b[:50],
        lambda b: b"\xff" * 8 + b[8:],
        lambda b: b.replace(b'"tanh"', b'"tanj"'),
        lambda b: b.replace(b'"decomposed":[]', b'"decomposed":17'),
        lambda b: b.replace(b'"mean":', b'"meat":'),
        lambda b: b.replace(b'"shape":[2,3]', b'"shape":[2,4]'),
    ]  # fmt: skip
    for change in changes:
        def altered(self: DiskCache, key: Any, change: Any = change) -> bytes | None:
            record = get(self, key)
            if self.kind != kept.KIND or record is None:
                return record
            assert change(record) != record
            return change(record)

        monkeypatch.setattr(DiskCache, "get", altered)
        assert run(network()) == wanted
        assert passed.since() == 1


def test_off_small_and_watched_graphs_are_not_kept(passed: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    small = rlx.Graph("small")
    small.output("y", small.input("x", (2,)) + 1)
    rlx.Session("cpu").compile(small).close()
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    run(network())
    monkeypatch.setenv("RLX_CACHE_DIR", str(Path(__file__).parent / "no-folder"))
    with rlx.custom_op("kept_twice", lambda x: x * 2, lambda types, attrs: types[0]) as twice:
        g = network()
        g.output("twice", twice(g.outputs["y"]))
        with rlx.Session("cpu").compile(g) as program:
            assert program.plan
    assert not records()


def test_the_stamp_of_the_sources_is_their_sizes_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "rlx"
    for name in ("dtypes.py", "ops/add.py", "ops/deep/b.h", "models/m.py", "ops/notes.txt", "backends/cpu/c/d.py",
                 "backends/other/e.py"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1")
    monkeypatch.setattr(sources, "_ROOT", str(root))
    stamp = sources.stamp.__wrapped__
    folders = "ops", "backends/cpu"
    first = stamp(*folders)
    for name in ("models/m.py", "ops/notes.txt", "backends/other/e.py"):
        (root / name).write_text("22")
    assert stamp(*folders) == first
    seen = {first}
    for name in ("dtypes.py", "ops/add.py", "ops/deep/b.h", "backends/cpu/c/d.py"):
        (root / name).write_text("22")
        seen.add(stamp(*folders))
        os.utime(root / name, ns=(1, 1))
        seen.add(stamp(*folders))
    (root / "ops/c.py").write_text("")
    seen.add(stamp(*folders))
    assert len(seen) == 10


def test_the_folders_of_each_stamp_are_there() -> None:
    root = Path(sources._ROOT)
    for folder in (*kept.PASSES, *ready.SOURCES, "onnx", "formats"):
        assert (root / folder).is_dir()


@pytest.mark.late
def test_two_processes_at_once(passed: Passes) -> None:
    text = "from tests.runtime.test_kept import *; print(hash(b''.join(run(network()))))"
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen([sys.executable, "-c", text], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (p.communicate(timeout=120)[0] for p in both)
    assert first == second and first.strip() and [p.returncode for p in both] == [0, 0]
    assert len(records()) == 1
    run(network())
    assert passed.since() == 0
