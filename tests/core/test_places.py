"""Accuracy at unseen places counts the right images at the right places, and idle levels are named."""

import math

import pytest
import torch
from torch import Tensor, nn

from vpgcnn import SO2, Dihedral, GroupConv2d, Hue, LiftConv2d, Prediction, Product, Rotations, Variational, name_layers
from vpgcnn.errors import UserError
from vpgcnn.measure import LevelReading, at_places, idle_levels, levels


def corner(places: int) -> Tensor:
    """Images with one bright corner, upper left."""
    images = torch.zeros(places, 1, 9, 9)
    images[:, :, :3, :3] = 1
    return images


def is_upper_left(pixels: Tensor) -> Tensor:
    """Class 0 if most of the light is in the upper left quarter, else class 1."""
    light = pixels[:, 0, :4, :4].sum(dim=(-2, -1))
    others = pixels[:, 0].sum(dim=(-2, -1)) - light
    return torch.stack([light, others + 1e-3], dim=1)


def test_free_images_count_everywhere_and_bound_ones_inside_their_range() -> None:
    images, labels = corner(2), torch.tensor([0, 0])
    found = at_places(is_upper_left, images, labels, torch.tensor([1.0, 0.25]), "rotation")
    # The corner stays in its quarter up to about 30°: 2 to 4 of 23 rotations. Two thirds of a quarter are 30°.
    assert found.free is not None
    assert found.bound is not None
    assert found.free < 0.3
    assert found.bound == 1.0
    assert found.moved == pytest.approx(found.free)


def test_without_truth_only_the_mean_over_all_places_is_known() -> None:
    found = at_places(is_upper_left, corner(1), torch.tensor([0]), None, "rotation")
    assert (found.free, found.bound) == (None, None)
    assert found.moved is not None
    assert 0 < found.moved < 0.3


def test_a_mirror_is_one_place_outside_every_bound_range() -> None:
    images, labels = corner(2), torch.tensor([0, 1])
    found = at_places(is_upper_left, images, labels, torch.tensor([1.0, 0.5]), "mirror")
    assert (found.free, found.bound, found.moved) == (0.0, None, 0.5)


def test_hues_come_in_twelfths() -> None:
    seen: list[Tensor] = []

    def remember(pixels: Tensor) -> Tensor:
        seen.append(pixels)
        return torch.tensor([[1.0, 0.0]]).expand(len(pixels), 2)

    red = torch.zeros(1, 3, 4, 4)
    red[:, 0] = 1
    assert at_places(remember, red, torch.tensor([0]), torch.tensor([1.0]), "hue").free == 1.0
    assert len(seen) == 11
    pure = [pixels[0, :, 0, 0].round(decimals=4).tolist() for pixels in seen]
    assert [0.0, 1.0, 0.0] in pure
    assert [0.0, 0.0, 1.0] in pure


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(UserError, match="got 'scale'"):
        at_places(is_upper_left, corner(1), torch.tensor([0]), None, "scale")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"one range for each of 2 images, got shape \(1,\)"):
        at_places(is_upper_left, corner(2), torch.tensor([0, 0]), torch.tensor([1.0]), "rotation")


def reading(theta: Tensor, group: object, *, shared: bool = False) -> LevelReading:
    layers = frozenset({"last"}) if shared else frozenset[str]()
    return LevelReading(torch.zeros(len(theta), 2), {"last": theta}, {"last": theta}, {"last": group}, layers)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("theta", "says"),
    [
        (torch.full((100, 1), 1.0), "all windows of layer last are open"),
        (torch.full((100, 1), 0.03), "all windows of layer last are closed"),
        (torch.full((100, 1), 0.62), "θ of layer last is 0.62 for every image"),
    ],
)
def test_a_level_that_does_nothing_is_named(theta: Tensor, says: str) -> None:
    (sentence,) = idle_levels(reading(theta, SO2(8)))
    assert says in sentence
    assert idle_levels(reading(theta, SO2(8), shared=True)) == []  # a shared level is meant to be the same


def test_a_level_that_depends_on_the_image_is_not() -> None:
    assert idle_levels(reading(torch.linspace(0.2, 1.0, 100)[:, None], SO2(8))) == []


def test_closed_means_the_identity_alone_on_a_finite_group() -> None:
    (sentence,) = idle_levels(reading(torch.full((10, 1), 1 / 3), Hue(3)))
    assert "closed, or nearly (θ ≤ 0.38)" in sentence


def test_each_circle_has_its_own_sentence() -> None:
    theta = torch.stack([torch.ones(50), torch.linspace(0.4, 0.9, 50)], dim=1)
    (sentence,) = idle_levels(reading(theta, Product(SO2(8), Hue(3))))
    assert "last (rotation) are open" in sentence
    assert "fully equivariant to rotation, but not to hue" in sentence
    assert "Full()" not in sentence  # it would open the windows of hue, too
    nearly = theta.flip(1) * 0.03 + torch.tensor([0.01, 0.3])  # hue: from 0.33 on, and at most 0.36
    assert ["are closed, or nearly" in each for each in idle_levels(reading(nearly, Product(SO2(8), Hue(3))))] == [
        True
    ] * 2
    # Dihedral(1) has rotations by 0° only: no circle, nothing to say.
    assert idle_levels(reading(theta, Dihedral(1))) == []
    assert math.isclose(float(theta[0, 0]), 1.0)


def test_a_table_of_levels_names_those_that_do_nothing() -> None:
    model = nn.Sequential(LiftConv2d(1, 2, 3, Rotations(4)), GroupConv2d(2, 2, 3, Rotations(4), level=Variational()))
    model = name_layers(Net(model)).eval()
    table = levels(model, torch.rand(30, 1, 8, 8))
    assert len(table.idle) == 1
    assert f"note: {table.idle[0]}" in repr(table)
    assert levels(model, torch.rand(5, 1, 8, 8)).idle == ()  # too few to say


def test_a_table_has_one_column_for_each_circle() -> None:
    group = Dihedral(1)
    model = nn.Sequential(LiftConv2d(1, 2, 3, group), GroupConv2d(2, 2, 3, group, level=Variational()))
    table = levels(name_layers(Net(model)), torch.rand(2, 1, 8, 8))
    assert repr(table).splitlines()[0].split() == ["image", "θ", "body.1", "mirror"]
    row = table.rows()[0]
    assert (row["axes"], len(row["theta"]), row["window"]) == (["mirror"], 1, [None])


def test_levels_are_read_in_evaluation_mode_whatever_the_mode_is() -> None:
    model = nn.Sequential(LiftConv2d(1, 2, 3, Rotations(4)), GroupConv2d(2, 2, 3, Rotations(4), level=Variational()))
    net, images = name_layers(Net(model)).eval(), torch.rand(30, 1, 8, 8)
    theta = levels(net, images).theta
    net.train()
    net.body[0].eval()  # frozen, say
    assert all(torch.equal(values, theta[layer]) for layer, values in levels(net, images).theta.items())
    assert [part.training for part in (net, net.body[0], net.body[1])] == [True, False, True]


class Net(nn.Module):
    def __init__(self, body: nn.Sequential) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: torch.Tensor) -> Prediction:
        feature = self.body(images)
        return Prediction(feature.values.mean(dim=(2, 3, 4)), feature.trace)
