"""What a server does not put up with: bodies that are too large or too slow, and more work than it can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

__all__ = ["BodyLimit", "BusyError", "Turnstile"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


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


class BodyLimit:
    """Middleware: a body is read whole before the app sees it, up to a size and within a time; and answers get
    headers that keep a page from loading anything from elsewhere.
    """

    def __init__(self, app: App, *, largest: int, seconds: float, headers: dict[str, str]) -> None:
        self.app, self.largest, self.seconds = app, largest, seconds
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        try:
            async with asyncio.timeout(self.seconds):
                body = await self._body(scope, receive)
        except TimeoutError:
            await _refuse(answered, 408, f"the request did not arrive within {self.seconds:g} seconds")
            return
        if body is None:
            await _refuse(answered, 413, f"a request has at most {self.largest >> 20} MB")
            return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Message:
            return next(parts, None) or await receive()

        await self.app(scope, again, answered)

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes | None:
        """All of it; None where it is too large."""
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value) > self.largest):
                return None
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > self.largest:
                return None
            if not message.get("more_body"):
                return bytes(body)


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"detail": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
