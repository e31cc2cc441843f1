"""Curves, crossings, AUROC and the reading of levels, against what is known without the code."""

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from vpgcnn.analysis import auroc, confidence_curve, crossings, read_theta, read_weights, same_for_all
from vpgcnn.models import ColorConfig, SE2Config, build


def test_a_curve_follows_the_image() -> None:
    """A predictor that looks at one pixel: its curve says when the bright spot passes there."""
    image = torch.zeros(1, 1, 21, 21)
    image[..., 2, 10] = 1.0  # straight above the centre

    def predict(images: Tensor) -> Tensor:
        left = images[:, 0, 10, 2]  # where a quarter turn counter-clockwise brings it
        return torch.stack([torch.zeros_like(left), 100 * (left - 0.5)], dim=1)

    curve = confidence_curve(predict, image, 1, [0, 45, 90, 180, -90])
    assert curve.shape == (5, 1)
    assert curve[:, 0].round().tolist() == [0, 0, 1, 0, 0]


def test_crossings_are_found_between_points() -> None:
    assert crossings([0, 10, 20, 30], [1.0, 0.75, 0.25, 0.0]) == [15.0]
    assert crossings([-90, 0, 90], [0.0, 1.0, 0.0]) == [-45.0, 45.0]
    assert crossings([0, 10], [1.0, 0.6]) == []
    assert crossings([0, 10, 20], [1.0, 0.5, 0.0]) == [10.0]


def test_auroc_agrees_with_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(0)
    for digits in (1, 6):  # with many ties and with few
        positive, negative = (
            (torch.randn(n, generator=generator) + shift).round(decimals=digits) for n, shift in ((70, 0.5), (40, 0.0))
        )
        scores = torch.sigmoid(torch.cat([positive, negative]))
        truth = torch.cat([torch.ones(70), torch.zeros(40)]).long()
        assert abs(auroc(positive, negative) - float(binary_auroc(scores, truth))) < 1e-6
    assert auroc(torch.ones(3), torch.zeros(2)) == 1.0
    assert auroc(torch.zeros(3), torch.zeros(2)) == 0.5


def test_levels_are_read_by_layer_and_image() -> None:
    model = build(SE2Config(widths=(3, 3, 4), kernel_sizes=(3, 3, 3), hidden=8, block="plain"), 1, 3)
    images = torch.rand(5, 1, 16, 16)
    theta = read_theta(model, images, batch=2)
    assert {name: tuple(values.shape) for name, values in theta.items()} == {"lift": (5, 1), "last": (5, 1)}
    assert set(read_theta(model, images, all_levels=True)) == {"lift", "stages.0.first", "last"}
    one = read_theta(model, images[3:4])
    assert torch.allclose(one["last"], theta["last"][3:4], atol=1e-6)
    assert not any(module._forward_hooks for module in model.modules())


def test_weights_are_those_of_theta() -> None:
    """Of three hues, θ in [⅓, 1] gives the identity 1/(3θ) and the others half of the rest."""
    model = build(ColorConfig(width=4, initial=0.7), 3, 5)
    images = torch.rand(6, 3, 28, 28)
    theta, weights = read_theta(model, images)["conv6"][:, 0], read_weights(model, images, batch=4)["conv6"]
    assert torch.allclose(weights[:, 0], 1 / (3 * theta), atol=1e-5)
    assert torch.allclose(weights[:, 1], (1 - weights[:, 0]) / 2, atol=1e-5)


def test_only_drawn_weights_are_random_and_reading_changes_nothing() -> None:
    model = build(ColorConfig(width=4, family="gumbel", level="learned"), 3, 5)
    images = torch.rand(4, 3, 28, 28)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.equal(read_weights(model, images)["conv7"], read_weights(model, images)["conv7"])
    drawn = read_weights(model, images, drawn=True)["conv7"]
    kept = drawn > 1e-6
    assert torch.allclose(drawn, kept / kept.sum(dim=1, keepdim=True), atol=1e-5)  # those that are in count alike
    again = [read_weights(model, images, drawn=True)["conv7"] for _ in range(30)]
    assert not all(torch.equal(drawn, other) for other in again)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())


def test_levels_can_be_made_the_same_for_all() -> None:
    torch.manual_seed(1)
    model = build(ColorConfig(width=4, initial=0.7), 3, 5).eval()
    for module in model.modules():
        if hasattr(module, "encoder"):
            module.encoder.linear.weight.data *= 200
    images = torch.rand(6, 3, 28, 28)
    before, own = read_theta(model, images), model(images)[0]
    assert before["conv7"].std() > 0.01
    with same_for_all(model, images):
        during, alike = read_theta(model, images), model(images)[0]
    for layer in ("conv6", "conv7"):
        assert torch.allclose(during[layer], before[layer].mean(0).expand(6, 1), atol=1e-6)
    assert not torch.allclose(own, alike, atol=1e-5)
    assert torch.equal(model(images)[0], own)
