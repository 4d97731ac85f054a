"""A real Chromium under remote control: what a page shows, how wide it is, what it complains of, what it asks for."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

STOP_LIMIT_S = 20.0
MESSAGES_LIMIT = 10_000
"""Messages that are read while waiting for one."""
CHANGING = ("navigated or closed", "Cannot find default execution context")
"""What the browser says where a page is about to be another one."""


class PageChanges(Exception):
    """There is no page to ask now."""


class Browser:
    """One tab. Messages go through a pipe; a browser that dies ends the pipe, and so every wait."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process = process
        self._in = os.fdopen(reading, "rb")
        self._out = os.fdopen(writing, "wb")
        self._number = 0
        self._session = ""
        self._rest = b""
        self.complaints: list[str] = []
        """Console errors, exceptions and violations of the page's policy."""
        self.requests: list[str] = []
        """Addresses that the page asked for, itself included."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, address: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Go to a page, in a window of this size, and wait until it is loaded."""
        self.complaints.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=address)
        self._until("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; of the next page, where it is on the way there."""
        for _ in range(MESSAGES_LIMIT):
            with contextlib.suppress(PageChanges):
                answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
                assert "exceptionDetails" not in answer, answer
                return answer["result"].get("value")
        raise AssertionError("the next page does not come")

    def photograph(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def press(self, key: str) -> None:
        """A key goes down and up."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key)

    def close(self) -> None:
        """Let go of the browser."""
        self._in.close()
        self._out.close()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        for _ in range(MESSAGES_LIMIT):
            answer = self._next()
            if answer.get("id") == self._number:
                if any(words in str(answer.get("error")) for words in CHANGING):
                    raise PageChanges
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(f"no answer to {method}")

    def _until(self, event: str) -> None:
        for _ in range(MESSAGES_LIMIT):
            if self._next().get("method") == event:
                return
        raise AssertionError(f"no {event}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in.fileno(), 1 << 20)
            assert more, f"the browser went away: {self._process.poll()}"
            self._rest += more
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent" and not about["request"]["url"].startswith("data:"):
            self.requests.append(about["request"]["url"])
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(about["args"]))
        if method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile."""
    to_it, writing = os.pipe()
    reading, from_it = os.pipe()
    # The browser reads from descriptor 3 and writes to 4; ours are moved away from these first.
    inside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_it, from_it)]
    for fd in (to_it, from_it):
        os.close(fd)

    def place() -> None:
        os.dup2(inside[0], 3)
        os.dup2(inside[1], 4)

    process = subprocess.Popen(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=place,
        close_fds=False,
    )
    for fd in inside:
        os.close(fd)
    try:
        with closing(Browser(process, reading, writing)) as tab:
            yield tab
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)
