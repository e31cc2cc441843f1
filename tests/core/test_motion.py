"""How features ought to move: permutations on the grid, exact for hues in between, and derivatives of that."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vpgcnn import SO2, Dihedral, GroupFeature, Hue, LiftConv2d, Product, Rotations
from vpgcnn.errors import UserError
from vpgcnn.groups import Group, translate_index
from vpgcnn.measure.motion import KINDS, Kind, move, speed

GROUPS = {
    "hue": [Hue(3), Hue(6), Product(Rotations(4), Hue(3))],
    "rotation": [Rotations(4), Dihedral(4), Product(Rotations(4), Hue(3))],
}


def feature(group: Group, size: int = 6) -> GroupFeature:
    count = len(group.grid(dtype=torch.float64))
    values = torch.randn(2, 3, count, size, size, dtype=torch.float64)
    weights = torch.rand(2, count, dtype=torch.float64)
    return GroupFeature(values, group.grid(dtype=torch.float64), weights / weights.sum(dim=1, keepdim=True), group)


def blob(x: float, y: float, size: int = 41) -> Tensor:
    """A smooth spot; x right, y up, in pixels from the centre."""
    line = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    across, up = line[None, :] - x, -line[:, None] - y
    return torch.exp(-(across.square() + up.square()) / 18)[None, None]


@pytest.mark.parametrize(("kind", "group"), [(kind, group) for kind, groups in GROUPS.items() for group in groups])
def test_on_the_grid_it_is_the_left_translation(kind: Kind, group: Group) -> None:
    own = feature(group)
    axis = [axis.name for axis in group.axes].index(kind)
    angle = 2 * math.pi / group.counts[axis]
    g = torch.zeros(len(group.axes), dtype=torch.float64)
    g[axis] = angle
    index = translate_index(group, g)
    moved = move(own, kind, angle)
    expected = own.values[:, :, index]
    if kind == "rotation":
        expected = expected.rot90(1, (-2, -1))
    assert torch.allclose(moved.values, expected, atol=1e-12)
    assert moved.weights is not None
    assert own.weights is not None
    assert torch.allclose(moved.weights, own.weights[:, index])


@pytest.mark.parametrize("count", [3, 4, 6])
def test_the_lift_of_a_hue_shift_is_read_exactly_between_hues(count: int) -> None:
    torch.manual_seed(0)
    lift = LiftConv2d(3, 4, 3, Hue(count)).double()
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    for angle in (0.3, 1.0, -2.2):
        there = lift(move(images, "hue", angle))
        assert torch.allclose(there.values, move(lift(images), "hue", angle).values, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_speed_is_the_derivative_of_move(kind: Kind) -> None:
    step = 1e-4
    if kind == "hue":
        outputs: list[Tensor | GroupFeature] = [torch.rand(2, 3, 5, 5, dtype=torch.float64), feature(Hue(5))]
        for output in outputs:
            ahead, back = move(output, kind, step), move(output, kind, -step)
            found = speed(output, kind)
            for name in ("values", "weights") if isinstance(output, GroupFeature) else ("data",):
                slope = (getattr(ahead, name) - getattr(back, name)) / (2 * step)
                assert torch.allclose(getattr(found, name), slope, atol=1e-6), name
    else:  # a spot moves along its circle: x' = −y, y' = x
        x, y = 5.0, 3.0
        slope = (blob(x - step * y, y + step * x) - blob(x + step * y, y - step * x)) / (2 * step)
        assert torch.allclose(speed(blob(x, y), "rotation"), slope, atol=0.05 * float(slope.abs().max()))


def test_what_does_not_move_stays() -> None:
    logits, grey = torch.rand(2, 5), torch.rand(2, 1, 4, 4)
    for kind in KINDS:
        assert move(logits, kind, 1.0) is logits
        assert not speed(logits, kind).any()
    assert move(grey, "hue", 1.0) is grey
    inner = torch.rand(2, 3, 4, 4)  # three channels, but not as large as the images
    assert move(inner, "hue", 1.0, image=torch.Size((2, 3, 8, 8))) is inner
    turned = feature(Rotations(4))
    assert torch.equal(move(turned, "hue", 1.0).values, turned.values)
    assert not speed(turned, "hue").values.any()


def test_elements_that_differ_between_images_are_refused() -> None:
    elements = torch.rand(2, 4, 1)
    own = GroupFeature(torch.rand(2, 3, 4, 5, 5), elements, None, SO2(4))
    with pytest.raises(UserError, match="no circle"):
        move(own, "rotation", 1.0)
