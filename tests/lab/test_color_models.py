"""The networks on hue: their sizes, their symmetry, and where their levels are."""

import math
from dataclasses import replace

import pytest
import torch

from support import set_theta, warm
from vpgcnn import Full, GumbelSoftmax, Hue, RankedSoftmax, ReparametrizedWindow, Rotations, Shared, Variational
from vpgcnn.errors import UserError
from vpgcnn.lab.networks import ColorConfig, build, count_parameters, ordinary
from vpgcnn.lab.networks.config import (
    COLOR_CNN,
    COLOR_RESNET,
    COLOR_RESNET50,
    COLOR_RESNET_SMALL,
    NO_GROUP,
    PLAIN_RESNET50,
)
from vpgcnn.levels import Family, Level, LevelSpec, SharedLevel, VariationalLevel, Window
from vpgcnn.levels.level import FullLevel
from vpgcnn.testing import equivariance_error

SMALL_CNN = replace(COLOR_CNN, width=4, group_pool="mean", level=Variational())
SMALL_RESNET = replace(COLOR_RESNET, width=6)
SMALL_RESNET50 = replace(COLOR_RESNET50, width=6, depths=(1, 2, 1, 1))


@pytest.mark.parametrize(
    ("config", "classes", "authors"),
    [
        (ordinary(COLOR_CNN), 30, 19e3),
        (replace(ordinary(COLOR_CNN), width=20), 30, 26e3),
        (replace(COLOR_CNN, level=Full()), 30, 25e3),
        (replace(COLOR_CNN, level=Full(), group=Hue(6)), 30, 32e3),
        (replace(COLOR_CNN, level=Variational(explore=0)), 30, 28e3),
        (replace(COLOR_CNN, level=Variational(explore=0), group=Hue(6)), 30, 34e3),
        (ordinary(COLOR_RESNET), 102, 11.23e6),
        (replace(COLOR_RESNET, level=Full()), 102, 11.39e6),
        (COLOR_RESNET, 102, 14.14e6),
    ],
)
def test_parameters_are_those_of_the_authors(config: ColorConfig, classes: int, authors: float) -> None:
    """Within 3 %, and the 3 % include what rounding to thousands hides."""
    count = count_parameters(build(config, 3, classes))
    assert count == pytest.approx(authors, rel=0.03)


def test_a_hybrid_has_as_many_parameters() -> None:
    for stages in range(5):
        config = replace(COLOR_RESNET, level=Full(), equivariant=stages)
        count = count_parameters(build(config, 3, 102))
        assert count == pytest.approx(11.23e6, rel=0.03)


@pytest.mark.parametrize("elements", [3, 6])
@pytest.mark.parametrize(
    "config",
    [SMALL_CNN, SMALL_RESNET, replace(SMALL_RESNET, equivariant=2), SMALL_RESNET50],
    ids=["cnn", "resnet", "hybrid", "bottleneck"],
)
def test_full_networks_are_invariant_to_hue(double: None, config: ColorConfig, elements: int) -> None:
    """Also hybrids, whose hues are pooled away in the middle."""
    model = warm(build(replace(config, level=Full(), group=Hue(elements)), 3, 5), torch.rand(8, 3, 28, 28))
    error = equivariance_error(model, torch.rand(2, 3, 28, 28), Hue(elements))
    assert error.worst < 1e-10


@pytest.mark.parametrize("config", [SMALL_CNN, SMALL_RESNET], ids=["cnn", "resnet"])
def test_variational_networks_are_invariant_at_theta_one_and_not_below(double: None, config: ColorConfig) -> None:
    model = warm(build(config, 3, 5), torch.rand(8, 3, 28, 28))
    images, errors = torch.rand(3, 3, 28, 28), []
    for theta in (1.0, 0.7, 0.4):
        set_theta(model, theta)
        errors.append(equivariance_error(model, images, Hue(3), [2 * math.pi / 3]).mean)
    assert errors[0] < 1e-10
    assert min(errors[1:]) > 1e-3


@pytest.mark.parametrize("config", [SMALL_CNN, SMALL_RESNET], ids=["cnn", "resnet"])
def test_flattened_and_ordinary_networks_remember_the_hue(config: ColorConfig) -> None:
    for other in (replace(config, level=Full(), group_pool="flatten"), ordinary(config)):
        model = warm(build(other, 3, 5), torch.rand(8, 3, 28, 28))
        assert equivariance_error(model, torch.rand(2, 3, 28, 28), Hue(3)).mean > 1e-3


@pytest.mark.parametrize("elements", [3, 6])
@pytest.mark.parametrize("separable", [True, False])
def test_a_resnet50_on_hues_is_as_large_as_the_ordinary_one(elements: int, separable: bool) -> None:
    config = replace(COLOR_RESNET50, level=Full(), group=Hue(elements), separable=separable)
    plain = count_parameters(build(PLAIN_RESNET50, 3, 102))
    assert count_parameters(build(ordinary(config), 3, 102)) == plain
    assert count_parameters(build(config, 3, 102)) == pytest.approx(plain, rel=0.04)


def levels(config: ColorConfig) -> dict[str, type]:
    model = build(config, 3, 5)
    return {name.removesuffix(".level"): type(part) for name, part in model.named_modules() if isinstance(part, Level)}


def test_levels_are_where_they_were_put() -> None:
    pairs: list[tuple[LevelSpec, type[Level]]] = [(Shared(), SharedLevel), (Variational(), VariationalLevel)]
    for level, kind in pairs:
        found = levels(replace(SMALL_CNN, level=level))
        assert [name for name, own in found.items() if own is kind] == ["conv6", "conv7"]
        assert set(found.values()) == {kind, FullLevel}
        found = levels(replace(SMALL_RESNET, level=level))
        stage = [f"stage4.{block}.{conv}" for block in (0, 1) for conv in ("first", "second")]
        assert {name for name, own in found.items() if own is kind} == {"lift", *stage, "stage4.0.shortcut"}
    found = levels(SMALL_RESNET50)
    stage = [f"stage4.0.{conv}" for conv in ("first", "second", "third", "shortcut")]
    assert {name for name, own in found.items() if own is VariationalLevel} == {"lift", *stage}
    only = levels(replace(SMALL_RESNET, where=("stage2.1.second",), elsewhere=Shared()))
    assert [name for name, own in only.items() if own is VariationalLevel] == ["stage2.1.second"]
    assert set(only.values()) == {SharedLevel, VariationalLevel}


def test_encoders_can_be_lighter_than_their_layers() -> None:
    """The small ResNet of Flowers102: a quarter more parameters than without levels, or 3 % with 16 channels."""

    def parameters(level: LevelSpec) -> int:
        return count_parameters(build(replace(COLOR_RESNET_SMALL, level=level), 3, 102))

    full, heavy, light = (parameters(level) for level in (Full(), Variational(), Variational(encoder_width=16)))
    assert 1.2 * full < heavy < 1.27 * full
    assert full < light < 1.03 * full
    with pytest.raises(ValueError, match=r"encoder_width.* got -1"):
        parameters(Variational(encoder_width=-1))


@pytest.mark.parametrize("family", [Window(), RankedSoftmax(), GumbelSoftmax()], ids=["window", "ranked", "gumbel"])
@pytest.mark.parametrize("config", [SMALL_CNN, SMALL_RESNET], ids=["cnn", "resnet"])
def test_every_family_trains(config: ColorConfig, family: Family) -> None:
    model = build(replace(config, level=Variational(family)), 3, 5)
    prediction = model(torch.rand(8, 3, 28, 28))
    (prediction.logits.square().sum() + prediction.kl.sum()).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []
    assert (prediction.kl > 0).any()  # of those whose windows were not drawn


def test_grey_images_need_the_ordinary_network() -> None:
    with pytest.raises(UserError, match="needs colour images, got 1 channel"):
        build(SMALL_CNN, 1, 5)
    assert build(ordinary(SMALL_CNN), 1, 5)(torch.rand(2, 1, 28, 28)).logits.shape == (2, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"group": Rotations(4)}, r"must be finite and act on colours, or none, got Rotations\(4\)"),
        ({"depths": (2, 2)}, r"depths are the numbers of blocks of four stages, got \(2, 2\)"),
        ({"equivariant": 5}, "from 0 to 4, got 5"),
        (
            {"where": ("conv6",)},
            "is called 'conv6': choose from lift, stage1, stage2, stage3, stage4, or a layer inside one",
        ),
        ({"where": ()}, "where is empty"),
        ({"where": "lift"}, "where must be a tuple of names, got the text 'lift'"),
        ({"equivariant": 2}, "stage4 is not on hues, as only 2 stages are"),
        ({"group": NO_GROUP}, r"the level must be Full\(\), got Variational"),
        ({"shape": "cnn", "where": ("conv7",), "equivariant": 2}, "the cnn has no stages"),
        ({"level": Variational(ReparametrizedWindow())}, "use Window"),
        ({"dropout": 1.5, "shape": "cnn", "where": ("conv7",)}, r"p must be in \[0, 1\), got 1.5"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(replace(SMALL_RESNET, **change), 3, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [COLOR_CNN, COLOR_RESNET_SMALL], ids=["cnn", "resnet"])
def test_networks_begin_with_the_same_weights_whatever_their_levels(config: ColorConfig) -> None:
    found = []
    for level in (Full(), Shared(), Variational()):
        torch.manual_seed(4)
        found.append(build(replace(config, level=level), 3, 10).state_dict())
    full, *others = found
    assert all(torch.equal(value, other[key]) for other in others for key, value in full.items())
    encoders = [value for key, value in others[1].items() if key.endswith("encoder.first.weight")]
    assert len(encoders) > 1
    assert not torch.equal(encoders[0].flatten()[:9], encoders[1].flatten()[:9])
