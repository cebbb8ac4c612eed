"""docs/ops.md lists every op and says how each runs; its figures are those of the outcome files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from rlx.backends.gpu.program.executable import load_rules
from rlx.conformance import ops_page
from rlx.conformance.case import all_cases, cases_of
from rlx.conformance.tolerances import NORM, PRIMITIVE
from rlx.ir import HOST, REGISTRY


def test_the_page_lists_every_op_and_says_how_it_is_made(repo: Path) -> None:
    text = (repo / ops_page.PAGE).read_text(encoding="utf-8")
    assert ops_page.COMMAND in text
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    wanted = {name for name, op in REGISTRY.items() if not op.leaf}
    assert listed == wanted, f"run: {ops_page.COMMAND}"
    host = text.partition("## linalg")[2]
    assert set(re.findall(r"`(\w+)` \(", host)) == set(HOST), f"run: {ops_page.COMMAND}"


def test_a_fresh_page_names_judge_dtypes_tolerance_and_count() -> None:
    load_rules()
    row = ops_page.row(REGISTRY["exp"], cases_of("exp"), {})
    assert "numpy.exp" in row and "f32 f16 bf16" in row and "4 ULP" in row
    assert f"| {len(cases_of('exp'))} |" in row and "native" in row


def test_a_device_without_half_storage_is_not_said_to_run_halves() -> None:
    load_rules()
    case = next(c for c in all_cases() if c.op == "softmax" and c.inputs[0].dtype.name == "f16")
    assert ops_page.how(case, ops_page.KINDS["cuda"]) == "native"
    assert ops_page.how(case, frozenset()) != "native"


def _line(case: str, status: str, ulp: float, nmse: float) -> str:
    entry = {"case": case, "op": case.split("-")[0], "device": "cpu", "status": status, "max_ulp": ulp, "nmse": nmse}
    return json.dumps(entry)


def test_worst_errors_come_from_the_figure_that_judged(tmp_path: Path) -> None:
    file = tmp_path / "cpu-0.jsonl"
    lines = [_line("exp-a", "pass", 0.5, 1e-3), _line("exp-b", "pass", 0.75, 0), _line("sum-a", "pass", 900, 2e-14)]
    lines += [_line("sum-b", "fail", 0, 1.0), _line("gone-a", "pass", 1e9, 1.0), '{"case": "exp-c", "o']
    file.write_text("\n".join(lines), encoding="utf-8")
    tolerances = {"exp-a": PRIMITIVE, "exp-b": PRIMITIVE, "sum-a": NORM, "sum-b": NORM}
    found = ops_page.read_outcomes([file], tolerances)["cpu"]
    assert set(found) == {"exp", "sum"}
    assert (found["exp"].ulp, found["exp"].nmse, found["exp"].passed) == (0.75, 0.0, 2)
    assert (found["sum"].ulp, found["sum"].nmse, found["sum"].others) == (0.0, 2e-14, 1)


def test_an_outcome_file_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ops_page.main(["--outcomes", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "p.md")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "p.md").exists()


def test_the_newest_outcome_file_of_each_device_counts(tmp_path: Path) -> None:
    for age, name in enumerate(("cpu-b", "vulkan-0-a", "cpu-a")):
        (tmp_path / f"{name}.jsonl").write_text("", encoding="utf-8")
        os.utime(tmp_path / f"{name}.jsonl", (1000 + age, 1000 + age))
    assert {f.name for f in ops_page.latest(tmp_path)} == {"cpu-a.jsonl", "vulkan-0-a.jsonl"}


def test_a_device_that_was_not_run_keeps_what_the_page_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_page, "_ways", lambda op, features: "native")  # else each case is lowered for each kind

    def seen(device: str, ulp: float) -> ops_page.Seen:
        return {device: {"exp": ops_page.Errors(1, 0, ulp)}}

    first = ops_page.page({**seen("cpu", 0.5), **seen("cuda H200", 0.75)})
    again = ops_page.page(seen("cpu", 0.25), first)
    assert "cpu (1 cases), cuda H200 (1 cases)" in again
    (line,) = (line for line in again.splitlines() if line.startswith("| `exp` |"))
    assert line.endswith("| 0.25 ULP | 0.75 ULP |")
    assert ops_page.page({}, again) == again
    more = ops_page.page({"cpu": {"log": ops_page.Errors(5, 0, 0.5)}}, again)  # one op was run, as for a new one
    assert line in more.splitlines() and f"cpu ({5 + len(cases_of('exp')):,} cases), cuda H200 (1 cases)" in more
    (log,) = (line for line in more.splitlines() if line.startswith("| `log` |"))
    assert log.endswith("| 0.5 ULP | – |")
