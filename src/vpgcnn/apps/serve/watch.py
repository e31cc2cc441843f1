"""The page of `vpgcnn watch`, and its API. The server writes nothing to disk, and no text of a request is a path."""

from __future__ import annotations

import anyio
from fastapi import FastAPI, HTTPException, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from vpgcnn import __version__
from vpgcnn.apps.serve.app import HEADERS, add_files
from vpgcnn.apps.serve.limits import Gate
from vpgcnn.apps.serve.schema import Health
from vpgcnn.apps.serve.watching import Watched, Watcher
from vpgcnn.errors import UserError
from vpgcnn.lab.report.page import STYLE

__all__ = ["make_watch_app"]

FILES = {
    "/": ("watch.html", "text/html; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
}


def make_watch_app(watcher: Watcher, hosts: list[str]) -> FastAPI:
    """Make the server.

    Args:
        watcher: Reads the run.
        hosts: The host names that a request may use; protects against DNS rebinding.
    """
    app = FastAPI(title="vpgcnn watch", version="1", summary="A run as it trains.", docs_url=None, redoc_url=None)
    one_at_a_time = anyio.CapacityLimiter(1)

    @app.get("/healthz")
    async def healthz() -> Health:
        """Return that the server is running."""
        return Health(version=__version__)

    @app.get("/api/run", responses={503: {"description": "the folder of the run cannot be read now"}})
    async def run() -> Watched:
        """Return the run at this moment."""
        try:
            return await anyio.to_thread.run_sync(watcher.look, limiter=one_at_a_time)
        except (UserError, OSError) as error:
            raise HTTPException(503, str(error)) from error

    @app.get("/watch.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css", headers={"Cache-Control": "no-cache"})

    add_files(app, FILES)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    app.add_middleware(Gate, largest=1000, held=10_000, seconds=10.0, headers=HEADERS)
    return app
