"""The hue shift of photo editors against kornia, and where it parts from the linear one."""

import math

import pytest
import torch

from vpgcnn import Hue
from vpgcnn.color import shift_hue


@pytest.mark.parametrize("shift", [0.0, 0.1, 1 / 3, 0.5, -0.25, 0.9])
def test_it_is_that_of_kornia(shift: float) -> None:
    kornia = pytest.importorskip("kornia")
    images = torch.rand(4, 3, 8, 8, dtype=torch.float64)
    hue, saturation, value = kornia.color.rgb_to_hsv(images).unbind(1)
    moved = torch.stack([torch.remainder(hue + 2 * math.pi * shift, 2 * math.pi), saturation, value], dim=1)
    assert torch.allclose(shift_hue(images, shift), kornia.color.hsv_to_rgb(moved), atol=1e-6)


def test_it_meets_the_linear_shift_at_thirds_of_the_circle_and_nowhere_between() -> None:
    images = torch.rand(4, 3, 8, 8, dtype=torch.float64)
    for m, third in ((3, True), (6, False), (12, False)):
        linear = Hue(m).transform(images, torch.tensor([2 * math.pi / m], dtype=torch.float64))
        gap = float((shift_hue(images, 1 / m) - linear).abs().max())
        assert (gap < 1e-12) if third else (gap > 0.05)


def test_grey_has_no_hue_and_colours_stay_in_the_cube() -> None:
    grey = torch.rand(2, 1, 5, 5).expand(2, 3, 5, 5)
    assert torch.allclose(shift_hue(grey, 0.3), grey)
    moved = shift_hue(torch.rand(8, 3, 16, 16), 0.17)
    assert moved.min() >= -1e-6
    assert moved.max() <= 1 + 1e-6


def test_shifts_add_up_and_each_image_may_have_its_own() -> None:
    images = torch.rand(3, 3, 6, 6, dtype=torch.float64)
    twice = shift_hue(shift_hue(images, 0.2), 0.35)
    assert torch.allclose(twice, shift_hue(images, 0.55), atol=1e-12)
    shifts = torch.tensor([0.1, 0.4, -0.3], dtype=torch.float64)
    each = torch.stack([shift_hue(image, float(shift)) for image, shift in zip(images, shifts, strict=True)])
    assert torch.allclose(shift_hue(images, shifts), each)


@pytest.mark.parametrize("wrong", [torch.rand(2, 1, 4, 4), torch.ones(3, 4, 4, dtype=torch.uint8), torch.rand(3)])
def test_what_has_no_colour_is_named(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"images must be …×3×H×W"):
        shift_hue(wrong, 0.1)
