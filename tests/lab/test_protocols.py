"""Digits after the protocols of other papers: which image is where, and that the stated truth is true."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.lab.data import DataConfig, load, mnist
from vpgcnn.lab.data.mnist import split_digits
from vpgcnn.lab.data.registry import DATASETS
from vpgcnn.lab.training.recipes import recipe

NAMES = ("mnist-multiple", "mnist-symmetry-breaking")


@cache
def digits() -> list[dict[int, torch.Tensor]]:
    return split_digits(DataConfig(source="embedded"), Path(), range(10))[0]


def originals(part: int, digit: int) -> torch.Tensor:
    """The images of a digit before anything was done to them."""
    return digits()[part][digit]


def test_a_digit_is_rotated_within_its_range_and_over_all_of_it() -> None:
    data = load(DataConfig(name="mnist-multiple", source="embedded"))
    assert data.train.reach is not None
    assert torch.allclose(data.train.reach, data.train.labels / 10)
    angles = torch.arange(-180, 180, 6)
    for digit in (0, 3, 9):
        shown = data.train.images[data.train.labels == digit][:60].float()
        upright = originals(0, digit)[:60].float()
        turned = torch.stack([SO2().transform(upright, float(torch.deg2rad(angle))) for angle in angles])
        found = angles[(turned - shown).square().sum(dim=(2, 3, 4)).argmin(dim=0)]
        assert int(found.abs().max()) <= 18 * digit + 6
        if digit:
            assert int(found.min()) < -10 * digit
            assert int(found.max()) > 10 * digit


def test_half_of_the_sixes_and_nines_change_places_and_nothing_else_moves() -> None:
    data = load(DataConfig(name="mnist-symmetry-breaking", source="embedded"))
    for place, split in enumerate((data.train, data.validation, data.test)):
        assert split.reach is not None
        bound = (split.labels == 6) | (split.labels == 9)
        assert torch.equal(split.reach == 0.5, bound)
        assert torch.equal(split.reach == 1.0, ~bound)
        for digit in range(10):
            seen = {image.tobytes() for image in split.images[split.labels == digit].numpy()}
            own = list(originals(place, digit).numpy())
            if digit not in (6, 9):
                assert seen == {image.tobytes() for image in own}
                continue
            stayed = np.mean([image.tobytes() in seen for image in own])
            others = [np.rot90(image, 2, (-2, -1)).tobytes() in seen for image in originals(place, 15 - digit).numpy()]
            assert 0.2 < stayed < 0.8
            assert 0.2 < np.mean(others) < 0.8
            assert len(seen) == round(stayed * len(own)) + sum(others)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_is_the_draw_and_there_is_a_recipe(name: str) -> None:
    one, same, other = (load(DataConfig(name=name, source="embedded", seed=seed)).fingerprint() for seed in (0, 0, 1))
    assert one == same != other
    assert recipe(name).data.name == name
    assert name in DATASETS


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_digit_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mnist._read_embedded_digits()
    monkeypatch.setattr(mnist, "_read_embedded_digits", lambda: found[found.labels != 4])
    with pytest.raises(UserError, match="there is no 4"):
        load(DataConfig(name=name, source="embedded"))
