"""onnx's own cases: a sample of every family on every device, and the page and the list that the whole run writes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from rlx.onnx import suite
from tests.full import full
from tests.onnx.onnx_cases import onnx_cases

HERE = Path(__file__).parent / "data"
STEP = 12 if full() else 72  # one case of so many: the whole suite is `make onnx-suite`
SLOW = {
    "inception_v1",
    "zfnet512",
    "densenet121",
    "vgg19",
    "shufflenet",
    "bvlc_alexnet",
    "resnet50",
    "inception_v2",
}


@cache
def listed() -> dict[str, dict[str, str]]:
    return dict(json.loads((HERE / "not-passing.json").read_text(encoding="utf-8")))


def test_the_suite_is_the_one_the_lists_are_of() -> None:
    names = {c.name for c in onnx_cases()}
    sets = json.loads((HERE / "suite-classes.json").read_text(encoding="utf-8"))
    assert len(names) == len(onnx_cases())
    assert set(sets["f32_int_bool"]) <= set(sets["in_scope"]) <= names
    for device, expected in listed().items():
        assert set(expected) <= names, f"{device}: the list names cases that there are not"


@pytest.mark.late("vulkan")
def test_a_sample_has_the_listed_outcome(device: str) -> None:
    expected = listed()["vulkan" if device == "cuda" else device]
    step = STEP if device == "cpu" else (1 if full() else 3) * STEP
    sample = [c for c in onnx_cases()[::step] if c.name.removeprefix("test_") not in SLOW]
    results = {c.name: suite.run_case(c, device) for c in sample}
    assert len(results) > (150 if full() else 8)
    assert suite.differences(results, expected) == []
    if device == "cpu":
        assert not any(r.how == "host" for r in results.values())


def test_what_does_not_pass_on_one_device_does_not_on_the_others() -> None:
    """The results expected of these two are those of NumPy in f32, with its rounding of zeros; the CPU rounds alike."""
    rounding = {"test_dft_inverse", "test_dft_inverse_opset19"}
    sets = [set(expected) - rounding for expected in listed().values()]
    assert all(s == sets[0] for s in sets)


def test_nothing_in_scope_is_unsupported() -> None:
    scope = set(json.loads((HERE / "suite-classes.json").read_text(encoding="utf-8"))["in_scope"])
    for expected in listed().values():
        assert {n for n, status in expected.items() if status == "unsupported"} & scope == set()


def test_the_page_shows_what_the_list_says(repo: Path) -> None:
    page = (repo / "docs/onnx.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| all \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert {r[0] for r in rows} == set(listed())
    for device, total, passed, failed, unsupported in rows:
        statuses = list(listed()[device].values())
        assert int(total) == len(onnx_cases()) == int(passed) + int(failed) + int(unsupported)
        assert (statuses.count("fail"), statuses.count("unsupported")) == (int(failed), int(unsupported))


def test_a_difference_is_said() -> None:
    results = {"a": suite.Outcome("fail", "why"), "b": suite.Outcome("pass", "", "device")}
    assert suite.differences(results, {"a": "fail"}) == []
    assert suite.differences(results, {"b": "fail"}) == [
        "a: fail, expected pass: why",
        "b: pass, expected fail",
    ]
