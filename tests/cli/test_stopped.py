"""Commands that take long end in time, and what they have found so far stays when they are stopped."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from rlx.cli import contenders
from rlx.cli.bench import measure
from rlx.cli.contenders import Contender
from rlx.conformance import __main__ as conformance
from rlx.conformance import runner
from rlx.conformance.case import Case
from rlx.conformance.runner import Outcome
from rlx.host import progress
from tests.cli.conftest import Rlx
from tests.onnx.models import model, node


@pytest.fixture
def file(tmp_path: Path) -> Path:
    proto = model([node("Exp", "x", "a"), node("Sin", "a", "b"), node("Softmax", "b", "y")], {"x": [4]}, {"y": [4]}, {})
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def after(calls: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, which from then on raises."""
    count = itertools.count()

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(count) >= calls:
            raise error
        return real(*args, **kwargs)

    return call


def test_bench_keeps_its_table_when_interrupted(
    rlx: Rlx, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contenders, "has_onnxruntime", lambda: False)
    monkeypatch.setattr(sys.modules["rlx.cli.bench"], "report", after(3, KeyboardInterrupt(), progress.report))
    ran = rlx("bench", file, "--device", "cpu", "--runs", "9", "--json", tmp_path / "f")
    assert ran.status == 130 and ran.err.endswith("rlx: interrupted\n")
    assert "\ncpu: first call " in ran.out and "\ncpu   " in ran.out
    assert "runs that there was time for, of 9: cpu 4" in ran.out
    assert json.loads((tmp_path / "f").read_text())["results"][0]["runs"] == 4


def test_check_keeps_its_rows_when_interrupted(rlx: Rlx, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.conformance import compare

    monkeypatch.setattr(compare, "_judge", after(1, KeyboardInterrupt(), compare._judge))
    ran = rlx("check", file, "--device", "cpu")
    assert ran.status == 130 and "rlx: interrupted" in ran.err
    assert ran.out.splitlines()[-1].startswith("cpu ") and ran.out.endswith("ok, stopped there\n")


def test_commands_end_in_time(rlx: Rlx, file: Path) -> None:
    for command in ("check", "bench"):
        ran = rlx(command, file, "--device", "cpu", "--seconds", "1e-9")
        assert ran.status == 2 and "rlx: cpu: stopped after 0 of the 1e-09 seconds, " in ran.err
    assert rlx("check", file, "--device", "cpu", "--seconds", "0").status == 0


def test_selftest_counts_what_it_ran(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("selftest", "--device", "cpu", "--op", "exp", "--op", "add", "--quick", "3")
    monkeypatch.setattr(runner, "run_case", after(3, KeyboardInterrupt(), runner.run_case))
    ran = rlx(*arguments)
    assert ran.status == 130 and "3 passed" in ran.out and ran.out.endswith("3 of 6 cases: interrupted\n")
    monkeypatch.undo()
    ran = rlx(*arguments, "--seconds", "1e-9")
    assert ran.status == 3 and "0 of 6 cases: 1e-09 seconds are over; --seconds 0 runs all" in ran.out


def test_a_selftest_that_is_stopped_has_tried_all_ops(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(runner, "run_case", lambda session, case, guarded: (ran.append(case.op), _passed(case))[1])
    assert rlx("selftest", "--device", "cpu", "--op", "exp", "--op", "add", "--quick", "3").status == 0
    assert ran[0] != ran[1] and ran == ran[:2] * 3


def _passed(case: Case) -> Outcome:
    return Outcome(case.id, case.op, "cpu", "pass")


def test_conformance_says_that_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run_case", after(3, KeyboardInterrupt(), runner.run_case))
    assert conformance.main(["--op", "exp", "--folder", str(tmp_path), "--device", "cpu"]) == 130
    assert "3 passed" in capsys.readouterr().out
    assert len(next(tmp_path.iterdir()).read_text().splitlines()) == 3


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_a_time_that_is_none(
    rlx: Rlx, file: Path, seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("bench", file), ("check", file), ("selftest", "--device=cpu")):
        ran = rlx(*command, "--seconds", seconds)
        assert ran.status == 2 and "--seconds" in ran.err, command
    with pytest.raises(SystemExit):
        conformance.main(["--seconds", seconds, "--folder", str(tmp_path)])
    assert "expected a length of time" in capsys.readouterr().err


def test_a_slow_contender_leaves_the_others_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def call(seconds: float) -> dict[str, Any]:
        nonlocal now
        now += seconds
        return {}

    fast, slow = (Contender(n, "", lambda s=s: call(s)) for n, s in (("fast", 0.01), ("slow", 30.0)))  # type: ignore[misc]
    measure([slow, fast], runs=50, warmup=5, end=160)
    assert len(slow.times) >= 1 and len(fast.times) >= 1
    assert now < 160 + 3 * 30
    assert np.allclose(fast.times, 0.01)
    measure([fast], runs=5, warmup=1, end=math.inf)
    assert len(fast.times) >= 6


def test_an_interrupt_while_commands_are_imported_is_one_line(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *rest: Any) -> None:
            if name == "rlx.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "rlx.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    ran = rlx("devices")
    assert (ran.status, ran.err) == (130, "rlx: interrupted\n")


def test_an_interrupt_while_rlx_is_imported_is_one_line(tmp_path: Path) -> None:
    """NumPy's place is taken by a module that sends the signal."""
    (tmp_path / "numpy.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n")
    folder = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), folder])}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args], env=env, capture_output=True, text=True, check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which jobs of a script ignore
        )  # fmt: skip

    ran = run("-m", "rlx", "devices")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "rlx: interrupted\n")
    assert "KeyboardInterrupt" in run("-c", "import rlx").stderr
