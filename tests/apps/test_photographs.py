"""Photographs as people have them: some damaged, some huge, some in the wrong folder."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from app_support import make_photos, vpgcnn
from PIL import Image

from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.training.record import read_settings

SMALL = ["--model.widths", 2, 2, 2, "--epochs", 1, "--threads", 1, "--group", "rotation"]


def damage(photos: Path) -> list[Path]:
    """Three files that cannot be read: the first of all, an empty one, and text."""
    files = [photos / "bright" / "0.png", photos / "dark" / "3.png", photos / "dark" / "5.png"]
    files[0].write_bytes(files[0].read_bytes()[:60])
    files[1].write_bytes(b"")
    files[2].write_text("not a picture")
    return files


def test_all_damaged_files_are_listed_at_once(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 10)
    files = damage(photos)
    result = vpgcnn("train", photos, "--out", tmp_path / "run", *SMALL)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"vpgcnn: 3 of 20 images in {photos} cannot be read: ")
    assert all(str(path.relative_to(photos)) in result.stderr for path in files)
    assert result.stderr.endswith("remove them, or leave them out with --skip-damaged\n")
    assert not (tmp_path / "run").exists()


def test_damaged_files_are_refused_before_the_images_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vpgcnn.lab.diagnosis.look.ask", lambda *_: pytest.fail("the images were looked at"))
    photos = make_photos(tmp_path / "photos", 10)
    files = damage(photos)
    result = vpgcnn("train", photos, "--out", tmp_path / "run")
    assert result.stderr.startswith(f"vpgcnn: 3 of 20 images in {photos} cannot be read: ")
    assert all(str(path.relative_to(photos)) in result.stderr for path in files)


def test_a_run_that_is_not_there_is_begun_with_a_word(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 10)
    words = ["train", photos, "--resume", "--out", tmp_path / "run", *SMALL]
    assert f"there is no run in {tmp_path / 'run'} to resume, so a new one begins" in vpgcnn(*words).stderr
    assert "to resume" not in vpgcnn(*words).stderr


def test_damaged_files_are_left_out_on_request(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 10)
    damage(photos)
    result = vpgcnn("train", photos, "--out", tmp_path / "run", "--skip-damaged", *SMALL)
    assert result.returncode == 0, result.stderr
    assert "left out 3 images that cannot be read: bright/0.png, dark/3.png, dark/5.png" in result.stdout
    config = read_settings(tmp_path / "run" / "last.safetensors")
    assert config is not None
    assert config.data.skip_damaged
    assert vpgcnn("evaluate", tmp_path / "run").returncode == 0  # of the same images
    data = load(DataConfig(name=str(photos), skip_damaged=True))
    assert len(data.all()) == 17
    assert data.size == 16


def test_a_class_of_which_nothing_can_be_read_is_named(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 3)
    for path in (photos / "dark").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"no image of the class dark in .* can be read"):
        load(DataConfig(name=str(photos), skip_damaged=True))


def test_many_damaged_files_are_counted(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 40)
    for path in (photos / "dark").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"40 of 80 images .* and 20 more") as found:
        load(DataConfig(name=str(photos)))
    assert str(found.value).count(".png") == 20


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_huge_image_is_read_at_a_reduced_size(suffix: str, tmp_path: Path) -> None:
    """Pillow refuses more than 179 million pixels as a decompression bomb."""
    pixels = np.zeros((13_000, 14_000), np.uint8)
    pixels[:6_500, :7_000] = 200
    Image.fromarray(pixels).save(tmp_path / f"huge.{suffix}", **({"compress_level": 1} if suffix == "png" else {}))
    found = read_image(tmp_path / f"huge.{suffix}", 8, 1)
    Image.fromarray(pixels[::50, ::50]).save(tmp_path / "small.png")
    assert (found.float() - read_image(tmp_path / "small.png", 8, 1).float()).abs().max() <= 3
    assert read_image(tmp_path / f"huge.{suffix}").numel() < 64_000_000


def test_a_turned_and_transparent_image_is_reduced_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vpgcnn.lab import pixels

    noise = np.random.default_rng(0).integers(0, 256, (3, 4, 4), np.uint8).repeat(30, 1).repeat(30, 2)
    color = Image.fromarray(noise.transpose(1, 2, 0).copy())
    clear = color.copy()
    clear.putalpha(Image.fromarray(np.linspace(0, 255, 120 * 120).astype(np.uint8).reshape(120, 120)))
    exif = Image.Exif()
    exif[0x0112] = 6
    color.save(tmp_path / "turned.jpg", exif=exif, quality=100, subsampling=0)
    color.save(tmp_path / "turned.tif", exif=exif)
    clear.save(tmp_path / "clear.png")
    color.quantize(16).save(tmp_path / "palette.png")
    Image.fromarray(noise[0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for path in sorted(tmp_path.iterdir()):
        usual = read_image(path, 4)
        with monkeypatch.context() as patch:
            patch.setattr(pixels, "MAX_PIXELS", 4_000)
            reduced = read_image(path, 4)
        assert reduced.shape == usual.shape, path.name
        assert (usual.float() - reduced.float()).abs().max() <= 12, path.name


def test_a_file_that_claims_too_many_pixels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vpgcnn.lab import pixels

    Image.new("L", (200, 100)).save(tmp_path / "a.png")
    monkeypatch.setattr(pixels, "MAX_PIXELS", 1_000)
    monkeypatch.setattr(pixels, "MOST_PIXELS", 10_000)
    with pytest.raises(UserError, match=r"a.png is too large: 200×100 pixels, at most 10,000 are allowed"):
        read_image(tmp_path / "a.png")


def test_heic_without_its_package_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpgcnn.lab.pixels._reads_heic", lambda: False)
    photos = make_photos(tmp_path / "photos", 10)
    (photos / "dark" / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    (photos / "dark" / "IMG_2.heif").write_bytes(b"\0\0\0\x18ftypheic")
    notes = " ".join(load(DataConfig(name=str(photos))).notes)
    assert "2 HEIC files passed over; to use them: pip install 'vpgcnn[heic]', or convert them to .jpg" in notes
    advice = r"cannot be read: pip install 'vpgcnn\[heic\]', or convert"
    with pytest.raises(UserError, match=rf"IMG_1.HEIC is a HEIC file, which {advice} it to .jpg"):
        read_image(photos / "dark" / "IMG_1.HEIC")
    for path in photos.rglob("*.png"):
        path.unlink()
    with pytest.raises(UserError, match=rf"found 0, and 2 HEIC files, which {advice} them to .jpg"):
        load(DataConfig(name=str(photos)))


def test_heic_is_read_with_its_package(trained: Path, tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    photos = make_photos(tmp_path / "photos", 10)
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, :48, 0], pixels[:, 48:, 2] = 220, 220  # red on the left, blue on the right
    exif = Image.Exif()
    exif[0x0112] = 6  # held so that the left of the sensor is above
    picture = pillow_heif.from_pillow(Image.fromarray(pixels))
    picture.save(photos / "dark" / "IMG_1.HEIC", quality=90, exif=exif.tobytes())
    upright = read_image(photos / "dark" / "IMG_1.HEIC")
    assert upright.shape == (3, 96, 64)
    assert upright[0, :40].float().mean() > 180 > 40 > upright[0, 56:].float().mean()
    assert upright[2, 56:].float().mean() > 180 > 40 > upright[2, :40].float().mean()
    data = load(DataConfig(name=str(photos), size=16))
    assert sum(map(len, (data.train, data.validation, data.test))) == 21
    assert not any("HEIC" in note for note in data.notes)
    (photos / "dark" / "IMG_2.heic").write_bytes((photos / "dark" / "IMG_1.HEIC").read_bytes()[:200])
    with pytest.raises(UserError, match=r"IMG_2.heic.*remove it, or leave it out with --skip-damaged"):
        load(DataConfig(name=str(photos)))
    answer = json.loads(vpgcnn("predict", trained / "run", photos / "dark" / "IMG_1.HEIC", "--json").stdout)
    assert answer[0]["class"] in ("bright", "dark")


def test_folders_one_level_too_deep_are_hinted_at(tmp_path: Path) -> None:
    make_photos(tmp_path / "deep" / "photos", 2)
    result = vpgcnn("train", tmp_path / "deep", "--out", tmp_path / "run")
    assert result.stderr.endswith(f"found 0; did you mean {tmp_path / 'deep' / 'photos'}?\n")
    make_photos(tmp_path / "years" / "rose", 2)
    make_photos(tmp_path / "years" / "tulip", 2)
    line = vpgcnn("train", tmp_path / "years", "--out", tmp_path / "run").stderr
    assert "found 0; its images are one folder too deep, such as rose/bright/0.png" in line


def test_a_folder_of_images_becomes_a_table(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos = shutil.copytree(trained / "my photos", tmp_path / "photos")
    (photos / "dark" / "broken.png").write_bytes(b"")
    result = vpgcnn("predict", trained / "run", photos)
    assert result.returncode == 1
    assert result.stderr == "vpgcnn: 1 of 61 images cannot be read, see the column error in predictions.csv\n"
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 61
    assert list(rows[0]) == ["file", "class", "confidence", "theta last", "error"]
    (broken,) = [row for row in rows if row["error"]]
    assert broken["file"] == str(photos / "dark" / "broken.png")
    assert broken["class"] == ""
    one = json.loads(vpgcnn("predict", trained / "run", rows[0]["file"], "--json").stdout)[0]
    assert (one["class"], f"{one['confidence']:.4f}") == (rows[0]["class"], rows[0]["confidence"])
    again = vpgcnn("predict", trained / "run", photos)
    assert again.stderr == "vpgcnn: predictions.csv exists already: choose a file with --csv FILE\n"
    (photos / "dark" / "broken.png").unlink()
    chosen = vpgcnn("predict", trained / "run", photos, "--csv", tmp_path / "mine.csv")
    assert chosen.returncode == 0, chosen.stderr
    assert chosen.stdout == f"written: {tmp_path / 'mine.csv'}, with 60 images\n"
    (tmp_path / "empty").mkdir()
    assert "there is no image in" in vpgcnn("predict", trained / "run", tmp_path / "empty", "--json").stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epochss", "3"], "unknown setting --epochss: did you mean --epochs?"),
        (["--epochs", "three"], "three"),
        (["--epochs", "-1"], "epochs"),
        (["--model.level", "ful"], "unknown level 'ful': did you mean full?"),
        (["--lr", "-1"], "lr"),
        (["--batch-size", "0"], "batch_size"),
    ],
    ids=str,
)
def test_settings_are_checked_before_photographs_are_read(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vpgcnn.lab.diagnosis.suggest.suggest", lambda *_, **__: pytest.fail("photographs were read"))
    result = vpgcnn("train", make_photos(tmp_path / "photos", 2), "--out", tmp_path / "run", *words)
    assert result.returncode in (1, 2)
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_a_taken_folder_is_noticed_before_photographs_are_read(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vpgcnn.lab.diagnosis.suggest.suggest", lambda *_, **__: pytest.fail("photographs were read"))
    result = vpgcnn("train", trained / "my photos", "--out", trained / "run")
    assert "holds a run already" in result.stderr


def test_a_longer_run_from_a_finished_one_is_explained(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 10)
    assert vpgcnn("train", photos, "--out", tmp_path / "run", *SMALL).returncode == 0
    longer = ["2" if word == 1 else word for word in SMALL[4:6]]
    words = [*SMALL[:4], *longer, *SMALL[6:]]
    result = vpgcnn("train", photos, "--resume", "--out", tmp_path / "run", *words)
    assert result.returncode == 1
    assert "epochs: 1 then, 2 now" in result.stderr
    assert f"start a new run from its weights: --start {tmp_path / 'run'} --out OTHER" in result.stderr
    start = [word for word in words if word not in ("--group", "rotation")]
    start = [*start[3:], "--model.widths", 2, 2, 2] if "--model.widths" not in start else start
    advised = vpgcnn("train", photos, "--start", tmp_path / "run", "--out", tmp_path / "other", *start)
    assert advised.returncode == 0, advised.stderr


def test_images_that_do_not_fit_the_memory_are_refused_before_they_fill_it(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 2)
    result = vpgcnn("train", photos, "--out", tmp_path / "run", "--data.size", "100000")
    assert result.stderr == "vpgcnn: data.size must be at most 2048 pixels, got 100000\n"
    with pytest.raises(UserError, match=r"4 images of .* at 1000000×1000000 pixels need 3,725 GB of memory"):
        load(DataConfig(name=str(photos), size=1_000_000))


def test_folders_inside_a_class_are_named(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 10)
    sentence = "passed over 2 folders inside class folders, whose images do not count: bright/old, dark/raw"
    (photos / "dark" / "empty").mkdir()
    assert sentence not in vpgcnn("look", photos, "--out", tmp_path / "look").stderr
    for inner in (photos / "bright" / "old", photos / "dark" / "raw" / "2019"):
        inner.mkdir(parents=True)
        shutil.copy(photos / "dark" / "1.png", inner)
    assert sentence in load(DataConfig(name=str(photos))).notes
    assert sentence in vpgcnn("look", photos, "--out", tmp_path / "look").stderr
