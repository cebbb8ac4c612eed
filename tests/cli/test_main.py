"""What all commands share: help, errors on one line, exit status, pipes."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.cli.table import format_table
from rlx.errors import ModelFormatError
from tests.cli.conftest import Rlx


def test_without_a_command_it_says_what_there_is(rlx: Rlx) -> None:
    ran = rlx()
    for command in ("devices", "embed", "check", "selftest"):
        assert command in ran.out + ran.err


def test_version(rlx: Rlx) -> None:
    from importlib.metadata import version

    assert rlx("--version") == (0, f"rlx {version('rlx')}\n", "")


@pytest.mark.parametrize("command", ["--version", "doctor"])
def test_sources_that_are_not_installed_run(
    rlx: Rlx, repo: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    installed = importlib.metadata.version

    def version(package: str) -> str:
        if package == "rlx":
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    ran = rlx(command)
    assert f"not installed, from {repo}" in ran.out and "Traceback" not in ran.err


def test_an_error_is_one_line_on_stderr_and_status_2(rlx: Rlx, tmp_path: Path) -> None:
    ran = rlx("embed", tmp_path / "absent", stdin=b"dog\n")
    assert ran.status == 2 and ran.out == ""
    assert (
        ran.err
        == f"rlx: {tmp_path}/absent does not exist; give a GGUF file, or the folder of config.json and the weights\n"
    )


def test_a_message_of_several_lines_becomes_one(rlx: Rlx, tmp_path: Path) -> None:
    ran = rlx("embed", tmp_path / "a\nb", stdin=b"dog\n")
    assert ran.status == 2 and ran.err.count("\n") == 1


def test_debug_shows_where_an_error_came_from(
    rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_DEBUG", "1")
    with pytest.raises(ModelFormatError):
        rlx("embed", tmp_path / "absent", stdin=b"dog\n")


@pytest.mark.parametrize("level", ["yes", "9"])
def test_debug_must_be_a_level(rlx: Rlx, tiny: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("RLX_DEBUG", level)
    ran = rlx("embed", tiny, stdin=b"dog\n")
    assert ran.status == 2 and f"RLX_DEBUG={level!r} is not a level; levels are 0 to 4" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("devices", "--nonsense"), ("embed",), ("embed", "x", "-", "--top", "0")],
    ids=str,
)
def test_usage_errors_have_status_2(rlx: Rlx, arguments: tuple[str, ...]) -> None:
    ran = rlx(*arguments)
    assert ran.status == 2 and ran.out == "" and "Traceback" not in ran.err and ran.err


def test_a_disk_that_is_full(clean_env: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "rlx", "--version"], stdout=full, stderr=subprocess.PIPE,
                              env=clean_env, text=True)  # fmt: skip
    assert done.stderr == "rlx: standard output cannot be written: No space left on device\n" and done.returncode == 2


@pytest.mark.late
def test_the_script_and_the_module_in_a_pipe_whose_reader_leaves(
    clean_env: dict[str, str], tiny: Path
) -> None:
    """`rlx embed … | head -1`: one line, no complaint."""
    text = b"the cat\n" * 2000
    made = subprocess.Popen(
        [sys.executable, "-m", "rlx", "embed", tiny, "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_env,
    )
    assert made.stdin and made.stdout and made.stderr
    with made.stdin, made.stdout, made.stderr:
        made.stdin.write(text)
        made.stdin.close()
        assert len(made.stdout.readline().split()) == 24
        made.stdout.close()
        assert made.stderr.read() == b""
        assert made.wait() == -signal.SIGPIPE


@pytest.mark.late
def test_output_that_the_terminal_cannot_show(clean_env: dict[str, str], tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "embed", tiny, "--device", "cpu", "--query", "dog"],
        input="犬 dog\n".encode(),
        capture_output=True,
        env={**clean_env, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"  \\u72ac dog\n")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_a_terminal_sees_a_hint_and_the_answer(clean_env: dict[str, str], tiny: Path) -> None:
    import pty

    parent, child = pty.openpty()
    made = subprocess.Popen(
        [sys.executable, "-m", "rlx", "embed", tiny, "--device", "cpu", "--query", "dog"],
        stdin=child,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_env,
    )
    os.close(child)
    os.write(parent, b"the dog\nthe cat\n\x04")
    out, err = made.communicate(timeout=120)
    os.close(parent)
    assert made.returncode == 0, err
    assert err == b"reading sentences from the terminal, one a line; end with Ctrl-D\n"
    assert [line.split(b"  ")[1] for line in out.splitlines()] == [b"the dog", b"the cat"]


class TestTable:
    def test_columns_line_up_and_nothing_is_cut(self) -> None:
        long = "x" * 300
        assert format_table(("name", "n"), [("a", "7"), (long, "10000")], right={"n"}) == [
            "name".ljust(300) + "      n",
            "a".ljust(300) + "      7",
            long + "  10000",
        ]

    def test_no_rows(self) -> None:
        assert format_table(("a", "bb"), []) == ["a  bb"]

    def test_no_blanks_at_the_end_of_a_line(self) -> None:
        assert format_table(("a", "b"), [("1", "long"), ("2", "")]) == ["a  b", "1  long", "2"]
