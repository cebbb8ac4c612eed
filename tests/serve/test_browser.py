"""The page at / in a headless Chromium: talks, what the browser keeps of them, and how answers are drawn."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import Page, chromium

pytestmark = [pytest.mark.late, pytest.mark.skipif(chromium() is None, reason="needs chromium")]

MARKDOWN = {
    "a\nb": "<p>a\nb</p>",
    "# One #\n## Two": "<h1>One</h1><h2>Two</h2>",
    "*a* **b** ***c*** ~~d~~ e_f_g _h_": (
        "<p><em>a</em> <strong>b</strong> <strong><em>c</em></strong> <s>d</s> e_f_g <em>h</em></p>"
    ),
    "*a **b** c* 2 * 3 * 4 **open": "<p><em>a <strong>b</strong> c</em> 2 * 3 * 4 **open</p>",
    "`a*b*` ``c`d`` `open": "<p><code>a*b*</code> <code>c`d</code> `open</p>",
    r"\*a\* \`b": "<p>*a* `b</p>",
    "```py\nx = 1 < 2\n\n# *no*\n```\nz": '<pre><code data-language="py">x = 1 &lt; 2\n\n# *no*</code></pre><p>z</p>',
    "~~~\n```\n~~~": "<pre><code>```</code></pre>",
    "```\nstill comes": "<pre><code>still comes</code></pre>",
    "- a\n- b\n  - c\n\n    d\n- e": "<ul><li>a</li><li><p>b</p><ul><li><p>c</p><p>d</p></li></ul></li><li>e</li></ul>",
    "3. x\n4. y": '<ol start="3"><li>x</li><li>y</li></ol>',
    "- a\n\n1. b": '<ul><li>a</li></ul><ol start="1"><li>b</li></ol>',
    "1. x\n   ```\n   k\n   ```\n2. y": (
        '<ol start="1"><li><p>x</p><pre><code>k</code></pre></li><li>y</li></ol>'
    ),
    "> a\nb\n> > c": "<blockquote><p>a\nb</p><blockquote><p>c</p></blockquote></blockquote>",
    "---": "<hr>",
    "|a|b|\n|-|:-:|\n|1|`2`|\nend": (
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>2</code></td></tr></table><p>end</p>"
    ),
    "[t *x*](https://a.b/c?d=1&e) <https://f.g>.": (
        '<p><a href="https://a.b/c?d=1&amp;e">t <em>x</em></a> <a href="https://f.g">https://f.g</a>.</p>'
    ),
    "see https://a.b/c_d_e.": '<p>see <a href="https://a.b/c_d_e">https://a.b/c_d_e</a>.</p>',
    # Nothing of an answer becomes HTML, no script's address a link, no picture is fetched.
    "<img src=x onerror=alert(1)><script>alert(1)</script>": (
        "<p>&lt;img src=x onerror=alert(1)&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>"
    ),
    "[a](javascript:alert(1)) [b](JavaScript:x) [c](data:text/html,x) [d](/e)": (
        "<p>[a](javascript:alert(1)) [b](JavaScript:x) [c](data:text/html,x) [d](/e)</p>"
    ),
    "![p](https://a.b/p.png)": '<p><a href="https://a.b/p.png">p</a></p>',
}
DRAWN = """(text => {
  const box = document.createElement("div");
  markdown(box, text);
  for (const link of box.querySelectorAll("a")) {
    if (link.target !== "_blank" || !link.rel.includes("noopener")) throw new Error("a link that shares its window");
    link.removeAttribute("target"); link.removeAttribute("rel");
  }
  for (const button of box.querySelectorAll("button")) button.remove();
  return box.innerHTML.replaceAll(' class=""', "");
})"""
# An answer of the server's form, a piece every few milliseconds, and none ends before it is told to.
PIECES = """(pieces => { window.fetch = async (address, asked) => {
  window.asked = asked && JSON.parse(asked.body || "null");
  const text = new TextEncoder(), event = o => text.encode("data: " + JSON.stringify(o) + "\\n\\n");
  return new Response(new ReadableStream({ async start(to) {
    asked.signal.addEventListener("abort", () => to.error(new DOMException("", "AbortError")));
    for (const content of pieces) {
      to.enqueue(event({choices: [{delta: {content}}]}));
      await new Promise(done => setTimeout(done, 5));
    }
    if (window.held) return;
    to.enqueue(event({choices: [], usage: {completion_tokens: pieces.length}}));
    to.close();
  }}), {status: 200});
}; })"""


@pytest.fixture
def page(server: Any) -> Iterator[Page]:
    with Page() as made:
        made.open(f"http://127.0.0.1:{server.port}/")
        made.until("document.getElementById('model').textContent === 'tiny'")
        made.run("localStorage.clear(), document.getElementById('settings').open = true")
        yield made
        if folder := os.environ.get("SCREENSHOTS"):
            made.shot(f"{folder}/page-{time.monotonic_ns()}.png")
        assert [text for text in made.complaints if "400 (Bad Request)" not in text] == []
        assert {url.split("/")[2] for url in made.requests} == {f"127.0.0.1:{server.port}"}


def put(page: Page, **values: object) -> None:
    """Writes into fields, as a hand would: the page hears of the change."""
    for name, value in values.items():
        page.run(
            f"(e => {{ e.value = {json.dumps(str(value))}; e.dispatchEvent(new Event('change')); }})"
            f"(document.getElementById('{name}'))"
        )


def press(page: Page, button: str) -> None:
    page.run(f"document.getElementById('{button}').click()")


def say(page: Page, text: str) -> None:
    page.run("document.getElementById('text').focus()")
    page.keys(text)
    press(page, "send")


def shown(page: Page, kind: str) -> list[str]:
    texts: list[str] = page.run(f"[...document.querySelectorAll('#talk .{kind}')].map(box => box.textContent)")
    return texts


def talks(page: Page) -> list[dict[str, Any]]:
    texts = page.run("Object.keys(localStorage).filter(k => k.startsWith('rlx.talk.')).map(k => localStorage[k])")
    return sorted(map(json.loads, texts), key=lambda talk: talk["time"])


IDLE = "!document.getElementById('send').disabled"


def test_answers_are_drawn_as_markdown(page: Page) -> None:
    drawn = {text: page.run(f"{DRAWN}({json.dumps(text)})") for text in MARKDOWN}
    assert {text: html for text, html in drawn.items() if html != MARKDOWN[text]} == {}


def test_long_marks_that_nothing_ends_are_drawn(page: Page) -> None:
    """Texts on which a parser that tries again from each place would outlast the browser's 30 s for an answer."""
    texts = [
        "*a " * 30000, "x" + "`" * 60000, "[" * 60000, "> " * 3000 + "x", "# " + "#" * 60000 + "x", "**" * 30000 + "a",
        "|" * 30000 + "\n" + "-|" * 30000 + "x", "- " * 3000 + "x", " ".join("`" * n for n in range(1, 300)),
    ]  # fmt: skip
    assert [text[:20] for text in texts if page.run(f"{DRAWN}({json.dumps(text)}).length") < 2000] == []


def test_talks(page: Page, server: Any) -> None:
    """With the server: the answer is the model's; two talks are kept, opened again and deleted."""
    put(page, temperature=0, tokens=12)
    say(page, "hello")
    page.until(f"{IDLE} && document.getElementById('state').textContent.includes('tokens')")
    want = "".join(server.model.chat([{"role": "user", "content": "hello"}], 12))
    (talk,) = talks(page)
    assert talk["messages"] == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": want}]
    assert shown(page, "user") == ["hello"] and talk["title"] == "hello"

    press(page, "new")
    put(page, system="be brief")
    say(page, "<b>other</b>")
    page.until(IDLE)
    assert [talk["title"] for talk in talks(page)] == ["hello", "<b>other</b>"]
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "<b>other</b>"}]
    assert talks(page)[1]["messages"][-1]["content"] == "".join(server.model.chat(said, 12))

    page.open(f"http://127.0.0.1:{server.port}/")
    page.until("document.getElementById('model').textContent === 'tiny'")
    assert shown(page, "user") == ["<b>other</b>"] and page.run("document.getElementById('system').value") == "be brief"
    assert page.run("[temperature, tokens].map(field => field.value)") == ["0", "12"]
    page.run("document.querySelector('#talks li:not(.now) button').click()")
    assert shown(page, "user") == ["hello"] and page.run("document.getElementById('system').value") == ""
    page.run("document.querySelector('#talks li.now button:last-child').click()")
    assert [talk["title"] for talk in talks(page)] == ["<b>other</b>"] and shown(page, "user") == []


def test_what_another_program_keeps_there_is_let_be(page: Page, server: Any) -> None:
    """Settings and talks of another form are no talks, and not touched."""
    held = {"rlx.talk.a": "{", "rlx.talk.b": "null", "rlx.talk.c": '{"id": "c", "messages": [{"role": "user"}]}',
            "rlx.settings": '"x"', "other": "1"}  # fmt: skip
    page.run(f"Object.entries({json.dumps(held)}).forEach(([key, text]) => localStorage.setItem(key, text))")
    page.open(f"http://127.0.0.1:{server.port}/")
    page.until("document.getElementById('model').textContent === 'tiny'")
    assert page.run("document.querySelectorAll('#talks li').length") == 0
    assert page.run("document.getElementById('tokens').value") == "200"  # the context's, which is less than 256
    say(page, "hi")
    page.until(f"{IDLE} && document.getElementById('state').textContent.includes('tokens')")
    assert held.items() <= page.run("({...localStorage})").items()


def test_what_is_refused_may_be_sent_again(page: Page) -> None:
    put(page, tokens=9999)
    say(page, "more")
    page.until("document.querySelector('#talk .error')")
    assert "max_tokens is 9999" in shown(page, "error")[0] and shown(page, "user") == [] and talks(page) == []
    assert page.run("document.getElementById('text').value") == "more"
    put(page, tokens=3, temperature=0)  # a drawn token may end the answer at once
    press(page, "send")
    page.until("document.querySelectorAll('#talk .assistant').length && " + IDLE)
    assert shown(page, "error") == [] and shown(page, "user") == ["more"]


def test_stop_and_answer_again(page: Page) -> None:
    page.run("window.held = true")
    page.run(f"{PIECES}({json.dumps(['**bo', 'ld** ', 'and on'])})")
    put(page, temperature=1, top_k=5, seed=7)
    say(page, "go")
    page.until("document.querySelector('#talk .assistant')?.textContent === 'bold and on'")
    assert page.run("document.querySelector('#talk .assistant strong').textContent") == "bold"
    press(page, "stop")
    page.until("document.getElementById('state').textContent === 'stopped'")
    asked = page.run("window.asked")
    assert {asked["top_k"], asked["seed"]} == {5, 7} and "top_p" not in asked
    assert talks(page)[0]["messages"][1]["content"] == "**bold** and on"

    page.run(f"window.held = false, {PIECES}({json.dumps(['another'])})")
    press(page, "again")
    page.until(f"{IDLE} && document.querySelector('#talk .assistant').textContent === 'another'")
    assert page.run("window.asked.messages") == [{"role": "user", "content": "go"}]
    assert [m["content"] for m in talks(page)[0]["messages"]] == ["go", "another"]
    assert len(shown(page, "assistant")) == 1

    page.run("window.fetch = async () => { throw new Error('no network'); }")
    press(page, "again")
    page.until(f"{IDLE} && document.querySelector('#talk .error')")
    assert shown(page, "assistant") == ["another"] and talks(page)[0]["messages"][1]["content"] == "another"


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    page.resize(width, 800)
    code = "```\n" + "x" * 500 + "\n```\n\n|" + "a wide column|" * 20 + "\n|" + "-|" * 20 + "\n\n" + "y" * 500
    page.run(f"{PIECES}({json.dumps([code])})")
    say(page, "z" * 400)
    page.until(f"{IDLE} && document.querySelector('#talk table')")
    assert not page.run("document.documentElement.scrollWidth > innerWidth")
    assert not page.run("document.getElementById('talk').scrollWidth > document.getElementById('talk').clientWidth")
    edge = page.run("document.getElementById('form').getBoundingClientRect().bottom")
    assert edge <= 800.5
