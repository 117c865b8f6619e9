"""Headless Chromium over the DevTools protocol on a pipe: the standard library only, no port, no driver."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    """The browser's path: `DPBENCH_CHROMIUM`, or the first of the usual names."""
    given = os.environ.get("DPBENCH_CHROMIUM")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. `events` collects what the browser said unasked; every wait has an end."""

    def __init__(self, to_browser: int, from_browser: int, patience: float) -> None:
        self._to, self._from, self._patience = to_browser, from_browser, patience
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._to, content) :]
        deadline = time.monotonic() + self._patience
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Go to the address and wait until it is loaded; earlier events are forgotten."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + self._patience
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline, "load"))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; promises are awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """The window's size in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name: str) -> None:
        """Prefer `light` or `dark`."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def pdf(self) -> bytes:
        """The page printed, with the paper size that its style asks for."""
        answer = self.send("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(answer["data"])

    def picture(self, *, full: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        return base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=full)["data"])

    def complaints(self) -> list[str]:
        """Console errors, uncaught exceptions and the browser's own errors (blocked content and the like)."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(str(parameters["entry"]["text"]))
        return found

    def requests(self) -> list[str]:
        """The address of every request since `open`, the page itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError(f"Chromium did not answer {what} in {self._patience:.0f} s")
            content = os.read(self._from, 1 << 20)
            if not content:
                raise RuntimeError(f"Chromium ended while it was asked for {what}")
            self._rest += content
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser(executable: str, patience: float = 60.0) -> Iterator[Page]:
    """A fresh Chromium with a profile of its own and one tab; it is ended, and its profile removed, afterwards."""
    pipes = [os.pipe(), os.pipe()]
    # Far from 3 and 4, which the child needs for its ends.
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for pipe in pipes for end in pipe]
    for end in (end for pipe in pipes for end in pipe):
        os.close(end)
    child_in, to_browser, from_browser, child_out = high

    def hand_over() -> None:
        os.dup2(child_in, 3)
        os.dup2(child_out, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            executable,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        log = Path(profile) / "stderr.txt"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(3, 4),
                preexec_fn=hand_over,
                start_new_session=True,
            )
        os.close(child_in)
        os.close(child_out)
        try:
            yield Page(to_browser, from_browser, patience)
        except (RuntimeError, BrokenPipeError) as error:
            raise RuntimeError(f"{error}\n{log.read_text(errors='replace')[-2000:]}") from error
        finally:
            os.close(to_browser)
            os.close(from_browser)
            try:
                process.wait(timeout=5)  # Chromium ends when its pipe closes
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait(timeout=10)
