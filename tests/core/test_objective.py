"""The objective: its terms, and where λ comes from."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import SmallNet
from vpgcnn import Hue, Prediction, Shared, Variational
from vpgcnn.errors import UserError
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.objective import Band, DualWeight, Elbo, KlSchedule, KlWeight, Price, log_shares, parameter_groups


def prediction(logits: torch.Tensor, *kl: float) -> Prediction:
    """Logits with one level whose KL is known for each image; without any if no KL is given."""
    theta = torch.tensor(kl).neg().exp().unsqueeze(1)
    return Prediction(logits, {"conv": WindowDistribution(Hue(3), theta)} if kl else {})


def test_terms_are_means_in_nats() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    elbo = Elbo.of(prediction(logits, 1.0, 3.0), torch.tensor([0, 0]))
    assert elbo.nll.item() == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert elbo.kl.item() == pytest.approx(2.0)
    assert elbo.total(0.5).item() == pytest.approx(elbo.nll.item() + 1.0)


def test_with_the_shares_of_classes_the_best_logits_are_those_of_equal_classes() -> None:
    """Labels that do not depend on the image, 9 of one class and 1 of another: then nothing is left to learn."""
    labels = torch.tensor([0] * 9 + [1])
    shares = log_shares(labels, 3)
    assert shares.exp().tolist() == pytest.approx([9 / 11, 1 / 11, 1 / 11])  # a class without images counts as one
    logits = torch.zeros(2, requires_grad=True)
    for prior, best in ((None, [0.9, 0.1]), (log_shares(labels, 2), [0.5, 0.5])):
        optimiser = torch.optim.LBFGS([logits], max_iter=50)

        def loss(prior: torch.Tensor | None = prior, optimiser: torch.optim.Optimizer = optimiser) -> float:
            optimiser.zero_grad()
            nll = Elbo.of(prediction(logits.expand(10, 2)), labels, prior).nll
            nll.backward()
            return nll.item()

        optimiser.step(loss)
        assert logits.softmax(0).tolist() == pytest.approx(best, abs=1e-3)


def test_lambda_is_held_ramped_and_constant() -> None:
    schedule = KlSchedule(start=0.1, peak=0.5, hold=0.2, ramp=0.4)
    assert [schedule.at(p) for p in (0, 0.1, 0.2)] == [0.1] * 3
    assert schedule.at(0.4) == pytest.approx(0.3)
    assert [schedule.at(p) for p in (0.6, 0.8, 1.0)] == [0.5] * 3


def test_lambda_may_fall_again() -> None:
    schedule = KlSchedule(start=0.0, peak=1.0, hold=0.2, ramp=0.2, stay=0.2, fall=0.2, end=0.2)
    assert [round(schedule.at(p / 10), 6) for p in range(11)] == [0, 0, 0, 0.5, 1, 1, 1, 0.6, 0.2, 0.2, 0.2]


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_lambda_never_jumps_over_a_ramp(hold: float, ramp: float, progress: float) -> None:
    schedule = KlSchedule(start=0.1, peak=0.5, hold=hold * 0.5, ramp=ramp * 0.5)
    assert 0.1 <= schedule.at(progress) <= 0.5
    constant = KlSchedule(start=0.3, peak=0.3)
    assert constant.at(progress) == 0.3


def test_the_dual_weight_rises_while_there_is_room() -> None:
    weight = DualWeight(tolerance=0.1, rate=0.5, weight=0.01)
    for _ in range(3):
        weight = weight.after(nll=0.05)
    assert weight.weight == pytest.approx(0.01 * math.exp(1.5))
    for _ in range(200):
        weight = weight.after(nll=0.05)
    assert weight.weight == 1.0  # no further than its bound
    for _ in range(200):
        weight = weight.after(nll=5.0)
    assert weight.weight == pytest.approx(1e-4)


def test_the_dual_weight_finds_the_constraint() -> None:
    """On a toy problem, minimise −x subject to x² ≤ 0.25: the weight settles where x = 0.5."""
    x, weight = 0.0, DualWeight(tolerance=0.25, rate=0.02, weight=0.01, high=10.0, memory=0.0)
    seen = []
    for _ in range(3000):
        x -= 0.05 * (2 * x - weight.weight)  # gradient of x² + λ·(−x)
        weight = weight.after(nll=x * x)
        seen.append(x)
    assert sum(seen[-500:]) / 500 == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KlSchedule(start=-1.0),
        lambda: KlSchedule(hold=0.8, ramp=0.8),
        lambda: KlSchedule(fall=2.0),
        lambda: DualWeight(tolerance=0.0),
        lambda: DualWeight(weight=5.0),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(UserError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(("alone", "sign"), [(2.0, 1), (0.1, -1), (0.7, 0)])
def test_a_band_pushes_back_from_both_ends_and_rests_between(alone: float, sign: int) -> None:
    """A kl that follows what λ asks for: left alone it would be above, below or within the band."""
    band, kl, seen = Band(low=0.5, high=1.0, rate=0.02, memory=0.5), alone, []
    for _ in range(600):
        band = band.after(kl=kl)
        kl += 0.2 * (alone - 2 * band.weight - kl)
        seen.append(kl)
    assert 0.4 < min(seen[300:]) <= max(seen[300:]) < 1.1
    assert band.weight * sign > 0.1 if sign else band.weight == 0


def test_a_band_has_a_largest_weight() -> None:
    assert Band(weight=0.99, rate=0.5, high=1.0).after(kl=5.0).weight == 1.0  # never above `most`


@pytest.mark.parametrize("wrong", [{"low": 2.0}, {"rate": 0.0}, {"weight": 3.0}, {"low": -1.0}])
def test_nonsense_bands_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="a band needs"):
        Band(**wrong)


@pytest.mark.parametrize("rule", [Price(), KlSchedule(), DualWeight(), Band()], ids=lambda rule: rule.name)
def test_all_rules_have_one_interface(rule: KlWeight) -> None:
    after = rule.after(nll=0.01, kl=3.0)
    assert type(after) is type(rule)
    assert isinstance(after.at(0.5), float)
    if isinstance(rule, KlSchedule | Price):
        assert after == rule
    else:
        assert after.at(0.5) != rule.at(0.5) == rule.weight  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "rule",
    [KlSchedule(start=0.1, peak=0.5, hold=0.0, ramp=1.0), DualWeight(weight=0.3), Band(weight=-0.2)],
    ids=lambda rule: rule.name,
)
def test_rules_of_the_kl_weigh_it_by_lambda(rule: KlWeight) -> None:
    elbo = Elbo(torch.tensor(2.0), torch.tensor(3.0), torch.tensor(100.0))
    for progress in (0.0, 0.5, 1.0):
        assert rule.loss(elbo, progress).item() == pytest.approx(2.0 + 3.0 * rule.at(progress))


def test_a_price_weighs_what_is_not_in_use_and_not_the_kl() -> None:
    elbo = Elbo(torch.tensor(2.0), torch.tensor(100.0), torch.tensor(0.5))
    assert Price(0.4).loss(elbo, 0.5).item() == pytest.approx(2.2)


@pytest.mark.parametrize("make", [DualWeight, Band])
@pytest.mark.parametrize("memory", [-0.1, 1.0])
def test_a_memory_is_a_share(make, memory: float) -> None:
    with pytest.raises(UserError, match=f"memory .* got {memory}"):
        make(memory=memory)


# ---------------------------------------------------------------- parameter groups


def test_levels_learn_without_weight_decay() -> None:
    model = SmallNet(Hue(3), levels=[Variational(), Shared(), Shared(), Variational()])
    weights, levels = parameter_groups(model, 1e-3, level_lr=1e-2, weight_decay=0.1)
    assert (weights["lr"], weights["weight_decay"]) == (1e-3, 0.1)
    assert (levels["lr"], levels["weight_decay"]) == (1e-2, 0.0)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    assert all(".level." in names[id(parameter)] for parameter in levels["params"])
    assert not any(".level." in names[id(parameter)] for parameter in weights["params"])
    assert len(weights["params"]) + len(levels["params"]) == len(names)
    assert parameter_groups(model, 1e-3)[1]["lr"] == 1e-3
    torch.optim.AdamW(parameter_groups(model, 1e-3))


def test_a_network_without_levels_has_one_group() -> None:
    assert len(parameter_groups(SmallNet(Hue(3)), 1e-3)) == 1


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (torch.tensor([0, 2]), "numbers of classes, from 0 to 1 for these logits, got 2"),
        (torch.tensor([0]), r"one label for each of 2 images, got labels of shape \(1,\)"),
    ],
)
def test_labels_that_do_not_fit_are_named(labels: torch.Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Elbo.of(Prediction(torch.zeros(2, 2), {}), labels)
