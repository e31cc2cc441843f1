"""MetaAugment: weights learn from the loss after a virtual step, and equal weights change nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn import SO2
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.lab.data import Split, load
from vpgcnn.lab.networks import AugmenterConfig, Weigher, after_virtual_step, build, moved, normalised, ordinary
from vpgcnn.lab.networks.config import DIGITS
from vpgcnn.lab.networks.reweighted import EXPLORED, MOVES
from vpgcnn.lab.training import loop, reweighing
from vpgcnn.lab.training.checkpoint import load_model, read_tensors
from vpgcnn.lab.training.checks import check_reweighing
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.loop import Interrupted, _Training, make_card, train
from vpgcnn.lab.training.run import chosen_weights
from vpgcnn.lab.training.seeds import generator
from vpgcnn.objective import Elbo

CPU = torch.device("cpu")


def test_the_gradient_to_the_weigher_is_that_of_the_held_out_loss_after_the_step() -> None:
    """A linear classifier with the gradient step written out by hand, by central differences."""
    torch.manual_seed(0)
    features, share = torch.randn(6, 3).double(), (torch.rand(6, 1) * 2 - 1).double()
    labels, others, other_labels = torch.arange(6) % 2, torch.randn(5, 3).double(), torch.arange(5) % 2
    matrix, rate = torch.randn(2, 3).double().requires_grad_(), 0.7
    weigher = Weigher(3).double()
    for parameter in weigher.parameters():
        nn.init.normal_(parameter, std=0.5)

    def by_hand() -> float:
        """No autograd: the gradient of the cross-entropy of a linear classifier is (softmax − one-hot) ⊗ features."""
        with torch.no_grad():
            weights = weigher(features, share)
            weights = 6 * weights / weights.sum()
            errors = (features @ matrix.T).softmax(1) - F.one_hot(labels, 2)
            after = matrix - rate * (weights[:, None] * errors).T @ features / 6
            return float(F.cross_entropy(others @ after.T, other_labels))

    loss = after_virtual_step(
        {"matrix": matrix},
        normalised(weigher(features, share)),
        lambda now: F.cross_entropy(features @ now["matrix"].T, labels, reduction="none"),
        lambda now: F.cross_entropy(others @ now["matrix"].T, other_labels),
        rate,
    )
    assert loss.item() == pytest.approx(by_hand(), rel=1e-12)
    gradients = torch.autograd.grad(loss, list(weigher.parameters()))
    compared = 0
    for parameter, gradient in zip(weigher.parameters(), gradients, strict=True):
        for place in range(0, parameter.numel(), max(1, parameter.numel() // 5)):
            flat = parameter.data.view(-1)
            start, ends = float(flat[place]), []
            for change in (1e-5, -1e-5):
                flat[place] = start + change
                ends.append(by_hand())
            flat[place] = start
            assert float(gradient.view(-1)[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-10)
            compared += 1
    assert compared >= 20
    assert gradients[0].abs().max() > 1e-6


class Sides(nn.Module):
    """Sees how bright the left and the right half are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def features(self, images: Tensor) -> Tensor:
        return torch.stack([images[..., :8].mean(dim=(1, 2, 3)), images[..., 8:].mean(dim=(1, 2, 3))], dim=1)


def test_moves_that_harm_lose_their_weight_and_are_drawn_less() -> None:
    """Bright on the left or on the right: turned by more than 90°, an image shows the other class."""
    torch.manual_seed(0)
    network, weigher = Sides(), Weigher(2)
    optimiser = torch.optim.Adam(weigher.parameters(), 0.01)
    labels = torch.arange(32) % 2
    images = torch.zeros(32, 1, 16, 16)
    images[labels == 0, ..., :8] = 1
    images[labels == 1, ..., 8:] = 1

    def losses(parameters: dict[str, Tensor], seen: Tensor) -> Tensor:
        return F.cross_entropy(
            F.linear(seen, parameters["head.weight"], parameters["head.bias"]), labels, reduction="none"
        )

    still = network.features(images)
    for step in range(150):
        share = weigher.drawn(torch.rand(32, 1))
        seen = network.features(moved(SO2(), images, share))
        parameters = dict(network.named_parameters())
        weights = normalised(weigher(seen, share))
        judged = after_virtual_step(
            parameters, weights, lambda now, seen=seen: losses(now, seen), lambda now: losses(now, still).mean(), 0.5
        )
        for parameter, gradient in zip(
            weigher.parameters(), torch.autograd.grad(judged, list(weigher.parameters())), strict=True
        ):
            parameter.grad = gradient
        optimiser.step()
        with torch.no_grad():
            weights = normalised(weigher(seen, share))
        weigher.note(share, weights)
        for parameter, slope in zip(
            parameters.values(),
            torch.autograd.grad((weights * losses(parameters, seen)).mean(), list(parameters.values())),
            strict=True,
        ):
            parameter.data -= 0.5 * slope
        if step % 30 == 29:
            weigher.redraw()
    at = torch.tensor([-0.95, -0.8, -0.2, 0.0, 0.2, 0.8, 0.95])[:, None]
    with torch.no_grad():
        few = images[:1].expand(7, -1, -1, -1)
        weights = weigher(network.features(moved(SO2(), few, at)), at)
    harmless, harmful = weights[2:5], weights[[0, 1, 5, 6]]
    assert harmless.min() > 3 * harmful.max()
    chances = weigher.chances
    assert chances[MOVES // 2 - 2 : MOVES // 2 + 2].min() > 2 * chances[[0, 1, -2, -1]].max()
    assert chances.min() >= EXPLORED / MOVES - 1e-6


def test_moves_are_drawn_as_often_as_their_weights_say() -> None:
    weigher = Weigher(2, reach=0.5)
    draws = torch.rand(4096, 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(weigher.drawn(draws), 0.5 * (2 * draws - 1))  # at first uniformly, bit by bit
    share = weigher.drawn(draws)
    weigher.note(share, torch.where(share[:, 0] < 0, 3.0, 1.0))
    assert float(weigher.sums[1].sum()) == 4096
    weigher.redraw()
    half = MOVES // 2
    assert weigher.chances[:half].tolist() == pytest.approx([0.9 * 0.75 / half + 0.1 / MOVES] * half)
    assert weigher.chances[half:].tolist() == pytest.approx([0.9 * 0.25 / half + 0.1 / MOVES] * half)
    assert not weigher.sums.any()
    again = weigher.drawn(draws)
    expected = 0.9 * 0.75 + 0.1 * 0.5
    assert float((again < 0).float().mean()) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 4096))
    assert again.abs().max() <= 0.5
    weigher.redraw()  # nothing noted since: all alike again
    assert weigher.chances.tolist() == pytest.approx([1 / MOVES] * MOVES)


def test_weights_of_the_loss() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    prediction, weights = Prediction(logits, {}), torch.tensor([2.0, 0.0, 1.5, 0.5])
    each = F.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(
        Elbo.of(prediction, labels, weights=weights).nll, (2 * each[0] + 1.5 * each[2] + 0.5 * each[3]) / 4
    )
    alike = Elbo.of(prediction, labels, weights=torch.ones(4)).nll
    assert torch.allclose(alike, Elbo.of(prediction, labels).nll)
    assert torch.allclose(normalised(weights / 7), weights)


@pytest.fixture
def few(tmp_path: Path) -> TrainConfig:
    """A run on 96 images of 16×16 noise, no two alike."""
    images = (np.random.default_rng(0).random((96, 16, 16)) * 255).astype(np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(96) % 2)
    model = replace(ordinary(DIGITS), widths=(3, 3, 3), kernel_sizes=(4, 3, 3), disc=False)
    augmenter = AugmenterConfig("reweighted", initial=0.8, held=0.25, lr=0.05)
    config = TrainConfig(model=model, augmenter=augmenter, epochs=2, batch_size=8, device="cpu")
    return replace(config, data=replace(config.data, name=str(tmp_path / "few.npz")))


def weights_of(folder: Path) -> dict[str, Tensor]:
    return load_model(chosen_weights(folder))[0].state_dict()


def test_equal_weights_train_as_a_fixed_range_does(
    few: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, if both have the same training images and draw the same moves."""
    monkeypatch.setattr(loop, "held_out", lambda train, _: (train, train))
    monkeypatch.setattr(
        reweighing,
        "generator",
        lambda seed, purpose, number=0: generator(seed, "step" if purpose == "moves" else purpose, number),
    )
    equal = replace(few, augmenter=replace(few.augmenter, lr=1e-30), select="last")  # steps that leave no trace
    result = train(equal, tmp_path / "equal")
    assert result["moves"] == [round(1 / MOVES, 4)] * MOVES
    fixed = replace(equal, augmenter=AugmenterConfig("fixed", initial=0.8, samples=1))
    train(fixed, tmp_path / "fixed")
    ours, theirs = weights_of(tmp_path / "equal"), weights_of(tmp_path / "fixed")
    assert {f"network.{key}" for key in ours} == set(theirs)
    assert all(torch.equal(value, theirs[f"network.{key}"]) for key, value in ours.items())


def test_the_weights_reach_the_loss_of_the_classifier(few: TrainConfig, tmp_path: Path) -> None:
    """In the first epoch moves are drawn uniformly, whatever the weights: only the weighted loss can differ."""
    few = replace(few, epochs=1)
    train(few, tmp_path / "learned")
    train(replace(few, augmenter=replace(few.augmenter, lr=1e-30)), tmp_path / "equal")
    learned, equal = weights_of(tmp_path / "learned"), weights_of(tmp_path / "equal")
    assert any(not torch.equal(value, equal[key]) for key, value in learned.items())


def test_a_stopped_run_ends_with_the_same_bits(
    few: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(few, epochs=3)
    result = train(few, tmp_path / "run")
    per_epoch = result["steps"] // 3
    whole = weights_of(tmp_path / "run")
    assert set(whole) == set(build(few.model, 1, 2).state_dict())  # an ordinary network
    assert sum(result["moves"]) == pytest.approx(1, abs=1e-3)
    assert len(set(result["moves"])) > 1  # each epoch draws by the weights of the one before
    step = _Training._one_step

    def stop_at(place: int) -> None:
        def stopping(self: _Training, stop: object) -> None:
            step(self, stop)  # type: ignore[arg-type]
            self.stopping = self.step == place

        monkeypatch.setattr(_Training, "_one_step", stopping)

    for place in (2, per_epoch, per_epoch + 3):  # inside an epoch, at its end, and with a sampler that is not uniform
        stop_at(place)
        with pytest.raises(Interrupted, match=f"after step {place} "):
            train(few, tmp_path / "again", resume=place > 2)
    monkeypatch.setattr(_Training, "_one_step", step)
    again = train(few, tmp_path / "again", resume=True)
    other = weights_of(tmp_path / "again")
    assert all(torch.equal(value, other[key]) for key, value in whole.items())
    assert again["moves"] == result["moves"]
    states = [read_tensors(tmp_path / name / "state.safetensors")[0] for name in ("run", "again")]
    assert any(key.startswith("weigher/") for key in states[0])
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_a_step_of_the_weights_leaves_the_classifier_alone(few: TrainConfig) -> None:
    data = load(few.data)
    card = make_card(few, data)
    network = card.build()
    held, _ = reweighing.held_out(data.train, few)
    own = reweighing.Reweighing(network, held, few, card, CPU)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    old = [parameter.detach().clone() for parameter in own.weigher.parameters()]
    images, labels = torch.rand(8, 1, 16, 16), torch.arange(8) % 2
    changed, weights = own.advance(network, images, labels, 0, 1.0)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(old, own.weigher.parameters(), strict=True))
    assert not torch.equal(changed, images)
    assert float(weights.mean()) == pytest.approx(1)
    assert weights.std() > 0  # those after the step of the weigher, not before it


def test_held_out_images_are_not_trained_on(few: TrainConfig, tmp_path: Path) -> None:
    training = _Training(few, tmp_path / "run", loop.make_accelerator(few), loop.Quiet())
    training._prepare()
    assert training.reweighing is not None

    def seen(split: Split) -> set[bytes]:
        return {image.numpy().tobytes() for image in split.images}

    held, rest = seen(training.reweighing.judging.split), seen(training.batches.split)
    assert not held & rest
    assert held | rest == seen(training.data.train)
    assert len(held) == round(0.25 * len(training.data.train))
    assert not held & seen(training.data.validation)
    least = replace(few, augmenter=replace(few.augmenter, held=1e-6))
    assert len(reweighing.held_out(training.data.train, least)[0]) == 2  # one would have no batch statistics


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"held": 1.0}, r"augmenter\.held must be a share"),
        ({"held": 0.99}, "fewer than a batch"),
        ({"lr": 0.0}, r"augmenter\.lr must be > 0"),
        ({"lookahead": -1.0}, r"augmenter\.lookahead must be > 0"),
        ({"initial": 1.5}, "floor ≤ initial ≤ 1"),
        ({"training": False}, "training images that move"),
        ({"transform": "hue"}, "hues need colour images"),
    ],
)
def test_nonsense_is_refused(few: TrainConfig, tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = replace(few, augmenter=replace(few.augmenter, **change))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="trains in one process, got 2"):
        check_reweighing(few, 96, 2)


def test_networks_on_a_group_are_refused(few: TrainConfig, tmp_path: Path) -> None:
    """Their layers have no second derivatives: the gradient of the weights would silently lack terms."""
    config = replace(few, model=replace(few.model, group=DIGITS.group, level=DIGITS.level))
    with pytest.raises(UserError, match=r"differentiates training steps, which layers on SO2\(n=8\) cannot do"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
