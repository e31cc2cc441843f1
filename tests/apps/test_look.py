"""vpgcnn look: what it says about folders whose truth is known, and about bad ones."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.lab.diagnosis.look import Finding, look
from vpgcnn.lab.diagnosis.look_words import verdict

SIZE = 32


def hand(angle: float, hue: float, random: np.random.Generator) -> Image.Image:
    """A clock hand with a mark beside it, that points to `angle` and has a hue, both in degrees."""
    y, x = 2 * (np.mgrid[:SIZE, :SIZE] + 0.5) / SIZE - 1
    turn = np.deg2rad(angle)
    along, beside = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
    value = np.exp(-((beside / 0.2) ** 2)) / (1 + np.exp(-12 * along)) / (1 + np.exp(12 * (along - 0.8)))
    value += np.exp(-(((along - 0.6) / 0.2) ** 2) - ((beside - 0.4) / 0.2) ** 2)
    value = 0.9 * np.clip(value + 0.1 * random.random(value.shape), 0, 1)
    circle = np.full(value.shape, round(hue % 360 / 360 * 255))
    pixels = np.stack([circle, np.full(value.shape, 200), 255 * value], axis=-1).astype(np.uint8)
    return Image.fromarray(pixels, "HSV").convert("RGB")


def folder(
    root: Path, places: Callable[[int, np.random.Generator], tuple[str, float, float]], count: int = 120
) -> Path:
    """Hands in `root`/CLASS, by a function from a number to class, angle and hue."""
    random = np.random.default_rng(0)
    for number in range(count):
        name, angle, hue = places(number, random)
        (root / name).mkdir(parents=True, exist_ok=True)
        hand(angle, hue, random).save(root / name / f"{number:03}.png")
    return root


def by_hue(number: int, random: np.random.Generator) -> tuple[str, float, float]:
    """The class is the hue; hands point everywhere alike."""
    return "abc"[number % 3], 137.5 * number, 120 * (number % 3) + random.normal(0, 12)


def ask(path: Path) -> tuple[dict[str, Finding], dict[str, str], str]:
    found = look(path)
    said = verdict(found)
    return {each.change: each for each in found.findings}, dict(said.advice), said.command


def test_what_carries_the_class_is_left_alone_and_what_is_spread_is_used(tmp_path: Path) -> None:
    found, advice, command = ask(folder(tmp_path / "photos", by_hue, 240))
    assert (found["hue"].carrying, advice["hue"]) == ("yes", "leave")
    assert len(found["hue"].twins) == 3
    assert (found["rotation"].spreading, found["rotation"].carrying) == ("spread", "no")
    assert advice["rotation"] == "full"
    assert "--group rotation" in command
    assert "--model.level" not in command  # a level for each image, as `vpgcnn train FOLDER` takes


def test_images_at_one_place_can_have_a_level_and_cannot_show_that_they_need_none(tmp_path: Path) -> None:
    def upright(number: int, random: np.random.Generator) -> tuple[str, float, float]:
        return "ab"[number % 2], 90 + random.normal(0, 8), 40 + 160 * (number % 2) + random.normal(0, 5)

    found, advice, _ = ask(folder(tmp_path, upright))
    assert (found["rotation"].spreading, found["rotation"].carrying) == ("one place", "no")
    assert advice["rotation"] == "variational"
    assert found["mirror"].spreading == "one place"


def test_the_command_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left_or_right(number: int, random: np.random.Generator) -> tuple[str, float, float]:
        return ("left", "right", "up")[number % 3], (180, 0, 90)[number % 3] + random.normal(0, 5), 200

    monkeypatch.chdir(tmp_path)
    photos = folder(tmp_path / "my photos", left_or_right)
    for path in photos.glob("left/*.png"):  # the mark too
        with Image.open(path) as image:
            turned = image.transpose(Image.Transpose.ROTATE_180).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        turned.save(path)
    found, _, command = ask(Path("my photos"))
    assert {frozenset((twin.label, twin.other)) for twin in found["mirror"].twins} == {frozenset((0, 1))}
    assert "--data.augment shift" in command  # training would mirror images at random
    words = shlex.split(command)
    assert words[:3] == ["vpgcnn", "train", "my photos"]
    assert cli.main([*words[1:], "--epochs", "1", "--data.size", "24", "--model.widths", "4", "4", "4", "4"]) == 0


def test_every_command_that_can_be_advised_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vpgcnn import Dihedral, Hue, Product
    from vpgcnn.lab.networks import build

    photos = folder(tmp_path / "photos", by_hue, 12)
    built = []

    def train(config, *_, **__) -> dict:
        build(config.model, 3, 3)
        built.append(config.model)
        return {"test": {"images": 0}}

    monkeypatch.setattr("vpgcnn.lab.training.loop.train", train)
    for words in (
        ["--group", "both", "--model.level", "full"],
        ["--group", "hue"],
        ["--group", "mirror", "--model.level", "full"],
    ):
        out = str(tmp_path / "-".join(words))
        assert cli.main(["train", str(photos), *words, "--data.augment", "shift", "--json", "--out", out]) == 0
    assert isinstance(built[0].group, Product)
    assert [model.level.is_full for model in built] == [True, False, True]
    assert [built[1].group, built[2].group] == [Hue(3), Dihedral(1)]


def test_the_report_and_the_terminal_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = folder(tmp_path / "photos", by_hue)
    (photos / "a" / "broken.png").write_bytes(b"not an image")
    assert cli.main(["look", str(photos), "--limit", "100", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "of 121 images (drawn at random) of 3 classes" in said.out
    page = (tmp_path / "out" / "report.html").read_text()
    data = json.loads((tmp_path / "out" / "look.json").read_text())
    for sentences in data["verdict"]["sentences"].values():
        for sentence in sentences:
            assert sentence in said.out
            assert sentence.replace("'", "&#x27;") in page
    assert data["verdict"]["command"] in said.out
    assert "Colour matters" in said.out
    assert page.count("<svg") == 2
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "")
    assert cli.main(["look", str(photos), "--json", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["changes"]["hue"]["class_carried"] == "yes"
    assert "broken.png" in said.err


def test_without_classes_only_the_first_question_is_answered(tmp_path: Path) -> None:
    photos = folder(
        tmp_path / "photos", lambda number, random: ("all", 90 + random.normal(0, 8), random.uniform(0, 360))
    )
    for place in (photos / "all", photos):  # images directly inside, or in a single folder
        found = look(place)
        said = verdict(found)
        assert found.classes == ()
        assert [each.carrying for each in found.findings] == ["no classes"] * 3
        assert found.findings[0].spreading == "one place"
        assert found.findings[1].spreading == "spread"
        assert said.command == ""
        assert "needs classes" in said.sentences["rotation"][1]


def test_noise_and_few_images_get_no_answer(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / "noise" / name).mkdir(parents=True)
        for number in range(40):
            pixels = random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "noise" / name / f"{number}.png")
    few = folder(tmp_path / "few", by_hue, 8)
    for path, word in ((tmp_path / "noise", "noise"), (few, "few")):
        found, advice, command = ask(path)
        assert {each.spreading for each in found.values()} == {word}
        assert set(advice.values()) == {"unknown"}
        assert "--group none" in command
    assert "8 images are too few to say anything; about 230 would do." in verdict(look(few)).sentences["hue"]


def test_labels_without_meaning_are_not_explained(tmp_path: Path) -> None:
    def blind(number: int, random: np.random.Generator) -> tuple[str, float, float]:
        return "ab"[random.integers(2)], 90 + random.normal(0, 8), 200 + random.normal(0, 8)

    found, advice, _ = ask(folder(tmp_path, blind))
    assert {each.carrying for each in found.values()} == {"chance"}
    assert set(advice.values()) == {"unknown"}


def test_what_cannot_be_said_is_no_reason_for_a_symmetry(tmp_path: Path) -> None:
    """Left and right look alike in most pictures, so mirroring would be the first guess where nothing is known."""
    found = look(folder(tmp_path / "photos", by_hue, 48))
    unclear = tuple(replace(each, spreading="unclear", carrying="unclear", twins=()) for each in found.findings)
    said = verdict(replace(found, findings=unclear))
    assert all("too few images to say" in headline for headline in said.headlines.values())
    assert said.group == "none"
    assert "--group none" in said.command
    assert said.reason.startswith("Nothing speaks for a symmetry yet: begin with an ordinary network.")
    assert "rotated (--group rotation) or in other hues (--group hue)" in said.reason
    known = (replace(unclear[0], carrying="no"), *unclear[1:])
    assert verdict(replace(found, findings=known)).group == "rotation"


def test_a_folder_whose_images_are_not_clear_is_refused_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path / "one" / "two" / "photos", by_hue, 6)
    with pytest.raises(UserError, match=r"did you mean .*photos\?"):
        look(tmp_path / "one")
    folder(tmp_path / "other" / "loose", lambda *_: ("", 0, 0), 3)
    folder(tmp_path / "other" / "photos", by_hue, 6)
    with pytest.raises(UserError, match=r"found 1; did you mean .*photos\?"):
        look(tmp_path / "other")  # and does not answer about the folder "loose"
    folder(tmp_path / "snapshots", lambda *_: ("", 0, 0), 3)
    folder(tmp_path / "snapshots" / "raw", lambda *_: ("", 0, 0), 2)
    assert cli.main(["look", str(tmp_path / "snapshots"), "--out", str(tmp_path / "look")]) == 0
    said = capsys.readouterr()
    assert "looked at 3 images without classes" in said.out
    assert "passed over 1 folder beside the images, which have no class: raw" in said.err


def test_grey_images_are_not_asked_about_hue(tmp_path: Path) -> None:
    photos = folder(tmp_path, by_hue, 40)
    for path in photos.rglob("*.png"):
        with Image.open(path) as image:
            grey = image.convert("L")
        grey.save(path)
    assert [each.change for each in look(photos).findings] == ["rotation", "mirror"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing"], "there is no folder missing"),
        (["empty"], "empty needs a folder of images"),
        (["text/a.png"], "text/a.png is a single file: give the folder of the images, or an .npz file"),
        (["missing.npz"], "there is no folder missing.npz"),
        (["bad.npz"], "cannot read arrays from bad.npz: it is damaged, not an .npz file, or holds objects"),
        (["empty", "--limit", "1e3"], "--limit takes a whole number, got '1e3'"),
        (["empty", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["empty", "--out", "file"], "cannot write to file"),
        (["text"], "no image in text can be read"),
        (["empty", "--lmit", "3"], "did you mean --limit"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    Path("bad.npz").write_bytes(b"PK123")
    Path("text").mkdir()
    Path("text/a.png").write_text("no image")
    assert cli.main(["look", *words]) != 0
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not Path("look").exists()


def test_the_command_skips_what_look_has_skipped(tmp_path: Path) -> None:
    whole = folder(tmp_path / "photos", by_hue, 12)
    (whole / "a" / "damaged.png").write_bytes(b"not an image")
    found = look(whole)
    assert "--skip-damaged" in shlex.split(verdict(found).command)
    assert "--skip-damaged" not in verdict(replace(found, skipped={})).command
