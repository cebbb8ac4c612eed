"""The picture of a course, its line of progress, the first losses beside torch's, and the examples."""

from __future__ import annotations

import io
import itertools
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from examples import train_characters, train_copying, train_diffusion, train_digits
from rlx import optim
from rlx.train.course import course_svg
from rlx.train.progress import Line, text
from rlx.train.settings import settings_of
from tests.train import courses

SVG = "{http://www.w3.org/2000/svg}"


def drawn(losses: Any, evaluations: Any = ()) -> tuple[ElementTree.Element, list[list[float]]]:
    """The picture, and the places of its running mean."""
    root = ElementTree.fromstring(course_svg(losses, evaluations))
    line = root.find(f"{SVG}polyline")
    assert line is not None
    return root, [[float(x) for x in pair.split(",")] for pair in line.attrib["points"].split()]


@pytest.mark.parametrize("count", [1, 2, 7, 5000])
def test_a_falling_loss_falls_in_the_picture(count: int) -> None:
    root, places = drawn([(i + 1, 3.0 - i / count) for i in range(count)], [(count, 1.5)])
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(places))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < x < width and 0 < y < height for x, y in places) and len(places) <= 1000
    assert len(root.findall(f"{SVG}circle")) == 1
    captions = [t.text for t in root.findall(f"{SVG}text")]
    assert captions[0] == f"loss, {count:,} steps, last {3 - (count - 1) / count:.4g}; dots: evaluation, last 1.5"


def test_a_wide_course_is_drawn_by_its_logarithm() -> None:
    """Equal ratios are equal distances."""
    _, places = drawn([(1, 100.0), (2, 1.0), (3, 0.01)])
    assert places[1][1] - places[0][1] == pytest.approx(places[2][1] - places[1][1], abs=0.2)
    _, places = drawn([(1, 3.0), (2, 2.0), (3, 1.0)])
    assert places[1][1] - places[0][1] == pytest.approx(places[2][1] - places[1][1], abs=0.2)


@pytest.mark.parametrize(
    "losses",
    [[], [(1, math.nan)], [(1, 0.0)], [(1, 1.0), (2, math.inf)], [(1, -1e300), (2, 1e300)], [(5, 1.0), (6, 1.0)]],
)
def test_any_course_is_a_picture(losses: Any) -> None:
    root = ElementTree.fromstring(course_svg(losses))
    caption = root.find(f"{SVG}text")
    assert caption is not None and caption.text
    assert ("not finite" in caption.text) == (len(losses) == 2 and math.inf in losses[1])


def test_the_text_of_the_line() -> None:
    assert text(5, None, None, None, 0, "") == "step 5"
    assert text(1500, 3000, 0.12345, 12.5, 1024, "tokens") == (
        "step 1,500 of 3,000  loss 0.1235  12.5 steps/s  12,800 tokens/s  0:02:00 left"
    )


def test_a_line_is_drawn_over_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    line = Line(None, stream)
    line.step(1, 3, 1.0, 8, "samples")
    line.step(2, 3, 0.5, 8, "samples", last=True)
    assert stream.getvalue().startswith("\rstep 2 of 3  loss 0.5  ") and stream.getvalue().endswith("\n")
    quiet = io.StringIO()
    Line(None, quiet).step(1, 3, 1.0, 8, "samples", last=True)
    assert quiet.getvalue() == ""


def test_settings_tell_optimizers_apart() -> None:
    made = [
        optim.sgd(0.1), optim.sgd(0.2), optim.sgd(0.1, momentum=0.9), optim.adam(0.1), optim.adam(0.1, b2=0.99),
        optim.adamw(0.1, weight_decay=0.1), optim.adam(optim.linear_schedule(0.1, 0.0, 10)),
        optim.adam(optim.linear_schedule(0.1, 0.0, 20)), optim.adam(lambda n: 0.1 / (n + 1)),
        optim.adam(lambda n: 0.1 / (n + 2)), optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.1)),
        optim.chain(optim.clip_by_global_norm(2.0), optim.sgd(0.1)), optim.with_masters(optim.sgd(0.1)),
    ]  # fmt: skip
    texts = [settings_of(o) for o in made]
    assert len(set(texts)) == len(texts)
    assert settings_of(optim.sgd(0.1)) == "sgd(learning_rate=0.1, nesterov=False)"


@pytest.mark.late
@pytest.mark.full(device="vulkan")
@pytest.mark.parametrize("name", courses.RATES)
@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_the_first_losses_are_those_of_torch(name: str, device: str) -> None:
    """python -m tests.train.courses"""
    near, far, theirs, fine = courses.judged(name, courses.course(name, device))
    assert fine, (near, far, theirs)


EXAMPLES: dict[str, tuple[ModuleType, int, str]] = {
    "digits": (train_digits, 2, r"\d+\.\d\d% of 359 digits right"),
    "characters": (train_characters, 1, r"^The device.{200}$"),
    "diffusion": (train_diffusion, 2, r"drawn: .*drawing\.svg"),
    "copying": (train_copying, 1, r"\d+\.\d\d% of the symbols of new rows are right"),
}


@pytest.mark.late
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_few_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, steps, match = EXAMPLES[name]
    monkeypatch.setattr(train_digits, "digits", courses.digits)
    folder = tmp_path / name
    monkeypatch.setattr(sys, "argv", [name, "--steps", str(steps), "--folder", str(folder), "--device", "cpu"])
    module.main()
    assert re.search(match, capsys.readouterr().out, re.S)
    ElementTree.parse(folder / "course.svg")
    if name == "diffusion":
        paths = ElementTree.parse(folder / "drawing.svg").iter(f"{SVG}path")
        assert sum(path.attrib["d"].count("M") for path in paths) == 3000


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_the_digits_are_read(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_digits, "digits", courses.digits)
    monkeypatch.setattr(sys, "argv", ["digits", "--folder", str(tmp_path / "run"), "--device", device])
    train_digits.main()
    right = re.search(r"(\d+\.\d\d)% of 359", capsys.readouterr().out)
    assert right and float(right[1]) >= 98.0


def test_a_batch_of_digits_is_pictures_moved() -> None:
    batch = courses.batches()[0]
    assert batch["x"].shape == (64, 1, 8, 8) and batch["x"].dtype == np.float32 and batch["label"].dtype == np.int32
