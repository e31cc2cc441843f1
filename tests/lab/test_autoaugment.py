"""AutoAugment: every operation is Pillow's, and the policy is drawn as the paper says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vpgcnn.lab.data.autoaugment import CIFAR10, OPERATIONS, Operation, Use, autoaugmented
from vpgcnn.lab.networks import AugmenterConfig, ordinary
from vpgcnn.lab.networks.config import DIGITS
from vpgcnn.lab.training.checkpoint import load_model
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.loop import Interrupted, _Training, train
from vpgcnn.lab.training.run import chosen_weights


def affine(*numbers: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, numbers)


def shifted(share: float, pixels: int) -> int:
    return round(share * pixels)


def by_pillow(name: str, strength: float, image: Image.Image) -> Image.Image:
    """What Pillow makes of an image."""
    changes: dict[str, Callable[[Image.Image], Image.Image]] = {
        "shear-x": affine(1, strength, 0, 0, 1, 0),
        "shear-y": affine(1, 0, 0, strength, 1, 0),
        "translate-x": affine(1, 0, shifted(strength, image.width), 0, 1, 0),
        "translate-y": affine(1, 0, 0, 0, 1, shifted(strength, image.height)),
        "rotate": lambda image: image.rotate(strength),
        "autocontrast": ImageOps.autocontrast,
        "invert": ImageOps.invert,
        "equalize": ImageOps.equalize,
        "solarize": lambda image: ImageOps.solarize(image, strength),  # type: ignore[arg-type]
        "posterize": lambda image: ImageOps.posterize(image, round(strength)),
        "contrast": lambda image: ImageEnhance.Contrast(image).enhance(strength),
        "color": lambda image: ImageEnhance.Color(image).enhance(strength),
        "brightness": lambda image: ImageEnhance.Brightness(image).enhance(strength),
        "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(strength),
    }
    return changes[name](image)


def pictures(channels: int) -> Tensor:
    """Noise, a narrow range of shades, a slope with few shades, and one shade only: bytes `(4, C, 24, 32)`."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (channels, 24, 32), generator=generator)
    narrow = torch.randint(90, 140, (channels, 24, 32), generator=generator)
    slope = torch.linspace(3, 250, 32).long().expand(channels, 24, 32)
    return torch.stack([noise, narrow, slope, torch.full_like(noise, 77)]).to(torch.uint8)


def as_image(pixels: Tensor) -> Image.Image:
    array = pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def as_pixels(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_an_operation_is_pillows(name: str, channels: int) -> None:
    """At every magnitude, on either side, with another strength for each image of the batch."""
    operation, images = OPERATIONS[name], pictures(channels)
    strengths = operation.strength(torch.arange(10.0))
    strengths = torch.cat([strengths, -strengths]) if operation.signed else strengths
    batch = images.repeat_interleave(len(strengths), dim=0)
    changed = operation.change(batch.float(), strengths.repeat(len(images)))
    assert torch.equal(changed, changed.round())
    for pixels, strength, ours in zip(batch, strengths.repeat(len(images)), changed, strict=True):
        theirs = as_pixels(by_pillow(name, float(strength), as_image(pixels)))
        assert torch.equal(ours.to(torch.uint8), theirs), (name, float(strength))


def test_magnitudes_are_those_of_the_paper() -> None:
    ends = {name: operation.strength(torch.tensor([0.0, 9.0])).tolist() for name, operation in OPERATIONS.items()}
    assert ends["rotate"] == [0, 30]
    assert ends["shear-x"] == pytest.approx([0, 0.3])
    assert ends["translate-y"] == pytest.approx([0, 150 / 331])
    assert ends["solarize"] == [256, 0]
    assert ends["posterize"] == [8, 4]
    for name in ("contrast", "color", "brightness", "sharpness"):
        assert ends[name] == pytest.approx([0.1, 1.9])


def test_the_policy_is_the_published_one() -> None:
    assert len(CIFAR10) == 25
    uses = [use for pair in CIFAR10 for use in pair]
    assert {use.name for use in uses} == set(OPERATIONS) - {"shear-x"}
    # Sums of this table, which was compared with public transcriptions entry by entry: a slip of the pen changes them.
    assert sum(use.level for use in uses) == 267
    assert sum(use.chance for use in uses) == pytest.approx(26.5)


def test_each_image_draws_a_pair_and_each_operation_its_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that add a number of their own show which were applied, how often and with which sign."""

    def adding(number: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda images, strength: images + number + (strength / 1000).view(-1, 1, 1, 1)

    operations = {"one": Operation(adding(1)), "ten": Operation(adding(10), 90, 90, signed=True)}
    policy = ((Use("one", 0.25, 0), Use("ten", 1.0, 0)), (Use("ten", 0.0, 0), Use("one", 0.5, 0)))
    monkeypatch.setattr("vpgcnn.lab.data.autoaugment.OPERATIONS", operations)
    monkeypatch.setattr("vpgcnn.lab.data.autoaugment.CIFAR10", policy)
    count = 8000
    seen = 255 * autoaugmented(torch.zeros(count, 1, 1, 1), torch.Generator().manual_seed(0)).flatten()
    rounded, times = (seen * 100).round().long().unique(return_counts=True)
    frequencies = {value / 100: number / count for value, number in zip(rounded.tolist(), times.tolist(), strict=True)}
    expected = {
        10.09: 3 / 16, 9.91: 3 / 16, 11.09: 1 / 16, 10.91: 1 / 16, 1.0: 1 / 4, 0.0: 1 / 4,
    }  # fmt: skip
    assert set(frequencies) == set(expected)
    for value, share in expected.items():
        error = 4 * math.sqrt(share * (1 - share) / count)
        assert frequencies[value] == pytest.approx(share, abs=error)


def test_a_part_of_a_batch_is_changed_as_in_the_whole_one() -> None:
    images = pictures(3).repeat(8, 1, 1, 1).float() / 255
    before = images.clone()
    whole = autoaugmented(images, torch.Generator().manual_seed(3))
    parts = [
        autoaugmented(images[part], torch.Generator().manual_seed(3), part, len(images))
        for part in (slice(0, 20), slice(20, 32))
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(images, before)  # the input is left alone
    assert not torch.equal(whole, images)
    assert not torch.equal(autoaugmented(images, torch.Generator().manual_seed(4)), whole)
    assert whole.min() >= 0
    assert whole.max() <= 1


@pytest.fixture
def few(tmp_path: Path) -> TrainConfig:
    """A run on 48 images of 16×16 noise."""
    images = (np.random.default_rng(0).random((48, 16, 16)) * 255).astype(np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(48) % 2)
    model = replace(ordinary(DIGITS), widths=(3, 3, 3), kernel_sizes=(4, 3, 3), disc=False)
    config = TrainConfig(model=model, augmenter=AugmenterConfig("autoaugment"), epochs=2, batch_size=8, device="cpu")
    return replace(config, data=replace(config.data, name=str(tmp_path / "few.npz")))


def test_a_run_with_autoaugment_is_an_ordinary_network_and_resumes(
    few: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(few, tmp_path / "run")
    state = load_model(chosen_weights(tmp_path / "run"))[0].state_dict()
    train(replace(few, augmenter=AugmenterConfig()), tmp_path / "bare")
    bare = load_model(chosen_weights(tmp_path / "bare"))[0].state_dict()
    assert set(state) == set(bare)
    assert any(not torch.equal(value, bare[key]) for key, value in state.items())
    step = _Training._one_step

    def stop_half_way(self: _Training, stop: object) -> None:
        step(self, stop)  # type: ignore[arg-type]
        self.stopping = self.step == 3

    monkeypatch.setattr(_Training, "_one_step", stop_half_way)
    with pytest.raises(Interrupted, match="after step 3"):
        train(few, tmp_path / "again")
    monkeypatch.setattr(_Training, "_one_step", step)
    train(few, tmp_path / "again", resume=True)
    again = load_model(chosen_weights(tmp_path / "again"))[0].state_dict()
    assert all(torch.equal(value, again[key]) for key, value in state.items())
