"""`rlx selftest`: cases on a device, with pass, fail and unsupported apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu.choice import usable
from rlx.backends.cpu.host.kernels import BINDERS, bind_reference, binder_of
from rlx.conformance import __main__ as conformance
from rlx.conformance import runner
from rlx.conformance.case import all_cases
from rlx.errors import DeviceLost, UnsupportedOp
from rlx.runtime import CompiledGraph, Session
from tests.cli.conftest import Rlx

SUMMARY = "{} passed (0 of them with a host step), {} failed, {} unsupported\n"


def test_a_device_passes(rlx: Rlx, device: str) -> None:
    ran = rlx("selftest", "--device", device, "--op", "softmax", "--op", "add", "--quick", "2")
    assert ran.status == 0 and ran.err == ""
    assert ran.out.startswith(device) and ran.out.endswith(SUMMARY.format(4, 0, 0)), ran.out


@pytest.mark.parametrize("engine", ["numpy", "compiled"])
def test_what_runs_on_the_cpu_is_said(rlx: Rlx, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", engine)
    for command in ("devices",), ("selftest", "--device", "cpu", "--op", "neg", "--quick", "1"):
        line = next(line for line in rlx(*command).out.splitlines() if line.startswith("cpu"))
        assert "NumPy" in line and ("llvmlite" in line) == usable(engine)


def test_a_wrong_setting_ends_before_the_cases(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", "fast")
    ran = rlx("selftest", "--device", "cpu", "--op", "neg")
    assert ran.status == 2 and ran.out == "" and ran.err == "rlx: RLX_CPU='fast' is none of numpy, compiled\n"


def test_an_op_without_cases(rlx: Rlx) -> None:
    ran = rlx("selftest", "--device", "cpu", "--op", "softmax", "--op", "nonsense")
    assert ran.status == 2 and ran.err.startswith("rlx: no cases for nonsense; the ops are abs, ")
    assert "no cases for sofmax (softmax?); the ops are" in rlx("selftest", "--op", "sofmax").err


def test_a_wrong_kernel_fails(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    real = binder_of("softmax") or bind_reference
    monkeypatch.setitem(
        BINDERS, "softmax", lambda n, i, o, c: [*real(n, i, o, c), lambda: np.add(o[0], 1, o[0])]
    )
    ran = rlx("selftest", "--device", "cpu", "--op", "softmax", "--quick", "9")
    assert ran.status == 1
    wrong = ran.out.count("FAIL softmax")  # of an empty tensor nothing is wrong
    assert wrong >= 7 and ran.out.endswith(SUMMARY.format(9 - wrong, wrong, 0))


def test_what_a_device_refuses_is_unsupported_not_passed(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused when it is compiled, or only when it is recorded: the same."""
    for name in ("compile", "prepare"):
        with monkeypatch.context() as patch:

            def refuse(*args: Any, **kwargs: Any) -> Any:
                raise UnsupportedOp("no kernel for this one")

            patch.setattr(Session if name == "compile" else CompiledGraph, name, refuse)
            ran = rlx("selftest", "--device", "cpu", "--op", "softmax", "--quick", "2")
        assert ran.status == 0 and ran.out.count("unsupported softmax") == 2
        assert ran.out.endswith(SUMMARY.format(0, 0, 2))


class TestRunner:
    def case(self) -> Any:
        return next(c for c in all_cases() if c.op == "softmax")

    def test_an_error_of_ours_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            CompiledGraph, "run", lambda self, feeds: (_ for _ in ()).throw(ValueError("bug"))
        )
        with pytest.raises(ValueError, match="bug") as caught:
            runner.run_case(Session("cpu"), self.case())
        assert self.case().id in caught.value.__notes__[0], "a bug says which case it met"

    def test_a_lost_device_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lose(self: Any, feeds: Any) -> Any:
            raise DeviceLost("gone")

        monkeypatch.setattr(CompiledGraph, "run", lose)
        with pytest.raises(DeviceLost):
            runner.run_case(Session("cpu"), self.case())


class TestResume:
    """`python -m rlx.conformance` goes on where it was stopped."""

    ARGS = ("--device", "cpu", "--op", "softmax")

    @pytest.fixture
    def same_sources(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that somebody saves meanwhile begins the run anew, as it should; not in these tests."""
        monkeypatch.setattr(conformance, "digest", lambda info, compiled: "0123456789ab")

    def run(self, folder: Path, *more: str) -> int:
        return conformance.main([*self.ARGS, "--folder", str(folder), *more])

    @pytest.mark.usefixtures("same_sources")
    def test_a_second_run_repeats_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "deep/results"
        assert self.run(folder) == 0
        count = len([c for c in all_cases() if c.op == "softmax"])
        assert f"{count} passed" in capsys.readouterr().out

        def none_left(session: Session, left: list[Any], **options: Any) -> Any:
            assert left == []
            return iter(())

        monkeypatch.setattr(conformance, "run_cases", none_left)
        assert self.run(folder) == 0
        assert f"{count} of {count} cases are done already" in capsys.readouterr().out

    @pytest.mark.usefixtures("same_sources")
    def test_a_part_that_ends_early_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, "--seconds", "1e-9") == 3
        assert "run again" in capsys.readouterr().out
        assert self.run(tmp_path) == 0

    @pytest.mark.usefixtures("same_sources")
    def test_a_line_cut_short_by_a_kill_is_run_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(tmp_path) == 0
        (file,) = tmp_path.iterdir()
        whole = file.read_bytes()
        file.write_bytes(whole[:-40])
        assert self.run(tmp_path) == 0
        assert " 0 failed" in capsys.readouterr().out
        again = file.read_bytes().splitlines()
        assert len(again) == len(whole.splitlines()) + 1 and again[-1] in whole

    def test_another_driver_begins_anew(self) -> None:
        info = Session("cpu").info
        newer = dataclasses.replace(info, driver="newer")
        assert conformance.digest(info) != conformance.digest(newer)

    @pytest.mark.parametrize("wrong", [("--op", "nonsense"), ("--device", "tpu")])
    def test_what_cannot_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str]
    ) -> None:
        assert conformance.main(["--folder", str(tmp_path), *wrong]) == 2
        assert capsys.readouterr().err.startswith("conformance: ")
