"""A server on this computer: its address, and its life until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
import sys

from fastapi import FastAPI

from vpgcnn.errors import UserError

__all__ = ["hosts_of", "listen", "serve"]


def listen(host: str, port: int) -> socket.socket:
    """Open a socket.

    Raises:
        UserError: If the address is taken, or not one of this computer.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be a number from 0 to 65535, got {port}")
    listening = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot listen on {host}:{port}: {reason} (see --host and --port)") from error
    return listening


def hosts_of(host: str) -> list[str]:
    """The host names that requests may use; any if the server listens on all addresses."""
    shown = f"[{host}]" if ":" in host else host
    return ["*"] if host in ("0.0.0.0", "::") else ["localhost", "127.0.0.1", "[::1]", shown]


def serve(app: FastAPI, listening: socket.socket, host: str, *, browser: bool) -> None:
    """Serve until interrupted.

    Args:
        app: The pages.
        listening: From `listen`.
        host: The address as the user wrote it.
        browser: Whether to open a browser.
    """
    import uvicorn

    from vpgcnn.apps.serve.limits import TimedProtocol

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}"
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=TimedProtocol, log_level="warning", access_log=False, limit_concurrency=256, timeout_keep_alive=5,
            timeout_graceful_shutdown=5, server_header=False,
        )
    )  # fmt: skip
    print(f"open {address} (Ctrl-C to stop)", flush=True)  # noqa: T201
    if browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has stopped
        server.run(sockets=[listening])
    print("stopped")  # noqa: T201
