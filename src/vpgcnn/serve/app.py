"""The API and the page, by FastAPI. Nothing is written to disk, and no text of a request becomes a path."""

from __future__ import annotations

import base64
import binascii
import io
import time
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import anyio
import torch
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware
from torch import Tensor

from vpgcnn import __version__
from vpgcnn.data.own import decode_image
from vpgcnn.errors import UserError
from vpgcnn.report.page import image_source
from vpgcnn.serve.inspector import Inspector, Network, Seen, levels_of
from vpgcnn.serve.limits import BusyError, Gate, Turnstile
from vpgcnn.serve.schema import (
    IMAGE_BYTES,
    Health,
    InspectAnswer,
    InspectRequest,
    LayerLevel,
    ModelInfo,
    Models,
    NetworkAnswer,
    SampleInfo,
    Samples,
)

__all__ = ["make_app"]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
PIXELS = 24_000_000
WAITING = 16
"""Inspections that may wait for their turn; more are told to come again."""
BODY = IMAGE_BYTES * 4 // 3 + 10_000
HELD = 6 * BODY
"""Bytes of all requests that are there at once."""
SCANS = 100
"""Of a progressive JPEG, at most: each takes time to decode."""
SECONDS = 20.0
"""In which the body of a request has to have arrived."""
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(inspector: Inspector, hosts: list[str], *, waiting: int = WAITING, seconds: float = SECONDS) -> FastAPI:
    """The whole server. hosts: the only ones that a request may name, against pages that rebind their own."""
    app = FastAPI(
        title="vpgcnn inspector",
        version="1",
        summary="Turn an image, or shift its hue, and see what a network says and how much of the symmetry it uses.",
        docs_url=None,  # these would load scripts from elsewhere
        redoc_url=None,
    )
    turnstile = Turnstile(waiting)
    refusals: dict[int | str, dict[str, object]] = {
        400: {"description": "no image that can be read"},
        404: {"description": "no such sample or model"},
        403: {"description": "sent by another site's page"},
        408: {"description": "the request took too long to arrive"},
        413: {"description": "the request is too large"},
        415: {"description": "not JSON"},
        429: {"description": "too many requests are waiting: come again"},
    }

    @app.exception_handler(RequestValidationError)
    async def unfit(_: Request, error: RequestValidationError) -> JSONResponse:
        """What is wrong and where, without what was sent: that may be no JSON at all."""
        found = [
            {"loc": [_plain(str(part)) for part in each["loc"]], "msg": _plain(each["msg"]), "type": each["type"]}
            for each in error.errors()[:20]
        ]
        return JSONResponse({"detail": found}, 422)

    @app.exception_handler(BusyError)
    async def too_busy(_: Request, __: BusyError) -> JSONResponse:
        return JSONResponse({"detail": "too many requests are waiting"}, 429, {"Retry-After": "1"})

    @app.get("/healthz")
    async def healthz() -> Health:
        """Whether the server lives."""
        return Health(version=__version__)

    @app.get("/api/models")
    async def models() -> Models:
        """The networks, in the order in which they were given."""
        return Models(models=[_info(network) for network in inspector.networks], note=inspector.note)

    @app.get("/api/samples", responses={404: {"description": "no such class"}})
    async def samples(
        order: Literal["narrow", "wide", "as they are"] = "as they are",
        label: Annotated[str | None, Query(max_length=200, description="of this class only")] = None,
        offset: Annotated[int, Query(ge=0, le=10**6)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> Samples:
        """Test images: those with the narrowest or the widest windows first, or as they come."""
        classes = inspector.card.classes
        if label is not None and label not in classes:
            raise HTTPException(404, "there is no such class")
        number = None if label is None else classes.index(label)
        found, total = inspector.gallery(order, number, offset, limit)
        shown = [
            SampleInfo(
                id=sample.number, label=classes[sample.label], image=image_source(sample.pixels.numpy()),
                theta=None if sample.theta is None else min(1.0, max(0.0, sample.theta)),
            )
            for sample in found
        ]  # fmt: skip
        return Samples(total=total, samples=shown)

    @app.post("/api/inspect", responses=refusals)
    async def inspect(request: InspectRequest) -> InspectAnswer:
        """What networks say of an image at an angle and around the circle, and the levels they use for it."""
        names = [network.name for network in inspector.networks]
        if request.models is not None:
            if any(name not in names for name in request.models):
                raise HTTPException(404, "there is no such model")
            names = request.models
        if request.sample is not None and request.sample >= len(inspector.samples):
            raise HTTPException(404, "there is no such sample")
        async with turnstile:
            return await anyio.to_thread.run_sync(_inspect, inspector, request, names)

    def page(path: str) -> None:
        name, kind = FILES[path]
        body = (resources.files("vpgcnn.serve") / "page" / name).read_bytes()

        @app.get(path, include_in_schema=False)
        async def static() -> Response:
            return Response(body, media_type=kind, headers={"Cache-Control": "no-cache"})

    for path in FILES:
        page(path)

    @app.get("/plotly.js", include_in_schema=False)
    async def plotly() -> Response:
        return Response(_plotly(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    app.add_middleware(Gate, largest=BODY, held=HELD, seconds=seconds, headers=HEADERS)
    return app


@cache
def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.encode()


def _info(network: Network) -> ModelInfo:
    card = network.card
    return ModelInfo(
        name=network.name, about=network.about, moves=network.kind, classes=list(card.classes), size=card.size,
        channels=card.channels, dataset=card.dataset, layers=levels_of(network.model),
    )  # fmt: skip


def _inspect(inspector: Inspector, request: InspectRequest, names: list[str]) -> InspectAnswer:
    start = time.perf_counter()
    label = None
    if request.sample is not None:
        sample = inspector.samples[request.sample]
        pixels, label = sample.pixels, inspector.card.classes[sample.label]
    else:
        pixels = _decoded(request.image or "", inspector)
    pixels = 1 - pixels if request.invert else pixels
    image, seen = inspector.inspect(pixels, request.angle, names, request.steps)
    return InspectAnswer(
        angle=request.angle % 360.0,
        places=[360 * step / request.steps for step in range(request.steps)],
        image=image_source(image.numpy()),
        label=label,
        networks=[_answer(each) for each in seen],
        milliseconds=round(1000 * (time.perf_counter() - start), 2),
    )


def _answer(seen: Seen) -> NetworkAnswer:
    classes = seen.network.card.classes
    return NetworkAnswer(
        model=seen.network.name,
        guess=classes[int(seen.chances.argmax())],
        probabilities=_shares(seen.chances),
        curve=[_shares(row) for row in seen.curve],
        levels=[
            LayerLevel(layer=layer, theta=theta, weights=seen.weights.get(layer)) for layer, theta in seen.theta.items()
        ],
    )


def _shares(values: Tensor) -> list[float]:
    return [round(float(value), 5) for value in torch.nan_to_num(values).clamp(0, 1)]


def _decoded(text: str, inspector: Inspector) -> Tensor:
    """An uploaded image `(C, H, W)` in [0, 1]."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HTTPException(400, "the image is not base64") from error
    if len(data) > IMAGE_BYTES:
        raise HTTPException(413, f"an image has at most {IMAGE_BYTES >> 20} MB")
    if data.count(b"\xff\xda") > SCANS:
        raise HTTPException(400, "the file is too complex")
    card = inspector.card
    try:
        pixels = decode_image(
            io.BytesIO(data), "the file", card.size, card.channels, formats=FORMATS, largest=PIXELS, ground="white"
        )
    except UserError as error:
        raise HTTPException(400, _plain(str(error))) from error
    return pixels.float() / 255


def _plain(text: str) -> str:
    """Text that can be sent."""
    return text.encode("utf-8", "replace").decode()[:300]
