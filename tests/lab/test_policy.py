"""AdaAug: what a policy does to images, what it learns from, and that its search is what it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vpgcnn import SO2, Hue
from vpgcnn.errors import UserError
from vpgcnn.lab.data import load
from vpgcnn.lab.networks import AugmenterConfig, Policy, count_parameters, ordinary, to_unit
from vpgcnn.lab.networks.base import Features
from vpgcnn.lab.networks.config import DIGITS
from vpgcnn.lab.training import search
from vpgcnn.lab.training.checkpoint import load_model
from vpgcnn.lab.training.config import LevelOptimiserConfig, TrainConfig
from vpgcnn.lab.training.loop import Interrupted, _Training, make_card, train
from vpgcnn.lab.training.run import chosen_weights

CPU = torch.device("cpu")
SURE = 20.0
"""A raw number whose sigmoid is 1, up to rounding."""


class Colors(nn.Module):
    """Sees the mean colour of an image and names the strongest channel."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight.data = 5 * torch.eye(3)

    def features(self, images: Tensor) -> Features:
        return Features(images.mean(dim=(-2, -1)), {})


def policy_of(kind: str = "image", **settings: float) -> Policy:
    config = AugmenterConfig("policy", "hue", depends=kind, **settings)  # type: ignore[arg-type]
    return Policy(Colors(), Hue(360), 3, config).eval()


def painted(count: int) -> tuple[Tensor, Tensor]:
    """Images of one pure channel, and which."""
    labels = torch.arange(count) % 3
    return torch.eye(3)[labels][..., None, None].expand(-1, -1, 4, 4).clone(), labels


def test_a_policy_returns_the_moved_image() -> None:
    """A third of the circle turns red into green, or blue by the other side; a chance of 0 leaves it red."""
    policy = policy_of(deviation=0.0)
    images, labels = torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.long)
    images[:, 0] = 1
    with torch.no_grad():
        policy.advice.bias.copy_(torch.tensor([SURE, math.log(2)]))  # σ(log 2) = ⅔ of 180°
    draws = torch.tensor([[0.3, 0.9, 0.5], [0.3, 0.1, 0.5]])
    moved = policy(images, labels, draws)
    assert torch.allclose(moved[0, :, 0, 0], torch.tensor([0.0, 1.0, 0.0]), atol=1e-5)
    assert torch.allclose(moved[1, :, 0, 0], torch.tensor([0.0, 0.0, 1.0]), atol=1e-5)
    with torch.no_grad():
        policy.advice.bias[0] = -SURE
    assert torch.equal(policy(images, labels, draws), images)


@pytest.mark.parametrize("kind", ["image", "class"])
def test_a_policy_learns_which_images_to_leave_alone(kind: str) -> None:
    """Red and green are named rightly as they are; the third class is yellow, and its opposite is named rightly."""
    policy = policy_of(kind)
    images, labels = painted(12)
    images[labels == 2] = torch.tensor([0.6, 0.6, 0.1])[:, None, None]
    optimiser = torch.optim.Adam(policy.advice.parameters(), 0.3)
    before = policy.advise(images, labels)
    assert torch.equal(before.chance, torch.full((12, 1), 0.5))
    for _ in range(150):
        draws = torch.rand(12, 2)
        loss = nn.functional.cross_entropy(policy.mixed(images, labels, draws), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = policy.advise(images, labels)
    moved = (after.chance * after.reach)[:, 0]
    assert moved[labels < 2].max() < 0.2
    assert moved[labels == 2].min() > 0.7


def test_both_chance_and_reach_have_gradients() -> None:
    policy = policy_of(deviation=0.0)
    images, labels = painted(6)
    loss = nn.functional.cross_entropy(policy.mixed(images, labels, torch.full((6, 2), 0.5)), labels)
    (gradient,) = torch.autograd.grad(loss, [policy.advice.bias])
    # By hand: less of either is better here, so both slopes are positive.
    assert (gradient > 0.01).all()


def test_classifier_and_policy_learn_from_their_own_loss_alone(few: TrainConfig) -> None:
    data = load(few.data)
    own = search._Search(few, data, make_card(few, data), CPU)
    for _ in range(3):  # so that the classifier sees something
        own.advance()

    def numbers() -> dict[str, Tensor]:
        return {part: torch.cat([p.detach().flatten() for _, p in own.parts[part]]) for part in ("network", "advice")}

    before = numbers()
    own._descend(["advice"], own.policy.mixed(*own.judging.at(0, CPU), torch.rand(8, 2)).square().mean())
    after = numbers()
    assert torch.equal(after["network"], before["network"])
    assert not torch.equal(after["advice"], before["advice"])
    own._descend(["network"], own.policy.network(own.batches.at(0, CPU)[0])[0].square().mean())
    assert not torch.equal(numbers()["network"], before["network"])
    assert torch.equal(numbers()["advice"], after["advice"])
    assert own.policy.train().network.training is False  # its norms are as evaluation has them


@pytest.fixture
def few(tmp_path: Path) -> TrainConfig:
    """A run on 96 images of 16×16 noise, no two alike."""
    images = (np.random.default_rng(0).random((96, 16, 16)) * 255).astype(np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(96) % 2)
    model = replace(ordinary(DIGITS), widths=(3, 3, 3), kernel_sizes=(4, 3, 3), disc=False)
    augmenter = AugmenterConfig("policy", search=3, held=0.25)
    config = TrainConfig(model=model, augmenter=augmenter, epochs=2, batch_size=8, device="cpu")
    data = replace(config.data, name=str(tmp_path / "few.npz"))
    return replace(config, data=data, level_optimiser=LevelOptimiserConfig(lr=0.05))


def test_the_search_parts_the_training_images_and_draws_all_of_both(few: TrainConfig, tmp_path: Path) -> None:
    data = load(few.data)
    card = make_card(few, data)
    own = search._Search(few, data, card, CPU)

    def drawn(batches: search.Batches, epochs: int) -> set[bytes]:
        steps = range(batches.per_epoch * epochs)
        return {image.numpy().tobytes() for step in steps for image in batches.at(step, CPU)[0]}

    trained, judged = drawn(own.batches, 6), drawn(own.judging, 6)
    validation = {image.numpy().tobytes() for image in to_unit(data.validation.images)}
    assert not trained & judged
    assert not (trained | judged) & validation
    whole = len(data.train)
    assert len(judged) == round(0.25 * whole)
    assert len(trained) == whole - round(0.25 * whole)
    # The judge goes on to its second pass by itself: it has fewer batches than the classifier.
    assert own.judging.per_epoch < own.batches.per_epoch


def test_a_run_with_a_policy_is_an_ordinary_network_afterwards(
    few: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(few, tmp_path / "run")
    model, card = load_model(chosen_weights(tmp_path / "run"))
    plain = replace(card, augmenter=AugmenterConfig()).build()
    assert set(model.state_dict()) == set(plain.state_dict())
    assert result["parameters"] == count_parameters(plain)
    policy = search.load_policy(tmp_path / "run" / "policy.safetensors", card, result["fingerprint"], CPU)[0]
    assert isinstance(policy.group, SO2)
    advice = policy.advise(torch.rand(4, 1, 16, 16), torch.zeros(4, dtype=torch.long))
    assert not torch.equal(advice.chance, torch.full((4, 1), 0.5))  # it has learned something
    assert not (tmp_path / "run" / "search.safetensors").exists()

    # Stopped in the search, stopped in training: the same run in the end.
    advance: Callable[[search._Search], str] = search._Search.advance
    stop = {"now": False}

    def stop_at_four(self: search._Search) -> str:
        stop["now"] = self.step == 4
        return advance(self)

    monkeypatch.setattr(search._Search, "advance", stop_at_four)
    whole = search.search_policy
    monkeypatch.setattr(
        "vpgcnn.lab.training.loop.search_policy",
        lambda *a, **k: whole(*a, **{**k, "stopping": lambda: stop["now"]}),
    )
    with pytest.raises(Interrupted, match="searching for a policy"):
        train(few, tmp_path / "again")
    assert (tmp_path / "again" / "search.safetensors").exists()
    monkeypatch.setattr("vpgcnn.lab.training.loop.search_policy", whole)
    step = _Training._one_step

    def stop_half_way(self: _Training, stop: object) -> None:
        step(self, stop)  # type: ignore[arg-type]
        self.stopping = self.step == 5

    monkeypatch.setattr(_Training, "_one_step", stop_half_way)
    with pytest.raises(Interrupted, match="after step 5"):
        train(few, tmp_path / "again", resume=True)
    monkeypatch.setattr(_Training, "_one_step", step)
    train(few, tmp_path / "again", resume=True)
    other, _ = load_model(chosen_weights(tmp_path / "again"))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())
    assert result["search_steps"] == 3 * (len(load(few.data).train) - round(0.25 * len(load(few.data).train))) // 8

    # And it is the policy that made the difference to a run without one.
    bare = replace(few, augmenter=AugmenterConfig())
    train(bare, tmp_path / "bare")
    without, _ = load_model(chosen_weights(tmp_path / "bare"))
    assert any(not torch.equal(value, without.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": 0}, "search must be at least 1 epoch"),
        ({"held": 1.0}, "held a share of 1"),
        ({"held": 0.99}, "fewer than a batch"),
        ({"deviation": 2.0}, "deviation is a share of 180°"),
        ({"lr": 0.0}, r"augmenter\.lr must be > 0"),
        ({"transform": "hue"}, "hues need colour images"),
    ],
)
def test_nonsense_is_refused(few: TrainConfig, tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = replace(few, augmenter=replace(few.augmenter, **change))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing that would be in the way of the corrected command


def test_a_foreign_policy_is_refused(few: TrainConfig, tmp_path: Path) -> None:
    result = train(few, tmp_path / "run")
    _, card = load_model(chosen_weights(tmp_path / "run"))
    other = replace(card, augmenter=replace(card.augmenter, held=0.5))
    with pytest.raises(UserError, match="no policy for these settings of the augmenter"):
        search.load_policy(tmp_path / "run" / "policy.safetensors", other, result["fingerprint"], CPU)
    with pytest.raises(UserError, match="no policy"):
        search.load_policy(chosen_weights(tmp_path / "run"), card, result["fingerprint"], CPU)
    with pytest.raises(UserError, match="other data"):
        search.load_policy(tmp_path / "run" / "policy.safetensors", card, "another", CPU)
