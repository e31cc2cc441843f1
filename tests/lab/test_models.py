"""The networks: their sizes, and that one definition serves every level."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support import set_theta, warm
from vpgcnn import SO2, Full, ReparametrizedWindow, Shared, Table, Variational
from vpgcnn.errors import UserError
from vpgcnn.groups import Hue, Product
from vpgcnn.kernels import Siren
from vpgcnn.lab.networks import (
    MODELS,
    ColorConfig,
    ImageNetwork,
    ModelConfig,
    PlainConfig,
    SE2Config,
    build,
    count_parameters,
    in_words,
    ordinary,
    symmetry,
    to_unit,
)
from vpgcnn.lab.networks.config import COLOR_CNN, NO_GROUP
from vpgcnn.levels import Fixed, Level, LevelSpec, SharedLevel, VariationalLevel, Window
from vpgcnn.testing import equivariance_error, smooth_images

SMALL = SE2Config(widths=(4, 4, 6, 6), kernel_sizes=(5, 3, 3), kernel=Siren(hidden=8, omega=4.0))
LEVELS: dict[str, LevelSpec] = {"full": Full(), "shared": Shared(), "variational": Variational()}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"group": NO_GROUP, "level": Full()}, 452_000),
        ({"level": Full()}, 470_000),
        ({"level": Variational()}, 479_000),
    ],
    ids=["ordinary", "full", "variational"],
)
def test_the_papers_resnet_has_the_papers_parameters(change: dict[str, object], expected: int) -> None:
    config = replace(MODELS["se2-resnet"].config, **change)  # type: ignore[arg-type]
    assert count_parameters(build(config, 3, 10)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        (name, level)
        for name, entry in MODELS.items()
        for level in LEVELS
        if level == "full" or not isinstance(entry.config, PlainConfig)  # which has no group here, so no level
    ],
)
def test_every_network_answers_and_every_parameter_learns(name: str, level: str) -> None:
    entry = MODELS[name]
    config = replace(entry.config, level=LEVELS[level])
    model = build(config, entry.in_channels, entry.classes)
    size = 28 if entry.in_channels == 1 else 32
    torch.manual_seed(1)  # of a seed in 256 all images explore
    prediction = model(torch.rand(8, entry.in_channels, size, size))
    assert prediction.logits.shape == (8, entry.classes)
    assert prediction.kl.shape == (8,)
    assert bool((prediction.kl > 0).any()) == (level == "variational" and symmetry(config) != "none")
    (prediction.logits.square().sum() + prediction.kl.sum()).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


def test_levels_are_where_they_were_asked_for() -> None:
    def kinds(config: SE2Config) -> dict[str, type[Level]]:
        found = build(config, 3, 10).named_modules()
        return {name.removesuffix(".level"): type(m) for name, m in found if isinstance(m, Level)}

    paper = kinds(SMALL)
    assert [name for name, kind in paper.items() if kind is VariationalLevel] == ["lift", "last"]
    assert [name for name, kind in paper.items() if kind is SharedLevel] == [
        "stage1.first", "stage1.second", "stage2.first", "stage2.second",
    ]  # fmt: skip
    chosen = kinds(replace(SMALL, where=("stage2.second",), elsewhere=Full()))
    assert [name for name, kind in chosen.items() if kind is VariationalLevel] == ["stage2.second"]
    assert len(set(kinds(replace(SMALL, level=Shared())).values())) == 1


def test_encoders_are_as_wide_as_asked_for() -> None:
    def widths(level: Variational) -> list[int]:
        found = build(replace(SMALL, level=level), 3, 10).modules()
        return [m.encoder.second.out_features for m in found if isinstance(m, VariationalLevel)]

    assert widths(Variational(explore=0)) == [SMALL.widths[0], SMALL.widths[-2]]
    assert widths(Variational()) == [32, 32]  # what learns the cost of every width is not narrower
    assert widths(Variational(encoder_width=5)) == [5, 5]


@pytest.mark.parametrize("config", [SMALL, COLOR_CNN], ids=["se2", "color"])
def test_encoders_of_a_whole_network_can_be_detached(config: ModelConfig) -> None:
    def detached(level: Variational) -> set[bool]:
        found = build(replace(config, level=level), 3, 10).modules()
        return {m.detach_features for m in found if isinstance(m, VariationalLevel)}

    assert detached(Variational()) == {True}
    assert detached(Variational(detach_features=False)) == {False}


STEMS = {"pool": {"stem_pool": True}, "stride": {"stem_pool": False, "stem_stride": 2, "kernel_sizes": (6, 3, 3)}}


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("block", ["residual", "plain"])
def test_full_networks_are_invariant_to_quarter_turns(block: str, stem: str, double: None) -> None:
    config = replace(SMALL, level=Full(), block=block, antialias=True, disc=True, smooth=0.7, **STEMS[stem])  # type: ignore[arg-type]
    model = warm(build(config, 3, 10), torch.rand(8, 3, 24, 24))
    quarters = [math.pi / 2, math.pi, -math.pi / 2]
    error = equivariance_error(model, torch.rand(2, 3, 24, 24), model.group, quarters)  # type: ignore[arg-type]
    assert error.worst < 1e-10


def test_a_variational_network_is_invariant_at_theta_one_and_not_below(double: None) -> None:
    model = warm(build(replace(SMALL, elsewhere=Full()), 3, 10), torch.rand(8, 3, 24, 24))
    images, turn = smooth_images(12, 3, 24).double(), [math.pi / 2]
    errors = []
    for theta in (1.0, 0.6, 0.2):
        set_theta(model, theta)
        errors.append(equivariance_error(model, images, model.group, turn).mean)  # type: ignore[arg-type]
    assert errors[0] < 1e-10
    assert errors[0] < 1e-3 < errors[1] < errors[2]


def test_an_ordinary_network_is_not_invariant() -> None:
    model = warm(build(ordinary(SMALL), 3, 10), torch.rand(8, 3, 24, 24))
    assert equivariance_error(model, smooth_images(3, 3, 24), SO2(4), [math.pi / 2]).mean > 0.01


def test_levels_that_move_elements_are_a_setting() -> None:
    model = build(replace(SMALL, level=Variational(ReparametrizedWindow())), 3, 10)
    prediction = model(torch.rand(3, 3, 24, 24))
    (prediction.logits.sum() + prediction.kl.sum()).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


# ---------------------------------------------------------------- mean and std

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
KINDS: dict[str, ModelConfig] = {
    "se2": SMALL,
    "color-cnn": replace(COLOR_CNN, width=3),
    "color-resnet": ColorConfig(shape="resnet", width=6, where=("lift", "stage4")),
    "plain": PlainConfig(width=4, stem="small", depths=(1, 1)),
    "converted": PlainConfig(width=4, stem="small", depths=(1, 1), group=Hue(3), level=Full()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_networks_hold_the_mean_and_deviation_of_their_training_images(kind: str) -> None:
    """The logits are those of 0.2, which was given (x − mean) / std."""

    def made(mean: tuple[float, ...], std: tuple[float, ...]) -> ImageNetwork:
        torch.manual_seed(3)
        return build(KINDS[kind], 3, 4, mean, std).eval()

    holding, bare = made(MEAN, STD), made((0.0,), (1.0,))
    state = holding.state_dict()
    assert state["mean"].flatten().tolist() == pytest.approx(MEAN)
    assert state["std"].flatten().tolist() == pytest.approx(STD)
    # All weights are the same; only the mean and std differ (twice in a converted network, which moves images first).
    differing = {key for key, value in bare.state_dict().items() if not torch.equal(value, state[key])}
    assert {key.rpartition(".")[2] for key in differing} <= {"mean", "std"}
    pixels = torch.rand(3, 3, 28, 28)
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, STD))
    with torch.no_grad():
        logits = holding(pixels).logits
        if kind != "converted":
            assert torch.allclose(logits, bare((pixels - mean) / std).logits, atol=1e-5)
        else:  # with a mean for each channel, hues shift before pixels are standardised: it is invariant nevertheless
            assert torch.allclose(logits, holding(pixels.roll(1, dims=1)).logits, atol=1e-5)
        assert not torch.allclose(logits, bare(pixels).logits, atol=1e-3)


def test_one_number_standardises_all_channels() -> None:
    torch.manual_seed(0)
    one = build(SMALL, 3, 4, (0.4,), (0.2,)).eval()
    torch.manual_seed(0)
    three = build(SMALL, 3, 4, (0.4,) * 3, (0.2,) * 3).eval()
    images = torch.rand(2, 3, 24, 24)
    assert torch.equal(one(images).logits, three(images).logits)


def test_bytes_become_numbers_in_the_unit_interval() -> None:
    pixels = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert to_unit(pixels).tolist() == [[0.0, pytest.approx(0.2), 1.0]]
    same = torch.rand(2, 3)
    assert to_unit(same) is same


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.0,)), ((0.5, 0.5), (0.2,)), ((0.5,), (-1.0,))])
def test_impossible_deviations_are_refused(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="std"):
        build(SMALL, 3, 4, mean, std)


# ---------------------------------------------------------------- what is refused

Make = Callable[[], ModelConfig]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SMALL, group=SO2(0)), "got 0"),
        (lambda: replace(SMALL, where=("middle",)), "is called 'middle': choose from lift"),
        (lambda: replace(SMALL, kernel_sizes=(4, 4)), "kernel_sizes must be three"),
        (lambda: replace(SMALL, kernel_sizes=(4, 3, 3)), "must be odd"),
        (lambda: replace(SMALL, kernel_sizes=(5, 4, 3)), "must be odd"),
        (lambda: replace(SMALL, stem_stride=2), "the lift's even with stem_stride 2"),
        (lambda: replace(SMALL, stem_stride=0), "stem_stride must be 1 or 2, got 0"),
        (lambda: replace(SMALL, level=Variational(ReparametrizedWindow(), condition="output")), "input"),
        (lambda: replace(SMALL, smooth=-1.0), "got -1.0"),
        (lambda: replace(SMALL, widths=(3,)), "widths"),
        (lambda: replace(SMALL, kernel=Siren(hidden=0)), "hidden"),
        (lambda: replace(SMALL, kernel=Table()), r"use kernel=Harmonic\(\)"),
        (lambda: replace(SMALL, level=Variational(Window(initial=2.0))), "got 2.0"),
        (lambda: replace(SMALL, level="full"), r"level must be a value such as Full\(\), got 'full'"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused(make: Make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(make(), 3, 10)


def test_nonsense_that_only_the_network_can_see_is_a_user_error() -> None:
    """So that the command line answers with a sentence."""
    for config in (
        replace(SMALL, kernel=Table()),
        replace(SMALL, level=Variational(ReparametrizedWindow(), condition="output")),
        replace(SMALL, where=("middle",)),
    ):
        with pytest.raises(UserError):
            build(config, 3, 10)
    with pytest.raises(UserError, match="at least 2 classes, got 3 and 1"):
        build(SMALL, 3, 1)
    with pytest.raises(UserError, match="needs colour images, got 1 channel"):
        build(replace(SMALL, group=Product(SO2(4), Hue(3))), 1, 3)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ordinary(SMALL), "SE(2) network without a group"),
        (SMALL, "SE(2) network on SO2(4), a level for each image"),
        (replace(SMALL, level=Fixed(0.3)), "SE(2) network on SO2(4), the level Fixed(0.3)"),
        (replace(COLOR_CNN, level=Shared()), "colour CNN on Hue(3), one level for all images"),
        (PlainConfig(group=Hue(3)), "ResNet in plain PyTorch on Hue(3), the whole group for every image"),
    ],
)
def test_networks_in_words(config: ModelConfig, words: str) -> None:
    assert in_words(config) == words


def test_features_are_what_the_head_sees() -> None:
    model = build(SMALL, 3, 5).eval()
    images: Tensor = torch.rand(2, 3, 24, 24)
    assert torch.equal(model.head(model.features(images).values), model(images).logits)
