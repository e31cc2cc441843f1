"""What the theory promises, each as a test: the four propositions of docs/theory.md."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet, name, random_feature, set_theta, warm
from vpgcnn import (
    SO2,
    Dihedral,
    Full,
    Group,
    GroupConv2d,
    GroupFeature,
    Hue,
    Product,
    RankedSoftmax,
    Rotations,
    Siren,
    Variational,
)
from vpgcnn.groups import translate_index
from vpgcnn.levels import Level, LevelSpec
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.testing import equivariance_error, smooth_images

EXACT: list[Group] = [Rotations(4), Hue(3), Hue(6), Dihedral(4), Product(Rotations(4), Hue(3))]
exact_groups = pytest.mark.parametrize("group", EXACT, ids=name)


# ---------------------------------------------------------------- 1. θ = 1 is full equivariance


@exact_groups
@pytest.mark.parametrize("mode", ["mean", "max", "rms"])
def test_full_windows_are_exactly_equivariant(double: None, group: Group, mode: str) -> None:
    """Four layers, all variational with θ = 1, float64: rounding error only. Colours are not clipped."""
    images = torch.rand(2, 3, 8, 8)
    model = SmallNet(group, level=Variational(), mode=mode)
    set_theta(model, 1.0)
    error = equivariance_error(warm(model, images), images, group)
    assert error.worst <= 1e-10
    assert error.absolute.max() <= 1e-10


@pytest.mark.parametrize(
    ("elements", "level"), [(8, Full()), (16, Full()), (8, Variational())], ids=["full-8", "full-16", "theta=1"]
)
def test_so2_is_equivariant_up_to_interpolation(double: None, elements: int, level: LevelSpec) -> None:
    """At angles off the grid the error stays within 3 × what turning there and back does by itself."""
    images = smooth_images(2, 1, 24, cutoff=0.1)
    group = SO2(elements)
    model = SmallNet(group, in_channels=1, size=5, pool=False, kernel=Siren(omega=4.0), level=level, width=4)
    set_theta(model, 1.0)
    error = equivariance_error(warm(model, images), images, group, [0.3, 1.4, 2.2, -2.9])
    assert (error.relative <= 3 * error.floor).all()
    # A network that is not equivariant is far above it, so the floor does not hide anything.
    plain = nn.Sequential(
        nn.Conv2d(1, 8, 7), nn.ReLU(), nn.Conv2d(8, 8, 7), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 5)
    )
    baseline = equivariance_error(plain, images, SO2(), [0.9, 2.2])
    assert baseline.mean > 10 * baseline.floor.mean()


# ---------------------------------------------------------------- 2. the error grows as θ falls


@exact_groups
def test_the_error_grows_as_theta_falls(double: None, group: Group) -> None:
    """On average over random networks: a single one may cancel by chance somewhere in between."""
    images = torch.rand(2, 3, 6, 6)
    models = [warm(SmallNet(group, level=Variational(), width=4), images) for _ in range(12)]
    elements = group.grid()[1:]
    elements = elements[:: max(1, len(elements) // 3)]
    finest = max(axis.order or 1 for axis in group.axes)
    errors = []
    for theta in (1.0, 0.9, 0.7, 0.5, 1 / finest):
        for model in models:
            set_theta(model, theta)
        errors.append(sum(equivariance_error(model, images, group, elements).mean for model in models) / len(models))
    assert errors[0] < 1e-12
    assert all(later >= earlier for earlier, later in pairwise(errors))
    assert errors[-1] > 1e-3


# ---------------------------------------------------------------- 3. one variational layer is enough


@dataclass(frozen=True)
class ByBrightness(LevelSpec):
    """θ = 1 for bright images and 0.4 for dark ones: an invariant property, so q is partially equivariant."""

    def build(self, group: Group, channels: int) -> Level:
        return BrightnessLevel(group)


class BrightnessLevel(Level):
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group, self.bright = group, torch.tensor([True])

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> WindowDistribution:
        theta = torch.where(self.bright, 1.0, 0.4).unsqueeze(1).expand(-1, len(self.group.axes))
        return WindowDistribution(self.group, theta)


@exact_groups
@pytest.mark.parametrize("layer", range(4))
def test_one_partial_layer_makes_the_network_partially_equivariant(double: None, group: Group, layer: int) -> None:
    """(S, ε, G): exactly equivariant on the set S of bright images, not elsewhere, and bounded there."""
    images = torch.rand(4, 3, 8, 8)
    levels = [ByBrightness() if index == layer else Full() for index in range(4)]
    model = SmallNet(group, levels=levels)
    bright = torch.tensor([True, False, True, False])
    for module in model.modules():
        if isinstance(module, BrightnessLevel):
            module.bright = bright
    error = equivariance_error(warm(model, images), images, group).relative
    assert error[:, bright].max() < 1e-12
    assert error[:, ~bright].max() > 1e-4
    assert error[:, ~bright].max() < 10


# ---------------------------------------------------------------- 4. the bound of prop. partial-dist


@pytest.mark.parametrize("group", [Hue(3), Hue(6), Rotations(4)], ids=name)
@pytest.mark.parametrize("theta", [0.35, 0.6, 0.95])
@torch.no_grad()
def test_the_error_bound_holds(double: None, group: Group, theta: float) -> None:
    """‖(k∗L_g f)(u) − L_g(k∗f)(u)‖² ≤ |q(u|L_g f) − q(g⁻¹u|f)|² · mean_v ‖k(v⁻¹g⁻¹u) f(v)‖², for all u and g."""
    conv = GroupConv2d(4, 3, 3, group, bias=False, level=Variational())
    set_theta(conv, theta)
    conv.eval()
    feature, count = random_feature(group, size=6), group.order or 1

    def terms(f: GroupFeature) -> Tensor:
        """What each input element v alone contributes, `(V, B, O, U, H, W)`."""
        alone = torch.eye(count).unsqueeze(1).expand(count, f.shape[0], count)
        return torch.stack([conv(GroupFeature(f.values, f.elements, w, f.group)).values for w in alone])

    out = conv(feature)
    assert out.weights is not None
    weighted = out.values * out.weights[:, None, :, None, None]
    energy = terms(feature).square().sum(dim=(2, 4, 5)).mean(dim=0)  # B × U
    gap = 0.0
    for g in group.grid():
        index = translate_index(group, g)
        values = feature.values[:, :, index]
        turns = 0 if not group.acts_on_plane else round(float(g[0]) / (torch.pi / 2))
        moved = GroupFeature(torch.rot90(values, turns, (-2, -1)), feature.elements, None, group)
        there = conv(moved)
        left = there.values * there.weights[:, None, :, None, None]
        right = torch.rot90(weighted[:, :, index], turns, (-2, -1))
        error = (left - right).square().sum(dim=(1, 3, 4))
        difference = (there.weights - out.weights[:, index]).square()
        assert (error <= difference * energy[:, index] + 1e-18).all()
        gap = max(gap, float(error.max()))
    assert gap > 1e-6


# ---------------------------------------------------------------- exchangeable noise


def test_exchangeable_noise_stays_equivariant_in_distribution(double: None) -> None:
    """The mean answer over many draws is as invariant as that of the full network, whatever θ is;
    with ranked noise and the same θ it is not. So the literal formula cannot be partially equivariant."""
    images = torch.rand(1, 3, 6, 6)

    def gap(noise: str) -> tuple[float, float]:
        torch.manual_seed(1)
        levels = [Variational(RankedSoftmax(noise=noise)), Full(), Full(), Full()]  # type: ignore[arg-type]
        model = SmallNet(Hue(3), levels=levels, pool=False, width=4)
        warm(model, torch.rand(8, 3, 6, 6))
        set_theta(model, 1.0)  # β = 1: one element of three is kept by rank
        model.lift.train()  # the noise of training, the statistics of evaluation
        batch = 5000
        with torch.no_grad():
            plain = model(images.expand(batch, -1, -1, -1))[0]
            moved = model(Hue(3).transform(images, Hue(3).grid()[1]).expand(batch, -1, -1, -1))[0]
        noise_level = float((plain.std(dim=0) / batch**0.5).max())
        return float((plain.mean(dim=0) - moved.mean(dim=0)).abs().max()), noise_level

    same, sampling = gap("exchangeable")
    assert sampling > 0
    assert same < 6 * sampling
    assert gap("ranked")[0] > 20 * max(sampling, 1e-4)
