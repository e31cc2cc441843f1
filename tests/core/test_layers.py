"""Equivariance layer by layer: networks whose error is known by hand, and the chain rule."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support import SmallNet
from vpgcnn import (
    SO2,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    ReLU,
    SpatialPool,
    Table,
    Variational,
    Window,
    name_layers,
)
from vpgcnn.errors import UserError
from vpgcnn.levels import LevelSpec
from vpgcnn.measure import layer_errors, levels, local_error
from vpgcnn.measure.layers import layers_of
from vpgcnn.measure.local import BETWEEN, local_speed
from vpgcnn.testing import smooth_images

THIRD = 2 * math.pi / 3
VARIATIONAL = Variational(Window(initial=0.6), condition="output")


class ColorNet(nn.Module):
    """Seven convolutions on hues, unpadded, halved after the second; the last two have a level. Hue(1): ordinary."""

    def __init__(self, classes: int, group: Group = Hue(3), level: LevelSpec = Full()) -> None:  # noqa: B008
        super().__init__()
        self.conv1 = LiftConv2d(3, 5, 3, group, bias=False)
        for number in range(2, 8):
            size, own = (4 if number == 7 else 3), (level if number > 5 else Full())
            conv = GroupConv2d(5, 5, size, group, level=own, kernel=Table(separable=True), bias=False)
            self.add_module(f"conv{number}", conv)
        self.norms = nn.ModuleList(GroupBatchNorm(5) for _ in range(7))
        self.relu, self.pool, self.group_pool = ReLU(), SpatialPool("max", 2), GroupPool("mean")
        self.head = nn.Linear(5, classes)
        name_layers(self)

    def forward(self, images: Tensor) -> Prediction:
        x = self.norms[0](self.conv1(images))
        for number, norm in enumerate(self.norms[1:], start=2):
            x = norm(self.get_submodule(f"conv{number}")(self.relu(x)))
            x = self.pool(x) if number == 2 else x
        x = x.map(F.relu)
        return Prediction(self.head(self.group_pool(x).mean(dim=(-2, -1))), x.trace)


def rgb(count: int = 3) -> Tensor:
    return torch.rand(count, 3, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Overwriting(nn.Module):
    """Adds in place, as many residual networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.first(images))
        out = self.second(x)
        out += x
        return self.head(self.relu(out).mean(dim=(-2, -1)))


class Channels(nn.Module):
    """Logits that are twice the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Conv2d(3, 3, 1, bias=False)
        self.scale.weight.data = 2 * torch.eye(3)[..., None, None]

    def forward(self, images: Tensor) -> Tensor:
        return self.scale(images).mean(dim=(-2, -1))


def test_the_lie_derivative_of_channel_means_is_known_by_hand() -> None:
    """A rotation of RGB about grey turns the difference from grey: its speed is its length."""
    images = rgb()
    found = local_error(Channels().double(), images, "hue")
    means = 2 * images.mean(dim=(-2, -1))
    length = torch.linalg.vector_norm(means - means.mean(dim=1, keepdim=True), dim=1)
    assert torch.allclose(found.absolute, length, rtol=1e-6)
    assert torch.allclose(found.relative, torch.ones(3, dtype=torch.float64), rtol=1e-6)
    # The convolution commutes with it (its map is taken for RGB): it is the mean that does not stay.
    assert found.by_layer()["scale"] < 1e-12
    assert found.by_layer()[BETWEEN] == pytest.approx(float(length.square().mean().sqrt()), rel=1e-6)


@pytest.mark.parametrize("kind", ["rotation", "hue"])
def test_contributions_add_up_and_in_place_networks_are_no_exception(kind: str) -> None:
    torch.manual_seed(1)
    images = smooth_images(3, 3, 16).double()
    plain = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.BatchNorm2d(6), nn.Flatten(),
        nn.Linear(6 * 64, 4),
    )  # fmt: skip
    found = local_error(plain.double(), images, kind)  # type: ignore[arg-type]
    assert found.by_layer()[BETWEEN] < 1e-12  # there is nothing between its layers
    assert plain[1].inplace
    overwriting = Overwriting().double()
    found = local_error(overwriting, images, kind)  # type: ignore[arg-type]
    if kind == "hue":
        assert found.by_layer()["first"] == pytest.approx(float(found.absolute.square().mean().sqrt()), rel=1e-4)
        assert found.by_layer()[BETWEEN] < 1e-12
    else:  # the mean over positions is a function, and not quite invariant on pixels
        assert found.by_layer()[BETWEEN] < 0.2 * max(found.by_layer().values())


def test_convolutions_on_hues_are_not_to_blame_but_activations_and_pools_are() -> None:
    torch.manual_seed(0)
    shares = local_error(ColorNet(4).double(), rgb(), "hue").by_layer()
    kept = [shares[name] for name in shares if name.startswith(("conv", "norms", "group_pool", "head"))]
    assert len(kept) == 16
    assert max(kept) < 1e-10
    assert shares["relu"] > 1e-3
    assert shares["pool"] > 1e-3
    partial = ColorNet(4, level=VARIATIONAL).double()
    shares = local_error(partial, rgb(), "hue").by_layer()
    assert min(shares["conv6"], shares["conv7"]) > 1e-3  # where the levels are
    assert max(shares[f"conv{number}"] for number in range(1, 6)) < 1e-10
    shares = local_error(ColorNet(4, Hue(1)).double(), rgb(), "hue").by_layer()
    assert shares["conv1"] > 1e-3
    assert max(value for name, value in shares.items() if name != "conv1") < 1e-10


def test_random_directions_estimate_the_same_norms() -> None:
    torch.manual_seed(0)
    model, images = ColorNet(30, Hue(1)).double(), rgb(8)
    exact = local_error(model, images, "hue", draws=30).by_layer()["conv1"]
    rough = local_error(model, images, "hue", draws=16).by_layer()["conv1"]
    assert rough == pytest.approx(exact, rel=0.35)


def test_the_derivative_of_any_function() -> None:
    images = rgb()
    slope, logits = local_speed(lambda pixels: pixels.mean(dim=(-2, -1)), images, "hue")
    assert torch.allclose((slope * logits).sum(dim=1), torch.zeros(3, dtype=torch.float64), atol=1e-8)  # a rotation
    still, _ = local_speed(
        lambda pixels: F.one_hot(torch.zeros(len(pixels), dtype=torch.long), 3).double(), images, "hue"
    )
    assert not still.any()


def test_errors_of_layers_on_the_group_and_off_it() -> None:
    torch.manual_seed(0)
    found = layer_errors(ColorNet(4).double(), rgb(), "hue", [THIRD, THIRD / 2])
    assert found["conv1"].relative.shape == (2, 3)
    assert max(float(error.relative[0].max()) for error in found.values()) < 1e-10
    assert float(found["conv1"].relative[1].max()) < 1e-10  # linear: exact in between
    assert float(found["relu"].relative[1].min()) > 0.05
    assert "relu #6" in found
    plain = layer_errors(ColorNet(4, Hue(1)).double(), rgb(), "hue", [THIRD])
    assert float(plain["conv1"].relative.min()) > 0.05
    assert max(float(error.floor.max()) for error in plain.values()) < 1e-10
    conv = nn.Conv2d(3, 2, 3).double()
    one = layer_errors(conv, rgb(), "rotation", [math.pi / 5])["Conv2d"]
    norm = torch.linalg.vector_norm(conv(rgb()).flatten(1), dim=1)
    assert torch.allclose(one.absolute[0] / one.relative[0], norm)
    assert float(one.floor.min()) > 0.1  # noise, turned there and back
    turned = layer_errors(
        SmallNet(SO2(8), in_channels=1, size=5).double(), smooth_images(2, 1, 28).double(), "rotation", [math.pi / 2]
    )
    assert max(float(error.relative.max()) for error in turned.values()) < 1e-6
    with pytest.raises(UserError, match="no angles to move by"):
        layer_errors(Channels(), rgb().float(), "hue", [])


def test_shared_layers_odd_maps_and_constants() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Identity()
            self.one = nn.Sequential(nn.Conv2d(3, 4, 3), self.act)
            self.two = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)), self.act)
            self.fixed, self.head = nn.Linear(5, 4), nn.Linear(4, 3)
            self.register_buffer("base", torch.ones(3, 5))
            for part in self.fixed.parameters():
                part.requires_grad_(False)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.two(self.one(images)).mean(dim=(-2, -1)) + self.fixed(self.base))

    torch.manual_seed(0)
    found = local_error(Odd().double(), rgb(), "hue").by_layer()
    assert set(found) == {"act", "act #2", "fixed", "head", "one.0", "two.0", BETWEEN}
    assert found["one.0"] > 1e-3
    assert max(value for name, value in found.items() if name != "one.0") < 1e-10


def test_a_layer_may_overwrite_what_it_is_given() -> None:
    class Harsh(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x, inplace=True)

    torch.manual_seed(0)
    images = smooth_images(3, 3, 16).double()
    parts = [nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 16)]
    found = [
        local_error(nn.Sequential(parts[0], act, parts[1], nn.Flatten()).double(), images, "rotation").by_layer()
        for act in (nn.ReLU(), Harsh())
    ]
    assert found[1]["1"] == pytest.approx(found[0]["1"])
    assert found[1]["1"] > 1e-4
    assert found[1][BETWEEN] < 1e-12


def test_what_cannot_move_is_refused() -> None:
    with pytest.raises(UserError, match="hue needs colour images, got 1 channel"):
        local_error(nn.Flatten(), torch.rand(2, 1, 4, 4), "hue")
    with pytest.raises(UserError, match="one of rotation, hue, got 'scale'"):
        local_error(nn.Flatten(), torch.rand(2, 3, 4, 4), "scale")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="N×C×H×W"):
        layer_errors(nn.Flatten(), torch.rand(3, 4, 4), "hue", [1.0])


def test_each_image_has_a_step_of_its_own() -> None:
    """An image of little contrast is measured as well beside a bright one as alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 14 * 14, 4))
    images = smooth_images(2, 3, 16)
    images[0] *= 1e-2
    both, alone = (local_error(model, part, "rotation").absolute[0] for part in (images, images[:1]))
    exact = local_error(model.double(), images[:1].double(), "rotation").absolute[0]
    assert float(both) == pytest.approx(float(alone), rel=0.02)
    assert float(both) == pytest.approx(float(exact), rel=0.02)


def test_modes_and_switches_are_put_back() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten(), nn.Linear(4 * 26 * 26, 2)
    )
    model.train()
    model[2].eval()
    local_error(model, rgb().float(), "hue")
    assert model.training
    assert not model[2].training
    assert model[1].inplace
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert list(layers_of(model)) == ["0", "1", "2", "3", "4"]
    assert list(layers_of(nn.Linear(2, 2))) == ["Linear"]


def test_a_table_of_levels() -> None:
    torch.manual_seed(0)
    model = ColorNet(4, level=VARIATIONAL)
    images = rgb(4).float()
    table = levels(model, images, ["a", "b", "c", "d"])
    assert table.layers == ["conv6", "conv7"]
    assert len(table) == 4
    rows = table.rows()
    assert len(rows) == 8
    assert rows[0]["image"] == "a"
    assert rows[0]["window"][0][1] == pytest.approx(180 * rows[0]["theta"][0])
    assert sum(rows[0]["weights"]) == pytest.approx(1, abs=1e-5)
    assert repr(table).splitlines()[0].split() == ["image", "θ", "conv6", "θ", "conv7"]
    with pytest.raises(UserError, match="got 1 name for 4 images"):
        levels(model, images, ["a"])
    assert repr(levels(ColorNet(4), images)) == "4 images; no layer has a level"


def test_images_are_taken_as_many_at_a_time_as_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 20, 16), nn.Flatten()
    )  # fmt: skip
    model, images = model.double().eval(), smooth_images(7, 3, 16).double()
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    whole = local_error(model, images, "hue")
    assert max(sizes) == 7
    sizes.clear()
    one = 5 * 8 * 16 * 16 * (3 + 6 * 6 + 3 * 20 / 256)
    parts = local_error(model, images, "hue", memory=3.5 * one)
    assert max(sizes) == 3
    assert torch.allclose(parts.relative, whole.relative)
    for name, values in whole.layers.items():
        assert torch.allclose(parts.layers[name], values, atol=1e-12)
    sizes.clear()
    local_error(model, images, "hue", memory=1)
    assert max(sizes) == 1


class PaddedConv(nn.Conv2d):
    """Holds its padding as a module, as EfficientNet's does."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.pad = nn.ZeroPad2d(1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.conv2d(self.pad(input), self.weight, self.bias)


class NormAct(nn.BatchNorm2d):
    """Holds its activation as a module, as timm's does."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.act(super().forward(input))


def test_padded_convolutions_and_fused_norms_are_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(PaddedConv(3, 6, 3), NormAct(6), nn.Conv2d(6, 4, 16), nn.Flatten()).double().eval()
    shares = local_error(model, smooth_images(3, 3, 16).double(), "rotation").by_layer()
    assert set(shares) == {"0", "1", "2", "3", BETWEEN}
    assert shares["0"] > 1e-4
    assert shares[BETWEEN] < 1e-10
