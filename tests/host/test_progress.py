"""When progress is drawn: on a terminal, once the work has taken a while."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from rlx.host import progress
from rlx.host.progress import Picture, drawn, report

AT_MOST = progress.DRAWN_AFTER  # nobody should wait longer without a word


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a picture has begun."""
    event, begin = threading.Event(), Picture.begin

    def noted(self: Picture) -> None:
        begin(self)
        event.set()

    monkeypatch.setattr(Picture, "begin", noted)
    return event


def test_work_that_ends_soon_is_not_drawn(
    begun: threading.Event, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DRAWN_AFTER", 1e6)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with drawn("short"):
        report("reading")
    assert not begun.is_set() and capsys.readouterr().err == ""
    code = "import sys; from rlx.host import progress as p; sys.stderr.isatty = lambda: True\n"
    code += "p.DRAWN_AFTER = 1e6\nwith p.drawn(): p.report('reading')\nassert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_work_that_takes_longer_is_drawn_from_its_stage_on(
    begun: threading.Event, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DRAWN_AFTER", 1e-6)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert AT_MOST <= 0.2
    with drawn("long"):
        report("planning", 1, 3)
        assert begun.wait(60)
        report("kernels", 2, 3)
    assert "long: compiling kernels" in capsys.readouterr().err
    threads = {t for t in threading.enumerate() if isinstance(t, threading.Timer)}
    assert not threads


def test_an_error_ends_the_picture(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        with drawn("failing", show=True):
            report("planning")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "failing: planning memory" in capsys.readouterr().err
    with drawn():
        report("reading")
    assert capsys.readouterr().err == ""
