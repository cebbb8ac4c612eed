"""A cached record comes back whole or not at all, whatever happened to its file."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx.driver.diskcache import DiskCache, key_of

KEY = ("kernel", b"source", 7)


def stored(cache: DiskCache, payload: bytes = b"compiled" * 100) -> Path:
    assert cache.put(KEY, payload)
    path = cache.path(KEY)
    assert path is not None
    return path


def test_round_trip(tmp_path: Path) -> None:
    cache = DiskCache("ptx", tmp_path)
    assert cache.get(KEY) is None
    path = stored(cache)
    assert cache.get(KEY) == b"compiled" * 100
    assert DiskCache("ptx", tmp_path).get(KEY) == b"compiled" * 100
    assert cache.get((*KEY, "other driver")) is None
    stored(cache, b"")
    assert cache.get(KEY) == b""
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_keys_do_not_run_together() -> None:
    words: list[tuple[str | bytes, ...]] = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (b"abc",),
        (),
        ("",),
        ("", ""),
    ]
    keys = [*words, ("1",), (1,), (b"1",), (True,), (b"True",)]
    assert len({key_of(k) for k in keys}) == len(keys)
    key_of(("\udc80",))  # a path that is not UTF-8


def test_every_truncation_and_flipped_byte_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache("ptx", tmp_path)
    path = stored(cache, b"payload")
    record = path.read_bytes()
    for end in range(len(record)):
        path.write_bytes(record[:end])
        assert cache.get(KEY) is None
    for at in range(len(record)):
        path.write_bytes(record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
        assert cache.get(KEY) is None
    path.write_bytes(record + b"x")
    assert cache.get(KEY) is None
    path.write_bytes(record)
    assert cache.get(KEY) == b"payload"


def test_another_keys_record_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache("ptx", tmp_path)
    path = stored(cache)
    other = cache.path(("other",))
    assert other is not None
    other.write_bytes(path.read_bytes())
    assert cache.get(("other",)) is None


def test_odd_files_are_misses(tmp_path: Path) -> None:
    cache = DiskCache("ptx", tmp_path)
    path = stored(cache)
    kept = tmp_path / "kept"
    path.rename(kept)
    path.symlink_to(kept)
    assert cache.get(KEY) is None
    path.unlink()
    path.mkdir()
    assert cache.get(KEY) is None
    path.rmdir()
    os.mkfifo(path)
    assert cache.get(KEY) is None


def test_folder_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    cache = DiskCache("ptx", tmp_path)
    path = stored(cache)
    path.parent.chmod(0o777)
    assert cache.get(KEY) is None
    stored(cache)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert cache.get(KEY) is not None


def test_folder_removed_meanwhile(tmp_path: Path) -> None:
    cache = DiskCache("ptx", tmp_path)
    path = stored(cache)
    path.unlink()
    path.parent.rmdir()
    assert cache.get(KEY) is None
    stored(cache)
    assert cache.get(KEY) is not None


def test_disk_that_refuses_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ptx").write_text("a file where the folder should be")
    cache = DiskCache("ptx", tmp_path)
    with caplog.at_level(logging.WARNING):
        assert not cache.put(KEY, b"x")
        assert not cache.put(KEY, b"x")
    assert len(caplog.records) == 1
    assert "RLX_CACHE_DIR" in caplog.text
    assert cache.get(KEY) is None


def test_off_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    cache = DiskCache("ptx")
    assert not cache.put(KEY, b"x")
    assert cache.get(KEY) is None
    assert cache.path(KEY) is None
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert stored(DiskCache("ptx")).is_relative_to(tmp_path / "a" / "b" / "ptx")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("RLX_CACHE_DIR")
    folder = DiskCache("ptx").folder
    assert folder is not None
    assert folder.parts[-2:] == ("rlx", "ptx")
    with pytest.raises(ValueError, match="plain word"):
        DiskCache("../x")


def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    stored(DiskCache("ptx", tmp_path))
    old, new = tmp_path / "ptx" / "old.tmp", tmp_path / "ptx" / "new.tmp"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (time.time() - 7200,) * 2)
    stored(DiskCache("ptx", tmp_path))
    assert not old.exists()
    assert new.exists()


WRITER = """
import sys
from rlx.driver.diskcache import DiskCache
cache = DiskCache("ptx", sys.argv[1])
payload = bytes([int(sys.argv[2])]) * 300_000
print("up", flush=True)
for _ in range(int(sys.argv[3])):
    assert cache.put(("kernel", b"source", 7), payload)
    got = cache.get(("kernel", b"source", 7))
    assert got is not None and len(got) == 300_000 and len(set(got)) == 1
"""


def test_killed_writers_leave_nothing_bad(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(i), "1000000"], stdout=subprocess.PIPE
        )
        for i in range(3)
    ]
    cache = DiskCache("ptx", tmp_path)
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for i in range(60):
            if i % 20 == 19:
                writers[i // 20].kill()
            path = cache.path(KEY)
            assert path is not None
            if path.exists():  # from the first replace on, it is always a whole record
                got = cache.get(KEY)
                assert got is not None and len(got) == 300_000 and len(set(got)) == 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


STRUCK = """
import os, random, signal, sys
from rlx.driver.diskcache import DiskCache
cache = DiskCache("ptx", sys.argv[1])
key = ("kernel", b"source", 7)
pick = random.Random(1)
found = misses = 0
for i in range(100):
    blow = 1e-5 + pick.random() * 0.004
    writer = os.fork()
    if not writer:
        cache._prepare(cache.folder)
        signal.setitimer(signal.ITIMER_REAL, blow)  # its signal ends the process where it stands, as SIGKILL does
        while True:
            cache.put(key, bytes([i]) * 200_000)
    assert os.WTERMSIG(os.waitpid(writer, 0)[1]) == signal.SIGALRM
    got = cache.get(key)
    misses += got is None
    found += got is not None and len(got) == 200_000 and len(set(got)) == 1
print(found, misses, len([n for n in os.listdir(cache.folder) if n.endswith(".tmp")]))
"""


def test_a_hundred_writers_killed_in_their_writes(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", STRUCK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    found, misses, torn = map(int, said.stdout.split())
    assert found + misses == 100  # never a load that is not whole
    assert found > 50
    assert torn > 10  # the blows did fall in the middle of writes


def test_many_processes_fill_one_cold_cache(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "cold"), str(i), "3"], stdout=subprocess.DEVNULL
        )
        for i in range(16)
    ]
    assert [writer.wait() for writer in writers] == [0] * 16
