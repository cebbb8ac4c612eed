"""Damaged files by the hundred: one error class, no hang, little memory, and what still loads is in order."""

from __future__ import annotations

import json
import random
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from rlx.errors import ModelFormatError
from rlx.formats import safetensors as st
from rlx.formats.huggingface import ModelFolder
from rlx.models.bert import BertConfig
from tests.formats import mutants
from tests.formats.blobs import blob
from tests.full import full
from tests.models.tiny import write_model

TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.ones(3, np.float16),
    "k": np.array([True, False]),
    "i": np.arange(2),
}
WORDS = [
    b"-1",
    b"null",
    b"1e999",
    b"[]",
    b"{}",
    b'"',
    b"\\ud800",
    b"9" * 30,
    b"18446744073709551616",
    b"4294967296",
]
WORDS += [
    b"true",
    b"2.5",
    b"\0",
    b"\xff",
    b"F64",
    b"U8",
    b"BOOL",
    b"__metadata__",
    b",",
    b":",
    b" ",
    b"[[[[[[[[",
]


@pytest.fixture(autouse=True)
def guard() -> Iterator[None]:
    """A mutant that hangs fails the test instead of the whole run; and memory is counted."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError("a damaged file hangs the reader")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert peak < 64 << 20, f"{peak:,} bytes at the peak"


def byte_mutants(original: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Truncated at every byte; then `count` with bytes flipped, words put in, spans cut out or doubled."""
    for n in range(len(original)):
        yield original[:n]
    pick = random.Random(seed)
    for i in range(count):
        made = bytearray(original)
        at = pick.randrange(len(made))
        span = slice(at, min(len(made), at + pick.randrange(1, 12)))
        match i % 4:
            case 0:
                for _ in range(pick.randrange(1, 4)):
                    made[pick.randrange(len(made))] ^= 1 << pick.randrange(8)
            case 1:
                made[at : at + pick.randrange(4)] = pick.choice(WORDS)
            case 2:
                del made[span]
            case 3:
                made[at:at] = made[span]
        yield bytes(made)


def edited_headers(original: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The header changed and its length made right again, so that the mutant gets past the first checks."""
    length = int.from_bytes(original[:8], "little")
    header, data = original[8 : 8 + length], original[8 + length :]
    for text in byte_mutants(header, count, seed):
        yield blob(text, data)
    entries = json.loads(header)
    for name in entries:
        for other in entries:
            yield blob({**entries, name: entries[other]}, data)
        for key in ("dtype", "shape", "data_offsets"):
            for value in (None, -1, [], [0], [2**63], [0, 0], [2**31, 2**33], "F32", "I64", {}, 1.5, [[2]]):
                yield blob({**entries, name: {**entries[name], key: value}}, data)


def survives(path: Path, content: bytes) -> bool:
    """Whether the file still loads; then every array must be what its entry says."""
    path.write_bytes(content)
    try:
        found = st.load(path)
        for name in found:
            array = found[name]
            assert array.nbytes <= len(content)
            array.tobytes()
    except ModelFormatError as error:
        message = str(error)
    else:
        return True
    assert str(path) in message
    return False


def test_safetensors(tmp_path: Path) -> None:
    st.save(tmp_path / "model.safetensors", TENSORS)
    original = (tmp_path / "model.safetensors").read_bytes()
    assert survives(tmp_path / "copy.safetensors", original)
    mutants = [*byte_mutants(original, 600 if full() else 250, 1), *edited_headers(original, 600 if full() else 250, 2)]
    loaded = sum(survives(tmp_path / "mutant.safetensors", m) for m in mutants)
    assert len(mutants) > (1500 if full() else 800)
    # Changed data and names are still good files; the rest of the mutants must have been refused.
    assert 0 < loaded < len(mutants) // 2


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    st.save(tmp_path / "model.safetensors", TENSORS)
    original = (tmp_path / "model.safetensors").read_bytes()
    assert not any(survives(tmp_path / "cut.safetensors", original[:n]) for n in range(len(original)))


@pytest.mark.parametrize(
    "name", ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
)
@pytest.mark.late
def test_the_small_json_files(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", max_length=16)
    original = (folder / name).read_bytes()
    for content in byte_mutants(original, 300 if full() else 100, 3):
        (folder / name).write_bytes(content)
        try:
            model = ModelFolder(folder)
            config = BertConfig.from_dict(model.config, name)
            model.sentence_modules()
        except ModelFormatError as error:
            message = str(error)
        else:
            message = ""
            assert len(config.weight_shapes()) < 20_000
        assert message.isprintable() and len(message) < 1000


def test_tokenizer(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    original = (folder / "tokenizer.json").read_bytes()
    model = ModelFolder(folder)
    for content in islice(byte_mutants(original, 400, 4), 0, None, len(original) // 150):
        (folder / "tokenizer.json").write_bytes(content)
        try:
            model.tokenizer(40).ids(["the cat", "mountain ☃", ""])
        except ModelFormatError:
            continue


ELSEWHERE = ("bombs", "gguf", "json", "program", "ops")  # tested beside their formats


@pytest.mark.parametrize("kind", [kind for kind in mutants.FILES if kind not in ELSEWHERE])
@pytest.mark.late
def test_files_that_say_something_else(kind: str, tmp_path: Path) -> None:
    """Some of what `python -m tests.formats.mutants` works on by the thousand."""
    folder = tmp_path / "model"
    mutants.lay(folder, kind)
    originals = {name: (folder / name).read_bytes() for name in mutants.FILES[kind]}
    mutants.use(folder, kind, 0)
    found = [mutants.attempt(kind, seed, folder, originals) for seed in range(120 if full() else 25)]
    assert [e for e in found if e["outcome"] not in ("loaded", "ModelFormatError")] == []
    assert {e["outcome"] for e in found} == {"loaded", "ModelFormatError"}


def test_a_lost_process_names_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json, os, sys; print(json.dumps({'begun': int(sys.argv[1])}), flush=True); os._exit(3)"
    monkeypatch.setattr(mutants, "worker", lambda kind, start, stop: [sys.executable, "-c", code, str(start)])
    found = list(mutants.outcomes("config", 7, 2))
    assert [(e["seed"], e["outcome"]) for e in found] == [(7, "process lost"), (8, "process lost")]
    assert "exit status 3" in found[0]["text"]
    assert [mutants.wrong(e) for e in found] == ["process lost"] * 2


def test_ranges_of_several_processes_have_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the seeds; those that begin too late are left out from the first of them on."""
    code = """
import json, sys
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps({"seed": seed, "outcome": "loaded"}))
"""
    monkeypatch.setattr(mutants, "PER_PROCESS", 2)
    monkeypatch.setattr(mutants, "worker", lambda kind, *span: [sys.executable, "-c", code, *map(str, span)])
    assert [e["seed"] for e in mutants.spread("config", 7, 5, 2, float("inf"))] == [7, 8, 9, 10, 11]
    assert mutants.spread("config", 7, 5, 2, 0.0) == []
