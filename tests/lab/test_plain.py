"""Ordinary networks: built, started from, converted on the command line, refused where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vpgcnn import Dihedral, Hue, Product, Rotations, Shared, Variational, Window
from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.lab.networks import (
    AugmenterConfig,
    PlainConfig,
    PlainNet,
    build,
    count_parameters,
    ordinary,
    symmetry,
    to_unit,
)
from vpgcnn.lab.networks.config import PLAIN_RESNET, PLAIN_RESNET50
from vpgcnn.lab.training.checkpoint import Card, load_model, read_card, save_model, started
from vpgcnn.lab.training.search import make_policy

SMALL = PlainConfig(width=4, stem="small", depths=(1, 1))
CARD = Card(SMALL, ("a", "b", "c"), 3, 16, (0.4,), (0.25,))


def weights(tmp_path: Path, card: Card = CARD, name: str = "plain.safetensors") -> Path:
    """A network whose batch norms have seen something."""
    torch.manual_seed(0)
    model = card.build()
    for _ in range(3):
        model.train()(torch.rand(8, card.channels, card.size, card.size))
    save_model(tmp_path / name, model, card, {})
    return tmp_path / name


def pictures() -> torch.Tensor:
    return to_unit(torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8))


def test_weights_are_called_as_everyone_calls_them() -> None:
    model = build(PlainConfig(width=4), 3, 5)
    assert isinstance(model, PlainNet)
    names = set(model.network.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.bias", "fc.weight"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight"} <= names
    assert "layer1.0.downsample.0.weight" not in names


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (PLAIN_RESNET, 11_689_512),
        (replace(PLAIN_RESNET, depths=(3, 4, 6, 3)), 21_797_672),
        (PLAIN_RESNET50, 25_557_032),
    ],
    ids=["18", "34", "50"],
)
def test_resnets_have_as_many_parameters_as_they_should(config: PlainConfig, published: int) -> None:
    """With 1,000 classes, the numbers that the literature gives."""
    assert count_parameters(build(config, 3, 1000)) == published


def test_weights_of_a_bottleneck_are_called_as_everyone_calls_them() -> None:
    model = build(replace(PLAIN_RESNET50, width=4), 3, 5)
    assert isinstance(model, PlainNet)
    shapes = {name: tuple(value.shape) for name, value in model.network.state_dict().items()}
    assert shapes["layer1.0.conv1.weight"] == (4, 4, 1, 1)
    assert shapes["layer2.0.conv2.weight"] == (8, 8, 3, 3)
    assert shapes["layer2.0.conv3.weight"] == (32, 8, 1, 1)
    assert shapes["layer1.0.downsample.0.weight"] == (16, 4, 1, 1)
    assert "layer1.1.downsample.0.weight" not in shapes
    assert shapes["layer4.2.bn3.bias"] == (128,)


def test_a_policy_can_look_through_an_ordinary_network_and_not_a_converted_one() -> None:
    policy = make_policy(replace(CARD, augmenter=AugmenterConfig("policy", "hue")))
    assert policy.advise(torch.rand(2, 3, 16, 16), torch.tensor([0, 1])).chance.shape == (2, 1)
    with pytest.raises(UserError, match="the features of this network cannot be read"):
        make_policy(replace(CARD, model=replace(SMALL, group=Hue(3)), augmenter=AugmenterConfig("policy", "hue")))


def test_a_converted_bottleneck_starts_with_the_same_answers() -> None:
    torch.manual_seed(0)
    config = replace(SMALL, block="bottleneck")
    plain = build(config, 3, 4).eval()
    other = build(replace(config, group=Hue(3), level=Shared()), 3, 4).eval()
    assert isinstance(plain, PlainNet)
    assert isinstance(other, PlainNet)
    other.network = other.converted(plain.network).eval()
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(other(images)[0], plain(images)[0], atol=1e-5)


def test_pixels_are_standardised_by_channel_after_they_were_moved() -> None:
    """With a mean for each channel the answer of a fully converted network still does not depend on the hue."""
    torch.manual_seed(0)
    config, pixels = replace(SMALL, group=Hue(3)), ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    model = build(config, 3, 4, *pixels).eval()
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(model(images)[0], model(images.roll(1, dims=1))[0], atol=1e-5)
        plain = build(ordinary(config), 3, 4, *pixels).eval()
        assert not torch.allclose(plain(images)[0], plain(images.roll(1, dims=1))[0], atol=1e-3)
    with pytest.raises(UserError, match="std above 0"):
        build(SMALL, 3, 4, (0.0,), (0.0,))


@pytest.mark.parametrize(
    "changes",
    [
        {"group": Hue(3)},
        {"group": Rotations(4)},
        {"group": Product(Dihedral(2), Hue(3))},
        {"group": Hue(3), "until": "layer1"},
        {"group": Hue(3), "level": Shared()},
        {"group": Hue(3), "level": Variational(encoder_width=3)},
    ],
    ids=str,
)
def test_a_converted_network_starts_with_the_answers_it_had(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = weights(tmp_path)
    config = replace(SMALL, **{"level": Variational()} | changes)
    model, message = started(replace(CARD, model=config), path)
    before, _ = load_model(path)
    with torch.no_grad():
        images = pictures()
        assert torch.allclose(model.eval()(images)[0], before(images)[0], atol=1e-5)
        assert not torch.allclose(model(images)[0][:1], before(images)[0][1:2], atol=1e-4)
    assert "converted to" in message
    assert symmetry(config) != "none"


def test_a_window_that_was_chosen_is_kept() -> None:
    """Levels of converted networks start on the identity, unless their start was chosen."""

    def theta(level: Shared | Variational) -> float:
        model = build(replace(SMALL, group=Hue(3), level=level), 3, 4).eval()
        (q,) = model(torch.rand(2, 3, 16, 16)).trace.values()
        return float(q.theta.detach().mean())

    assert theta(Variational()) == theta(Shared()) == pytest.approx(1 / 3)
    assert theta(Shared(Window(initial=0.7))) == pytest.approx(0.7)


def test_full_conversion_is_invariant_at_once(tmp_path: Path) -> None:
    model, _ = started(replace(CARD, model=replace(SMALL, group=Hue(3))), weights(tmp_path))
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(model.eval()(images)[0], model(images.roll(1, dims=1))[0], atol=1e-5)


def test_other_classes_get_a_new_last_layer(tmp_path: Path) -> None:
    path = weights(tmp_path)
    other = replace(CARD, classes=("x", "y"))
    torch.manual_seed(5)
    model, message = started(other, path)
    before, _ = load_model(path)
    own, theirs = model.state_dict(), before.state_dict()
    assert own["network.fc.weight"].shape[0] == 2
    for name in own:
        if ".fc." not in name:
            assert torch.equal(own[name], theirs[name]), name
    assert "the last layer is new" in message


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = weights(tmp_path)
    for card, message in (
        (replace(CARD, model=replace(SMALL, width=5)), "its width is 4, here it is 5"),
        (replace(CARD, channels=1), "3 channels, but these have 1"),
        (replace(CARD, classes=("x", "y"), model=replace(SMALL, group=Hue(3))), "has other classes"),
    ):
        with pytest.raises(UserError, match=message):
            started(card, path)


# ------------------------------------------------------------ the command


def test_convert_writes_what_it_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = weights(tmp_path)
    assert cli.main(["convert", str(path), "--hues", "3"]) == 0
    printed = capsys.readouterr().out
    assert "logits differ by at most" in printed
    assert " times the original's " in printed
    target = tmp_path / "converted.safetensors"
    card = read_card(target)
    assert isinstance(card.model, PlainConfig)
    assert (card.model.group, card.model.level) == (Hue(3), Variational())
    model, _ = load_model(target)
    before, _ = load_model(path)
    images = pictures()
    with torch.no_grad():
        assert torch.allclose(model(images)[0], before(images)[0], atol=1e-5)
    assert cli.main(["predict", str(target), str(picture(tmp_path))]) == 0
    assert "θ" in capsys.readouterr().out
    assert cli.main(["convert", str(target), "--hues", "3"]) == 1
    assert "is already converted to Hue" in capsys.readouterr().err


def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (20, 20), (200, 30, 60)).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_weights_of_others_with_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = build(SMALL, 3, 3)
    assert isinstance(model, PlainNet)
    save_file(model.network.state_dict(), tmp_path / "foreign.safetensors")
    card = {
        "model": {"name": "plain", "width": 4, "stem": "small", "depths": [1, 1]},
        "classes": ["a", "b", "c"], "channels": 3, "size": 16, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.3],
    }  # fmt: skip
    (tmp_path / "card.json").write_text(json.dumps(card))
    words = ["convert", str(tmp_path / "foreign.safetensors"), "--config", str(tmp_path / "card.json")]
    out = tmp_path / "out.safetensors"
    assert cli.main([*words, "--rotations", "4", "--out", str(out)]) == 0
    assert read_card(out).model.group == Rotations(4)
    assert read_card(out).mean == (0.5, 0.4, 0.3)
    card["model"] = {"name": "plain", "width": 5}
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert cli.main([*words, "--hues", "3"]) == 1
    assert "are not those of this network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no group to convert to"),
        (["--hues", "0"], "at least 1, got 0"),
        (["--rotations", "3"], "moves pixels off their grid"),
        (["--hues", "3", "--group", "Hue(3)"], "cannot be combined"),
        (["--hues", "3", "--layers", "layer9"], "there is no convolution 'layer9'"),
        (["--hues", "3", "--until", "nowhere"], "there is no module 'nowhere'"),
        (["--hues", "3", "--out", "net.onnx"], "must end in .safetensors"),
    ],
    ids=str,
)
def test_convert_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    path = weights(tmp_path)
    assert cli.main(["convert", str(path), *words]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plain.safetensors"]


def test_only_ordinary_networks_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vpgcnn.lab.networks import ColorConfig

    path = weights(tmp_path, replace(CARD, model=ColorConfig(shape="resnet", width=6, where=("lift",)), size=32))
    assert cli.main(["convert", str(path), "--hues", "3"]) == 1
    assert "is a network of kind 'color', which already has group convolutions" in capsys.readouterr().err


def test_a_converted_network_is_fine_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a folder of pictures to an ordinary network, converted, and trained on."""
    generator = torch.Generator().manual_seed(0)
    for place, name in enumerate("abc"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(12):
            pixels = torch.randint(0, 80, (16, 16, 3), generator=generator, dtype=torch.uint8)
            pixels[..., place] += 120
            Image.fromarray(pixels.numpy()).save(tmp_path / "images" / name / f"{number}.png")
    data, plain = str(tmp_path / "images"), str(tmp_path / "plain")
    quick = ["--batch-size", "8", "--device", "cpu"]
    shape = ["--model.width", "4", "--model.depths", "1", "1", "--model.stem", "small", "--data.size", "16"]
    words = ["train", "--data", data, "--group", "none", "--epochs", "6", *shape, *quick]
    assert cli.main([*words, "--out", plain]) == 0
    assert cli.main(["convert", plain, "--hues", "3"]) == 0
    assert "test images" in capsys.readouterr().out
    converted = str(tmp_path / "plain/converted.safetensors")
    tuned = ["train", "--data", data, "--start", converted, "--epochs", "1", "--data.size", "16", *quick]
    assert cli.main([*tuned, "--out", str(tmp_path / "tuned"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    chosen = json.loads((tmp_path / "tuned/config.json").read_text())
    assert chosen["model"]["group"] == "Hue(3)"
    assert chosen["start_from"] == converted
    assert result["test"]["accuracy"] >= 0.6  # the colour is the class, and it was known before
