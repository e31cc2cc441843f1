"""vpgcnn tune: the dial that it chooses keeps its promise on the images, is saved, and is what other commands use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from app_support import make_photos, vpgcnn
from torch import Tensor, nn

from support import set_theta
from vpgcnn import SO2, GroupConv2d, GroupPool, LiftConv2d, Prediction, Variational, name_layers
from vpgcnn.errors import UserError
from vpgcnn.lab.data import Split
from vpgcnn.lab.training.checkpoint import load_model, save_model, started
from vpgcnn.lab.training.tuning import DIALS, tune
from vpgcnn.levels import set_dial


class Wobbly(nn.Module):
    """Right as long as the mean window is narrower than each image's limit, which is in its first pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = LiftConv2d(1, 2, 3, SO2(4))
        self.conv = GroupConv2d(2, 2, 3, SO2(4), level=Variational())
        set_theta(self, 0.5)
        name_layers(self)

    def forward(self, images: Tensor) -> Prediction:
        x = self.conv(self.lift(images).map(torch.relu))
        theta = x.trace["conv"].theta[:, 0]
        right = (theta <= images[:, 0, 0, 0] + 1e-6).to(images.dtype)
        return Prediction(torch.stack([right, 1 - right], dim=1) + 0 * GroupPool()(x).mean(), x.trace)


def split(limits: Tensor) -> Split:
    images = torch.zeros(len(limits), 1, 9, 9, dtype=torch.uint8)
    images[:, 0, 0, 0] = (255 * limits).round().to(torch.uint8)
    return Split(images, torch.zeros(len(limits), dtype=torch.long))


def test_windows_open_until_they_would_cost_too_much() -> None:
    """Every image fails above θ = 0.8: the last dial below it is chosen."""
    found = tune(Wobbly(), split(torch.full((900,), 0.8)), at_most=0.01, circle="rotation")
    widths = {point.dial: point.theta for point in found.points}
    assert widths[-1.0] == pytest.approx(0.03, abs=1e-3)
    assert widths[0.0] == pytest.approx(0.5)
    assert widths[1.0] == pytest.approx(1.0)
    assert found.dial == max(dial for dial in DIALS if widths[dial] <= 0.8001)
    assert [point.dial for point in found.points] == list(DIALS)


def test_a_few_images_that_fail_early_do_not_stop_it_if_the_cost_allows_them() -> None:
    limits = torch.full((2000,), 1.0)
    limits[:10] = 0.1  # half a per cent fail above θ = 0.1
    assert tune(Wobbly(), split(limits), at_most=0.02, circle="rotation").dial == 1.0
    strict = tune(Wobbly(), split(limits), at_most=0.004, circle="rotation")
    assert next(point.theta for point in strict.points if point.dial == strict.dial) <= 0.1


def test_the_model_is_not_changed() -> None:
    model = Wobbly()
    tune(model, split(torch.full((500,), 0.8)), at_most=0.02, circle="rotation")
    assert float(model.conv.level.dial) == 0  # type: ignore[union-attr,arg-type]


def test_too_few_images_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(UserError, match="needs at least 803 images, got 50: allow a cost of") as error:
        tune(Wobbly(), split(torch.ones(50)), at_most=0.005, circle="rotation")
    share = re.search(r"--may-cost ([\d.]+)%", str(error.value))
    assert share is not None
    allowed = float(share[1]) / 100
    assert tune(Wobbly(), split(torch.ones(50)), at_most=allowed, circle="rotation").dial == 1.0
    with pytest.raises(UserError, match="needs at least"):
        tune(Wobbly(), split(torch.ones(50)), at_most=allowed - 0.001, circle="rotation")
    with pytest.raises(UserError, match="got 1: give more images"):  # not even a cost of 99.9 %
        tune(Wobbly(), split(torch.ones(1)), at_most=0.5, circle="rotation")
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(UserError, match="between 0 and 1"):
            tune(Wobbly(), split(torch.ones(50)), at_most=wrong, circle="rotation")


def test_the_command_writes_a_network_that_evaluate_takes(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "tuned.safetensors"
    words = ["tune", trained / "run", "--may-cost", "40%", "--confidence", "0.6", "--data-dir", trained]
    own = vpgcnn(*words, "--data", trained / "my photos", "--out", target, "--json")
    assert json.loads(own.stdout)["images"] < 20  # of the run's own folder, the validation images only
    others = make_photos(tmp_path / "others")
    result = vpgcnn(*words, "--data", others, "--out", target, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["images"] == 60
    model, _ = load_model(target)
    dials = [float(value) for name, value in model.state_dict().items() if name.endswith(".dial")]
    assert dials == [pytest.approx(found["dial"])]
    assert "How open should the windows be" in target.with_suffix(".html").read_text()
    evaluated = vpgcnn("evaluate", target, "--data", others, "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    chosen = next(point for point in found["points"] if point["dial"] == found["dial"])
    assert json.loads(evaluated.stdout)["accuracy"] == pytest.approx(chosen["accuracy"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--may-cost", "0.1%"], "needs at least"),
        (["--may-cost", "200%"], "a share lies between 0 and 100 %, got '200%'"),
        (["--may-cost", "-3%"], "a share lies between 0 and 100 %, got '-3%'"),
        (["--confidence", "-1e-3"], "a share lies between 0 and 100 %, got '-1e-3'"),
        (["--may-cost", "abc"], "give a share such as 0.5% or 0.005, got 'abc'"),
        (["--out", "tuned.pth"], "must end in .safetensors"),
    ],
)
def test_bad_wishes_get_one_sentence(trained: Path, words: list[str], says: str) -> None:
    result = vpgcnn("tune", trained / "run", *words)
    assert result.returncode in (1, 2)
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not (trained / "run" / "tuned.safetensors").exists()


def test_training_goes_on_from_the_windows_as_learned(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "tuned.safetensors"
    model, card = load_model(trained / "run" / "last.safetensors")
    set_dial(model, 0.7)
    save_model(target, model, card, {})
    started_from, _ = started(card, target)
    assert [float(v) for name, v in started_from.state_dict().items() if name.endswith(".dial")] == [0.0]


def test_a_network_that_is_worse_closed_is_noted() -> None:
    """Here images are right only where windows are at least half open, so closed windows are no yardstick."""
    images = split(torch.full((500,), 0.8))
    found = tune(Reverse(), images, at_most=0.02, circle="rotation")
    assert "closed windows (0.0%) are worse than the learned ones (100.0%)" in found.warning
    assert tune(Wobbly(), images, at_most=0.02, circle="rotation").warning == ""


class Reverse(Wobbly):
    """Right where the window is at least half open."""

    def forward(self, images: Tensor) -> Prediction:
        x = self.conv(self.lift(images).map(torch.relu))
        right = (x.trace["conv"].theta[:, 0] >= 0.499).to(images.dtype)
        return Prediction(torch.stack([right, 1 - right], dim=1) + 0 * GroupPool()(x).mean(), x.trace)
