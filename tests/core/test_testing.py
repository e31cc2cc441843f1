"""The instrument itself: known answers, and that it can fail."""

import math

import pytest
import torch
from torch import nn

from support import SmallNet
from vpgcnn import SO2, Hue, LiftConv2d, ReparametrizedWindow, Rotations, Shared
from vpgcnn.testing import assert_equivariant, equivariance_error, smooth_images


def test_a_network_with_a_known_error() -> None:
    """Φ(x) = red − green of one pixel: under a hue shift by 120° the error is known by hand."""

    def model(images: torch.Tensor) -> torch.Tensor:
        return images[:, :2, 0, 0]

    image = torch.tensor([3.0, 4.0, 12.0]).view(1, 3, 1, 1)
    error = equivariance_error(model, image, Hue(3), [2 * math.pi / 3])
    # (3, 4) becomes (12, 3): the difference is (9, −1) and the size of the output 5.
    assert error.absolute.item() == pytest.approx(math.sqrt(82))
    assert error.relative.item() == pytest.approx(math.sqrt(82) / 5)
    assert error.floor.item() == 0


def test_maps_must_turn_with_the_image() -> None:
    images = torch.rand(2, 1, 8, 8)
    assert equivariance_error(nn.Identity(), images, Rotations(4)).worst == 0
    assert equivariance_error(nn.ReLU(), images, Rotations(4)).worst == 0
    assert equivariance_error(lambda x: x.flip(-1), images, Rotations(4)).worst > 0.1
    assert equivariance_error(lambda x: x.flatten(1), images, Rotations(4)).worst > 0.1  # a vector must not


def test_features_must_move_along_the_group() -> None:
    lift = LiftConv2d(3, 4, 3, Hue(3))
    images = torch.rand(2, 3, 6, 6)
    assert equivariance_error(lift, images, Hue(3)).worst < 1e-6
    assert equivariance_error(lambda x: lift(x).map(lambda v: v.flip(2)), images, Hue(3)).worst > 0.1


def test_the_floor_is_what_resampling_does() -> None:
    images = smooth_images(2, 1, 24)
    error = equivariance_error(nn.Identity(), images, SO2(), [0.4])
    assert error.worst == 0  # the identity map is exactly equivariant, whatever interpolation does
    back = SO2().transform(SO2().transform(images, 0.4), -0.4)
    expected = torch.linalg.vector_norm((back - images).flatten(1), dim=1) / torch.linalg.vector_norm(
        images.flatten(1), dim=1
    )
    assert torch.allclose(error.floor[0], expected)
    assert equivariance_error(nn.Identity(), images, SO2(), [math.pi / 2]).floor.max() == 0


def test_it_reads_models_that_return_more_than_one_thing() -> None:
    images = torch.rand(2, 3, 8, 8)
    model = SmallNet(Hue(3))
    for wrapped in (model, lambda x: {"logits": model.eval()(x)[0]}, lambda x: [model.eval()(x)[0]]):
        assert equivariance_error(wrapped, images, Hue(3)).worst < 1e-5
    with pytest.raises(TypeError, match="expected tensors or a GroupFeature from the model, got str"):
        equivariance_error(lambda x: "cat", images, Hue(3))


def test_it_puts_the_model_back_into_its_mode() -> None:
    model = SmallNet(Hue(3)).train()
    model.norms[0].eval()
    equivariance_error(model, torch.rand(2, 3, 8, 8), Hue(3))
    assert model.training
    assert not model.norms[0].training


def test_it_refuses_elements_that_are_no_grid() -> None:
    lift = LiftConv2d(1, 3, 3, SO2(4), level=Shared(ReparametrizedWindow()))
    with pytest.raises(ValueError, match="do not form a grid: pool over the group before measuring"):
        equivariance_error(lift, torch.rand(1, 1, 8, 8), SO2(4), [math.pi / 2])


def test_assertion_says_what_and_where() -> None:
    assert_equivariant(nn.Identity(), torch.rand(1, 1, 4, 4), Rotations(4))
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(
        AssertionError, match=r"not equivariant to Rotations\(n=4\): relative error .* for element .* image 0"
    ):
        assert_equivariant(model, torch.rand(1, 1, 4, 4), Rotations(4))


def test_elements_are_checked() -> None:
    with pytest.raises(ValueError, match=r"elements of Hue\(m=3\) must be E×1, got shape \(2, 2\)"):
        equivariance_error(nn.Identity(), torch.rand(1, 3, 4, 4), Hue(3), torch.zeros(2, 2))


def test_smooth_images_turn_well() -> None:
    images = smooth_images(3, 2, 28, generator=torch.Generator().manual_seed(0))
    assert images.shape == (3, 2, 28, 28)
    assert images[..., 0, 0].abs().max() < 1e-9
    rough = torch.rand(3, 2, 28, 28)
    floor = [equivariance_error(nn.Identity(), x, SO2(), [0.5]).floor.mean() for x in (images, rough)]
    assert floor[0] < floor[1] / 3
