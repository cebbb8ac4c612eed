"""The command line run in this process, its streams and exit status caught; devices that are not here skip."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rlx.cli import main
from tests.devices import device_here
from tests.models.tiny import write_model


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Rlx = Callable[..., Ran]


@pytest.fixture
def rlx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rlx:
    """Runs `rlx ARGUMENTS…` with `stdin` as standard input."""

    def run(*arguments: object, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["rlx", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        pipe = signal.getsignal(signal.SIGPIPE)
        status: object = 0
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code
        finally:
            signal.signal(signal.SIGPIPE, pipe)
        caught = capsys.readouterr()
        assert status is None or isinstance(status, int)
        return Ran(status or 0, caught.out, caught.err)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model."""
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    device_here(name)
    return name
