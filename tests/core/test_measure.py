"""Curves, crossings, AUROC and the reading of levels, against what is known without the code."""

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet, set_theta, vary_theta
from vpgcnn import SO2, Dihedral, Full, GumbelSoftmax, Hue, Product, ReparametrizedWindow, Shared, Variational, Window
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed
from vpgcnn.measure import auroc, confidence_curve, crossings, levels, read_levels, whole_group, with_mean_levels


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
    classification = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(0)
    for digits in (1, 6):  # with many ties and with few
        positive, negative = (
            (torch.randn(n, generator=generator) + shift).round(decimals=digits) for n, shift in ((70, 0.5), (40, 0.0))
        )
        scores = torch.sigmoid(torch.cat([positive, negative]))
        truth = torch.cat([torch.ones(70), torch.zeros(40)]).long()
        assert abs(auroc(positive, negative) - float(classification.binary_auroc(scores, truth))) < 1e-6
    assert auroc(torch.ones(3), torch.zeros(2)) == 1.0
    assert auroc(torch.zeros(3), torch.zeros(2)) == 0.5


def mixed() -> SmallNet:
    """A level of every kind: per image, shared, whole group, per image."""
    return SmallNet(SO2(4), levels=[Variational(), Shared(), Full(), Variational(Window(0.5))], in_channels=1)


def test_levels_are_read_by_layer_and_image() -> None:
    model, images = mixed().eval(), torch.rand(5, 1, 16, 16)
    reading = read_levels(model, images, batch=2)
    shapes = {name: tuple(values.shape) for name, values in reading.theta.items()}
    assert shapes == {"lift": (5, 1), "convs.0": (5, 1), "convs.2": (5, 1)}
    assert reading.shared == {"convs.0"}
    assert set(reading.per_image().theta) == set(reading.per_image().weights) == {"lift", "convs.2"}
    assert {name: tuple(values.shape) for name, values in reading.weights.items()} == dict.fromkeys(shapes, (5, 4))
    assert all(torch.allclose(rows.sum(dim=1), torch.ones(5), atol=1e-5) for rows in reading.weights.values())
    one = read_levels(model, images[3:4])
    assert torch.allclose(one.theta["convs.2"], reading.theta["convs.2"][3:4], atol=1e-6)
    assert torch.allclose(reading.logits, model(images).logits, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules())


def test_bytes_are_read_as_numbers_in_the_unit_interval() -> None:
    model, pixels = mixed(), torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    assert torch.equal(read_levels(model, pixels).logits, read_levels(model, pixels / 255).logits)


def test_a_table_of_levels_has_a_row_for_each_image_and_layer() -> None:
    model, images = mixed(), torch.rand(2, 1, 16, 16)
    table = levels(model, images, ["one", "two"])
    assert table.layers == ["lift", "convs.0", "convs.2"]
    rows = table.rows()
    assert [(row["image"], row["layer"]) for row in rows[:3]] == [("one", layer) for layer in table.layers]
    assert len(rows) == 6
    for row in rows:
        (theta,) = row["theta"]
        assert row["window"] == [[pytest.approx(-180 * theta), pytest.approx(180 * theta)]]
        assert sum(row["weights"]) == pytest.approx(1, abs=1e-5)
    lines = repr(table).splitlines()
    assert lines[0].split() == ["image", "θ", "lift", "θ", "convs.0", "θ", "convs.2"]
    assert lines[1].split()[0] == "one"
    with pytest.raises(UserError, match="got 1 name for 2 images"):
        levels(model, images, ["one"])
    assert "no layer has a level" in repr(levels(SmallNet(SO2(4), in_channels=1), images))


def test_weights_are_those_of_theta() -> None:
    """Of three hues, θ in [⅓, 1] gives the identity 1/(3θ) and the others half of the rest."""
    model = SmallNet(Hue(3), level=Variational(Window(0.7)))
    reading = read_levels(model, torch.rand(6, 3, 16, 16), batch=4)
    theta, weights = reading.theta["convs.0"][:, 0], reading.weights["convs.0"]
    assert torch.allclose(weights[:, 0], 1 / (3 * theta), atol=1e-5)
    assert torch.allclose(weights[:, 1], (1 - weights[:, 0]) / 2, atol=1e-5)


def test_circles_of_a_product_are_read_one_by_one() -> None:
    model = SmallNet(Product(SO2(4), Hue(3)), levels=[Full(), Full(), Full(), Variational(Window(0.6))])
    reading = read_levels(model, torch.rand(3, 3, 12, 12))
    circles, parts = reading.circles(), reading.marginals()
    assert {name: tuple(v.shape) for name, v in circles.items()} == {"convs.2 rotation": (3,), "convs.2 hue": (3,)}
    assert torch.equal(circles["convs.2 hue"], reading.theta["convs.2"][:, 1])
    assert {name: tuple(v.shape) for name, v in parts.items()} == {"convs.2 rotation": (3, 4), "convs.2 hue": (3, 3)}
    assert all(torch.allclose(share.sum(dim=1), torch.ones(3), atol=1e-5) for share in parts.values())


def test_an_axis_of_one_element_is_no_circle() -> None:
    """A mirror is a group with rotations of one element: only the mirror has a window."""
    model = SmallNet(Dihedral(1), levels=[Full(), Full(), Full(), Variational(Window(0.6))])
    images = torch.rand(3, 3, 12, 12)
    reading = read_levels(model, images)
    assert list(reading.circles()) == list(reading.marginals()) == ["convs.2 mirror"]
    assert torch.equal(reading.circles()["convs.2 mirror"], reading.theta["convs.2"][:, 1])
    assert reading.marginals()["convs.2 mirror"].shape == (3, 2)
    deployed = Deployed(model, images)
    assert deployed.layers == ["convs.2 mirror"]
    assert torch.allclose(deployed(images)[1][:, 0], reading.circles()["convs.2 mirror"])


def test_only_sampled_weights_are_random_and_reading_changes_nothing() -> None:
    model = SmallNet(Hue(3), level=Shared(GumbelSoftmax())).eval()
    images = torch.rand(4, 3, 12, 12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    once, twice = (read_levels(model, images).weights["convs.2"] for _ in range(2))
    assert torch.equal(once, twice)
    drawn = read_levels(model, images, sampled=True).weights["convs.2"]
    kept = drawn > 1e-6
    assert torch.allclose(drawn, kept / kept.sum(dim=1, keepdim=True), atol=1e-5)  # those that are in count alike
    again = [read_levels(model, images, sampled=True).weights["convs.2"] for _ in range(30)]
    assert not all(torch.equal(drawn, other) for other in again)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())


def test_every_image_can_be_given_the_mean_level() -> None:
    torch.manual_seed(1)
    model = SmallNet(Hue(3), levels=[Full(), Full(), Variational(Window(0.7)), Variational(Window(0.7))]).eval()
    vary_theta(model, 200.0)
    images = torch.rand(6, 3, 16, 16)
    with torch.no_grad():
        before, alone = read_levels(model, images).theta, model(images).logits
        assert before["convs.2"].std() > 0.001
        with with_mean_levels(model, images, batch=4):
            during, alike = read_levels(model, images).theta, model(images).logits
        for layer in ("convs.1", "convs.2"):
            # The mean of θ in the second layer is over features that still saw the first layer's levels.
            assert torch.allclose(during[layer], before[layer].mean(0).expand(6, 1), atol=1e-6)
        assert not torch.allclose(alone, alike, atol=1e-5)
        assert torch.equal(model(images).logits, alone)


def test_every_image_can_be_given_the_whole_group() -> None:
    levels_of: list[Variational | Full] = [Full(), Full(), Full(), Variational(Window(0.5))]
    model = SmallNet(Hue(3), levels=levels_of).eval()  # type: ignore[arg-type]
    images = torch.rand(3, 3, 12, 12)
    with torch.no_grad():
        alone = model(images).logits
        with whole_group(model):
            whole = model(images).logits
        assert torch.equal(model(images).logits, alone)
        set_theta(model, 1.0)
        assert torch.allclose(whole, model(images).logits, atol=1e-6)
    assert not torch.allclose(whole, alone, atol=1e-4)


def test_a_level_is_restored_after_an_error() -> None:
    model = SmallNet(Hue(3), level=Variational(Window(0.5))).eval()
    before = [module.level for module in (model.lift, *model.convs)]
    with pytest.raises(ZeroDivisionError), whole_group(model):
        raise ZeroDivisionError
    assert [module.level for module in (model.lift, *model.convs)] == before


def test_what_cannot_be_read_is_refused() -> None:
    images = torch.rand(2, 1, 16, 16)
    with pytest.raises(UserError, match="returns a Prediction, got Tensor"):
        read_levels(nn.Flatten(), images)
    with pytest.raises(UserError, match="at least one image"), with_mean_levels(mixed(), images[:0]):
        pass
    assert read_levels(mixed(), images[:0]).theta["lift"].shape == (0, 1)
    moving = SmallNet(SO2(4), levels=[Full(), Full(), Full(), Variational(ReparametrizedWindow())], in_channels=1)
    with pytest.raises(UserError, match="moves elements cannot be replaced"), whole_group(moving):
        pass
