"""A cached record comes back whole or not at all, whatever happened to its file."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import RlxError
from rlx.host import diskcache
from rlx.host.diskcache import DiskCache, key_of, shared
from tests.full import full

ROOT = Path(__file__).resolve().parents[2]
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


def test_the_process_reads_the_folder_once_however_many_programs_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of many thousand records takes longer to read than a kernel to compile."""
    reads: list[Path] = []
    sweep = diskcache._sweep

    def counted(folder: Path) -> Any:
        reads.append(folder)
        return sweep(folder)

    monkeypatch.setattr(diskcache, "_sweep", counted)
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "a"))
    for i in range(5):
        assert shared("ptx").put((i,), b"x" * 100)
    assert set(reads) == {tmp_path / "a" / "ptx"} and len(reads) == 2  # for stale files, then for room
    monkeypatch.setenv("RLX_CACHE_BYTES", "1000")
    for i in range(20):
        assert shared("ptx").put((i, "more"), b"x" * 100)
    assert sum(path.stat().st_size for path in (tmp_path / "a" / "ptx").iterdir()) <= 1000
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "b"))
    stored(shared("ptx"), b"")
    assert shared("ptx").folder == tmp_path / "b" / "ptx" and reads[-1] == shared("ptx").folder


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
        assert not DiskCache("ptx", tmp_path).put(KEY, b"x")
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


# The first lines of the processes below: they import the cache without the packages around it, which takes longer than
# what they do.
ALONE = f"""
import sys, types
for name in ("rlx", "rlx.driver"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(ROOT)!r} + "/" + name.replace(".", "/")]
"""

WRITER = ALONE + """
from rlx.host.diskcache import DiskCache
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


STRUCK = ALONE + """
import os, resource, signal
from rlx.host import diskcache
from rlx.host.diskcache import DiskCache

cache = DiskCache("ptx", sys.argv[1])
key = ("kernel", b"source", 7)
size = diskcache._HEAD.size + 200_000
assert cache.put(("another",), b"")  # the folder is there, and was read: no writer goes through what is left in it


def struck(at, bytes_written):
    \"\"\"Ends the process before the `at`th line of the cache's code that `put` runs, or in its write, once so many
    bytes of the file are on the disk. False where it ran through.\"\"\"
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != diskcache.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    writer = os.fork()
    if not writer:
        if bytes_written is None:
            sys.settrace(trace)
        else:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_written, bytes_written))
        os._exit(0 if cache.put(key, bytes([1 + at % 200]) * 200_000) else 1)
    status = os.waitpid(writer, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


found = misses = points = 0
blows = [(at, None) for at in range(1, 500)] + [(7, size * part // 40) for part in range(40)]
through = False
for at, bytes_written in blows:
    if bytes_written is None and through:
        continue
    if struck(at, bytes_written):
        points += 1
    else:
        assert bytes_written is None
        through = True
    got = cache.get(key)
    assert got is not None or not found  # once there was a record, there always is one
    misses += got is None
    found += got is not None and len(got) == 200_000 and len(set(got)) == 1
torn = [os.path.getsize(os.path.join(cache.folder, n)) for n in os.listdir(cache.folder) if n.endswith(".tmp")]
print(points, found, misses, len(torn), len({n for n in torn if 0 < n < size}))
"""


def test_writers_killed_at_every_point_of_a_write(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", STRUCK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    points, found, misses, torn, sizes = map(int, said.stdout.split())
    assert points > 60  # before each line that `put` runs, and within the file
    assert found + misses == points + 1  # never a load that is not whole
    assert found > 40 and misses > 10  # before the first record took its place, and after
    assert torn >= sizes >= 35  # files of as many lengths were left in the middle of writes


def paths(cache: DiskCache, names: Iterable[str]) -> list[Path]:
    found = [cache.path((name,)) for name in names]
    return [path for path in found if path is not None]


class TestLimit:
    SIZE = 10_000

    def fill(self, cache: DiskCache, names: Iterable[str]) -> None:
        """Stores a record for each name, used a day ago and each a second after the one before it."""
        for i, name in enumerate(names):
            assert cache.put((name,), b"x" * self.SIZE)
            (path,) = paths(cache, [name])
            os.utime(path, (time.time() - 86_400 + i,) * 2)

    def held(self, cache: DiskCache) -> int:
        assert cache.folder is not None
        return sum(path.stat().st_size for path in cache.folder.iterdir())

    def test_the_least_lately_used_go(self, tmp_path: Path) -> None:
        cache = DiskCache("ptx", tmp_path, limit=12 * self.SIZE)
        self.fill(cache, "abcdefghij")
        assert cache.get(("a",)) is not None  # used now
        for name in ("new", "newer", "newest"):
            assert cache.put((name,), b"y" * self.SIZE)
            assert cache.get((name,)) == b"y" * self.SIZE
        assert self.held(cache) <= 12 * self.SIZE
        assert cache.get(("a",)) is not None
        assert cache.get(("b",)) is None
        assert cache.get(("j",)) is not None

    def test_whatever_is_stored_the_limit_holds(self, tmp_path: Path) -> None:
        cache = DiskCache("ptx", tmp_path, limit=100_000)
        for i in range(200):
            payload = bytes([i]) * (i * 7919 % 30_000)
            assert cache.put((i,), payload)
            assert self.held(cache) <= 100_000
            assert cache.get((i,)) == payload  # what was just stored is there

    def test_what_is_larger_than_all_of_it_is_not_kept(self, tmp_path: Path) -> None:
        cache = DiskCache("ptx", tmp_path, limit=self.SIZE)
        assert cache.put(("small",), b"x" * 100)
        assert not cache.put(("large",), b"x" * self.SIZE)
        assert cache.get(("small",)) is not None

    def test_what_others_have_stored_counts(self, tmp_path: Path) -> None:
        first, second = (DiskCache("ptx", tmp_path, limit=12 * self.SIZE) for _ in range(2))
        self.fill(first, "abcde")
        self.fill(second, "fghij")
        for i in range(20):
            assert (first if i % 2 else second).put((i,), b"x" * self.SIZE)
            assert self.held(first) <= 12 * self.SIZE

    @pytest.mark.parametrize("moved", [-1e9, 1e9], ids=["past", "future"])
    def test_times_that_are_wrong_do_no_harm(self, moved: float, tmp_path: Path) -> None:
        cache = DiskCache("ptx", tmp_path, limit=12 * self.SIZE)
        self.fill(cache, "abcdefghij")
        for path in paths(cache, "abcde"):
            os.utime(path, (time.time() + moved,) * 2)
        for i in range(50):
            assert cache.put((i,), b"y" * self.SIZE)
            assert cache.get((i,)) == b"y" * self.SIZE
            assert self.held(cache) <= 12 * self.SIZE

    def test_a_leftover_from_the_future_goes(self, tmp_path: Path) -> None:
        stored(DiskCache("ptx", tmp_path))
        leftover = tmp_path / "ptx" / "torn.tmp"
        leftover.write_bytes(b"x")
        os.utime(leftover, (time.time() + 1e6,) * 2)
        stored(DiskCache("ptx", tmp_path))
        assert not leftover.exists()

    def test_a_record_that_says_it_is_huge(self, tmp_path: Path) -> None:
        cache = DiskCache("ptx", tmp_path, limit=12 * self.SIZE)
        self.fill(cache, "abcde")
        (path,) = paths(cache, "c")
        os.truncate(path, 1 << 40)  # a file with a hole: it takes nothing, and says a tebibyte
        os.utime(path, (1, 1))
        assert DiskCache("ptx", tmp_path, limit=12 * self.SIZE).put(("new",), b"y" * self.SIZE)
        assert not path.exists()
        assert [cache.get((name,)) is not None for name in "abde"] == [True] * 4

    def test_other_files_are_left_alone(self, tmp_path: Path) -> None:
        cache = DiskCache("ptx", tmp_path, limit=3 * self.SIZE)
        self.fill(cache, "a")
        assert cache.folder is not None
        (cache.folder / "notes.txt").write_bytes(b"x" * 10 * self.SIZE)
        (cache.folder / f"{'0' * 64}.bin").mkdir()
        self.fill(cache, "bcde")
        assert (cache.folder / "notes.txt").exists()
        assert cache.get(("e",)) is not None and cache.get(("a",)) is None

    def test_processes_that_evict_at_once(self, tmp_path: Path) -> None:
        code = (
            ALONE + "from rlx.host.diskcache import DiskCache\n"
            "cache = DiskCache('ptx', sys.argv[1], limit=100_000)\n"
            "for i in range(100):\n"
            "    payload = bytes([i]) * 9_000\n"
            "    assert cache.put((i, sys.argv[2]), payload)\n"
            "    assert cache.get((i % 7, sys.argv[2])) in (None, bytes([i % 7]) * 9_000)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        writers = [subprocess.Popen([*command, str(i)]) for i in range(4)]
        assert [writer.wait() for writer in writers] == [0] * 4
        cache = DiskCache("ptx", tmp_path, limit=100_000)
        assert cache.put(("last",), b"x")
        assert self.held(cache) <= 100_000

    def test_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RLX_CACHE_BYTES", raising=False)
        assert DiskCache("ptx", tmp_path).limit == 1 << 30
        monkeypatch.setenv("RLX_CACHE_BYTES", "20000")
        cache = DiskCache("ptx", tmp_path)
        self.fill(cache, "abc")
        assert self.held(cache) <= 20_000
        for wrong in ("much", "-1", "1.5", "9" * 30):
            monkeypatch.setenv("RLX_CACHE_BYTES", wrong)
            with pytest.raises(RlxError, match=r"RLX_CACHE_BYTES=.* expected a number of bytes"):
                DiskCache("ptx", tmp_path)


def test_many_processes_fill_one_cold_cache(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "cold"), str(i), "3"], stdout=subprocess.DEVNULL
        )
        for i in range(16 if full() else 6)
    ]
    assert [writer.wait() for writer in writers] == [0] * len(writers)
