"""Requests that the server refuses: too large, too slow, or sent by the page of another site."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Gate", "TimedProtocol"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
HEAD_SECONDS = 10.0
"""A new connection must send the head of a request within this time."""


class Gate:
    """Middleware that reads the whole body of a request before the app sees it. uvicorn has no limits for bodies.

    It refuses requests that change something unless they are JSON and come from our page.

    Args:
        app: The application behind it.
        largest: Bytes of a body.
        held: Bytes of all bodies that are being received or processed.
        seconds: Time in which a body must arrive.
        headers: Added to every answer.
    """

    def __init__(self, app: App, *, largest: int, held: int, seconds: float, headers: dict[str, str]) -> None:
        self.app, self.largest, self.held, self.seconds = app, largest, held, seconds
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._now = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        body = bytearray()
        try:
            refusal = _foreign(scope) or await self._read(scope, receive, body)
            if refusal:
                await _refuse(send_with_headers, *refusal)
                return
            parts = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

            async def receive_again() -> Message:
                return next(parts, None) or await receive()

            await self.app(scope, receive_again, send_with_headers)
        finally:
            self._now -= len(body)

    async def _read(self, scope: MutableMapping[str, Any], receive: Receive, body: bytearray) -> tuple[int, str] | None:
        """Fill the body. Returns status and reason if it is refused."""
        too_large = 413, f"the request is larger than {self.largest >> 20} MB"
        if int(_header(scope, b"content-length") or 0) > self.largest:
            return too_large
        try:
            async with asyncio.timeout(self.seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    part = message.get("body", b"")
                    if self._now + len(part) > self.held:
                        return 429, "too many large requests at once: try again"
                    body += part
                    self._now += len(part)
                    if len(body) > self.largest:
                        return too_large
                    if not message.get("more_body"):
                        return None
        except TimeoutError:
            return 408, f"the request did not arrive within {self.seconds:g} seconds"


def _header(scope: MutableMapping[str, Any], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _foreign(scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
    """Status and reason if the page of another site may have sent this request through the user's browser."""
    if scope["method"] not in ("POST", "PUT", "PATCH", "DELETE"):
        return None
    if _header(scope, b"content-type").split(";")[0].strip().lower() != "application/json":
        return 415, "the request must be JSON: set content-type to application/json"
    origin = _header(scope, b"origin")
    if origin and urlsplit(origin).netloc != _header(scope, b"host"):
        return 403, "requests from other sites are refused"
    if _header(scope, b"sec-fetch-site") not in ("", "same-origin", "none"):
        return 403, "requests from other sites are refused"
    return None


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"detail": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class TimedProtocol(H11Protocol):
    """Closes connections on which no request starts in time. uvicorn waits for the first head without a limit."""

    seconds = HEAD_SECONDS

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(self.seconds, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()
