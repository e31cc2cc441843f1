"""What a server does not put up with: requests that are too large, too slow or not its own, and more than it can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BusyError", "Gate", "TimedProtocol", "Turnstile"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
HEAD_SECONDS = 10.0
"""In which the head of a request has to have arrived."""


class BusyError(Exception):
    """As many requests as may wait are waiting."""


class Turnstile(AbstractAsyncContextManager["Turnstile"]):
    """One at a time goes through, a few wait, the others are turned away at once."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._inside = 0
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Turnstile:
        if self._inside > self.waiting:
            raise BusyError
        self._inside += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._inside -= 1
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._turn.release()
        self._inside -= 1


class Gate:
    """Middleware that reads a body whole before the app sees it.

    Bodies have a largest size, and all that are held together another (`held`); they arrive within `seconds`. Posts
    are JSON and do not come from another site's page. Answers get `headers`.
    """

    def __init__(self, app: App, *, largest: int, held: int, seconds: float, headers: dict[str, str]) -> None:
        self.app, self.largest, self.held, self.seconds = app, largest, held, seconds
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._now = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        body = bytearray()
        try:
            refusal = _foreign(scope) or await self._read(scope, receive, body)
            if refusal:
                await _refuse(answered, *refusal)
                return
            parts = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

            async def again() -> Message:
                return next(parts, None) or await receive()

            await self.app(scope, again, answered)
        finally:
            self._now -= len(body)

    async def _read(self, scope: MutableMapping[str, Any], receive: Receive, body: bytearray) -> tuple[int, str] | None:
        """Fill the body; what is wrong with it, if anything."""
        large = 413, f"a request has at most {self.largest >> 20} MB"
        if int(_header(scope, b"content-length") or 0) > self.largest:
            return large
        try:
            async with asyncio.timeout(self.seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    part = message.get("body", b"")
                    if self._now + len(part) > self.held:
                        return 429, "too many large requests at once"
                    body += part
                    self._now += len(part)
                    if len(body) > self.largest:
                        return large
                    if not message.get("more_body"):
                        return None
        except TimeoutError:
            return 408, f"the request did not arrive within {self.seconds:g} seconds"


def _header(scope: MutableMapping[str, Any], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _foreign(scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
    """What another site's page could send in a person's name."""
    if scope["method"] not in ("POST", "PUT", "PATCH", "DELETE"):
        return None
    if _header(scope, b"content-type").split(";")[0].strip().lower() != "application/json":
        return 415, "a request is JSON: content-type application/json"
    origin = _header(scope, b"origin")
    if origin and urlsplit(origin).netloc != _header(scope, b"host"):
        return 403, "requests of other sites are refused"
    if _header(scope, b"sec-fetch-site") not in ("", "same-origin", "none"):
        return 403, "requests of other sites are refused"
    return None


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"detail": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class TimedProtocol(H11Protocol):
    """Closes connections on which the head of a request does not arrive in time."""

    seconds = HEAD_SECONDS
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._rest()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.seconds, self._close)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _close(self) -> None:
        self._waiting = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
