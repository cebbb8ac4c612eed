"""Programs that the disk's cache has ready for the CPU: what they compute, and which entries are used."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError
from rlx.host.diskcache import DiskCache
from rlx.runtime.saved import ready
from tests.cpu.frozen_sweep import is_ready, keep, same, with_weights
from tests.runtime.saved_programs import Saved, of_op

pytestmark = pytest.mark.skipif(choice.why_not() is not None, reason=str(choice.why_not()))


def network() -> Saved:
    """Products of weights that are packed, a padded convolution, a table, a weight that is read where it lies."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    g = rlx.Graph("network")
    x, w, v, b = g.input("x", (2, 3, 9, 9)), g.param("w", (8, 3, 3, 3)), g.param("v", (200, 96)), g.param("b", (96,))
    y = rlx.relu(rlx.conv(x, w, pads=((1, 1), (1, 1)), strides=(2, 2)))
    g.output("y", rlx.softmax(rlx.reshape(y, (2, 200)) @ v + b) @ g.constant(normal(96, 5)))
    g.output("x", x)
    return Saved(g, {"w": normal(8, 3, 3, 3), "v": normal(200, 96), "b": normal(96)}, {"x": normal(2, 3, 9, 9)})


def session(**options: Any) -> rlx.Session:
    return rlx.Session("cpu", engine="compiled", threads=2, **options)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Saved, dict[str, Any]]:
    """A file whose program the cache has ready, and what it computes."""
    path, made = tmp_path / "m.rlx", network()
    wanted = keep(made, path)
    monkeypatch.setenv("RLX_CACHE_DIR", os.environ["RLX_CACHE_DIR"])
    return path, made, wanted


def test_it_computes_the_bits_of_the_program_and_becomes_it(saved: Any) -> None:
    path, made, wanted = saved
    with rlx.load_program(path, session()) as program:
        assert is_ready(program) and isinstance(program, rlx.CompiledGraph)
        x = made.inputs["x"]
        assert same(program.run(made.inputs), wanted)
        other = program.run({"x": x * 2})
        assert same(program.run({"x": np.asfortranarray(x)}), wanted)
        assert same(program(x), wanted) and same(program(x=x), wanted)
        assert is_ready(program)
        assert program.graph.name == "network" and not is_ready(program)
        assert same(program.run({"x": x * 2}), other)
        program.set_param("b", np.zeros(96, np.float32))
        assert not same(program.run(made.inputs), wanted)
        assert "conv" in str(program.report())
    with pytest.raises(GraphError, match="closed"):
        program.run(made.inputs)


def test_results_are_the_callers(saved: Any) -> None:
    path, made, wanted = saved
    with rlx.load_program(path, session()) as program:
        first = program.run(made.inputs)
        program.run({"x": made.inputs["x"] * 3})
        assert same(first, wanted)
        first["y"][...] = 0
        assert same(program.run(made.inputs), wanted)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({}, GraphError), ({"y": np.zeros(1)}, GraphError), ({"x": np.zeros((2, 3, 9), np.float32)}, ShapeError),
        ({"x": np.zeros((2, 3, 9, 9), np.int64)}, DTypeError), (3, GraphError),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_refused_as_by_the_program(saved: Any, inputs: Any, error: type[Exception]) -> None:
    path, made, _ = saved
    whole = session().compile(made.graph)
    whole.set_params(made.weights)
    with rlx.load_program(path, session()) as program:
        messages = []
        for runs in (program, whole):
            with pytest.raises(error) as raised:
                runs.run(inputs)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]


def test_what_else_a_run_may_take_and_give(saved: Any) -> None:
    path, made, wanted = saved
    x = made.inputs["x"]
    for given, out in ((x.tolist(), "host"), (rlx.array(x, device="cpu"), "host"), (x, "device")):
        with rlx.load_program(path, session()) as program:
            found = program.run({"x": given}, out=out)
            assert same({n: np.asarray(a) for n, a in found.items()}, wanted)
    program = rlx.load_program(path, session())
    program.close()
    with pytest.raises(GraphError, match="closed"):
        program.run(made.inputs)
    assert program.graph.name == "network"


def test_programs_that_are_dropped_leave_nothing(saved: Any) -> None:
    path, made, _ = saved
    device = session().device

    def held() -> tuple[int, int]:
        for _ in range(3):
            rlx.load_program(path, session()).run(made.inputs)
        return len(os.listdir("/proc/self/fd")), device.taken_bytes()

    assert held() == held()


def test_who_writes_the_file_anew_meanwhile_changes_nothing(saved: Any, tmp_path: Path) -> None:
    path, made, wanted = saved
    program = rlx.load_program(path, session())
    path.unlink()
    assert same(program.run(made.inputs), wanted)
    assert program.report() and same(program.run(made.inputs), wanted)
    program.close()


def test_only_settings_that_an_entry_was_kept_for_find_it(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made, wanted = saved
    assert is_ready(rlx.load_program(path, session()))
    others = [
        rlx.Session("cpu", engine="compiled", threads=1), rlx.Session("cpu", engine="numpy", threads=2),
        session(timings=True), session(memory_limit=1 << 30),
    ]  # fmt: skip
    for other in others:
        with rlx.load_program(path, other) as program:
            assert not is_ready(program)
            np.testing.assert_allclose(program.run(made.inputs)["y"], wanted["y"], rtol=1e-4, atol=1e-6)
    with rlx.load_program(path, session(), weights=rlx.Weights(session().device)) as program:
        assert not is_ready(program)
    monkeypatch.setattr(ready, "stamp", lambda *folders: b"other sources")
    assert not is_ready(rlx.load_program(path, session()))
    monkeypatch.undo()
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    assert not is_ready(rlx.load_program(path, session()))


def test_a_damaged_file_is_refused_though_its_program_is_ready(saved: Any) -> None:
    path = saved[0]
    sound = path.read_bytes()
    for at in (70, len(sound) // 2, len(sound) - 9):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        with pytest.raises(ModelFormatError):
            rlx.load_program(path, session())
    path.write_bytes(sound)
    assert is_ready(rlx.load_program(path, session()))


def test_a_damaged_entry_is_not_used_and_made_anew(
    saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made, _ = saved
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))  # other tests use the cache of all
    wanted = keep(made, path)
    folder = Path(os.environ["RLX_CACHE_DIR"]) / ready.KIND
    entries = {entry: entry.read_bytes() for entry in folder.glob("*.bin")}
    for change in (lambda b: b[:100], lambda b: b[:-1], lambda b: b + b"?", lambda b: b[:200] + b"!" + b[201:]):
        for entry, sound in entries.items():
            entry.write_bytes(change(sound))
        with rlx.load_program(path, session()) as program:
            assert not is_ready(program) and same(program.run(made.inputs), wanted)
        with rlx.load_program(path, session()) as program:
            assert is_ready(program) and same(program.run(made.inputs), wanted)


def test_an_entry_that_makes_no_sense_is_not_used(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made, wanted = saved
    get = DiskCache.get
    changes = [
        lambda b: b"", lambda b: b[:50], lambda b: marshal.dumps(3), lambda b: marshal.dumps({}),
        lambda b: marshal.dumps({**marshal.loads(b), "nbytes": 8}),
        lambda b: marshal.dumps({**marshal.loads(b), "weights": {"u": (0, 4, True)}}),
    ]  # fmt: skip
    for change in changes:
        def altered(self: DiskCache, key: Any, change: Any = change) -> bytes | None:
            record = get(self, key)
            return change(record) if self.kind == ready.KIND and record is not None else record

        monkeypatch.setattr(DiskCache, "get", altered)
        with rlx.load_program(path, session()) as program:
            assert not is_ready(program) and same(program.run(made.inputs), wanted)


def test_in_another_process_nothing_of_graphs_is_imported(saved: Any, tmp_path: Path) -> None:
    path, made, wanted = saved
    np.savez(tmp_path / "x.npz", **made.inputs)
    code = (
        "import sys, numpy as np, rlx\n"
        f"session = rlx.Session('cpu', engine='compiled', threads=2)\n"
        f"found = rlx.load_program({str(path)!r}, session).run(dict(np.load({str(tmp_path / 'x.npz')!r})))\n"
        f"np.savez({str(tmp_path / 'found.npz')!r}, **found)\n"
        "names = 'llvmlite rlx.backends.cpu.executable rlx.backends.cpu.ir rlx.runtime.compiled rlx.passes'\n"
        "print(*(name for name in names.split() if name in sys.modules))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    text = subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120, stdout=subprocess.PIPE)
    assert text.stdout.strip() == b""
    assert same(dict(np.load(tmp_path / "found.npz")), wanted)


SAMPLE = (
    "matmul", "conv", "conv_transpose", "attention", "layer_norm", "gather", "resize", "cumsum", "top_k",
    "packed_matmul", "integer_matmul", "integer_conv", "causal_conv",
)  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("op", SAMPLE)
def test_ops_as_ready_programs(op: str, tmp_path: Path) -> None:
    """Some of what `python -m tests.cpu.frozen_sweep` does with each op in two processes."""
    plain = of_op(op, 0)
    kinds = plain, with_weights(plain), with_weights(plain, constant=True)
    for n, made in enumerate(m for m in kinds if m is not None):
        path = tmp_path / f"{n}.rlx"
        wanted = keep(made, path)
        with rlx.load_program(path, session()) as program:
            for _ in range(2):
                assert same(program.run(made.inputs), wanted)
