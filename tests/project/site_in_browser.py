"""python -m tests.project.site_in_browser [FOLDER [PICTURES]]: the built site in a headless Chromium, at two widths.

Every page is opened: it asks no other host for anything, its scripts complain of nothing, nothing is wider than the
window but what scrolls by itself, its pictures are there. Then the search is asked for names. FOLDER is where `make
docs` leaves the site; some pages are drawn into PICTURES.
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from pathlib import Path

from tests.browser import WEBGL, Page

WIDTHS = (1280, 390)
SHOWN = ("index.html", "gallery.html", "tutorials/read-a-report.html", "generated/api/rlx.html", "ops.html")
SEARCHED = {"softmax": "rlx.softmax", "value_and_grad": "rlx.value_and_grad", "adapter": "Fine-tuning"}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *what: object) -> None:
        pass


def main(folder: Path, pictures: Path | None) -> int:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    pages = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.html"))
    wrong = []
    with Page(1280, 900, *WEBGL) as page:
        for width in WIDTHS:
            page.resize(width, 900)
            for name in pages:
                page.open(home + name)
                if page.run("document.documentElement.scrollWidth > innerWidth + 1"):
                    wrong.append(f"{name} at {width}: wider than the window")
                if page.run("[...document.images].some(i => i.loading !== 'lazy' && !(i.complete && i.naturalWidth))"):
                    wrong.append(f"{name}: a picture is missing")
                if pictures and name in SHOWN:
                    pictures.mkdir(parents=True, exist_ok=True)
                    page.shot(pictures / f"{name.replace('/', '-').removesuffix('.html')}-{width}.png")
        for word, title in SEARCHED.items():
            page.open(f"{home}search.html?q={word}")
            page.until("document.body.innerText.match(/found \\d+ page|matching/)")
            titles = page.run("[...document.querySelectorAll('ul.search li')].map(i => i.innerText)")
            if not any(title in text for text in titles):
                wrong.append(f"search for {word}: no {title} among {len(titles)} results")
        wrong += sorted({f"asks {url}" for url in page.requests if not url.startswith((home, "data:"))})
        wrong += page.complaints
    server.shutdown()
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"{len(pages)} pages at {len(WIDTHS)} widths, {len(SEARCHED)} searches, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    places = [Path(word) for word in sys.argv[1:]]
    sys.exit(main(places[0] if places else Path(".cache/docs"), places[1] if len(places) > 1 else None))
