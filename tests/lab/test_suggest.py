"""Settings for a user's images: the choice follows from the images, and everything can be changed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vpgcnn import Dihedral
from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.base import stratified_holdout_split
from vpgcnn.lab.diagnosis.look import look
from vpgcnn.lab.diagnosis.look_words import verdict
from vpgcnn.lab.diagnosis.suggest import suggest
from vpgcnn.lab.networks import PlainConfig, symmetry


def folder(root: Path, kind: str, counts: tuple[int, ...] = (30, 30, 30), size: int = 32) -> Path:
    """Pictures whose class shows in their hue only, in their bright side only, or in neither of these.

    "shape": the class is the number of rings, whatever the hue and the direction.
    """
    random = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size] / size - 0.5
    for label, count in enumerate(counts):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(count):
            hue = np.array([label, random.integers(3)][kind != "hue"])
            angle = random.uniform(0, 2 * np.pi)
            if kind == "rotation":  # not quite the same direction, or the pixels' grid would tell it
                angle = label * 2 * np.pi / 3 + random.uniform(-0.6, 0.6)
            wave = np.tanh(6 * (x * np.cos(angle) + y * np.sin(angle)))
            if kind == "shape":
                wave = np.cos((10 + 12 * label) * np.hypot(x, y))
            pixels = np.zeros((size, size, 3))
            pixels[..., int(hue)] = 0.5 + 0.4 * wave
            pixels += 0.1 * random.random(pixels.shape)
            Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8)).save(root / f"class{label}" / f"{number}.png")
    return root


def test_what_tells_the_class_is_not_taken_for_a_symmetry(tmp_path: Path) -> None:
    by_hue, by_turn = suggest(folder(tmp_path / "a", "hue")), suggest(folder(tmp_path / "b", "rotation"))
    assert by_hue.symmetry == symmetry(by_hue.config.model) == "rotation"
    assert by_turn.symmetry == symmetry(by_turn.config.model) == "hue"
    assert "Colour matters for the class." in by_hue.messages
    assert "Orientation matters for the class." in by_turn.messages


@pytest.mark.parametrize("kind", ["hue", "rotation", "shape"])
@pytest.mark.parametrize("each", [3, 12, 40])
def test_it_chooses_what_look_begins_with_and_says_the_same(tmp_path: Path, kind: str, each: int) -> None:
    photos = folder(tmp_path, kind, (each, each, each))
    said, found = verdict(look(photos)), suggest(photos)
    assert found.symmetry == said.group
    assert any(line.startswith(said.reason) for line in found.messages)  # the same, for the same reason
    assert "--model.level" not in shlex.split(said.command)
    assert [f"{headline}." for headline in said.headlines.values()] == list(found.messages[1:4])
    words = shlex.split(said.command)
    assert words[words.index("--group") + 1] == said.group
    if said.group == "mirror":
        assert found.config.model.group == Dihedral(1)
    else:
        assert symmetry(found.config.model) == said.group
    assert ("--data.augment" in words) == said.keeps_sides


def test_pictures_whose_sides_matter_are_not_mirrored(tmp_path: Path) -> None:
    """A bright side: mirrored, two of the three classes turn into each other."""
    found = suggest(folder(tmp_path, "rotation", (40, 40, 40), 64))
    assert "Mirroring matters for the class." in found.messages
    assert (found.config.data.size, found.config.data.augment) == (64, "shift")


def test_long_tails_are_noticed(tmp_path: Path) -> None:
    tail, even = suggest(folder(tmp_path / "a", "shape", (40, 10, 6))), suggest(folder(tmp_path / "b", "shape"))
    assert tail.config.balance == 1
    assert any("6 to 40 images" in line for line in tail.messages)
    assert even.config.balance == 0


def test_sizes_are_those_of_the_images_within_bounds(tmp_path: Path) -> None:
    for size, expected in ((12, 32), (36, 40), (40, 40), (100, 64)):
        images = folder(tmp_path / str(size), "shape", (4, 4), size)
        assert suggest(images).config.data.size == expected
        assert suggest(images, size=20).config.data.size == 20


def test_few_images_make_small_batches_and_many_epochs(tmp_path: Path) -> None:
    few = suggest(folder(tmp_path, "shape", (6, 6))).config
    assert few.batch_size == 2
    assert few.epochs == 80


def test_grey_images_have_no_hue(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("L", (30, 30), 40 * number).save(tmp_path / name / f"{number}.png")
    assert suggest(tmp_path).symmetry in ("rotation", "mirror", "none")
    with pytest.raises(UserError, match="are grey and have no hue"):
        suggest(tmp_path, choice="hue")


def test_other_networks_are_taken_as_they_are(tmp_path: Path) -> None:
    images = folder(tmp_path, "shape", (5, 5))
    plain = PlainConfig(width=3)
    assert suggest(images, network=plain).config.model == plain
    assert symmetry(suggest(images, choice="both").config.model) == "both"
    assert symmetry(suggest(images, choice="none").config.model) == "none"


def test_arrays_are_looked_at_too(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 20, 20, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(40) % 2)
    found = suggest(tmp_path / "mine.npz")
    assert found.config.data.size == 20
    assert found.messages[0] == "40 images of 2 classes, 20 × 20 pixels"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.15, 0.5])
def test_every_class_is_held_out_alike(share: float) -> None:
    labels = torch.arange(400) % 7
    labels = torch.cat([labels, torch.tensor([8, 9, 9])])
    stay, out = stratified_holdout_split(labels, share, 3)
    assert sorted(torch.cat([stay, out]).tolist()) == list(range(403))
    assert abs(len(out) - share * 403) <= 1.5
    for label in labels.unique():
        whole, held = int((labels == label).sum()), int((labels[out] == label).sum())
        assert abs(held - share * whole) < 1
        assert held < whole
    again = stratified_holdout_split(labels, share, 3)
    assert torch.equal(stay, again[0])
    assert share == 0 or not torch.equal(out, stratified_holdout_split(labels, share, 4)[1])


def test_a_folder_is_split_in_each_class_alike(tmp_path: Path) -> None:
    parts = load(DataConfig(name=str(folder(tmp_path, "shape", (40, 20))), size=16))
    counts = [torch.bincount(part.labels, minlength=2).tolist() for part in (parts.train, parts.validation, parts.test)]
    assert counts == [[31, 15], [3, 2], [6, 3]]


def test_train_prints_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = folder(tmp_path / "images", "shape", (8, 8), 16)
    words = ["train", "--data", str(images), "--epochs", "1", "--data.size=16", "--device", "cpu"]
    words += ["--group", "hue", "--model.width", "3"]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "16 images of 2 classes, 16 × 16 pixels" in printed
    assert "1 epoch, batch size 2," in printed
    assert "network: colour ResNet on Hue(3), a level for each image" in printed
    chosen = json.loads((tmp_path / "run/config.json").read_text())
    assert (chosen["data"]["size"], chosen["model"]["name"], chosen["model"]["width"]) == (16, "color", 3)
    assert cli.main([*words, "--out", str(tmp_path / "run"), "--resume"]) == 0


def test_a_run_is_resumed_by_its_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are those of the run, and the photographs are not looked at again."""
    images = folder(tmp_path / "images", "shape", (8, 8), 16)
    out = ["--out", str(tmp_path / "run")]
    words = ["--epochs", "1", "--data.size=16", "--device", "cpu", "--group", "hue", "--model.width", "3"]
    assert cli.main(["train", str(images), *words, *out]) == 0
    monkeypatch.setattr("vpgcnn.lab.diagnosis.suggest.suggest", lambda *_, **__: pytest.fail("looked at again"))
    assert cli.main(["train", str(images), *out, "--resume"]) == 0
    capsys.readouterr()
    assert cli.main(["train", str(images), *out, "--resume", "--epochs", "9"]) == 1
    refused = capsys.readouterr().err
    assert "epochs: 1 then, 9 now" in refused
    assert "--start" in refused
    other = folder(tmp_path / "other", "hue", (8, 8), 16)
    assert cli.main(["train", str(other), *out, "--resume"]) == 1
    assert "data.name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "1"], "the recipe comes first"),
        (["mnist67-180", "--data", "photos"], "--data cannot be combined with the recipe mnist67-180"),
        (["mnist67-180", "--group", "hue"], "--group belongs to a folder of images"),
        (["mnist67-180", "--network", "vgg"], "unknown network 'vgg': choose from"),
        (["mnist67-180", "--network", "resnet18", "--start", "x"], "--network and --start cannot be combined"),
        (["mnist67-180", "--start", "nowhere"], "there is no run and no weights file nowhere"),
        (["--data", "nowhere"], "nowhere"),
        (["--data", "nowhere", "--data.size", "-3"], "data.size must be at least 8 pixels, got -3"),
        (["--data", "nowhere", "--data.size", "3"], "data.size must be at least 8 pixels, got 3"),
    ],
    ids=str,
)
def test_words_that_do_not_go_together(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert cli.main(["train", *words]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_parts_may_be_called_val(tmp_path: Path) -> None:
    for part, count in (("Train", 10), ("val", 4), ("test", 5)):
        folder(tmp_path / part, "shape", (count, count), 16)
    data = load(DataConfig(name=str(tmp_path)))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [20, 8, 10]
    assert data.notes[1] == "parts: Train, val, test"
    assert suggest(tmp_path).messages[0].startswith("20 images of 2 classes")


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    folder(tmp_path / "train", "shape", (10, 10), 16)
    (tmp_path / "train" / "nothing").mkdir()
    notes = load(DataConfig(name=str(tmp_path))).notes
    assert notes[1:] == ("parts: train; validation and test split off train", "empty folders ignored: nothing")
    Image.new("RGB", (9, 9)).save(tmp_path / "loose.png")
    (tmp_path / "train").rename(tmp_path / "training-2")
    with pytest.raises(UserError, match="found 0, and 1 image outside"):
        load(DataConfig(name=str(tmp_path)))


def test_a_run_finds_its_images_from_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And evaluates on those that were held out, also where they are named again."""
    folder(tmp_path / "images", "shape", (12, 12), 16)
    monkeypatch.chdir(tmp_path)
    words = ["--epochs", "1", "--data.size", "16", "--device", "cpu", "--model.width", "3", "--group", "hue"]
    assert cli.main(["train", "--data", "images", *words, "--out", "run"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    for more in ([], ["--data", "../images"]):
        assert cli.main(["evaluate", "../run", *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["images"] == 4
    assert cli.main(["diagnose", "../run", "--data", "../images", "--group", "hue", "--steps", "2"]) == 0
    assert "was trained on most of these images" in capsys.readouterr().err


def test_too_few_images_are_not_asked_too_much(tmp_path: Path) -> None:
    found = suggest(folder(tmp_path, "shape", (3, 3), 16))
    messages = found.messages
    assert found.symmetry == "none"
    assert any(line.startswith("Nothing speaks for a symmetry yet") for line in messages)
    assert any(line.startswith("only 1 image is left") for line in messages)
