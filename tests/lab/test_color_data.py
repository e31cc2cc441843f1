"""ColorMNIST and Flowers102: the published draws, the official split, and errors on broken files."""

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from support import real_data
from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, Dataset, colormnist, load
from vpgcnn.lab.data.augment import augment_batch
from vpgcnn.lab.data.colormnist import CLASSES, class_sizes, published_draws
from vpgcnn.lab.data.flowers import CLASSES as FLOWERS

# ---------------------------------------------------------------- ColorMNIST


@pytest.fixture(scope="module", autouse=True)
def _digits_are_read_once() -> Iterator[None]:
    """Draws paint copies: the digits that they are made of need not be unpacked for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colormnist, "read_digits", cache(colormnist.read_digits))
        yield


def embedded(name: str = "colormnist-lt", seed: int = 0) -> Dataset:
    return load(DataConfig(name=name, source="embedded", seed=seed))


def test_class_sizes_follow_the_power_law() -> None:
    """⌈150·x⌉ with P(x ≤ t) = t^0.3: over many draws, half of the classes have at most 15 images."""
    sizes = torch.tensor([size for seed in range(200) for size in class_sizes(seed)], dtype=torch.float64)
    assert sizes.min() == 1
    assert sizes.max() == 150
    for limit in (15, 50, 100):
        assert float((sizes <= limit).double().mean()) == pytest.approx((limit / 150) ** 0.3, abs=0.02)


@pytest.mark.parametrize("draw", published_draws()["draws"], ids=lambda draw: f"draw {draw['seed']}")
def test_the_ten_draws_match_the_published_ones(draw: dict[str, object]) -> None:
    seed = int(str(draw["seed"]))
    dataset = embedded(seed=seed)
    counts = Counter(dataset.train.labels.tolist())
    assert [counts[label] for label in range(30)] == class_sizes(seed) == draw["sizes"]
    assert dataset.fingerprint() == draw["embedded"]


@pytest.mark.parametrize("draw", published_draws()["draws"], ids=lambda draw: f"draw {draw['seed']}")
def test_the_ten_draws_of_the_original_digits(draw: dict[str, object]) -> None:
    root, seed = real_data("mnist"), int(str(draw["seed"]))
    dataset = load(DataConfig(name="colormnist-lt", source="files", seed=seed), root)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (draw["images"], 750, 7500)
    assert dataset.fingerprint() == draw["fingerprint"]
    balanced = load(DataConfig(name="colormnist", source="files", seed=seed), root)
    assert balanced.fingerprint() == draw["balanced"]
    assert len(set(Counter(balanced.train.labels.tolist()).values())) == 1


def test_a_digit_has_the_colour_of_its_class_on_a_grey_background() -> None:
    dataset = embedded(seed=3)
    assert dataset.classes == CLASSES
    images, labels = dataset.all().images.double() / 255, dataset.all().labels
    corner = images[:, :, 0, 0]
    assert torch.equal(corner[:, 0], corner[:, 1])
    assert torch.equal(corner[:, 0], corner[:, 2])
    grey = corner[:, 0]
    assert abs(float(grey.mean()) - 0.33) < 0.01
    assert abs(float(grey.std()) - 0.1) < 0.01
    assert len(grey.unique()) > 50
    strongest = (images - grey[:, None, None, None]).amax(dim=(2, 3)).argmax(dim=1)
    assert torch.equal(strongest, labels % 3)


def test_no_digit_is_used_twice() -> None:
    """Neither in two colours nor in two splits: the ink of every image, recovered from its colours, is unique."""
    images = embedded(seed=1).all().images.double() / 255
    grey = images[:, :1, 0, 0, None, None]
    low = images.amin(dim=1, keepdim=True)  # grey·(1 − ink): the two channels without paint
    ink = (1 - low / grey).mul(20).round().flatten(1)
    assert len(ink.unique(dim=0)) == len(ink)


def test_draws_differ_and_repeat() -> None:
    assert embedded(seed=0).fingerprint() == embedded(seed=0).fingerprint() != embedded(seed=1).fingerprint()


# ---------------------------------------------------------------- Flowers102


def flowers(root: Path, **settings: object) -> Dataset:
    return load(DataConfig(name="flowers102", size=16, **settings), root)  # type: ignore[arg-type]


def test_the_official_split_and_the_centre_of_each_image(garden: Path) -> None:
    dataset = flowers(garden)
    assert dataset.train.labels.tolist() == [1, 0]
    assert dataset.validation.labels.tolist() == [101, 0]
    assert dataset.test.labels.tolist() == [101, 1]
    assert dataset.classes == FLOWERS
    assert len(set(FLOWERS)) == 102
    assert not any("\n" in name for name in FLOWERS)
    brightness = dataset.test.images.float().mean(dim=(1, 2, 3)).tolist()
    assert brightness == pytest.approx([240, 200], abs=3)  # without the dark sides


def test_random_crops_come_from_larger_images(garden: Path) -> None:
    dataset = flowers(garden, augment="resized-crop")
    assert dataset.train.images.shape == (2, 3, 24, 24)
    assert dataset.size == dataset.test.images.shape[-1] == 16
    assert dataset.all().images.shape == (6, 3, 16, 16)
    crops = augment_batch(
        dataset.train.images, DataConfig(augment="resized-crop"), 16, torch.Generator(), slice(0, 2), 2
    )
    assert crops.shape == (2, 3, 16, 16)


def test_decoded_images_are_cached_until_a_file_changes(
    garden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = flowers(garden).fingerprint()
    monkeypatch.setattr("vpgcnn.lab.data.flowers._decode", lambda *_: pytest.fail("the images were decoded again"))
    assert flowers(garden).fingerprint() == first
    monkeypatch.undo()
    monkeypatch.setattr("vpgcnn.lab.data.flowers.COUNT", 6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Image.new("RGB", (50, 50), "red").save(garden / "flowers-102" / "jpg" / "image_00005.jpg")
    assert flowers(garden).fingerprint() != first
    for cached in (tmp_path / "cache").rglob("*.npy"):
        cached.write_bytes(b"not an array")
    flowers(garden)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_an_unwritable_cache_is_not_an_error(garden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert len(flowers(garden).test) == 2


def test_missing_and_damaged_images_are_named(garden: Path) -> None:
    jpg = garden / "flowers-102" / "jpg"
    (jpg / "image_00003.jpg").write_bytes((jpg / "image_00003.jpg").read_bytes()[:100])
    with pytest.raises(UserError, match=r"image_00003.jpg \(1 image\) of Flowers102 damaged"):
        flowers(garden)
    (jpg / "image_00001.jpg").unlink()
    with pytest.raises(UserError, match=r"image_00001.jpg \(1 image\) of Flowers102 missing"):
        flowers(garden)


def test_foreign_and_damaged_tables_are_named(garden: Path) -> None:
    with pytest.raises(UserError, match="size must be from 8 to 512 pixels, got 4"):
        load(DataConfig(name="flowers102", size=4), garden)
    labels = garden / "flowers-102" / "imagelabels.mat"
    savemat(labels, {"labels": np.array([[1, 2]], np.uint8)})
    with pytest.raises(UserError, match="is not that of Flowers102: 2 labels, not 6"):
        flowers(garden)
    savemat(labels, {"labels": np.array([[1, 2, 102, 1, 2, 102]], np.uint8)})
    whole = labels.read_bytes()
    for content in (b"text", whole[:100], whole[:150], b""):
        labels.write_bytes(content)
        with pytest.raises(UserError, match="is damaged"):
            flowers(garden)
    labels.unlink()
    with pytest.raises(UserError, match="vpgcnn datasets fetch flowers102"):
        flowers(garden)


def test_the_real_flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset = load(DataConfig(name="flowers102", size=16), real_data("flowers-102"))
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (1020, 1020, 6149)
    assert set(Counter(dataset.train.labels.tolist()).values()) == {10}
    assert min(Counter(dataset.all().labels.tolist()).values()) == 40
    assert max(Counter(dataset.all().labels.tolist()).values()) == 258


# ---------------------------------------------------------------- augmentation


def test_random_crops_cover_the_image_and_are_mirrored() -> None:
    """Every crop of a horizontal ramp is a ramp over at least a third of the width, and half of them fall."""
    ramp = torch.linspace(0, 255, 64).round().to(torch.uint8).expand(500, 1, 64, 64)
    crops = augment_batch(ramp, DataConfig(augment="resized-crop"), 32, torch.Generator(), slice(0, 500), 500).float()
    span = (crops[:, 0, 16, -1] - crops[:, 0, 16, 0]) / 255
    assert 0.4 < float((span > 0).float().mean()) < 0.6
    assert float(span.abs().min()) > math.sqrt(0.25 * 3 / 4) * 0.8
    assert float(span.abs().max()) > 0.9
    assert float(crops.amin()) < 10
    assert float(crops.amax()) > 245


def test_hue_jitter_changes_only_the_hue() -> None:
    images = torch.randint(0, 256, (50, 3, 6, 6), dtype=torch.uint8)
    config = DataConfig(hue_jitter=0.5)
    changed = augment_batch(images, config, 6, torch.Generator().manual_seed(1), slice(0, 50), 50)
    assert torch.equal(changed.amax(1), images.amax(1))  # the value of HSV
    assert not torch.equal(changed, images)
    with pytest.raises(UserError, match="hue_jitter is a share of the circle"):
        augment_batch(images, DataConfig(hue_jitter=2.0), 6, torch.Generator(), slice(0, 50), 50)
    with pytest.raises(UserError, match="needs colour images"):
        augment_batch(images[:, :1], config, 6, torch.Generator(), slice(0, 50), 50)
