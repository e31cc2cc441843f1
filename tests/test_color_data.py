"""ColorMNIST and Flowers102: what is in a draw, what is published, and what is said of broken files."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from conftest import real_data
from vpgcnn.data import DataConfig, Dataset, load
from vpgcnn.data.augment import augmented
from vpgcnn.data.colormnist import CLASSES, class_sizes, published
from vpgcnn.data.flowers import CLASSES as FLOWERS
from vpgcnn.errors import UserError

# ---------------------------------------------------------------- ColorMNIST


def embedded(name: str = "colormnist-lt", seed: int = 0) -> Dataset:
    return load(DataConfig(name=name, source="embedded", seed=seed))


def test_class_sizes_follow_the_power_law() -> None:
    """⌈150·x⌉ with P(x ≤ t) = t^0.3: over many draws, half of the classes have at most 15 images."""
    sizes = torch.tensor([size for seed in range(200) for size in class_sizes(seed)], dtype=torch.float64)
    assert sizes.min() == 1
    assert sizes.max() == 150
    for limit in (15, 50, 100):
        assert float((sizes <= limit).double().mean()) == pytest.approx((limit / 150) ** 0.3, abs=0.02)


@pytest.mark.parametrize("draw", published()["draws"], ids=lambda draw: f"draw {draw['seed']}")
def test_the_ten_draws_are_those_that_were_published(draw: dict[str, object]) -> None:
    seed = int(str(draw["seed"]))
    dataset = embedded(seed=seed)
    counts = Counter(dataset.train.labels.tolist())
    assert [counts[label] for label in range(30)] == class_sizes(seed) == draw["sizes"]
    assert dataset.fingerprint() == draw["embedded"]


@pytest.mark.parametrize("draw", published()["draws"], ids=lambda draw: f"draw {draw['seed']}")
def test_the_ten_draws_of_the_original_digits(draw: dict[str, object]) -> None:
    root, seed = real_data("mnist"), int(str(draw["seed"]))
    dataset = load(DataConfig(name="colormnist-lt", source="files", seed=seed), root)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (draw["images"], 750, 7500)
    assert dataset.fingerprint() == draw["fingerprint"]
    balanced = load(DataConfig(name="colormnist", source="files", seed=seed), root)
    assert balanced.fingerprint() == draw["balanced"]
    assert len(set(Counter(balanced.train.labels.tolist()).values())) == 1


def test_a_digit_has_the_colour_of_its_class_before_a_grey_background() -> None:
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
    """In no colour and no part. What is left of a digit when its colour is taken away is its ink."""
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
    assert brightness == pytest.approx([240, 200], abs=3)  # nothing of the dark sides


def test_random_parts_are_taken_of_larger_images(garden: Path) -> None:
    dataset = flowers(garden, augment="resized-crop")
    assert dataset.train.images.shape == (2, 3, 24, 24)
    assert dataset.size == dataset.test.images.shape[-1] == 16
    assert dataset.all().images.shape == (6, 3, 16, 16)
    shown = augmented(dataset.train.images, DataConfig(augment="resized-crop"), 16, torch.Generator(), slice(0, 2), 2)
    assert shown.shape == (2, 3, 16, 16)


def test_decoded_images_are_kept_and_made_again_when_a_file_changes(
    garden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = flowers(garden).fingerprint()
    monkeypatch.setattr("vpgcnn.data.flowers._decoded", lambda *_: pytest.fail("they were decoded again"))
    assert flowers(garden).fingerprint() == first
    monkeypatch.undo()
    monkeypatch.setattr("vpgcnn.data.flowers.COUNT", 6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Image.new("RGB", (50, 50), "red").save(garden / "flowers-102" / "jpg" / "image_00005.jpg")
    assert flowers(garden).fingerprint() != first
    for kept in (tmp_path / "cache").rglob("*.npy"):
        kept.write_bytes(b"not an array")
    flowers(garden)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_a_cache_that_cannot_be_written_is_done_without(garden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(UserError, match="size is from 8 to 512 pixels, got 4"):
        load(DataConfig(name="flowers102", size=4), garden)
    labels = garden / "flowers-102" / "imagelabels.mat"
    savemat(labels, {"labels": np.array([[1, 2]], np.uint8)})
    with pytest.raises(UserError, match="are not those of Flowers102: 2 labels"):
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


# ---------------------------------------------------------------- changes to images


def test_random_parts_cover_the_image_and_are_mirrored() -> None:
    """Of a ramp from left to right, every part is a ramp, of at least a third of the width, half of them falling."""
    ramp = torch.linspace(0, 255, 64).round().to(torch.uint8).expand(500, 1, 64, 64)
    parts = augmented(ramp, DataConfig(augment="resized-crop"), 32, torch.Generator(), slice(0, 500), 500).float()
    span = (parts[:, 0, 16, -1] - parts[:, 0, 16, 0]) / 255
    assert 0.4 < float((span > 0).float().mean()) < 0.6
    assert float(span.abs().min()) > math.sqrt(0.25 * 3 / 4) * 0.8
    assert float(span.abs().max()) > 0.9
    assert float(parts.amin()) < 10
    assert float(parts.amax()) > 245


def test_hue_jitter_moves_hues_and_nothing_else() -> None:
    images = torch.randint(0, 256, (50, 3, 6, 6), dtype=torch.uint8)
    config = DataConfig(hue_jitter=0.5)
    changed = augmented(images, config, 6, torch.Generator().manual_seed(1), slice(0, 50), 50)
    assert torch.equal(changed.amax(1), images.amax(1))  # the value of HSV
    assert not torch.equal(changed, images)
    with pytest.raises(UserError, match="hue_jitter is a share of the circle"):
        augmented(images, DataConfig(hue_jitter=2.0), 6, torch.Generator(), slice(0, 50), 50)
    with pytest.raises(UserError, match="needs colour images"):
        augmented(images[:, :1], config, 6, torch.Generator(), slice(0, 50), 50)
