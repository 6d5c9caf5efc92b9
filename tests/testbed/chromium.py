"""Headless Chromium, spoken to over a pipe by the DevTools protocol: loads a page and says what happened."""

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


@dataclass
class Browser:
    """One browser with one page; a context manager.

    Attributes:
        messages: What was written to the console, and errors of scripts.
        requests: Addresses of everything that the page asked for, itself first.
        violations: What its content security policy refused.
    """

    profile: Path
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __enter__(self):
        down, self._write = os.pipe()
        self._read, up = os.pipe()
        words = [COMMAND, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 f"--user-data-dir={self.profile}", "about:blank"]  # fmt: skip
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        script = f'exec 3<&{down} 4>&{up}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words], pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(down)
        os.close(up)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = None
        self._seen = []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        # It has children of its own, all in the session that was made for it.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method, **parameters):
        """Calls a method of the protocol and returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next(60)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path: Path, *, dark: bool = False, width: int = 1100) -> None:
        """Opens a file and waits until it has loaded."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._seen.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._next(60)
        # What scripts do a moment later is seen, too.
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def run(self, script: str):
        """Returns the value of an expression in the page, or what it promises."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:1000])
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Writes the whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self, seconds: float):
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"Chromium does not answer (exit code {self._process.poll()})")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, details):
        self._seen.append(method)
        if method == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(details["args"]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(details["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.messages.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method == "Audits.issueAdded" and details["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.violations.append(json.dumps(details["issue"]["details"]))
