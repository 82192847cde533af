"""A real browser for tests: Chromium without a window, driven through a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# Moves the pipes to the numbers that Chromium expects, and becomes Chromium.
_LAUNCHER = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for target, pipe in enumerate(pipes, 3):
    os.dup2(pipe, target)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of a browser. `requests` has the address of everything that the page asked for."""

    def __init__(self, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(prefix="cbeindex-browser-", ignore_cleanup_errors=True)
        # Chromium reads commands from file descriptor 3 and writes answers to 4.
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(commands), str(answers), *command],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._rest, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.failures: list[str] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def resize(self, width: int, height: int) -> None:
        """Give the page a size in CSS pixels; below 600 it is a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, page: Path | str) -> None:
        """Open a file, by its path and an optional `#...`, and wait until it is loaded."""
        address = page.as_uri() if isinstance(page, Path) else page
        self.requests.clear()
        self.failures.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", found))
        return found["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} did not become true in {seconds} s")
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Type into the field that has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, whole: bool = False) -> None:
        """Save what is visible, or the whole page, as PNG."""
        options: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options |= {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "scale": 1} | _sides(size)}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its answer. Events that come before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            self._note(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        """Read one message, which ends with a zero byte."""
        while b"\0" not in self._rest:
            got = os.read(self._from, 1 << 16)
            if not got:
                raise RuntimeError("the browser has ended")
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        """Keep the addresses of requests, and errors of scripts."""
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.failures.append(details.get("exception", {}).get("description", details["text"]))


def _sides(size: dict[str, float]) -> dict[str, float]:
    return {"width": size["width"], "height": min(size["height"], 16_000)}
