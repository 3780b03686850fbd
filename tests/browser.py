"""A headless browser for tests of pages: Chromium, by the W3C WebDriver protocol of its chromedriver."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.processes import free_port

START_TIMEOUT_S = 60.0
_ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


class Browser:
    """One window. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> Self:
        port = free_port()
        driver = shutil.which("chromedriver")
        assert driver is not None, "chromedriver is missing: install chromium-driver"
        self._driver = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL)
        self._base = f"http://127.0.0.1:{port}/session"
        options = {"args": [*_ARGUMENTS, f"--user-data-dir={self._directory}"]}
        capabilities = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                session = self._call("POST", "", capabilities)
                break
            except urllib.error.URLError as error:
                if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                    self._end_driver()
                    raise
                time.sleep(0.1)
        self._base += f"/{session['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._end_driver()

    def _end_driver(self) -> None:
        self._driver.kill()
        self._driver.wait()

    def show(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Open a page in a window of this size."""
        self._call("POST", "/window/rect", {"width": width, "height": height})
        self._call("POST", "/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        """The value that a script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        """Click on the first element."""
        self._call("POST", f"{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into the first element."""
        self._call("POST", f"{self._element(selector)}/value", {"text": text})

    def _element(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return f"/element/{next(iter(found.values()))}"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]
