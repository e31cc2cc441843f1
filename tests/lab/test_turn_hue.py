"""Rotation and hue at once: digits with both truths, a network on the product, and θ of each circle by itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vpgcnn.apps import cli
from vpgcnn.apps.serve.inspector import Inspector, open_networks
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Dihedral, Hue, Product, Rotations
from vpgcnn.kernels import Siren
from vpgcnn.lab.data import DataConfig, Split, load
from vpgcnn.lab.data.colormnist import COLORS
from vpgcnn.lab.data.files import VARIABLE
from vpgcnn.lab.data.turn_hue import CLASSES, KINDS
from vpgcnn.lab.networks import SE2Config, SE2Net, build, elements_of, ordinary, symmetry
from vpgcnn.lab.networks.config import DIGITS_IN_COLOR
from vpgcnn.lab.training.checkpoint import Card, save_model
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.levels import Full, VariationalLevel
from vpgcnn.levels.costs import bowl
from vpgcnn.measure import read_levels, whole_group

SMALL = replace(DIGITS_IN_COLOR, widths=(3, 3, 4), kernel=Siren(hidden=6, omega=4.0))


@pytest.fixture(scope="module")
def digits() -> Split:
    return load(DataConfig(name="mnist-turn-hue", source="embedded")).all()


def test_every_mixture_of_the_two_symmetries_occurs(digits: Split) -> None:
    assert digits.reach is not None
    kinds, counts = digits.reach.unique(dim=0, return_counts=True)
    assert sorted(tuple(round(float(v), 3) for v in row) for row in kinds) == [
        (0.5, 0.333),
        (0.5, 1.0),
        (1.0, 0.333),
        (1.0, 1.0),
    ]
    assert counts.min() > 0.2 * len(digits)
    assert len(CLASSES) == 1 + 3 + 2 + 6
    assert len(digits.labels.unique()) == len(CLASSES)


def test_the_label_says_what_counts_and_nothing_else(digits: Split) -> None:
    """Of a digit that may have any colour all colours are in its class; of another, one."""
    ink = digits.images.float().sum(dim=(2, 3))
    color = ink.argmax(dim=1)
    assert bool(((ink > 0).sum(dim=1) == 1).all())  # pure red, green or blue
    for label, name in enumerate(CLASSES):
        seen = color[digits.labels == label].unique().tolist()
        digit = int(name.split()[0])
        if KINDS[digit][1]:
            assert seen == [0, 1, 2], name
        else:
            assert [COLORS[place] for place in seen] == [name.split()[-1]]


def test_turned_digits_are_upside_down(digits: Split) -> None:
    grey = digits.images.amax(dim=1).float()
    upright, turned = (grey[digits.labels == CLASSES.index(name)].mean(dim=0) for name in ("6", "6 turned"))
    assert float((upright - turned.rot90(2)).abs().mean()) < 1.0
    assert float((upright - turned).abs().mean()) > 5.0


def test_digits_are_the_same_for_the_same_seed_and_held_out_before_they_are_moved() -> None:
    one, same, other = (
        load(DataConfig(name="mnist-turn-hue", source="embedded", seed=seed)).fingerprint() for seed in (0, 0, 1)
    )
    assert one == same != other
    parts = load(DataConfig(name="mnist-turn-hue", source="embedded"))
    shapes = [
        {min(image.tobytes(), image[::-1, ::-1].tobytes()) for image in part.images.amax(dim=1).numpy()}
        for part in (parts.train, parts.validation, parts.test)
    ]
    assert not shapes[0] & shapes[1]
    assert not shapes[0] & shapes[2]
    assert not shapes[1] & shapes[2]


def net(**changes: object) -> SE2Net:
    torch.manual_seed(0)
    made = build(replace(SMALL, **changes), 3, 5)  # type: ignore[arg-type]
    assert isinstance(made, SE2Net)
    return made.eval()


def moved(images: Tensor, angle: float, hue: float) -> Tensor:
    group = Product(SO2(), Hue(3))
    return group.transform(images, group.element(angle, hue))


@pytest.mark.usefixtures("double")
def test_all_of_both_circles_is_invariance_to_both() -> None:
    model = net(level=Full()).double()
    images = torch.rand(2, 3, 28, 28)
    with torch.no_grad():
        before = model(images)[0]
        for quarter in range(4):
            for third in range(3):
                after = model(moved(images, quarter * math.pi / 2, 2 * math.pi * third / 3))[0]
                assert torch.allclose(before, after, atol=1e-9), (quarter, third)
        assert not torch.allclose(before, model(images.flip(-1))[0], atol=1e-6)


@pytest.mark.usefixtures("double")
def test_each_circle_has_its_window() -> None:
    """With the rotation's window open and the hue's closed, turns do not count and colours do."""
    model = net().double()
    last = model.get_submodule("last.level")
    assert isinstance(last, VariationalLevel)
    with torch.no_grad():
        last.encoder.linear.weight.zero_()
        last.encoder.linear.bias.zero_()
        last.encoder.start.copy_(bowl(torch.tensor([1.0, 0.0])))
        images = torch.rand(2, 3, 28, 28)
        assert [float(v) for v in read_levels(model, images).theta["last"][0]] == pytest.approx([1.0, 1 / 3])
        before = model(images)[0]
        turned, tinted = model(moved(images, math.pi / 2, 0.0))[0], model(moved(images, 0.0, 2 * math.pi / 3))[0]
    assert torch.allclose(before, turned, atol=1e-9)
    assert float((before - tinted).abs().max()) > 1e-4


def test_theta_and_weights_of_each_circle() -> None:
    model = net()
    images = torch.rand(3, 3, 28, 28)
    reading = read_levels(model, images)
    theta, weights, circles = reading.theta, reading.weights, reading.circles()
    assert {name: tuple(v.shape) for name, v in circles.items()} == {"last rotation": (3,), "last hue": (3,)}
    assert torch.equal(circles["last hue"], theta["last"][:, 1])
    parts = reading.marginals()
    assert {name: tuple(v.shape) for name, v in parts.items()} == {"last rotation": (3, 8), "last hue": (3, 3)}
    for share in parts.values():
        assert torch.allclose(share.sum(dim=1), torch.ones(3), atol=1e-5)
    # A window's weights are a product of those on the circles.
    table = weights["last"].unflatten(1, (8, 3))
    assert torch.allclose(table, parts["last rotation"][:, :, None] * parts["last hue"][:, None, :], atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(reading.logits, model(images).logits, atol=1e-6)
        with whole_group(model):
            whole = model(images)
        assert not torch.allclose(whole.logits, model(images).logits)
    assert torch.equal(whole.kl, torch.zeros(3))  # nothing is decided any more


def test_networks_say_what_they_are_symmetric_to() -> None:
    assert symmetry(SE2Config(group=Product(SO2(4), Hue(3)))) == "both"
    assert symmetry(SE2Config(group=Product(Rotations(1), Hue(3)))) == "hue"
    assert symmetry(SE2Config(group=Hue(3))) == "hue"
    assert symmetry(SE2Config()) == "rotation"
    assert symmetry(ordinary(SMALL)) == "none"
    assert elements_of(SMALL) == (8, 3)
    assert elements_of(SE2Config(group=Product(Dihedral(4), Hue(3)))) == (8, 3)
    assert elements_of(ordinary(SMALL)) == (1, 1)
    with pytest.raises(UserError, match="needs colour images, got 1 channel"):
        build(SMALL, 1, 3)
    with pytest.raises(ValueError, match="got 0"):
        Hue(0)


def test_the_recipe_is_on_both_circles() -> None:
    config = recipe("mnist-turn-hue")
    assert symmetry(config.model) == "both"
    assert config.data.name == "mnist-turn-hue"


def saved(tmp_path: Path) -> Path:
    card = Card(SMALL, CLASSES, 3, 28, (0.1,), (0.3,), "mnist-turn-hue")
    torch.manual_seed(0)
    save_model(tmp_path / "net.safetensors", card.build(), card, {})
    return tmp_path / "net.safetensors"


def test_evaluate_compares_each_circle_with_its_own_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))  # nothing there: the embedded digits
    assert cli.main(["evaluate", str(saved(tmp_path)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["theta"]) == set(found["against_truth"]) == {"last rotation", "last hue"}
    assert set(found["theta"]["last hue"]) == set(CLASSES)
    # A window that is nearly open is nearer to the truth of rotations, 0.75 on average, than to that of hues, 0.67.
    theta = {circle: sum(values.values()) / len(values) for circle, values in found["theta"].items()}
    assert theta["last rotation"] == pytest.approx(0.9, abs=0.1)
    assert found["against_truth"]["last rotation"]["error"] < found["against_truth"]["last hue"]["error"]


def test_the_inspector_shows_both_windows(tmp_path: Path) -> None:
    networks, _ = open_networks([saved(tmp_path)], torch.device("cpu"))
    _, seen = Inspector(networks).inspect(torch.rand(3, 28, 28), 30.0, [networks[0].name], 4)
    assert set(seen[0].theta) == {"last rotation", "last hue"}
    assert {name: len(weights) for name, weights in seen[0].weights.items()} == {"last rotation": 8, "last hue": 3}
