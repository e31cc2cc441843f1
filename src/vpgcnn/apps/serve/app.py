"""The API and the page, with FastAPI. The server writes nothing to disk, and no text of a request becomes a path."""

from __future__ import annotations

import base64
import binascii
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
from vpgcnn.apps.serve.decoder import Decoder
from vpgcnn.apps.serve.inspector import Inspector, Network, Seen, dial_of, levels_of
from vpgcnn.apps.serve.limits import Gate
from vpgcnn.apps.serve.schema import (
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
    Tuned,
    TunedPoint,
)
from vpgcnn.errors import UserError
from vpgcnn.lab.report.page import image_source
from vpgcnn.measure import Kind

__all__ = ["HEADERS", "add_files", "make_app"]

WAITING = 16
"""Inspections that may wait while one runs; further ones get the status 429."""
BODY = IMAGE_BYTES * 4 // 3 + 10_000
HELD = 6 * BODY
"""Bytes of all requests at once."""
SECONDS = 20.0
"""The body of a request must arrive within this time."""
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


def make_app(
    inspector: Inspector,
    hosts: list[str],
    *,
    waiting: int = WAITING,
    seconds: float = SECONDS,
    decoder: Decoder | None = None,
) -> FastAPI:
    """Make the server.

    Args:
        inspector: Networks and test images.
        hosts: The host names that a request may use; protects against DNS rebinding.
        waiting: Inspections that may wait while one runs.
        seconds: Time in which the body of a request must arrive.
        decoder: Decodes uploaded images; a new one by default.
    """
    decodes = decoder or Decoder()
    app = FastAPI(
        title="vpgcnn inspector",
        version="1",
        summary="Rotate an image, or shift its hue, and see how a network answers and how much of the group it uses.",
        docs_url=None,  # these pages would load scripts from another site
        redoc_url=None,
    )
    one_at_a_time, one_decodes = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
    inside = 0
    refusals: dict[int | str, dict[str, object]] = {
        400: {"description": "the image cannot be read"},
        404: {"description": "there is no such sample or model, or no network moves images so"},
        403: {"description": "sent by the page of another site"},
        408: {"description": "the request took too long to arrive"},
        413: {"description": "the request is too large"},
        415: {"description": "not JSON"},
        429: {"description": "too many requests are waiting: try again"},
    }

    @app.exception_handler(RequestValidationError)
    async def unfit(_: Request, error: RequestValidationError) -> JSONResponse:
        """Say what is wrong and where, without repeating the input, which may not be valid text."""
        found = [
            {"loc": [_plain(str(part)) for part in each["loc"]], "msg": _plain(each["msg"]), "type": each["type"]}
            for each in error.errors()[:20]
        ]
        return JSONResponse({"detail": found}, 422)

    @app.get("/healthz")
    async def healthz() -> Health:
        """Return that the server is running."""
        return Health(version=__version__)

    @app.get("/api/models")
    async def models() -> Models:
        """Return the networks, in the order of the command line."""
        kinds = inspector.kinds
        return Models(models=[_info(each, kinds) for each in inspector.networks], moves=kinds, note=inspector.note)

    @app.get("/api/samples", responses={404: {"description": "there is no such class"}})
    async def samples(
        order: Literal["narrow", "wide", "original"] = "original",
        label: Annotated[str | None, Query(max_length=200, description="only this class")] = None,
        offset: Annotated[int, Query(ge=0, le=10**6)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> Samples:
        """Return test images: narrowest or widest windows first, or in their original order."""
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
        """Return how networks answer at an angle and around the circle, and the levels they use."""
        names = [network.name for network in inspector.networks]
        if request.models is not None:
            if any(name not in names for name in request.models):
                raise HTTPException(404, "there is no such model")
            names = request.models
        if request.moves is not None and request.moves not in inspector.kinds:
            raise HTTPException(404, "no network on this page moves that")
        if request.mirror and not any(network.mirrors for network in inspector.networks):
            raise HTTPException(404, "no network on this page has mirrors in its group")
        if request.sample is not None and request.sample >= len(inspector.samples):
            raise HTTPException(404, "there is no such sample")
        nonlocal inside
        if inside > waiting:
            raise HTTPException(429, "too many requests are waiting: try again", {"Retry-After": "1"})
        inside += 1
        try:
            label = None
            if request.sample is not None:
                sample = inspector.samples[request.sample]
                pixels, label = sample.pixels, inspector.card.classes[sample.label]
            else:  # the other requests do not wait for it
                image = request.image or ""
                pixels = await anyio.to_thread.run_sync(_decoded, image, inspector, decodes, limiter=one_decodes)
            run = anyio.to_thread.run_sync
            return await run(_inspect, inspector, request, names, pixels, label, limiter=one_at_a_time)
        finally:
            inside -= 1

    add_files(app, FILES)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    app.add_middleware(Gate, largest=BODY, held=HELD, seconds=seconds, headers=HEADERS)
    return app


def add_files(app: FastAPI, files: dict[str, tuple[str, str]]) -> None:
    """Add files of the folder "page", and plotly's script.

    Args:
        app: The server.
        files: Path → name of the file and its media type.
    """

    def add(path: str, name: str, kind: str) -> None:
        body = (resources.files("vpgcnn.apps.serve") / "page" / name).read_bytes()

        @app.get(path, include_in_schema=False)
        async def static() -> Response:
            return Response(body, media_type=kind, headers={"Cache-Control": "no-cache"})

    for path, (name, kind) in files.items():
        add(path, name, kind)

    @app.get("/plotly.js", include_in_schema=False)
    async def plotly() -> Response:
        return Response(_plotly(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


@cache
def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.encode()


def _info(network: Network, kinds: list[Kind]) -> ModelInfo:
    card = network.card
    return ModelInfo(
        name=network.name, about=network.about, moves=next(iter(network.kinds), None),
        mirrors=network.mirrors, promised={kind: network.promised(kind) for kind in kinds},
        classes=list(card.classes), size=card.size, channels=card.channels, dataset=card.dataset,
        layers=levels_of(network.model), windows=dial_of(network.model), tuned=_tuned(network),
    )  # fmt: skip


def _tuned(network: Network) -> Tuned | None:
    found = network.tuning
    if found is None:
        return None
    points = [TunedPoint(windows=p.dial, theta=p.theta, accuracy=p.accuracy, moved=p.moved) for p in found.points]
    return Tuned(windows=found.dial, images=found.images, points=points)


def _inspect(
    inspector: Inspector, request: InspectRequest, names: list[str], pixels: Tensor, label: str | None
) -> InspectAnswer:
    start = time.perf_counter()
    pixels = 1 - pixels if request.invert else pixels
    pixels = pixels.flip(-1) if request.mirror else pixels
    image, seen = inspector.inspect(pixels, request.angle, names, request.steps, request.windows, request.moves)
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
            LayerLevel(layer=layer, theta=theta, weights=seen.weights.get(layer), per_image=layer not in seen.shared)
            for layer, theta in seen.theta.items()
        ],
    )


def _shares(values: Tensor) -> list[float]:
    return [round(float(value), 5) for value in torch.nan_to_num(values).clamp(0, 1)]


def _decoded(text: str, inspector: Inspector, decoder: Decoder) -> Tensor:
    """Decode an uploaded image to `(C, H, W)` in [0, 1]."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HTTPException(400, "the image is not base64") from error
    if len(data) > IMAGE_BYTES:
        raise HTTPException(413, f"the image is larger than {IMAGE_BYTES >> 20} MB")
    try:
        pixels = decoder.decode(data, inspector.card.size, inspector.card.channels)
    except UserError as error:
        raise HTTPException(400, _plain(str(error))) from error
    return torch.from_numpy(pixels).float() / 255


def _plain(text: str) -> str:
    """Text that can be encoded, of limited length."""
    return text.encode("utf-8", "replace").decode()[:300]
