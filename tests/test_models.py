"""The networks: their sizes, and that one definition serves every level."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from conftest import set_theta, warm
from vpgcnn import Learned, Variational
from vpgcnn.errors import UserError
from vpgcnn.levels import Level
from vpgcnn.models import MODELS, ModelConfig, SE2Config, build, count_parameters, symmetry
from vpgcnn.models.config import COLOR_CNN
from vpgcnn.testing import equivariance_error, smooth_images

SMALL = SE2Config(widths=(4, 4, 6, 6), kernel_sizes=(5, 3, 3), hidden=8, omega=4.0)
LEVELS = ("full", "learned", "variational")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"group": "t2", "elements": 1, "level": "full"}, 452_000),
        ({"level": "full"}, 470_000),
        ({"level": "variational"}, 479_000),
    ],
)
def test_the_papers_resnet_has_the_papers_parameters(change: dict[str, object], expected: int) -> None:
    config = replace(MODELS["se2-resnet"].config, **change)  # type: ignore[arg-type]
    assert count_parameters(build(config, 3, 10)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_every_network_answers_and_every_parameter_learns(name: str, level: str) -> None:
    entry = MODELS[name]
    model = build(replace(entry.config, level=level), entry.in_channels, entry.classes)  # type: ignore[arg-type]
    size = 28 if entry.in_channels == 1 else 32
    logits, divergence = model(torch.rand(3, entry.in_channels, size, size))
    assert logits.shape == (3, entry.classes)
    assert divergence.shape == (3,)
    assert bool((divergence > 0).any()) == (level == "variational" and symmetry(entry.config) != "none")
    (logits.square().sum() + divergence.sum()).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


def test_levels_are_where_they_were_asked_for() -> None:
    def kinds(config: SE2Config) -> dict[str, type[Level]]:
        found = build(config, 3, 10).named_modules()
        return {name.removesuffix(".level"): type(m) for name, m in found if isinstance(m, Level)}

    paper = kinds(SMALL)
    assert [name for name, kind in paper.items() if kind is Variational] == ["lift", "last"]
    assert [name for name, kind in paper.items() if kind is Learned] == [
        "stages.0.first", "stages.0.second", "stages.1.first", "stages.1.second",
    ]  # fmt: skip
    chosen = kinds(replace(SMALL, where=("stage2.second",), elsewhere="full"))
    assert [name for name, kind in chosen.items() if kind is Variational] == ["stages.1.second"]
    assert len(set(kinds(replace(SMALL, level="learned")).values())) == 1


def test_encoders_are_as_wide_as_asked_for() -> None:
    def widths(**changes: object) -> list[int]:
        found = build(replace(SMALL, **changes), 3, 10).modules()  # type: ignore[arg-type]
        return [m.encoder.second.out_features for m in found if isinstance(m, Variational)]

    assert widths() == [SMALL.widths[0], SMALL.widths[-2]]
    assert widths(encoder=5) == [5, 5]


@pytest.mark.parametrize("config", [SMALL, COLOR_CNN])
def test_encoders_of_a_whole_network_can_be_detached(config: ModelConfig) -> None:
    def detached(**changes: object) -> set[bool]:
        found = build(replace(config, **changes), 3, 10).modules()  # type: ignore[arg-type]
        return {m.detached for m in found if isinstance(m, Variational)}

    assert detached() == {False}
    assert detached(detached=True) == {True}


STEMS = {"pool": {"stem_pool": True}, "stride": {"stem_pool": False, "stem_stride": 2, "kernel_sizes": (6, 3, 3)}}


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("block", ["residual", "plain"])
def test_full_networks_are_invariant_to_quarter_turns(block: str, stem: str, double: None) -> None:
    config = replace(SMALL, level="full", block=block, antialias=True, disc=True, smooth=0.7, **STEMS[stem])  # type: ignore[arg-type]
    model = warm(build(config, 3, 10), torch.rand(8, 3, 24, 24))
    quarters = [math.pi / 2, math.pi, -math.pi / 2]
    error = equivariance_error(model, torch.rand(2, 3, 24, 24), model.group, quarters)  # type: ignore[arg-type]
    assert error.worst < 1e-10


def test_a_variational_network_is_invariant_at_theta_one_and_not_below(double: None) -> None:
    model = warm(build(replace(SMALL, elsewhere="full"), 3, 10), torch.rand(8, 3, 24, 24))
    images, turn = smooth_images(3, 3, 24).double(), [math.pi / 2]
    errors = []
    for theta in (1.0, 0.6, 0.2):
        set_theta(model, theta)
        errors.append(equivariance_error(model, images, model.group, turn).mean)  # type: ignore[arg-type]
    assert errors[0] < 1e-10
    assert errors[0] < 1e-3 < errors[1] < errors[2]


def test_an_ordinary_network_is_not_invariant() -> None:
    model = warm(build(replace(SMALL, group="t2", elements=1, level="full"), 3, 10), torch.rand(8, 3, 24, 24))
    from vpgcnn import SO2

    assert equivariance_error(model, smooth_images(3, 3, 24), SO2(), [math.pi / 2]).mean > 0.01


def test_pathwise_levels_are_a_setting() -> None:
    model = build(replace(SMALL, family="pathwise"), 3, 10)
    logits, divergence = model(torch.rand(3, 3, 24, 24))
    (logits.sum() + divergence.sum()).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": "su3"}, "unknown group 'su3'"),
        ({"elements": 0}, "elements and hues must be at least 1, got 0"),
        ({"level": "none"}, "unknown level 'none'"),
        ({"where": ("middle",)}, "is called 'middle': choose from lift"),
        ({"family": "oval"}, "unknown family 'oval'"),
        ({"kernel_sizes": (4, 4)}, "are three"),
        ({"kernel_sizes": (4, 3, 3)}, "must be odd"),
        ({"kernel_sizes": (5, 4, 3)}, "must be odd"),
        ({"stem_stride": 2}, "the lift's even with stem_stride 2"),
        ({"stem_stride": 0}, "stem_stride is 1 or 2, got 0"),
        ({"family": "pathwise", "sees": "output"}, "sees the input"),
        ({"smooth": -1.0}, "got -1.0"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(replace(SMALL, **change), 3, 10)  # type: ignore[arg-type]
