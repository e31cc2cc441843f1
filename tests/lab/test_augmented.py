"""Augerino, InstaAug and averages at test time: what they compute, and that ranges are learned for the right reason."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vpgcnn import SO2, Hue
from vpgcnn.errors import UserError
from vpgcnn.lab.networks import AugmenterConfig, Prediction, augmented, build, ordinary
from vpgcnn.lab.networks.augmented import ImageRange, SharedRange
from vpgcnn.lab.networks.config import COLOR_CNN, DIGITS
from vpgcnn.lab.training.checkpoint import load_model
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.loop import Interrupted, _Training, train
from vpgcnn.lab.training.run import chosen_weights
from vpgcnn.levels import Variational, Window
from vpgcnn.measure import read_levels
from vpgcnn.objective import Band, Elbo


class Corner(nn.Module):
    """Logits that are the brightness of the right and of the left half: a turn by 180° swaps them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, images: Tensor) -> Prediction:
        half = images.shape[-1] // 2
        sides = images[..., half:].mean(dim=(1, 2, 3)), images[..., :half].mean(dim=(1, 2, 3))
        return Prediction(self.scale * torch.stack(sides, dim=1), {})


def wedge(count: int) -> Tensor:
    """A bright right half."""
    images = torch.zeros(count, 1, 16, 16)
    images[..., 8:] = 1
    return images


def test_nothing_is_wrapped_without_augmentation() -> None:
    network = Corner()
    assert augmented(network, AugmenterConfig(), 1) is network


def test_evaluation_averages_probabilities_over_the_range() -> None:
    network, images = Corner(), wedge(2)
    model = augmented(network, AugmenterConfig("fixed", initial=0.5, samples=4), 1).eval()
    prediction = model(images)
    turned = [network(SO2().transform(images, math.pi * 0.5 * e))[0].softmax(1) for e in (-0.75, -0.25, 0.25, 0.75)]
    assert torch.allclose(prediction.logits.exp(), torch.stack(turned).mean(0), atol=1e-6)
    assert torch.equal(prediction.kl, torch.zeros(2))
    alone = augmented(network, AugmenterConfig("fixed", samples=1), 1).eval()
    assert torch.equal(alone(images)[0], network(images)[0])


def test_an_average_over_the_whole_group_is_invariant() -> None:
    """Of 6 copies, a turn of the hue by a sixth makes the same 6 copies."""
    torch.manual_seed(0)
    network = build(ordinary(replace(COLOR_CNN, width=4)), 3, 5)
    model = augmented(network, AugmenterConfig("fixed", "hue", initial=1.0, samples=6, training=False), 3).eval()
    images = torch.rand(3, 3, 28, 28)
    shifted = Hue(6).transform(images, math.pi / 3)
    assert torch.allclose(model(shifted)[0], model(images)[0], atol=1e-5)
    assert not torch.allclose(network(shifted)[0], network(images)[0], atol=1e-3)
    model.train()
    torch.manual_seed(1)
    first = model(images)[0]
    torch.manual_seed(1)
    assert torch.equal(first, network(images)[0])  # training images are left alone


@pytest.mark.parametrize("kind", ["shared", "image"])
@pytest.mark.parametrize("transform", ["rotation", "hue"])
def test_ranges_have_gradients_and_a_kl(kind: str, transform: str) -> None:
    network = build(ordinary(replace(DIGITS, widths=(4, 4, 4))), 3, 3)
    model = augmented(network, AugmenterConfig(kind, transform, initial=0.4), 3)  # type: ignore[arg-type]
    images = torch.rand(6, 3, 28, 28)
    prediction = model(images)
    logits = prediction.logits
    assert prediction.kl.mean().item() == pytest.approx(-math.log(0.4), abs=0.2)
    (logits * torch.randn_like(logits)).sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert [name for name in missing if name.startswith("ranges")] == []
    reading = read_levels(model, images)
    assert list(reading.theta) == ["ranges"]
    assert reading.theta["ranges"].shape == (6, 1)
    assert list(reading.per_image().theta) == (["ranges"] if kind == "image" else [])


@pytest.mark.parametrize("kind", ["shared", "image"])
def test_a_range_narrows_where_turning_hurts_and_widens_where_it_does_not(kind: str) -> None:
    """Half of the images are bright on the right and lose their label when turned; half are discs and never do."""
    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.arange(16) - 7.5, torch.arange(16) - 7.5, indexing="ij")
    disc = ((x**2 + y**2 < 49) * 1.0).expand(16, 1, 16, 16)

    class Both(nn.Module):
        def forward(self, images: Tensor) -> Prediction:
            right, whole = images[..., 8:].mean(dim=(1, 2, 3)), images.mean(dim=(1, 2, 3))
            asymmetry = 40 * (right - whole)  # right-bright: +10; turned by 180°: −10; a disc: 0 however it is turned
            logits = torch.stack([asymmetry, torch.full_like(whole, 3.0), -asymmetry], dim=1)
            return Prediction(logits, {})

    images, labels = torch.cat([wedge(16), disc]), torch.tensor([0] * 16 + [1] * 16)
    model = augmented(Both(), AugmenterConfig(kind, initial=0.6), 1)  # type: ignore[arg-type]
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        Elbo.of(model(images), labels).total(0.1).backward()
        optimiser.step()
        optimiser.zero_grad()
    theta = read_levels(model, images).theta["ranges"][:, 0]
    if kind == "shared":
        assert len(theta.unique()) == 1
        assert 0.2 < theta[0] < 0.6
    else:
        assert theta[:16].max() < 0.6 < 0.85 < theta[16:].min()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial": 0.0}, "floor ≤ initial"),
        ({"initial": 1.5}, "got 0.01 and 1.5"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"transform": "hue"}, "hues need colour images"),
        ({"training": False}, "training must be on"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        augmented(Corner(), replace(AugmenterConfig("image"), **change), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["shared", "image"])
def test_they_train_resume_and_load_like_any_network(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = (np.random.default_rng(0).random((96, 16, 16)) * 255).astype(np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(96) % 2)
    model = replace(ordinary(DIGITS), widths=(3, 3, 3), kernel_sizes=(4, 3, 3), disc=False)
    config = TrainConfig(
        model=model, augmenter=AugmenterConfig(kind, samples=3, width=2), epochs=2, batch_size=16,  # type: ignore[arg-type]
        objective=Band(low=0.1, high=0.3, rate=0.2), device="cpu",
    )  # fmt: skip
    config = replace(config, data=replace(config.data, name=str(tmp_path / "few.npz")))
    result = train(config, tmp_path / "run")
    loaded, card = load_model(chosen_weights(tmp_path / "run"))
    assert card.augmenter == config.augmenter
    assert isinstance(loaded.ranges, SharedRange if kind == "shared" else ImageRange)
    assert result["test"]["images"] > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["lambda"] > 0.1  # kl started at 0.69, above the band

    step = _Training._one_step

    def stop_half_way(self: _Training, stop: object) -> None:
        step(self, stop)  # type: ignore[arg-type]
        self.stopping = self.step == 5

    monkeypatch.setattr(_Training, "_one_step", stop_half_way)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "again")
    monkeypatch.setattr(_Training, "_one_step", step)
    train(config, tmp_path / "again", resume=True)
    other, _ = load_model(chosen_weights(tmp_path / "again"))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in loaded.state_dict().items())


def test_levels_behind_an_augmentation_are_read_once_for_each_image() -> None:
    network = build(replace(COLOR_CNN, width=4, level=Variational(Window(0.9))), 3, 5)
    model = augmented(network, AugmenterConfig("image", "hue", samples=4), 3)
    found = read_levels(model, torch.rand(6, 3, 28, 28)).per_image().theta
    assert {name: theta.shape for name, theta in found.items()} == {
        "conv6": (6, 1), "conv7": (6, 1), "ranges": (6, 1)
    }  # fmt: skip


def test_what_comes_in_at_the_corners_is_black() -> None:
    """Images move before the network standardises them, so a black image stays black however it is turned."""
    network = build(replace(ordinary(DIGITS), widths=(3, 3, 3)), 1, 2, (0.13,), (0.31,))
    seen: list[Tensor] = []
    network.lift.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model = augmented(network, AugmenterConfig("fixed", initial=1.0), 1)
    model(torch.zeros(4, 1, 28, 28))
    border = 3  # as far as the blur, which pads with zeros, reaches
    inside = seen[0][..., border:-border, border:-border]
    assert torch.allclose(inside, torch.tensor(-0.13 / 0.31), atol=1e-6)


def test_ranges_are_predicted_from_standardised_images() -> None:
    """As the network sees them: otherwise the encoder would have to learn the data's brightness."""
    seen: list[Tensor] = []
    network = build(replace(ordinary(DIGITS), widths=(3, 3, 3)), 1, 2, (0.5,), (0.25,))
    model = augmented(network, AugmenterConfig("image"), 1)
    model.ranges.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.rand(2, 1, 28, 28)
    model(images)
    assert torch.allclose(seen[0], (images - 0.5) / 0.25)
