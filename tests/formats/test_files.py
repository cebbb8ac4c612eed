"""Files that are no files, and JSON that is almost JSON."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlx.errors import ModelFormatError
from rlx.formats import safetensors
from rlx.formats.files import parse_json, read_bytes, read_json, shown


@pytest.mark.parametrize("read", [safetensors.load, read_json], ids=["safetensors", "json"])
class TestWhatIsNoFile:
    def test_a_pipe_without_a_writer_does_not_block(self, read, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelFormatError, match="not a regular file"):
            read(tmp_path / "pipe")

    def test_a_device_that_never_ends(self, read, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("/dev/zero")
        with pytest.raises(ModelFormatError, match="not a regular file"):
            read(tmp_path / "link")

    def test_nothing_there(self, read, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match="absent: cannot be read: No such file"):
            read(tmp_path / "absent")

    def test_a_link_to_itself(self, read, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(ModelFormatError, match="cannot be read"):
            read(tmp_path / "loop")

    def test_a_name_no_file_can_have(self, read, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match="cannot be read"):
            read(tmp_path / "a\0b")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission(self, read, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(b"{}")
        (tmp_path / "secret").chmod(0)
        with pytest.raises(ModelFormatError, match="Permission denied"):
            read(tmp_path / "secret")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_json(tmp_path)


def test_the_size_limit_is_exact(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(ModelFormatError, match="larger than 4 bytes"):
        read_bytes(tmp_path / "x", 4)


def test_good_json() -> None:
    assert parse_json('{"a": [1, 2.5, "ü", null, true]}'.encode(), Path("x")) == {
        "a": [1, 2.5, "ü", None, True]
    }


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xef\xbb\xbf{}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b"{} // comment",
        b'{"a": Infinity}',
        b'{"a": 1, "a": 1}',
        b'"\xed\xa0\x80"',
        b"[" * 50_000,
    ],
    ids=lambda t: repr(t)[:24],
)
def test_bad_json(text: bytes) -> None:
    with pytest.raises(ModelFormatError, match=r"x\.json"):
        parse_json(text, Path("x.json"))


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        list(range(10**6)),
        {str(i): i for i in range(10**4)},
        10**5000,
        1.5,
        None,
        "\x1b[1m\n\ud800",
    ],
    ids=lambda v: type(v).__name__,
)
def test_shown_is_short_and_printable(value: object) -> None:
    assert len(shown(value)) <= 81 and shown(value).isprintable()
