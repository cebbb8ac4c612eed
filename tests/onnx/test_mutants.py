"""Three hundred damaged files, each watched; and the watch itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.full import full
from tests.onnx.mutant_bases import whole
from tests.onnx.mutants import PER_PROCESS, run, summary, watched, wrong
from tests.onnx.mutations import mutant

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)


def test_damaged_files_run_or_are_refused(tmp_path: Path) -> None:
    first, number = len(whole("tiny")), 300 if full() else 50  # behind the cuts, which test_bad_models makes too
    file = tmp_path / "outcomes.jsonl"
    entries = run(first, number, file, 0)
    assert len(entries) == number
    assert not [e for e in entries if wrong(e)], summary(entries)
    assert sum(e["outcome"] == "ran" for e in entries) > number // 20
    written = file.read_text()
    assert run(first, number, file, 0) == entries and file.read_text() == written  # all are done


def test_a_seed_is_a_file() -> None:
    for seed in range(0, 3000 if full() else 500, 37):
        assert mutant(seed).content == mutant(seed).content
    assert len({mutant(seed).kind for seed in range(3000 if full() else 500)}) > 25
    assert PER_PROCESS > 1


@pytest.mark.parametrize(
    "fate, text",
    [
        ("os.abort()", "SIGABRT"),
        ("os._exit(7)", "exit status 7"),
        ("signal.setitimer(signal.ITIMER_PROF, 0.05)\nwhile True: pass", "over time, SIGPROF"),
        ("raise MemoryError('no more')", "no more"),
    ],
    ids=["crash", "exit", "hang", "error"],
)
def test_a_lost_process_names_its_file(fate: str, text: str) -> None:
    told = """import json, os, signal
print(json.dumps({"begun": 500}), flush=True)
print(json.dumps({"seed": 500, "outcome": "ran"}), flush=True)
print(json.dumps({"begun": 501}), flush=True)
"""
    found = list(watched([sys.executable, "-c", told + fate], 500))
    assert [e["seed"] for e in found] == [500, 501]
    assert found[1]["outcome"] == "process lost" and text in found[1]["text"]
    assert wrong(found[1])
