"""Digits with known ranges, and nearest neighbours as evidence of whether the place on a circle matters."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import kornia
import pytest
import torch
from torch import Tensor

from vpgcnn.apps import cli
from vpgcnn.color import shift_hue
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.kernels import Siren
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.base import Split
from vpgcnn.lab.training.loop import train
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.measure import circle_picture, evidence
from vpgcnn.measure.evidence import cautious


@pytest.fixture(scope="module")
def digits() -> Split:
    return load(DataConfig(name="mnist-ranges", source="embedded")).all()


def test_the_range_is_a_property_of_the_image_and_not_of_its_digit(digits: Split) -> None:
    assert digits.reach is not None
    assert digits.reach.unique().tolist() == [0.25, 0.5, 1.0]
    for digit in (0, 1):
        reach = digits.reach[digits.labels // 2 == digit]
        shares = [float((reach == value).double().mean()) for value in (0.25, 0.5, 1.0)]
        assert shares == pytest.approx([1 / 3] * 3, abs=0.01)
    turned = digits.labels % 2 == 1
    assert not bool((digits.reach[turned] == 1).any())  # a digit that may rotate freely never changes its class
    for value in (0.25, 0.5):
        assert float(turned[digits.reach == value].double().mean()) == pytest.approx(0.5)


def test_the_size_determines_the_range(digits: Split) -> None:
    extent = (digits.images > 100).flatten(1).sum(dim=1).double()
    assert digits.reach is not None
    means = [float(extent[digits.reach == value].mean()) for value in (0.25, 0.5, 1.0)]
    assert means[0] > 1.3 * means[1] > 1.3 * 1.3 * means[2]


def test_a_digit_and_its_rotated_copy_are_the_same_digit() -> None:
    """Rotated by 180°, digits of medium size match their copies up to a jitter of 5° each."""
    part = load(DataConfig(name="mnist-ranges", source="embedded")).train
    assert part.reach is not None
    medium = (part.labels < 2) & (part.reach == 0.5)
    images = part.images[medium].float()
    first, second = images.split(len(images) // 2)
    back = second.rot90(2, (-2, -1))

    def similarity(one: Tensor, two: Tensor) -> float:
        return float(torch.cosine_similarity(one.flatten(1), two.flatten(1)).mean())

    assert similarity(first, back) > 0.85
    assert similarity(first, second) < 0.7


def test_the_same_seed_gives_the_same_digits() -> None:
    one, two, other = (
        load(DataConfig(name="mnist-ranges", source="embedded", seed=seed)).fingerprint() for seed in (0, 0, 1)
    )
    assert one == two != other


def test_indexing_a_split_keeps_the_ranges(digits: Split) -> None:
    part = digits[torch.tensor([5, 3])]
    assert part.reach is not None
    assert digits.reach is not None
    assert torch.equal(part.reach, digits.reach[[5, 3]])
    with pytest.raises(UserError, match="2 images, but ranges of shape"):
        Split(part.images, part.labels, torch.ones(3))


def test_evaluation_compares_levels_with_the_true_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = recipe("mnist-ranges")
    model = replace(config.model, widths=(2, 2, 4), kernel=Siren(hidden=4))
    data = replace(config.data, source="embedded", limit=64)
    train(replace(config, model=model, data=data, epochs=1, device="cpu"), tmp_path / "run")
    assert cli.main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["against_truth"]["last"]
    assert set(found) == {"error", "overlap", "rank_correlation"}
    assert 0 < found["overlap"] < 1
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0
    assert "compared with the true range of each image: rank correlation" in capsys.readouterr().out


def test_moving_an_image_rolls_its_circle_picture() -> None:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 48), indexing="ij")
    images = torch.exp(-12 * ((x - 0.4).square() + (y + 0.1).square()))[None, None]
    turned = SO2().transform(images, math.radians(60), mode="bicubic")
    one, two = circle_picture(images, "rotation"), circle_picture(turned, "rotation")
    assert float((one.roll(4, 2) * two).sum()) > 0.97
    assert float((one * two).sum()) < 0.8
    colors = torch.rand(2, 3, 1, 1).expand(-1, -1, 8, 8)
    one, two = circle_picture(colors, "hue"), circle_picture(shift_hue(colors, 1 / 3), "hue")
    assert torch.allclose(one.roll(8, 2), two, atol=1e-4)
    theirs = kornia.color.hsv_to_rgb(
        kornia.color.rgb_to_hsv(colors) + torch.tensor([2 * math.pi / 3, 0, 0]).view(3, 1, 1)
    )
    assert torch.allclose(circle_picture(theirs, "hue"), two, atol=1e-3)
    grey = torch.rand(1, 1, 8, 8).expand(-1, 3, -1, -1)
    assert float(circle_picture(grey, "hue").abs().max()) < 1e-3
    with pytest.raises(UserError, match="needs colour images, got 1 channel"):
        circle_picture(grey[:, :1], "hue")


def placed(free: bool, count: int = 240) -> tuple[Tensor, Tensor]:
    """Circle pictures of three classes, which differ by the width of a spot (`free`) or by its place."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    place = torch.randint(24, (count,), generator=generator) if free else 8 * labels
    width = (2.0 + 3 * labels) if free else torch.full((count,), 3.0)
    circle = torch.arange(24)
    distance = (circle - place[:, None] + 12) % 24 - 12
    pictures = torch.exp(-(distance / width[:, None]).square())[:, None]
    return pictures + 0.05 * torch.rand(pictures.shape, generator=generator), labels


def test_neighbours_show_whether_the_place_determines_the_class() -> None:
    bound = evidence(*placed(free=False))
    assert bound.as_is.mean() == 1
    assert bound.free.mean() < 0.5
    assert bound.matters() is True
    loose = evidence(*placed(free=True))
    assert loose.free.mean() > 0.95
    assert loose.matters() is False
    assert loose.share < 0.1 < 0.9 < bound.share
    few = evidence(*placed(free=True, count=6))
    assert few.matters() is None
    noise = evidence(torch.rand(300, 1, 24, generator=torch.Generator().manual_seed(1)), torch.arange(300) % 3)
    assert noise.matters() is None  # uninformative neighbours are no evidence
    assert bound.chance == pytest.approx(1 / 3)
    with pytest.raises(UserError, match="at least 2 images"):
        evidence(torch.rand(1, 1, 24), torch.tensor([0]))


def test_few_agreeing_samples_leave_uncertainty() -> None:
    mean, error = cautious(torch.ones(2, dtype=torch.float64))
    assert mean == 1
    assert error > 0.5
    _, error = cautious(torch.zeros(1000, dtype=torch.float64))
    assert 0 < error < 0.01
    assert cautious(torch.zeros(0)) == (0.0, math.inf)
