"""A headless Chromium, driven over its own protocol by the WebSocket client of Tornado."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-port=0", "--remote-allow-origins=*", "--window-size=1400,900",
)  # fmt: skip
_SECONDS = 30.0


class Page:
    """The only tab of a browser: what it shows, and what went wrong on it."""

    def __init__(self, socket: WebSocketClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._socket, self._loop, self._number = socket, loop, 0
        self.errors: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol, and its answer."""
        return self._loop.run_until_complete(
            asyncio.wait_for(self._call(method, parameters), _SECONDS)
        )

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message))
        while True:
            text = await self._socket.read_message()
            assert text is not None, "the browser has gone"
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, what = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"]["exception"]["description"])
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, a promise's value included."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, path: Path) -> None:
        """Load a file and wait until its script is done; a page that never is fails."""
        self.call("Page.navigate", url=path.as_uri())
        self.value("""new Promise((done, late) => {
            setTimeout(() => late(new Error("not ready")), 20000);
            const look = () => document.body?.dataset.ready ? done() : setTimeout(look, 20);
            look(); })""")

    def click(self, x: float, y: float) -> None:
        """Press and release, and let the page draw."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        """One key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)
        self.settle()

    def settle(self) -> None:
        """Until the page has handled what was done and drawn twice."""
        self.value("new Promise((done) => setTimeout(() => requestAnimationFrame(() => "
                   "requestAnimationFrame(done)), 0))")  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """What the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """Start Chromium and end it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *_ARGUMENTS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        loop = asyncio.new_event_loop()
        try:
            page = Page(loop.run_until_complete(_connect(process)), loop)
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            process.kill()
            process.wait()
            loop.close()


async def _connect(process: subprocess.Popen[str]) -> WebSocketClientConnection:
    """To the first tab, of which the browser says nothing but its own port."""
    from tornado.httpclient import AsyncHTTPClient

    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"DevTools listening on ws://([\d.:]+)/", line):
            break
    else:
        raise AssertionError("the browser did not start")
    async with asyncio.timeout(_SECONDS):
        while True:
            response = await AsyncHTTPClient().fetch(f"http://{found[1]}/json/list")
            pages = [tab for tab in json.loads(response.body) if tab["type"] == "page"]
            if pages:
                return await websocket_connect(
                    pages[0]["webSocketDebuggerUrl"], max_message_size=2**28
                )
            await asyncio.sleep(0.1)
