"""Scores against torchmetrics and closed forms; the colour experiments on a tiny setting."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchmetrics.functional as tm

from vpgcnn import Hue
from vpgcnn.analysis import brier, calibration_error, nll, orbit_probabilities, probabilities
from vpgcnn.data import load
from vpgcnn.data.base import Split


def some(images: int = 300, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return (3 * torch.randn(images, classes, dtype=torch.float64)).softmax(1), torch.randint(classes, (images,))


def test_scores_are_those_of_torchmetrics() -> None:
    chances, labels = some()
    theirs = tm.calibration_error(chances, labels, task="multiclass", num_classes=7, n_bins=15, norm="l1")
    assert calibration_error(chances, labels) == pytest.approx(float(theirs), abs=1e-6)
    assert nll(chances, labels) == pytest.approx(float(torch.nn.functional.nll_loss(chances.log(), labels)))


def test_closed_forms() -> None:
    even, labels = torch.full((10, 4), 0.25, dtype=torch.float64), torch.zeros(10, dtype=torch.long)
    assert brier(even, labels) == pytest.approx(0.75**2 + 3 * 0.25**2)
    assert nll(even, labels) == pytest.approx(1.3862943611)
    sure = torch.eye(4, dtype=torch.float64)[torch.ones(10, dtype=torch.long)]
    assert brier(sure, labels) == 2
    assert calibration_error(sure, labels) == 1
    assert calibration_error(sure, labels + 1) == 0
    assert nll(sure, labels) < float("inf")


def test_an_orbit_is_every_image_under_every_move() -> None:
    images = torch.rand(5, 3, 4, 4)
    moves = [lambda x: x, lambda x: Hue(3).transform(x, Hue(3).grid()[1])]
    told: list[int] = []
    rows = orbit_probabilities(lambda x: x.mean(dim=(2, 3)), images, moves, batch=2, told=told.append)
    assert rows.shape == (2, 5, 3)
    assert torch.allclose(rows[0], probabilities(lambda x: x.mean(dim=(2, 3)), images))
    assert torch.allclose(rows[1], rows[0].roll(1, dims=1))  # red → green → blue → red
    assert told == [1, 1]


def test_errors_and_confidence_by_class() -> None:
    """Two images of class 0 and one of class 1, whose probabilities are known at every shift."""
    from vpgcnn.experiments.colors import _by_class, _errors

    moved = torch.zeros(12, 3, 3, dtype=torch.float64)
    moved[..., 0] = 1
    moved[4, 0] = torch.tensor([0.5, 0.5, 0.0])  # within Hue(3): moves by a half
    moved[1, 1] = torch.tensor([0.8, 0.0, 0.2])  # outside: by a fifth
    labels = torch.tensor([0, 0, 1])
    assert _errors(moved, labels, 3, 3) == {"on": [[0.0, 0.5], [0.0, 0.0], None], "off": [[0.0, 0.2], [0.0, 0.0], None]}
    curves = _by_class(moved, labels, 3)
    assert curves[0] == [1, 0.9, 1, 1, 0.75, 1, 1, 1, 1, 1, 1, 1]
    assert curves[1] == [0.0] * 12
    assert curves[2] is None


def test_the_color_experiment_on_a_few_digits(tmp_path: Path) -> None:
    from vpgcnn.experiments import registry, runner
    from vpgcnn.training.progress import Quiet

    chosen = registry.EXPERIMENTS["table-colormnist"]

    def small(config: object) -> object:
        data = replace(config.data, source="embedded", limit=96)  # type: ignore[attr-defined]
        model = replace(config.model, width=3)  # type: ignore[attr-defined]
        return replace(config, epochs=1, batch_size=32, data=data, model=model)  # type: ignore[type-var]

    kept = ("cnn-19k", "ce3", "vp3", "ce6", "vp6", "ce3-plain")
    arms = {name: lambda config, arm=chosen.arms[name]: small(arm(config)) for name in kept}
    quick = replace(chosen, arms=arms, seeds=(0, 1), fewer={"ce6": (1,), "vp6": (1,)})
    places = runner.Places(tmp_path / "runs", tmp_path / "results", {}, Quiet())
    target = runner.run(quick, "table-colormnist", places, preset="cpu", arms=list(arms))
    rows = json.loads(target.read_text())["rows"]
    assert {(row["arm"], row["seed"]) for row in rows} == {(arm, s) for arm in arms for s in quick.seeds_of(arm)}
    assert all(row["config"]["data"]["seed"] == row["seed"] for row in rows)
    for row in rows:
        assert len(row["shifted_linear"]) == len(row["shifted_hsv"]) == 12
        assert row["scores"]["accuracy"] == pytest.approx(row["test"]["accuracy"], abs=1e-4)
        assert row["scores"]["nll"] == pytest.approx(row["test"]["nll"], abs=1e-3)
        assert set(row["theta"]) == ({"conv6", "conv7"} if row["arm"].startswith("vp") else set())
        assert len(row["confidence_hsv"]) == len(row["confidence_linear"]) == len(row["invariance_error"]["on"]) == 30
        assert all(low <= high for low, high in row["invariance_error"]["off"])
    # A third of the circle is an exact permutation for both kinds of shift.
    assert all(row["shifted_linear"][4] == pytest.approx(row["shifted_hsv"][4], abs=0.02) for row in rows)
    text = target.with_suffix(".md").read_text()
    assert "vp3 − ce3, paired" in text
    assert text.count("\n| ") == 1 + len(arms)


def test_single_flowers_are_followed_and_drawn(garden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six flowers, of two classes that are shown: their curves are those of the network, and the figures show them."""
    from vpgcnn.experiments import colors
    from vpgcnn.models import build
    from vpgcnn.report.chart import BarPanel
    from vpgcnn.report.colors import confidence, errors, windows
    from vpgcnn.report.svg import draw
    from vpgcnn.training.loop import make_card
    from vpgcnn.training.progress import Quiet
    from vpgcnn.training.recipes import recipe

    config = recipe("flowers102")
    config = replace(config, data=replace(config.data, size=32), model=replace(config.model, width=6))
    dataset = load(config.data, garden)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    dataset = replace(dataset, test=Split(images, dataset.test.labels.repeat(4)))
    shown = tuple(dataset.classes[int(label)] for label in dataset.test.labels.unique())
    monkeypatch.setattr(colors, "SHOWN", {"flowers102": shown})
    rows = []
    for arm, level in (("vp3", "variational"), ("ce3", "full")):
        chosen = replace(config, model=replace(config.model, level=level))
        card = make_card(chosen, dataset)
        torch.manual_seed(0)
        model = build(chosen.model, 3, len(dataset.classes)).eval()
        row = {"arm": arm, "seed": 0, **colors.measure_colors(model, card, dataset, Quiet())}
        rows.append(row)
        assert [example["class"] for example in row["examples"]] == list(shown)
        first = row["examples"][0]
        label = dataset.classes.index(shown[0])
        image = dataset.test.images[dataset.test.labels == label][:1]
        upright = model(card.standardised(image))[0].softmax(1)[0, label].item()
        assert first["shifts"][12] == 0
        assert first["confidence"][0][12] == pytest.approx(upright, abs=1e-4)
        assert first["confidence"][0][0] == pytest.approx(first["confidence"][0][-1], abs=1e-3)  # half way round
        assert bool(first["theta"]) == bool(row["theta_by_class"]) == ("accuracy_at_theta_one" in row) == (arm == "vp3")
    drawn = draw(confidence(rows))
    assert all(f">{name}: confidence" in drawn for name in shown)
    assert draw(windows(rows, dataset.classes, count=1)).count("est θ, ") == 2
    there = int(dataset.test.labels.unique().numel())
    assert draw(errors(rows, dataset.classes)).count("<rect") == 2 * 2 * there
    # A second seed does not stretch the bars: they go between means over seeds.
    last, other = next(row for row in rows if row["arm"] == "vp3"), [(0.25, 0.75)] * len(dataset.classes)
    again = {**last, "seed": 1, "invariance_error": {"on": other, "off": other}}
    panel = errors([*rows, again], dataset.classes).panels[0]
    assert isinstance(panel, BarPanel)
    for name, (low, high) in zip(panel.classes, panel.series[-1].ends, strict=True):
        own = last["invariance_error"]["on"][dataset.classes.index(name)] or (0.25, 0.75)
        assert (low, high) == pytest.approx(((own[0] + 0.25) / 2, (own[1] + 0.75) / 2))
