"""A headless Chromium over its debugging pipe: no driver and no package is needed. `chromium()` says which is here."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WEBGL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")  # by Chromium's own software driver
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """A browser with one page; `options` are more of its own.
    Requests of the page, and what its console and its scripts complain of, are kept."""

    def __init__(self, width: int = 1200, height: int = 900, *options: str) -> None:
        program = chromium()
        if program is None:
            raise RuntimeError("no Chromium here; Debian: apt install chromium-headless-shell")
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._to = os.pipe()
        self._from, also_theirs = os.pipe()
        self._held, self._number = b"", 0

        def places() -> None:  # the pipe is its files 3 and 4
            first, second = os.dup(theirs), os.dup(also_theirs)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={self._folder.name}", *options, "about:blank"],
            preexec_fn=places, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(also_theirs)
        self._session = ""
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._session = ""
        try:
            self("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def __call__(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol and gives its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(30)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._held += part
        text, _, self._held = self._held.partition(b"\0")
        event: dict[str, Any] = json.loads(text)
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                self.complaints.append(event["params"]["entry"]["text"])
        return event

    def resize(self, width: int, height: int) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def open(self, url: str) -> None:
        """Goes to an address and waits until it has loaded."""
        self("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression, whose promise is awaited."""
        done = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"].get("description", script))
        return done["result"].get("value")

    def until(self, condition: str, seconds: float = 30) -> None:
        """Waits until an expression holds."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                said = self.run("document.body.innerText")
                raise TimeoutError(f"{condition}: not within {seconds} s; the page says\n{said}")
            self.run("new Promise(done => setTimeout(done, 20))")

    def keys(self, text: str) -> None:
        """Types text where the caret is."""
        self("Input.insertText", text=text)

    def shot(self, path: Path | str) -> None:
        """Writes a picture of what is in view, PNG."""
        Path(path).write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))
