"""Files that are no files, and JSON that is almost JSON."""

from __future__ import annotations

import errno
import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError, RlxError
from rlx.finetune.data import read as records
from rlx.formats import gguf, safetensors
from rlx.formats.files import (
    OBJECT_BYTES,
    folder_made_whole,
    json_bytes,
    left_behind,
    parse_json,
    read_bytes,
    read_json,
    shown,
    written_whole,
)


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


COSTLY = {
    "empty lists": (b"[], ", b"0"),
    "empty objects": (b"{},", b"0"),
    "objects": (b'{"":0},', b"0"),
    "nested": (b'{"a":[{}]},', b"0"),
    "zeros": (b"0,", b"0"),
    "large integers": (b"12345678901234567890,", b"0"),
    "floats": (b"1.5,", b"0"),
    "texts": (b'"a",', b"0"),
    "wide texts": ("'é☃😀',".replace("'", '"').encode(), b"0"),
    "one wide text": (b"", '"😀'.encode() + b"a" * 400_000 + b'"'),
    "one escaped text": (b"", b'"\\ud83d\\ude00' + b"a" * 400_000 + b'"'),
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_bound_on_memory_holds(name: str) -> None:
    unit, last = COSTLY[name]
    text = b"[" + unit * 30_000 + last + b"]"
    bound = json_bytes(text)
    tracemalloc.start()
    parse_json(text, Path("x"))
    assert tracemalloc.get_traced_memory()[1] <= bound
    tracemalloc.stop()


def test_the_bound_on_the_memory_of_keys_holds() -> None:
    text = b"{" + b",".join(b'"%d":[]' % i for i in range(100_000)) + b"}"
    tracemalloc.start()
    parse_json(text, Path("x"))
    assert tracemalloc.get_traced_memory()[1] <= json_bytes(text)
    tracemalloc.stop()


@pytest.mark.parametrize("unit", [b"[],", b'{"":{}},', b"0,"])
def test_values_that_would_outgrow_their_budget_are_never_made(unit: bytes, tmp_path: Path) -> None:
    text = b'{"a": [' + unit * 3_000_000 + b"0]}"
    header = len(text).to_bytes(8, "little") + text
    (tmp_path / "config.json").write_bytes(text[:15_000_000])
    (tmp_path / "model.safetensors").write_bytes(header)
    tracemalloc.start()
    for read in (read_json, safetensors.load):
        name = "config.json" if read is read_json else "model.safetensors"
        with pytest.raises(
            ModelFormatError, match=r"could take [\d,]+ bytes of memory; at most [\d,]+ are granted"
        ):
            read(tmp_path / name)
    assert tracemalloc.get_traced_memory()[1] < 2 * len(text)
    tracemalloc.stop()


def test_a_header_of_many_small_tensors(tmp_path: Path) -> None:
    """What a header needs is granted beside the data that its tensors have."""
    path = tmp_path / "many.safetensors"
    safetensors.save(path, {f"model.layers.{i}.weight": np.zeros(8, np.float32) for i in range(20_000)})
    assert len(safetensors.load(path)) == 20_000


def test_an_index_of_as_many_tensors_as_the_largest_models_have() -> None:
    layer = "model.layers.{}.mlp.experts.{}.down_proj.weight"
    table = {layer.format(i % 61, i): f"model-{i % 163:05}-of-00163.safetensors" for i in range(200_000)}
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": table}, indent=2).encode()
    assert json_bytes(text) < OBJECT_BYTES + safetensors.INDEX_PER_BYTE * len(text)


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b"9" * 101, b"-Infinity"])
def test_numbers_that_no_reader_agrees_on(number: bytes) -> None:
    with pytest.raises(ModelFormatError, match=r"x\.json: .* is not JSON, or beyond what a number holds"):
        parse_json(b"[" + number + b"]", Path("x.json"))


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


def test_what_a_killed_process_left_is_told_from_what_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with written_whole(path) as file:
        file.write(b"new")
        assert left_behind(path) == []
    with folder_made_whole(tmp_path / "made"):
        assert left_behind(tmp_path / "made") == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made", "x.gguf"]
    old = [tmp_path / ".x.gguf.0123456789ab.tmp", tmp_path / ".made.abc.tmp"]
    old[0].write_bytes(b"half")
    old[1].mkdir()
    assert left_behind(path) == old[:1] and left_behind(tmp_path / "made") == old[1:]
    assert left_behind(tmp_path / "none" / "x") == []


def test_a_folder_that_may_be_written_but_not_listed_shows_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert left_behind(tmp_path / "x.gguf") == []


@pytest.mark.parametrize(
    "call",
    [
        lambda p: rlx.models.load(p / "none.gguf"), lambda p: rlx.models.load(p), lambda p: rlx.models.load(p / "none"),
        lambda p: rlx.load_program(p / "none.rlx"), lambda p: rlx.splats.read_ply(p / "none.ply"),
        lambda p: gguf.read(p / "none.gguf"), lambda p: safetensors.load(p / "none.safetensors"),
        lambda p: safetensors.load(p), lambda p: next(iter(records(p / "none.jsonl"))),
    ],
)  # fmt: skip
def test_what_is_missing_is_pythons_error_too(call: Callable[[Path], Any], tmp_path: Path) -> None:
    """A caller of a path in a program of theirs goes by FileNotFoundError, and its filename."""
    with pytest.raises(FileNotFoundError) as caught:
        call(tmp_path)
    error = caught.value
    assert isinstance(error, RlxError) and str(tmp_path) in str(error) and "[Errno" not in str(error)
    assert error.errno == errno.ENOENT and error.filename and not Path(error.filename).exists()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
