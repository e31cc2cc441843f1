"""Digits with known ranges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.kernels import Siren
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.base import Split
from vpgcnn.lab.training.loop import train
from vpgcnn.lab.training.recipes import recipe


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
