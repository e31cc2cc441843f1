"""What goes over the wire: requests and answers of the API, version 1."""

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
]

IMAGE_BYTES = 8 << 20
"""Of an uploaded image file, at most."""
STEPS = 72
"""Places on a curve, at most."""
Share = Annotated[float, Field(ge=0, le=1)]
Picture = Annotated[str, Field(description="a data: URI of a PNG")]


class Strict(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Health(Strict):
    """That the server lives."""

    status: Literal["ok"] = "ok"
    version: str


class ModelInfo(Strict):
    """A network."""

    name: str
    about: str = Field(description="what kind of levels it has")
    moves: Literal["rotation", "hue"]
    classes: list[str]
    size: int = Field(description="pixels of a side of its images")
    channels: int
    dataset: str
    layers: list[str] = Field(description="layers with a level that is not the full group")


class Models(Strict):
    """All networks that are served."""

    api: Literal["1"] = "1"
    models: list[ModelInfo]
    note: str = Field(description="what a person should know, say why there are no samples")


class SampleInfo(Strict):
    """A test image."""

    id: int
    label: str
    theta: Share | None = Field(description="mean over layers of the share of the circle in use")
    image: Picture


class Samples(Strict):
    """A part of the gallery."""

    total: int
    samples: list[SampleInfo]


class InspectRequest(Strict):
    """One image, by its number among the samples or as a file, and how far it is moved."""

    model_config = ConfigDict(strict=True)
    sample: int | None = Field(None, ge=0, le=2**31, description="id of a sample")
    image: str | None = Field(
        None,
        max_length=IMAGE_BYTES * 4 // 3 + 100,
        description="a PNG, JPEG, WebP, BMP or GIF file in base64, or a data: URI of one",
    )
    angle: float = Field(0.0, ge=-1e6, le=1e6, allow_inf_nan=False, description="in degrees; for hue, of the circle")
    steps: int = Field(36, ge=0, le=STEPS, description="places on the curve, even from 0° on; 0: no curve")
    models: list[Annotated[str, Field(max_length=200)]] | None = Field(
        None, max_length=8, description="names of networks; all, unless given"
    )
    invert: bool = Field(False, description="exchange light and dark before anything else")

    @model_validator(mode="after")
    def _one_image(self) -> InspectRequest:
        if (self.sample is None) == (self.image is None):
            raise ValueError("give either sample or image")
        return self


class LayerLevel(Strict):
    """What a layer uses for this image at this angle."""

    layer: str
    theta: float = Field(description="share of the circle in use, or the width of another family's distribution")
    weights: list[float] | None = Field(description="of every element of the group, summing to 1")


class NetworkAnswer(Strict):
    """What one network says."""

    model: str
    guess: str
    probabilities: list[Share] = Field(description="in the order of the model's classes, at the angle")
    curve: list[list[Share]] = Field(description="for each place on the curve the probability of every class")
    levels: list[LayerLevel]


class InspectAnswer(Strict):
    """What all networks say."""

    api: Literal["1"] = "1"
    angle: float
    places: list[float] = Field(description="of the curve, in degrees")
    image: Picture = Field(description="as the networks see it, moved")
    label: str | None = Field(description="of a sample")
    networks: list[NetworkAnswer]
    milliseconds: float
