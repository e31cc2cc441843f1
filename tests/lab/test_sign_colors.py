"""Traffic signs in other colours: the truth about each class, and networks on saturation and luminance."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support import real_data
from vpgcnn.apps import cli
from vpgcnn.apps.serve.inspector import open_networks
from vpgcnn.errors import UserError
from vpgcnn.groups import Hue, Luminance, Product, Saturation
from vpgcnn.lab.data import DataConfig, Dataset, load
from vpgcnn.lab.data.sign_colors import CLASSES, KINDS, SHIFT
from vpgcnn.lab.data.signs import SIGNS
from vpgcnn.lab.networks import ColorConfig, build, elements_of, symmetry
from vpgcnn.lab.networks.config import SIGNS_IN_COLOR
from vpgcnn.lab.training.checkpoint import Card, save_model
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.levels import Full
from vpgcnn.measure import at_places

SMALL = replace(SIGNS_IN_COLOR, widths=(2, 2, 3))


@pytest.fixture(scope="module")
def signs() -> Dataset:
    return load(DataConfig(name="gtsrb-colors", size=16), real_data("GTSRB"))


def lightness_and_saturation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Means over each image, inside the disc: the luminance, and the distance from grey over that of the cone."""
    pixels = images.double() / 255
    line = torch.arange(16) - 7.5
    inside = (line[:, None].square() + line.square() <= 49).flatten()
    grey = pixels.mean(dim=1)
    size = torch.linalg.vector_norm(pixels - grey[:, None], dim=1)
    share = size / (math.sqrt(1.5) * torch.minimum(grey, 1 - grey)).clamp_min(1e-9)
    return grey.flatten(1)[:, inside].mean(dim=1), share.flatten(1)[:, inside].mean(dim=1)


def test_the_label_says_what_counts_and_nothing_else(signs: Dataset) -> None:
    """Of a sign that may be pale or vivid both are in its class, about equally often; of another, one."""
    assert len(CLASSES) == 1 + 2 + 2 + 4
    lightness, saturation = lightness_and_saturation(signs.train.images)
    light, vivid = lightness > 0.62, saturation > 0.6
    for label, name in enumerate(CLASSES):
        own = signs.train.labels == label
        sign = next(number for number in KINDS if name.endswith(SIGNS[number].name))
        for seen, free, word in ((vivid, KINDS[sign][0], "vivid"), (light, KINDS[sign][1], "light")):
            share = float(seen[own].double().mean())
            if free:
                assert 0.4 < share < 0.6, (name, word)
            else:
                assert share > 0.97 if word in name.split() else share < 0.03, (name, word, share)


def test_the_truth_is_that_of_the_label(signs: Dataset) -> None:
    for split in (signs.train, signs.validation, signs.test):
        assert split.reach is not None
        for label, name in enumerate(CLASSES):
            words = name.split()
            bound = [{"pale", "vivid"} & set(words), {"dark", "light"} & set(words)]
            expected = [SHIFT / (2 * math.pi) if found else 1.0 for found in bound]
            assert split.reach[split.labels == label].unique(dim=0).tolist() == [expected]


def test_moving_an_image_by_the_group_makes_the_other_version(signs: Dataset) -> None:
    """Dark images, shifted by a quarter of the circle, are as light as the light ones, and back again."""
    group = Product(Saturation(4), Luminance(4))
    dark = signs.train.images[signs.train.labels == CLASSES.index("dark pale no overtaking by lorries")][:40]
    pixels = dark.double() / 255
    moved = group.transform(pixels, torch.tensor([SHIFT, SHIFT], dtype=torch.float64))
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    light = signs.train.images[signs.train.labels == CLASSES.index("light vivid no overtaking by lorries")][:40]
    for one, two in zip(lightness_and_saturation(255 * moved), lightness_and_saturation(light), strict=True):
        assert float(one.mean()) == pytest.approx(float(two.mean()), abs=0.05)
    back = group.transform(moved, torch.tensor([-SHIFT, -SHIFT], dtype=torch.float64))
    assert torch.allclose(back, pixels, rtol=0, atol=1e-9)


def test_photographs_of_a_track_stay_together_and_the_seed_is_the_draw(signs: Dataset) -> None:
    again = load(DataConfig(name="gtsrb-colors", size=16), real_data("GTSRB"))
    assert again.fingerprint() == signs.fingerprint()
    plain = load(DataConfig(name="gtsrb", size=16), real_data("GTSRB"))
    for part, whole in ((signs.train, plain.train), (signs.validation, plain.validation), (signs.test, plain.test)):
        assert len(part) == 2 * sum(int((whole.labels == sign).sum()) for sign in KINDS)


# ---------------------------------------------------------------- networks and commands


def test_networks_on_saturation_and_luminance() -> None:
    config = recipe("gtsrb-colors").model
    assert symmetry(config) == "color"
    assert elements_of(config) == (1, 1)
    assert config.group.count == 16
    images = 0.2 + 0.1 * torch.rand(2, 3, 28, 28, dtype=torch.float64)
    colored = ColorConfig(group=Saturation(4), width=3, group_pool="mean")
    for config in (SMALL, colored):
        net = build(replace(config, level=Full()), 3, 4, (0.5,), (0.2,)).double().eval()
        step = torch.zeros(len(config.group.axes), dtype=torch.float64)
        step[-1] = math.pi / 2
        moved = net(config.group.transform(images, step))[0]
        assert torch.allclose(moved, net(images)[0], rtol=0, atol=1e-9)
        assert not torch.allclose(net(images.flip(-1))[0], moved, rtol=0, atol=1e-6)
    with pytest.raises(UserError, match="smooth must be 0"):
        build(replace(SMALL, smooth=0.8), 3, 4)
    with pytest.raises(UserError, match="needs colour images"):
        build(SMALL, 1, 4)
    assert symmetry(replace(SMALL, group=Product(Hue(3), Luminance(2)))) == "color"


def test_places_of_saturation_and_luminance() -> None:
    """A classifier by luminance is wrong about free images wherever they are moved, and one by nothing is right."""
    images, labels = 0.3 + 0.05 * torch.rand(8, 3, 4, 4), torch.zeros(8, dtype=torch.long)
    reach = torch.tensor([1.0] * 4 + [0.25] * 4)

    def by_luminance(pixels: Tensor) -> Tensor:
        light = (pixels.mean(dim=(1, 2, 3)) - 0.32).abs() > 0.06
        return torch.stack([~light, light], dim=1).float()

    found = at_places(by_luminance, images, labels, reach, "luminance")
    assert found.free == 0.0
    assert at_places(by_luminance, images, labels, reach, "saturation").free == 1.0


def test_commands_know_or_refuse_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    card = Card(SMALL, ("a", "b"), 3, 28, (0.1,), (0.3,), "gtsrb-colors")
    save_model(tmp_path / "net.safetensors", build(SMALL, 3, 2), card, {})
    with pytest.raises(UserError, match="is on saturation or luminance"):
        open_networks([tmp_path / "net.safetensors"], torch.device("cpu"))
    folder = tmp_path / "images"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    from PIL import Image

    for place in range(4):
        pixels = (255 * torch.rand(28, 28, 3)).to(torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / "ab"[place % 2] / f"{place}.png")
    assert cli.main(["predict", str(tmp_path / "net.safetensors"), str(folder), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert {"last saturation", "last luminance"} == set(answers[0]["theta"])
