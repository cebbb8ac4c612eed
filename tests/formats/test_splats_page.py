"""Pages of splats: a headless Chromium draws what rlx.splats.render draws, turns it, and asks no host for anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rlx
from rlx.cli.app import app
from rlx.errors import DTypeError, ShapeError
from tests.browser import WEBGL, Page, chromium
from tests.ops.plain_splats import picture
from tests.ops.test_splats import scene

WIDTH, HEIGHT, BACK = 64, 48, (0.1, 0.2, 0.3)
CAMERA = rlx.splats.Camera.look_at((0.5, -0.4, 0.2), (0, 0, 3), width=WIDTH, height=HEIGHT)
PIXELS = """draw(), (bytes => (gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, bytes),
[...bytes]))(new Uint8Array(4 * canvas.width * canvas.height))"""


def splats(coefficients: int) -> dict[str, Any]:
    made = {name: array.astype(np.float32) for name, array in scene(40, coefficients, 2).items()}
    made["scales"][:5] *= -1
    return made


def write(path: Path, given: dict[str, Any], **more: Any) -> Path:
    rlx.splats.write_page(path, **given, camera=CAMERA, background=BACK, **more)
    return path


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page(WIDTH, HEIGHT, *WEBGL) as page:
        yield page


@pytest.mark.late
@pytest.mark.skipif(chromium() is None, reason="needs chromium")
@pytest.mark.parametrize("coefficients", [0, 1, 4, 9, 16])
def test_a_page_draws_what_render_draws(page: Page, tmp_path: Path, coefficients: int) -> None:
    given = splats(coefficients)
    exact = {name: array.astype(np.float64) for name, array in given.items()}
    image = picture(**exact, **CAMERA, background=BACK)[0]
    page.resize(WIDTH, HEIGHT)
    page.open(write(tmp_path / "page.html", given).as_uri())
    drawn = np.array(page.run(PIXELS), np.uint8).reshape(HEIGHT, WIDTH, 4)[::-1, :, :3]
    assert np.abs(drawn / 255 - np.clip(image, 0, 1)).max() <= 1 / 255
    assert not page.complaints and not [url for url in page.requests if not url.startswith("file:")]


@pytest.mark.late
@pytest.mark.skipif(chromium() is None, reason="needs chromium")
def test_a_page_turns_and_comes_back(page: Page, tmp_path: Path) -> None:
    page.resize(400, 300)
    page.open(write(tmp_path / "page.html", splats(1), title="<b>").as_uri())
    first, at, distance = page.run(PIXELS), (200, 100), page.run("view.distance")
    for kind, x, y in (("Pressed", 0, 0), ("Moved", 4, 2), ("Released", 4, 2)):
        page("Input.dispatchMouseEvent", type=f"mouse{kind}", x=at[0] + x, y=at[1] + y, button="left",
             buttons=int(kind != "Released"), clickCount=1)  # fmt: skip
    page.until("view.rows[2][0] > scene.view[8]")  # the scene goes to the right: the camera looks there from the left
    assert page.run("view.rows[2][1] > scene.view[9]")
    page("Input.dispatchMouseEvent", type="mouseWheel", x=at[0], y=at[1], deltaX=0, deltaY=-200)
    page.until(f"view.distance < {distance}")
    assert page.run(PIXELS) != first
    page.run("document.getElementById('reset').click()")
    assert page.run(PIXELS) == first and page.run("document.title") == "<b>"
    assert "40 splats" in page.run("document.body.innerText") and not page.complaints


def test_a_page_holds_the_splats_that_are_drawn_and_names_no_host(tmp_path: Path) -> None:
    given = splats(4)
    given["opacities"][3], given["means"][4], given["rotations"][5] = 0.001, np.nan, 0
    rlx.splats.write_page(tmp_path / "page.html", **given)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert '"count": 37' in text and '"width": 960' in text and not re.search("https?:|@[a-z]+@", text)


def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rlx.splats.write_ply("ring.ply", **splats(1))
    for words, status, said in (
        ((), 0, "ring.html: 40 splats, "), ((), 1, "ring.html exists already; --force replaces it"),
        (("--force",), 0, "40 splats"), (("--out", "."), 1, "a folder has this name"),
        (("--out", "no/page.html"), 1, "there is no folder no"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["view", "ring.ply", *words])
        assert done.exit_code == status and said in (done.output or str(done.exception)), done
    assert "<title>ring.ply</title>" in Path("ring.html").read_text("utf-8")


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"scales": np.zeros((40, 2))}, ShapeError, r"expected \(n, 3\).*\(n, 3\) or \(n, k, 3\)"),
        ({"colors": np.full((40, 1, 3), 1e5)}, ShapeError, "colors go to 100000; pages hold them as f16"),
        ({"colors": np.full((40, 3), "red")}, DTypeError, "expected floats"),
        ({"background": 1.0}, ShapeError, "background is 1.0; expected three numbers"),
        ({"background": "red"}, ShapeError, "background is 'red'; expected three numbers"),
        ({"camera": {"fx": 1.0}}, ShapeError, r"expected a rlx\.splats\.Camera"),
        ({"camera": rlx.splats.Camera(np.eye(3), 1, 1, 1, 1, 4, 4)}, ShapeError, r"whose view is \(4, 4\)"),
        ({"title": 3}, DTypeError, "title is 3; expected a text"),
        ({"means": np.full((40, 3), np.nan)}, ShapeError, "no splats to see"),
    ],
)
def test_pages_that_are_not_written(tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rlx.splats.write_page(tmp_path / "page.html", **{**splats(1), **change})
    assert not (tmp_path / "page.html").exists()
