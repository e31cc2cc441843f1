"""Requests and answers of the API, version 1."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "Health",
    "InspectAnswer",
    "InspectRequest",
    "LayerLevel",
    "ModelInfo",
    "Models",
    "NetworkAnswer",
    "SampleInfo",
    "Samples",
    "Tuned",
    "TunedPoint",
]

IMAGE_BYTES = 8 << 20
"""Largest uploaded image file."""
STEPS = 72
"""Largest number of places on a curve."""
Share = Annotated[float, Field(ge=0, le=1)]
Moves = Literal["rotation", "hue"]
Picture = Annotated[str, Field(description="a data: URI of a PNG")]


class Strict(BaseModel):
    """A model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Health(Strict):
    """The server is running."""

    status: Literal["ok"] = "ok"
    version: str


class TunedPoint(Strict):
    """A setting of the windows that `vpgcnn tune` tried."""

    windows: float = Field(description="-1: all windows closed; 0: as learned; 1: all open")
    theta: float = Field(description="mean over images and levels")
    accuracy: Share
    moved: Share = Field(description="accuracy of moved images, as if all of them might be moved")


class Tuned(Strict):
    """What `vpgcnn tune` found: the cost of open windows, and what they buy."""

    windows: float = Field(description="the setting that it chose")
    images: int = Field(description="on this many images")
    points: list[TunedPoint]


class ModelInfo(Strict):
    """A network."""

    name: str
    about: str = Field(description="its kind of level, in a few words")
    moves: Moves | None = Field(description="what its group moves first; null: it has no group")
    mirrors: bool = Field(description="whether its group includes mirrors")
    promised: dict[Moves, list[float] | None] = Field(
        description="for what the page can move: the angles at which open windows promise the same answer, in degrees; "
        "null: every angle, up to the pixel grid"
    )
    classes: list[str]
    size: int = Field(description="side of its images in pixels")
    channels: int
    dataset: str
    layers: list[str] = Field(description="layers with a level for each image")
    windows: float | None = Field(
        description="how far its windows were opened (up to 1) or closed (down to -1) after training; null: they cannot"
    )
    tuned: Tuned | None = Field(description="accuracy at every setting of the windows; null: vpgcnn tune did not run")


class Models(Strict):
    """All networks on the page."""

    api: Literal["1"] = "1"
    models: list[ModelInfo]
    moves: list[Moves] = Field(description="what the page can move")
    note: str = Field(description="a note for the user, such as why there are no test images")


class SampleInfo(Strict):
    """A test image."""

    id: int
    label: str
    theta: Share | None = Field(description="share of the circle in use, mean over the levels that depend on the image")
    image: Picture


class Samples(Strict):
    """A part of the gallery."""

    total: int
    samples: list[SampleInfo]


class InspectRequest(Strict):
    """One image, as the number of a sample or as a file, and how far to move it."""

    model_config = ConfigDict(strict=True)
    sample: int | None = Field(None, ge=0, le=2**31, description="id of a sample")
    image: str | None = Field(
        None,
        max_length=IMAGE_BYTES * 4 // 3 + 100,
        description="a PNG, JPEG, WebP, BMP or GIF file in base64, or a data: URI of one",
    )
    moves: Moves | None = Field(None, description="what to move; by default what the group of the first network moves")
    angle: float = Field(
        0.0, ge=-1e6, le=1e6, allow_inf_nan=False, description="in degrees; a hue shift of 360° is none"
    )
    steps: int = Field(
        36, ge=0, le=STEPS, description="number of places on the curve, evenly spaced from 0°; 0: no curve"
    )
    models: list[Annotated[str, Field(max_length=200)]] | None = Field(
        None, max_length=8, description="names of networks; all by default"
    )
    windows: float | None = Field(
        None, ge=-1, le=1, allow_inf_nan=False,
        description="-1: close the windows of every image; 0: as learned; 1: open them; by default as in the file",
    )  # fmt: skip
    invert: bool = Field(False, description="invert light and dark first")
    mirror: bool = Field(False, description="exchange left and right first")

    @model_validator(mode="after")
    def _one_image(self) -> InspectRequest:
        if (self.sample is None) == (self.image is None):
            raise ValueError("set either sample or image")
        return self


class LayerLevel(Strict):
    """The level of a layer for this image at this angle."""

    layer: str
    theta: float = Field(description="share of the circle in use, or the parameter of another family")
    weights: list[float] | None = Field(description="weight of every element of the group; they sum to 1")
    per_image: bool = Field(description="false: the level is the same for all images")


class NetworkAnswer(Strict):
    """The answer of one network."""

    model: str
    guess: str
    probabilities: list[Share] = Field(description="at the angle, in the order of the classes")
    curve: list[list[Share]] = Field(description="probability of every class at each place on the curve")
    levels: list[LayerLevel]


class InspectAnswer(Strict):
    """The answers of all networks."""

    api: Literal["1"] = "1"
    angle: float
    places: list[float] = Field(description="places on the curve, in degrees")
    image: Picture = Field(description="the moved image, as the networks see it")
    label: str | None = Field(description="class of a sample")
    networks: list[NetworkAnswer]
    milliseconds: float
