"""A headless Chromium, driven by its own protocol over a pipe: no package besides the browser is
needed.

    with Browser.start() as browser:
        browser.open(path)
        browser.run("document.title")

https://chromedevtools.github.io/devtools-protocol says what can be sent.
"""

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

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 60  # for an answer


def find() -> str | None:
    """A browser's path; TKC_BROWSER names another one."""
    asked = os.environ.get("TKC_BROWSER")
    return asked or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser. `problems`: what its console said that is worse than a remark;
    `requests`: what it asked to load.
    """

    def __init__(self, path: str, width: int, height: int, dark: bool):
        self.folder = tempfile.TemporaryDirectory(prefix="tkc-browser-")
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        command = 'exec 3<&"$TKC_IN" 4>&"$TKC_OUT"; exec "$0" "$@"'
        self.process = subprocess.Popen(
            [
                *("bash", "-c", command, path, "--headless=new", "--no-sandbox", "--disable-gpu"),
                *("--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
                *("--remote-debugging-pipe", f"--user-data-dir={self.folder.name}"),
                *(f"--window-size={width},{height}", "about:blank"),
            ],
            env=os.environ | {"TKC_IN": str(to_browser), "TKC_OUT": str(from_browser)},
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.rest, self.events = 0, b"", []
        self.session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    @staticmethod
    def start(width: int = 1280, height: int = 800, dark: bool = False) -> Browser:
        path = find()
        assert path, "no browser; install chromium, or set TKC_BROWSER"
        return Browser(path, width, height, dark)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.write)
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        # what its helpers still write goes with the folder
        shutil.rmtree(self.folder.name, ignore_errors=True)
        self.folder._finalizer.detach()

    def send(self, method: str, **params: object) -> dict:
        """The answer to a command; events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            answer = self._next(until)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(f"{method}: no answer within {SECONDS} s")

    def _next(self, until: float) -> dict:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            some = os.read(self.read, 1 << 16) if ready else b""
            if not some:
                raise TimeoutError("the browser says nothing")
            self.rest += some
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, ready: str = "true") -> None:
        """Loads a file, until an expression is true."""
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait(f"document.readyState === 'complete' && ({ready})")

    def run(self, expression: str) -> object:
        """The value of an expression, as plain data. Raises AssertionError with what it threw."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < until, f"never true: {expression}"
            time.sleep(0.02)

    def click(self, selector: str, dx: float = 0.5, dy: float = 0.5) -> None:
        """A press of the left button on an element, so far into it."""
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        at = {"x": box[0] + dx * box[2], "y": box[1] + dy * box[3]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def wheel(self, selector: str, delta: float) -> None:
        """The wheel turned over the middle of an element."""
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        at = {"x": box[0], "y": box[1], "deltaX": 0, "deltaY": delta}
        self.send("Input.dispatchMouseEvent", type="mouseWheel", **at)

    def press(self, key: str) -> None:
        """A key by its name, such as "ArrowDown", or a letter."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> None:
        shot = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def problems(self) -> list[str]:
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            if event.get("method") == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] in ("error", "warning"):
                    found.append(f"{entry['level']}: {entry['text']}")
        return found

    @property
    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
