"""What reviewers of 0.3 found, each once."""

import copy
import warnings

import pytest
import torch
from torch import nn

from vpgcnn import (
    SO2,
    Elbo,
    EquivarianceWarning,
    GroupBatchNorm,
    GroupConv2d,
    GroupDropout,
    GroupFeature,
    GroupLayerNorm,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    RankedSoftmax,
    ReLU,
    ReparametrizedWindow,
    Rotations,
    Shared,
    SpatialPool,
    Variational,
    Window,
    convert,
    fold,
    unfold,
)
from vpgcnn.errors import UserError
from vpgcnn.kernels import Kernel, KernelSpec
from vpgcnn.measure import whole_group, with_mean_levels


def test_a_window_on_moved_elements_has_the_gradient_of_where_they_are(double: None) -> None:
    """The weights of a later window depend on an earlier θ, by which its elements were placed."""
    lift = LiftConv2d(1, 2, 3, SO2(4), level=Shared(ReparametrizedWindow(0.55))).eval()
    conv = GroupConv2d(2, 2, 3, SO2(4), level=Shared(Window(0.3))).eval()
    images = torch.rand(2, 1, 9, 9)

    def answer() -> torch.Tensor:
        return conv(lift(images)).mean().square().sum()

    answer().backward()
    raw, step = lift.level.raw, 1e-6
    with torch.no_grad():
        raw += step
        above = answer()
        raw -= 2 * step
        below = answer()
        raw += step
    assert raw.grad is not None
    assert float(raw.grad) == pytest.approx(float(above - below) / (2 * step), rel=1e-5)


def copies() -> nn.Module:
    block = GroupConv2d(4, 4, 3, Hue(3), padding=1, level=Variational(Window(0.4)))
    return nn.Sequential(LiftConv2d(3, 4, 3, Hue(3)), block, copy.deepcopy(block)).eval()


def test_layers_of_the_same_name_are_all_left_out_or_refused() -> None:
    model, images = copies(), torch.rand(2, 3, 8, 8)
    assert len(model(images).trace) == 2
    with whole_group(model):
        assert model(images).trace == {}
    assert len(model(images).trace) == 2
    with pytest.raises(UserError, match="two layers are called"), with_mean_levels(model, images):
        pass


def test_a_kernel_folded_in_training_mode_is_not_used_after_training() -> None:
    model, images = nn.Sequential(LiftConv2d(3, 4, 3, Hue(3)), GroupPool()), torch.rand(2, 3, 8, 8)
    fold(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    answer = model.eval()(images)
    assert torch.equal(answer, unfold(model)(images))


def test_compiled_folded_layers_see_the_elements_they_are_given() -> None:
    layer, images = fold(LiftConv2d(3, 4, 3, SO2(4)).eval()), torch.rand(2, 3, 9, 9)
    elements = SO2(4).grid(0.4)
    compiled = torch.compile(lambda x, u: layer(x, elements=u).values, backend="eager")
    assert torch.allclose(compiled(images, elements), layer(images, elements=elements).values, atol=1e-6)


def test_views_that_two_levels_draw_apart_give_no_nan() -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    level = Variational(RankedSoftmax(noise="exchangeable", initial=0.9))
    net = convert(plain, Hue(3), level=level, levels=["0", "2"], example=torch.rand(2, 3, 12, 12)).train()
    assert bool(net(torch.rand(64, 3, 12, 12)).logits.isfinite().all())


def test_theta_of_a_ranked_softmax_is_the_share_that_is_kept() -> None:
    for initial, share in ((0.0, 1.0), (1.0, 1 / 3)):
        layer = LiftConv2d(3, 4, 3, Hue(3), level=Shared(RankedSoftmax(initial=initial))).eval()
        (q,) = layer(torch.rand(2, 3, 8, 8)).trace.values()
        assert q.theta.tolist() == [[pytest.approx(share)]] * 2


class Fixed3(Kernel):
    """A mean over the plane, without parameters."""

    def expand(self, u: torch.Tensor, v: torch.Tensor | None) -> torch.Tensor:
        count = 1 if v is None else len(v)
        return torch.full((self.out_channels, len(u), self.in_channels, count, 3, 3), 1 / (9 * count))


class Mean(KernelSpec):
    def build(self, in_channels: int, out_channels: int, size: int, group, *, lift: bool) -> Kernel:
        return Fixed3(in_channels, out_channels, size, group, lift=lift)


def test_a_kernel_may_have_no_parameters() -> None:
    layer, images = LiftConv2d(1, 2, 3, SO2(4), kernel=Mean()).eval(), torch.rand(2, 1, 8, 8)
    assert torch.allclose(fold(layer)(images).values, unfold(layer)(images).values)


LAYERS = (GroupPool(), GroupPool("max"), GroupBatchNorm(4), GroupLayerNorm(4), GroupDropout(), SpatialPool("max", 2))


@pytest.mark.parametrize("layer", [*LAYERS, ReLU()])
def test_layers_take_features_and_say_so(layer: nn.Module) -> None:
    with pytest.raises(TypeError, match="takes a GroupFeature, got Tensor: begin with LiftConv2d"):
        layer(torch.rand(2, 4, 3, 8, 8))


def test_a_feature_is_no_tensor_and_says_so() -> None:
    feature = LiftConv2d(3, 4, 3, Hue(3))(torch.rand(2, 3, 8, 8))
    for layer in (nn.BatchNorm2d(4), nn.Flatten()):
        with pytest.raises(AttributeError, match="a GroupFeature is not a tensor"):
            layer(feature)
    assert not hasattr(feature, "no_such_thing")
    assert isinstance(nn.SELU()(feature), GroupFeature)


def test_what_is_not_floating_point_is_refused_by_converted_networks() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = convert(plain, Rotations(4))
    with pytest.raises(ValueError, match=r"floating point numbers, got torch\.uint8"):
        net(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    for wrong in (Rotations, "Rotations(4)"):
        with pytest.raises(TypeError, match=r"group must be a value such as Rotations\(4\)"):
            convert(plain, wrong)  # type: ignore[arg-type]


def test_images_that_are_not_square_get_a_warning_where_they_rotate() -> None:
    images = torch.rand(1, 3, 8, 10)
    with pytest.warns(EquivarianceWarning, match="8×10 is not square"):
        LiftConv2d(3, 2, 3, SO2(4))(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LiftConv2d(3, 2, 3, Rotations(2))(images)
        LiftConv2d(3, 2, 3, Hue(3))(images)


def test_the_objective_wants_a_prediction() -> None:
    with pytest.raises(TypeError, match=r"Elbo.of takes a Prediction, got Tensor"):
        Elbo.of(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))  # type: ignore[arg-type]
    assert float(Elbo.of(Prediction(torch.zeros(2, 3), {}), torch.zeros(2, dtype=torch.long)).kl) == 0
