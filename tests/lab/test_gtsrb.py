"""Traffic signs: both image formats are read exactly, tracks stay together, and the table of twins is consistent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from support import real_data
from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.groups import O2, SO2
from vpgcnn.lab.data import DataConfig, Dataset, Split, load
from vpgcnn.lab.data.signs import SIGNS, Sign

HEAD = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
WIDTH, HEIGHT, LEFT, UPPER, SIDE = 25, 27, 2, 4, 20
"""The size of the made images and the square region of the sign in them."""
MAGENTA = (255, 0, 255)
"""What surrounds the region of the sign."""


def track_count(label: int) -> int:
    return {0: 1, 1: 2, 2: 30}.get(label, 4)


def color(label: int, track: int, frame: int) -> tuple[int, int, int]:
    """The colour of a made sign, from which `decode` reads the numbers."""
    return 20 + 5 * label, 20 + 7 * track, 20 + 100 * frame


def decode(images: Tensor) -> Tensor:
    """The class, track and frame of made signs, `(N, 3)`; JPEG changes colours by up to 2."""
    centre = images[:, :, images.shape[-1] // 2, images.shape[-1] // 2].double()
    return ((centre - 20) / torch.tensor([5, 7, 100])).round().long()


def make_sign(path: Path, label: int, track: int, frame: int) -> str:
    """Write an image as published or, as JPEG, already cut to the sign; return its line in the table."""
    if path.suffix == ".jpg":
        Image.new("RGB", (SIDE, SIDE), color(label, track, frame)).save(path, quality=95)
        return f"{path.name};{SIDE};{SIDE};0;0;{SIDE - 1};{SIDE - 1};{label}\n"
    picture = Image.new("RGB", (WIDTH, HEIGHT), MAGENTA)
    picture.paste(color(label, track, frame), (LEFT, UPPER, LEFT + SIDE, UPPER + SIDE))
    picture.save(path)
    return f"{path.name};{WIDTH};{HEIGHT};{LEFT};{UPPER};{LEFT + SIDE - 1};{UPPER + SIDE - 1};{label}\n"


def make_benchmark(root: Path, suffix: str) -> Path:
    """All 43 classes in the published layout; two frames of each track, and one test image of each class."""
    for label in range(43):
        folder = root / "GTSRB" / "Final_Training" / "Images" / f"{label:05}"
        folder.mkdir(parents=True)
        lines = [
            make_sign(folder / f"{track:05}_{frame:05}.{suffix}", label, track, frame)
            for track in range(track_count(label))
            for frame in range(2)
        ]
        (folder / f"GT-{label:05}.csv").write_text(HEAD + "".join(lines))
    test = root / "GTSRB" / "Final_Test" / "Images"
    test.mkdir(parents=True)
    lines = [make_sign(test / f"{42 - label:05}.{suffix}", label, 0, 0) for label in range(43)]
    (root / "GTSRB" / "GT-final_test.csv").write_text(HEAD + "".join(reversed(lines)))
    return root


@pytest.fixture(scope="module", params=["ppm", "jpg"])
def benchmark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made benchmark in both formats, not to be changed."""
    return make_benchmark(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def fragile(tmp_path: Path) -> Path:
    """A made benchmark that a test may damage."""
    return make_benchmark(tmp_path, "ppm")


def parts(data: Dataset) -> tuple[Split, Split, Split]:
    return data.train, data.validation, data.test


# ---------------------------------------------------------------- images


def test_every_image_has_the_label_of_its_sign(benchmark: Path) -> None:
    data = load(DataConfig(name="gtsrb", validation=0.25), benchmark)
    assert data.size == 40
    assert data.channels == 3
    assert data.classes == tuple(sign.name for sign in SIGNS)
    for split in parts(data):
        assert torch.equal(decode(split.images)[:, 0], split.labels)
    assert data.test.labels.tolist() == list(range(42, -1, -1))  # the order of the table
    known = torch.cat([decode(split.images) for split in parts(data)[:2]])
    assert len(known) == 2 * sum(map(track_count, range(43)))
    assert len(known.unique(dim=0)) == len(known)  # every image once


def test_published_images_are_cut_to_their_region_exactly(fragile: Path) -> None:
    path = fragile / "GTSRB" / "Final_Test" / "Images" / "00042.ppm"
    pixels = np.random.default_rng(0).integers(1, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    found = load(DataConfig(name="gtsrb", size=SIDE), fragile).test.images[42]
    region = torch.from_numpy(pixels[UPPER : UPPER + SIDE, LEFT : LEFT + SIDE]).permute(2, 0, 1)
    inside = found.amax(dim=0) > 0
    assert torch.equal(found[:, inside], region[:, inside])
    assert inside[0, SIDE // 2]  # the disc touches all four sides, so the comparison includes them
    assert inside[-1, SIDE // 2]
    assert inside[SIDE // 2, 0]
    assert inside[SIDE // 2, -1]


def test_images_are_resized_with_antialiasing(fragile: Path) -> None:
    path = fragile / "GTSRB" / "Final_Test" / "Images" / "00042.ppm"
    board = np.indices((HEIGHT, WIDTH)).sum(axis=0) % 2 * 255
    Image.fromarray(np.repeat(board[..., None], 3, axis=2).astype(np.uint8)).save(path)
    found = load(DataConfig(name="gtsrb", size=8), fragile).test.images[42]
    inside = found.amax(dim=0) > 0
    assert (found[:, inside].int() - 127).abs().max() < 30  # grey, not black and white
    for wrong in (7, 513):
        with pytest.raises(UserError, match=f"from 8 to 512 pixels, got {wrong}"):
            load(DataConfig(name="gtsrb", size=wrong), fragile)


@pytest.mark.parametrize("size", [20, 33])
def test_only_a_disc_is_visible_and_its_outside_does_not_show_a_rotation(benchmark: Path, size: int) -> None:
    data = load(DataConfig(name="gtsrb", size=size), benchmark)
    y, x = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    distance = (x - size / 2).square().add((y - size / 2).square()).sqrt()
    for split in parts(data):
        visible = split.images.amax(dim=1) > 0
        assert torch.equal(visible, (distance <= size / 2).expand_as(visible))
        turned = SO2().transform(split.images[:5].float(), math.radians(45))
        outside = turned[:, :, distance > size / 2 + 1.5]
        assert outside.numel()
        assert float(outside.max()) == 0
        assert torch.equal(decode(turned.round()), decode(split.images[:5]))
        assert float((turned - split.images[:5])[:, :, distance < size / 2 - 1.5].abs().max()) < 4


def test_the_same_images_in_both_formats(tmp_path: Path) -> None:
    one, two = (load(DataConfig(name="gtsrb"), make_benchmark(tmp_path / suffix, suffix)) for suffix in ("ppm", "jpg"))
    for first, second in zip(parts(one), parts(two), strict=True):
        assert torch.equal(first.labels, second.labels)
        assert int((first.images.int() - second.images.int()).abs().max()) <= 3


# ---------------------------------------------------------------- tracks


def test_a_track_is_on_one_side_only(benchmark: Path) -> None:
    data = load(DataConfig(name="gtsrb", validation=0.25), benchmark)
    train, validation = ({tuple(row) for row in decode(split.images)[:, :2].tolist()} for split in parts(data)[:2])
    assert not train & validation
    held = {label: sum(row[0] == label for row in validation) for label in range(43)}
    assert held.pop(0) == 0  # the only track of its class
    assert held.pop(1) == 1  # 0.25 of 2 rounds to 0, but every class with several tracks is validated
    assert held.pop(2) == 8
    assert set(held.values()) == {1}
    assert len(data.validation) == 2 * len(validation)  # all frames of a track


def test_the_seed_chooses_the_tracks(benchmark: Path) -> None:
    def held(seed: int, share: float = 0.25) -> set[tuple[int, ...]]:
        split = load(DataConfig(name="gtsrb", validation=share, seed=seed), benchmark).validation
        return {tuple(row) for row in decode(split.images)[:, :2].tolist()} if len(split) else set()

    assert held(0) == held(0) != held(1)
    assert held(0, 0.0) == set()
    most = held(0, 0.99)
    assert all(sum(row[0] == label for row in most) == track_count(label) - 1 for label in range(43))
    with pytest.raises(UserError, match=r"must be in \[0, 1\), got 1"):
        held(0, 1.0)


# ---------------------------------------------------------------- the truth


def test_reach_is_that_of_the_sign(benchmark: Path) -> None:
    assert [axis.name for axis in O2().axes] == ["rotation", "mirror"]
    both, turn, mirror = (load(DataConfig(name=name), benchmark) for name in ("gtsrb", "gtsrb-turn", "gtsrb-mirror"))
    for all_, rotations, mirrors in zip(parts(both), parts(turn), parts(mirror), strict=True):
        assert all_.reach is not None
        assert rotations.reach is not None
        assert mirrors.reach is not None
        assert all_.reach.shape == (len(all_), 2)
        assert torch.equal(rotations.reach, all_.reach[:, 0])
        assert torch.equal(mirrors.reach, all_.reach[:, 1])
        assert torch.equal(all_.images, rotations.images)
    assert both.test.reach is not None
    reach = both.test.reach[both.test.labels.argsort()]
    assert reach[35].tolist() == [0.375, 1]  # 135° / 2 of 180°; symmetric
    assert reach[38].tolist() == reach[39].tolist() == [0.25, 0.5]
    assert reach[[19, 20, 33, 34, 36, 37]].tolist() == [[1, 0.5]] * 6
    others = [label for label in range(43) if label not in (19, 20, *range(33, 40))]
    assert reach[others].tolist() == [[1, 1]] * 34


def test_twins_are_mutual() -> None:
    assert len(SIGNS) == 43
    assert len({sign.name for sign in SIGNS}) == 43
    mirrored = {label: label if sign.mirror_twin is None else sign.mirror_twin for label, sign in enumerate(SIGNS)}
    turns = {(a, b): angle for a, sign in enumerate(SIGNS) for b, angle in sign.rotation_twins}
    assert all(sign.rotation_reason and sign.mirror_reason for sign in SIGNS)
    assert all(mirrored[twin] == label for label, twin in mirrored.items())
    assert all(sign.mirror_twin != label for label, sign in enumerate(SIGNS))
    assert turns
    for (a, b), angle in turns.items():
        assert a != b
        assert -180 < angle <= 180
        assert angle != 0
        assert (turns[b, a] + angle) % 360 == 0
        assert (turns[mirrored[a], mirrored[b]] + angle) % 360 == 0  # a mirror reverses rotations
        for (start, end), more in turns.items():
            if start == b and end != a:
                assert (turns[a, end] - angle - more) % 360 == 0


def describe(label: int, sign: Sign) -> str:
    """A line of the table in docs/datasets.md."""
    turned = ", ".join(f"{twin} at {angle}°".replace("-", "−") for twin, angle in sign.rotation_twins)
    cells = [
        f"**bound**: {turned}; {sign.rotation_reason}" if turned else f"free: {sign.rotation_reason}",
        f"free: {sign.mirror_reason}"
        if sign.mirror_twin is None
        else f"**bound**: {sign.mirror_twin}; {sign.mirror_reason}",
    ]
    return f"| {label} | {sign.name} | {cells[0]} | {cells[1]} |"


def test_the_page_shows_the_table_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
    after = text.split("| class | sign | under rotation | under the mirror |\n|---|---|---|---|\n")[1]
    shown = after.split("\n\n")[0]
    assert shown == "\n".join(describe(label, sign) for label, sign in enumerate(SIGNS))


# ---------------------------------------------------------------- errors


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


TRAINING, TEST, TABLE = "Final_Training/Images", "Final_Test/Images", "Final_Training/Images/00003/GT-00003.csv"
FIRST = f"00000_00000.ppm;{WIDTH};{HEIGHT};{LEFT};{UPPER};{LEFT + SIDE - 1};{UPPER + SIDE - 1};3"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no training folder": (lambda root: (root / TRAINING).rename(root / "x"), "no folder .*Images: from the site of"),
    "no folder of a class": (lambda root: (root / TRAINING / "00007").rename(root / "x"), r"no folder .*/00007: from"),
    "no test folder": (lambda root: (root / TEST).rename(root / "x"), "no folder .*Final_Test/Images: from the site"),
    "another class": (lambda root: (root / TRAINING / "00043").mkdir(), "00043 is not a class of GTSRB: .* … 00042"),
    "no table": (lambda root: (root / TABLE).unlink(), r"there is no .*00003/GT-00003\.csv: unpack"),
    "no test table": (lambda root: (root / "GT-final_test.csv").unlink(), "GTSRB/GT-final_test.csv, .*Final_Test_GT"),
    "no image": (lambda root: (root / TRAINING / "00003/00002_00001.ppm").unlink(), "there is no .*3/00002_00001.ppm"),
    "cut image": (
        lambda root: (root / TEST / "00008.ppm").write_bytes((root / TEST / "00008.ppm").read_bytes()[:99]),
        r"cannot read the image .*Final_Test/Images/00008\.ppm: ",
    ),
    "text": (lambda root: (root / TEST / "00008.ppm").write_text("hello"), r"cannot read the image .*/00008\.ppm: "),
    "another size": (
        lambda root: Image.new("RGB", (48, 50)).save(root / TEST / "00008.ppm"),
        rf"00008\.ppm has 48×50 pixels, but its table says {WIDTH}×{HEIGHT}",
    ),
    "wrong columns": (
        lambda root: replace_in(root / TABLE, "Roi.X2", "X2"),
        r"GT-00003\.csv has no column 'Roi.X2': the columns of GTSRB are Filename;Width;",
    ),
    "commas": (lambda root: replace_in(root / TABLE, HEAD, HEAD.replace(";", ",")), "no column 'Filename'"),
    "empty table": (lambda root: (root / TABLE).write_text(""), "has no column 'Filename'"),
    "no line": (lambda root: (root / TABLE).write_text(HEAD), r"GT-00003\.csv lists no image"),
    "binary": (lambda root: (root / TABLE).write_bytes(b"\xff\xfe\0x"), r"GT-00003\.csv is damaged"),
    "no number": (
        lambda root: replace_in(root / TABLE, f";{WIDTH};", ";wide;"),
        r"GT-00003\.csv, line 2: Width must be a whole number, got 'wide'",
    ),
    "short line": (lambda root: replace_in(root / TABLE, FIRST, FIRST[:-2]), "line 2: ClassId must be .*, got ''"),
    "unknown class": (
        lambda root: replace_in(root / "GT-final_test.csv", ";42\n", ";43\n"),
        r"GT-final_test\.csv, line 2: there is no class 43: those of GTSRB are 0 … 42",
    ),
    "class of another folder": (
        lambda root: replace_in(root / TABLE, FIRST, f"{FIRST[:-1]}4"),
        r"GT-00003\.csv .* says that 00000_00000\.ppm is of class 4",
    ),
    "path": (lambda root: replace_in(root / TABLE, FIRST, f"../{FIRST}"), r"line 2: Filename .*, got '\.\./00000_0"),
    "no track": (lambda root: replace_in(root / TABLE, FIRST, f"a{FIRST}"), "a00000_00000.ppm: .* is TRACK_FRAME"),
    "region outside": (
        lambda root: replace_in(root / TABLE, f";{UPPER + SIDE - 1};3", f";{HEIGHT};3"),
        rf"line 2: the region \(2, 4\) … \(21, 27\) is not inside of an image of {WIDTH}×{HEIGHT}",
    ),
}


@pytest.mark.parametrize("case", list(DAMAGE))
def test_errors_name_what_is_wrong(fragile: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    damage(fragile / "GTSRB")
    with pytest.raises(UserError, match=message):
        load(DataConfig(name="gtsrb"), fragile)


@pytest.mark.parametrize("place", ["GTSRB/Final_Test", "GTSRB/Final_Test/Images", "."])
def test_the_table_of_test_images_may_lie_where_archives_put_it(fragile: Path, place: str) -> None:
    (fragile / "GTSRB" / "GT-final_test.csv").rename(fragile / place / "GT-final_test.csv")
    data = load(DataConfig(name="gtsrb"), fragile)
    assert torch.equal(decode(data.test.images)[:, 0], data.test.labels)


def test_commands_count_verify_and_say_where_to_get_it(
    fragile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 2 * sum(map(track_count, range(43))) + 43

    def run(*words: object) -> tuple[int, str]:
        code = cli.main(["datasets", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    assert f"gtsrb-turn {count} images" in " ".join(run("--data-dir", fragile)[1].split())
    assert "0 images" in run("list", "gtsrb", "--data-dir", tmp_path / "no")[1]
    code, text = run("fetch", "gtsrb", "--data-dir", tmp_path / "no")
    assert code == 1
    assert "cannot be fetched by this command: from the site of the German Traffic Sign Recognition Benchmark" in text
    assert not (tmp_path / "no").exists()
    assert run("fetch", "gtsrb", "--data-dir", fragile) == (0, f"gtsrb: {count} images in {fragile / 'GTSRB'}\n")
    code, text = run("verify", "gtsrb-mirror", "--data-dir", fragile, "--json")
    assert (code, json.loads(text)) == (0, {"GTSRB": f"{count} readable images"})
    (fragile / "GTSRB" / TEST / "00008.ppm").write_bytes(b"P6 25 27 255 ")
    code, text = run("verify", "gtsrb", "--data-dir", fragile)
    assert code == 1
    assert "00008.ppm" in text


# ---------------------------------------------------------------- real photographs


@pytest.fixture(scope="module")
def photographs() -> Dataset:
    return load(DataConfig(name="gtsrb"), real_data("GTSRB"))


def test_real_signs(photographs: Dataset) -> None:
    assert len(photographs.train) + len(photographs.validation) == 13_070
    assert len(photographs.test) == 12_630
    for split in parts(photographs):
        assert len(split.labels.unique()) == 43
    assert photographs.test.labels[:4].tolist() == [16, 1, 38, 33]
    assert 0.09 < len(photographs.validation) / 13_070 < 0.11


def test_twins_look_alike_in_real_photographs(photographs: Dataset) -> None:
    """Only twins match, on the mean images of the signs with arrows, which are the only candidates for rotation."""
    y, x = torch.meshgrid(torch.arange(40) - 19.5, torch.arange(40) - 19.5, indexing="ij")
    centre = (x.square() + y.square() < 17**2).float()

    def mean_of(label: int) -> Tensor:
        grey = photographs.train.images[photographs.train.labels == label].float().mean(dim=1, keepdim=True)
        grey = (grey - (grey * centre).sum(dim=(1, 2, 3), keepdim=True) / centre.sum()) * centre
        return (grey / grey.flatten(1).norm(dim=1).view(-1, 1, 1, 1).clamp_min(1e-6)).mean(dim=0, keepdim=True)

    def match(one: Tensor, two: Tensor) -> float:
        return float(torch.cosine_similarity(one.flatten(), two.flatten(), dim=0))

    means = {label: mean_of(label) for label in range(33, 40)}
    for label, image in means.items():
        twins = dict(SIGNS[label].rotation_twins)
        for other in means.keys() - {label}:
            matches = {angle: match(SO2().transform(image, math.radians(angle)), means[other])
                       for angle in range(-175, 181, 5)}  # fmt: skip
            best = max(matches, key=lambda angle: matches[angle])
            if other in twins:
                assert matches[best] > 0.9
                assert abs(best - twins[other]) <= 10
            else:
                assert matches[best] < 0.8
            assert (match(image.flip(-1), means[other]) > 0.8) == (SIGNS[label].mirror_twin == other)
