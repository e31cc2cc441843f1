"""Softened kernels: the limits, the bound of each layer, what the group acts on, and refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from vpgcnn import SO2, Dihedral, Hue, Product, Rotations, Saturation
from vpgcnn.conversion import soften
from vpgcnn.errors import UserError
from vpgcnn.groups import Group

GROUPS = [Rotations(2), Rotations(4), Dihedral(1), Dihedral(4), Hue(3), Hue(6), Product(Dihedral(4), Hue(3))]
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def network() -> nn.Module:
    """Odd maps at every stride, so that nothing but kernels breaks the symmetry."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4),
        nn.ReLU(), nn.Conv2d(8, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(12, 4),
    ).double().eval()  # fmt: skip


def pixels(count: int = 3, side: int = 17) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def kernels(model: nn.Module) -> dict[str, Tensor]:
    return {name: part.weight.detach() for name, part in model.named_modules() if isinstance(part, nn.Conv2d)}


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_without_softness_the_answers_do_not_move(group: Group) -> None:
    soft = soften(network(), group, 0.0, mean=MEAN, std=STD, example=pixels())
    assert soft.before.worst > 1e-3
    assert soft.after.worst < 1e-12
    assert set(soft.defects.values()) == {0.0}


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_softness_1_is_the_original(group: Group) -> None:
    model = network()
    soft = soften(model, group, 1.0, mean=MEAN, std=STD, example=pixels())
    torch.testing.assert_close(soft.network(pixels()), model(pixels()), rtol=0, atol=1e-14)


def test_the_original_is_not_changed_and_what_is_equivariant_stays() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    once = soften(model, Rotations(4), 0.0, example=pixels())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = soften(once.network, Rotations(4), 0.5, example=pixels())
    for name, kernel in kernels(again.network).items():
        torch.testing.assert_close(kernel, kernels(once.network)[name], rtol=0, atol=1e-14)


def test_each_step_of_softness_takes_away_as_much() -> None:
    """K_s is on the line from PK to K, and PK is the nearest equivariant kernel: at a right angle to the rest."""
    invariant, soft, whole = (
        kernels(soften(network(), Rotations(4), softness, example=pixels()).network) for softness in (0.0, 0.3, 1.0)
    )
    for name in whole:
        rest = whole[name] - invariant[name]
        torch.testing.assert_close(soft[name], invariant[name] + 0.3 * rest, rtol=0, atol=1e-14)
        assert abs(float((rest * invariant[name]).sum())) < 1e-12


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("softness", [0.25, 1.0])
def test_no_layer_is_further_from_equivariance_than_its_bound(group: Group, softness: float) -> None:
    """Power iterations look for the worst input of the first layer: it reaches at least half of the bound, and never
    exceeds it."""
    soft = soften(network(), group, softness, mean=MEAN, std=STD, example=pixels())
    conv, scale = soft.network.get_submodule("0"), torch.tensor(STD, dtype=torch.float64).view(1, 3, 1, 1)
    assert isinstance(conv, nn.Conv2d)
    worst = 0.0
    for u in group.grid(dtype=torch.float64)[1:]:

        def defect(x: Tensor, u: Tensor = u) -> Tensor:
            def layer(images: Tensor) -> Tensor:
                return nn.functional.conv2d(images / scale, conv.weight.detach(), padding=1)

            turns, by = (group.first, group.split(u)[0]) if isinstance(group, Product) else (group, u)
            turned = turns.transform(layer(x), by) if turns.acts_on_plane else layer(x)
            return layer(group.transform(x, u)) - turned

        x = torch.randn(1, 3, 17, 17, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        for _ in range(60):
            x = (x / x.norm()).requires_grad_()
            size = defect(x).norm()
            worst = max(worst, float(size.detach()))
            x = torch.autograd.grad(size.square(), x)[0]
    assert worst <= soft.defects["0"] * (1 + 1e-9)
    assert worst >= 0.3 * soft.defects["0"]


def test_a_depthwise_bound_counts_each_channel_by_itself() -> None:
    """Channels of a depthwise convolution do not add up: its bound is that of its worst channel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    bound = soften(model, Dihedral(1), 1.0, example=pixels()).defects["0"]
    kernel = model[0].weight.detach()
    apart = (kernel - kernel.flip(-1)).abs().amax(dim=(0, 1)).sum()
    assert bound == pytest.approx(float(apart))


def test_hue_changes_the_first_convolution_alone() -> None:
    model = network()
    soft = soften(model, Hue(3), 0.5, example=pixels())
    assert list(soft.defects) == ["0"]
    same = [torch.equal(kernel, kernels(model)[name]) for name, kernel in kernels(soft.network).items()]
    assert same == [False, True, True, True]


def test_only_chosen_layers_are_softened() -> None:
    soft = soften(network(), Rotations(4), 0.0, layers="7", example=pixels())
    assert list(soft.defects) == ["7"]
    assert soft.after.worst > 1e-6


def test_a_kernel_that_is_not_square_is_left_and_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, (1, 3), padding=(0, 1)), nn.Flatten())
    soft = soften(model.double(), Rotations(4), 0.0, example=pixels())
    assert soft.left == ("1",)
    assert "left as they are: 1" in soft.summary
    assert soften(model, Dihedral(1), 0.0, example=pixels()).left == ()  # a mirror does not need a square


def test_an_even_map_under_stride_2_leaves_an_error_that_is_measured() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert soften(model.double(), Rotations(4), 0.0, example=pixels(side=16)).after.worst > 1e-4


def test_what_cannot_be_softened_is_refused() -> None:
    model, example = network(), pixels()
    with pytest.raises(UserError, match=r"softness goes from 0 .* got 1\.5"):
        soften(model, Hue(3), 1.5, example=example)
    with pytest.raises(UserError, match=r"softness goes from 0 .* got nan"):
        soften(model, Hue(3), float("nan"), example=example)
    with pytest.raises(TypeError, match=r"softness must be a number from 0 .* got 'a'"):
        soften(model, Hue(3), "a", example=example)  # type: ignore[arg-type]
    assert soften(model, Hue(3), 0.5, mean=0.5, std=0.25, example=example).softness == 0.5
    with pytest.raises(UserError, match="finite group, got SO2"):
        soften(model, SO2(8), 0.5, example=example)
    with pytest.raises(UserError, match="not linear in the colours"):
        soften(model, Saturation(4), 0.5, example=example)
    with pytest.raises(UserError, match="no chosen convolution sees the image"):
        soften(nn.Sequential(nn.BatchNorm2d(3), model).double().eval(), Hue(3), 0.5, example=2 * example)
    with pytest.raises(UserError, match="there is no convolution 'x'"):
        soften(model, Rotations(4), 0.5, layers="x", example=example)
    with pytest.raises(UserError, match="pixels that are not finite"):
        soften(model, Hue(3), 0.5, example=example * float("nan"))
    with pytest.raises(ValueError, match="expected 3 channels, got 1"):
        soften(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()), Hue(3), 0.5, example=torch.rand(2, 1, 9, 9))
    with pytest.raises(UserError, match="std must be above 0"):
        soften(model, Rotations(4), 0.5, std=(0.0,), example=example)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.Flatten()).double()
    with pytest.raises(UserError, match="weight of 0 is computed from other parameters"):
        soften(normed, Rotations(4), 0.5, example=example)
