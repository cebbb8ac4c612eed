"""`rlx bench --simulate-ranks`: the tables and the page. No time is judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlx.cli.scaling import Part, Row
from tests.cli.conftest import Rlx
from tests.models.language.tiny import write_language_model
from tests.models.tiny import write_model


def test_a_model_on_more_cards(rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", "numpy")
    folder, page = write_language_model(tmp_path / "model"), tmp_path / "ranks.html"
    ran = rlx("bench", folder, "--simulate-ranks", page, "--device", "cpu", "--threads", "1", "-p", "16", "-n", "4",
              "--ranks", "2,64", "--link", "4.6:221", "--simulate-batch", "2x8")  # fmt: skip
    assert ran.status == 0, ran.err
    tables = re.findall(r"^([^\n]+): [^\n]+\n\n *ranks [^\n]+\n(.*?)\n\n(.+?)\n", ran.out, re.M | re.S)
    titles = ("Tensor parallel, an answer", "Tensor parallel, a prompt", "Data parallel, a training")
    assert [title for title, *_ in tables] == [*titles]
    rows = [[line.split() for line in table.splitlines()] for _, table, _ in tables]
    assert [[row[0] for row in table] for table in rows] == [["1", "2", "64"]] * 3
    answer, prompt, training = rows
    assert answer[1][3] == "5" and answer[2][1:] == ["cannot", "be"]  # two sums a layer, and the logits
    assert prompt[1][3] == "5" and prompt[2][1:] == ["cannot", "be"]
    assert int(training[1][3]) > int(training[2][3]) > 0  # two ranks gather halves and tables apart, many sum them
    assert float(training[2][2]) > float(training[1][2])
    text = page.read_text("utf-8")
    assert "@" not in text and text.count("<table>") == 3 and text.count("<svg") == 3
    assert "64 ranks can neither share these nor repeat key heads" in text and "given: 4.6 µs" in text
    assert not re.search(r"(src|href)=|url\(", text)  # one file


def test_bad_options_are_told(rlx: Rlx, tmp_path: Path) -> None:
    folder, encoder = write_language_model(tmp_path / "model"), write_model(tmp_path / "encoder")
    page = ("--simulate-ranks", tmp_path / "ranks.html", "--device", "cpu")
    for words, says in (
        ((encoder, *page), "--simulate-ranks PAGE is for a language model, on one --device"),
        ((folder, *page, "--runs", "3"), "without --runs"),
        ((folder, "--link", "4:5"), "--link is for it"),
        ((folder, *page, "--link", "4.6"), "--link 4.6: expected microseconds and gigabytes a second, such as 4.6:221"),
        ((folder, *page, "--link", "0:5"), "--link 0:5: expected microseconds"),
        ((folder, *page, "--ranks", "2,x"), "--ranks 2,x: expected numbers of cards, such as 2,8,64"),
        ((folder, *page, "--per-machine", "4"), "--per-machine is for --across"),
        ((folder, *page, "--simulate-batch", "8"), "--simulate-batch 8: expected two numbers, such as 8x1024"),
        ((folder, "--simulate-ranks", tmp_path / "no" / "page"), "--simulate-ranks: "),
    ):
        ran = rlx("bench", *words)
        assert ran.status and says in " ".join(ran.err.split()), (words, ran.err)


def test_the_picture_says_where_it_stops() -> None:
    from rlx.cli.scaling import _section

    rows = Row(1, 8.0), Row(2, 4.0, 0.5), Row(8, 1.0, 3.0), Row(64, why_not="too few heads")
    drawn = _section(Part("t", "s", lambda n: 1, rows))
    texts = [re.sub("<[^>]+>", "", text) for text in re.findall(r"<text[^>]*>(.*?)</text>", drawn)]
    assert texts == ["1", "8e+03 ms, 100 % each", "2", "4.5e+03 ms, 89 % each", "8", "4e+03 ms, 25 % each: stops here",
                     "64", "cannot be"]  # fmt: skip
    assert "64 ranks cannot be: too few heads" in drawn
    nothing = Part("t", "s", lambda n: 1, [Row(8, why_not="too few heads")])
    assert nothing.why() == "8 ranks cannot be: too few heads" and "cannot be" in _section(nothing)


def test_why_it_stops() -> None:
    def why(*rows: Row) -> str:
        return Part("", "", lambda n: 1, rows).why()

    assert why(Row(1, 8.0), Row(2, 4.0, 0.5), Row(8, 1.0, 3.0)) == (
        "On 8 each does less than half of what one alone does: the sums take 75 % of a step."
    )
    assert why(Row(1, 8.0), Row(8, 5.0, 1.0)) == (
        "On 8 each does less than half of what one alone does: what does not become less on a rank takes 67 % of a "
        "step, and the sums take 17 % of a step."
    )
    assert why(Row(1, 8.0), Row(2, 4.0, 0.5), Row(64, why_not="too few heads")) == (
        "On 2 the sums take 11 % of a step. 64 ranks cannot be: too few heads"
    )
