"""The experiments on hue on a tiny setting: their numbers against closed forms, and what they write."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vpgcnn import Full, Variational
from vpgcnn.lab.data import Split, load
from vpgcnn.lab.experiments import hue, registry, runner
from vpgcnn.lab.experiments.base import Arm
from vpgcnn.lab.networks import ColorConfig, to_unit
from vpgcnn.lab.report.chart import BarPanel
from vpgcnn.lab.report.colors import confidence, errors, windows
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.loop import make_card
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.recipes import recipe


def test_errors_and_confidence_by_class() -> None:
    """Two images of class 0 and one of class 1, whose probabilities are known at every shift."""
    moved = torch.zeros(12, 3, 3, dtype=torch.float64)
    moved[..., 0] = 1
    moved[4, 0] = torch.tensor([0.5, 0.5, 0.0])  # within Hue(3): moves by a half
    moved[1, 1] = torch.tensor([0.8, 0.0, 0.2])  # outside: by a fifth
    labels = torch.tensor([0, 0, 1])
    found = hue._errors(moved, labels, 3, 3)
    assert found == {"on": [[0.0, 0.5], [0.0, 0.0], None], "off": [[0.0, 0.2], [0.0, 0.0], None]}
    curves = hue._by_class(moved, labels, 3)
    assert curves[0] == [1, 0.9, 1, 1, 0.75, 1, 1, 1, 1, 1, 1, 1]
    assert curves[1] == [0.0] * 12
    assert curves[2] is None


def test_the_color_experiment_on_a_few_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hue, "ORBIT_IMAGES", 60)
    chosen = registry.EXPERIMENTS["table-colormnist"]

    def small(config: TrainConfig) -> TrainConfig:
        assert isinstance(config.model, ColorConfig)
        data, model = replace(config.data, source="embedded", limit=96), replace(config.model, width=3)
        return replace(config, epochs=1, batch_size=32, data=data, model=model)

    def quick_arm(arm: Arm, seeds: tuple[int, ...] | None) -> Arm:
        return replace(arm, change=lambda config: small(arm(config)), seeds=seeds, keep_curves=True)

    fewer = {"cnn-19k": (0,), "ce6": (1,), "vp6": (1,), "ce3-plain": (0,)}
    kept = ("cnn-19k", "ce3", "vp3", "ce6", "vp6", "ce3-plain")
    arms = {name: quick_arm(chosen.arm(name), fewer.get(name)) for name in kept}
    quick = replace(chosen, arms=arms, seeds=(0, 1))
    places = runner.Places(tmp_path / "runs", tmp_path / "results", {}, Quiet())
    target = runner.run(quick, places, preset="cpu", arms=list(arms))
    rows = json.loads(target.read_text())["rows"]
    assert {(row["arm"], row["seed"]) for row in rows} == {(arm, s) for arm in arms for s in quick.seeds_of(arm)}
    assert all(row["config"]["data"]["seed"] == row["seed"] for row in rows)
    for row in rows:
        assert len(row["shifted_linear"]) == len(row["shifted_hsv"]) == 12
        assert row["scores"]["accuracy"] == pytest.approx(row["test"]["accuracy"], abs=1e-4)
        assert row["scores"]["nll"] == pytest.approx(row["test"]["nll"], abs=1e-3)
        assert set(row["theta"]) == ({"conv6", "conv7"} if row["arm"].startswith("vp") else set())
        assert len(row["confidence_hsv"]) == len(row["invariance_error"]["on"]) == 30
        assert all(low <= high for low, high in row["invariance_error"]["off"])
    # A third of the circle is an exact permutation for both kinds of shift.
    assert all(row["shifted_linear"][4] == pytest.approx(row["shifted_hsv"][4], abs=0.02) for row in rows)
    text = target.with_suffix(".md").read_text()
    assert "Differences on equal seeds:" in text
    assert "\n- vp3 − ce3: " in text
    assert all(f"\n| {arm} |" in text for arm in arms)


def test_single_flowers_are_followed_and_drawn(garden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six flowers, of two classes that are shown: their curves are those of the network, and the figures show them."""
    pytest.importorskip("matplotlib")
    from vpgcnn.lab.report.static import to_svg

    config = recipe("flowers102")
    config = replace(config, data=replace(config.data, size=32), model=replace(config.model, width=6))
    dataset = load(config.data, garden)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    dataset = replace(dataset, test=Split(images, dataset.test.labels.repeat(4)))
    shown = tuple(dataset.classes[int(label)] for label in dataset.test.labels.unique())
    monkeypatch.setattr(hue, "SHOWN", {"flowers102": shown})
    rows = []
    for arm, level in (("vp3", Variational()), ("ce3", Full())):
        chosen = replace(config, model=replace(config.model, level=level))
        card = make_card(chosen, dataset)
        torch.manual_seed(0)
        model = card.build().eval()
        row = {"arm": arm, "seed": 0, **hue.measure_colors(model, card, dataset, Quiet())}
        rows.append(row)
        assert [example["class"] for example in row["examples"]] == list(shown)
        first = row["examples"][0]
        label = dataset.classes.index(shown[0])
        image = dataset.test.images[dataset.test.labels == label][:1]
        as_it_is = model(to_unit(image))[0].softmax(1)[0, label].item()
        assert first["shifts"][12] == 0
        assert first["confidence"][0][12] == pytest.approx(as_it_is, abs=1e-4)
        assert first["confidence"][0][0] == pytest.approx(first["confidence"][0][-1], abs=1e-3)  # half way round
        assert bool(first["theta"]) == bool(row["theta_by_class"]) == ("accuracy_at_theta_one" in row) == (arm == "vp3")
    drawn = to_svg(confidence(rows))
    assert all(f">{name}: confidence" in drawn for name in shown)
    panels = windows(rows, dataset.classes, count=1).panels
    assert [panel.title.split(" windows (mean θ")[0] for panel in panels] == ["Narrowest", "Widest"]
    there = int(dataset.test.labels.unique().numel())
    bars = [panel for panel in errors(rows, dataset.classes).panels if isinstance(panel, BarPanel)]
    assert [len(panel.classes) for panel in bars] == [there, there]  # on and off the group
    assert all(len(series.ends) == there for panel in bars for series in panel.series)
    assert [len(panel.series) for panel in bars] == [2, 2]  # two networks
    # A second seed does not stretch the bars: they go between means over seeds.
    last, other = next(row for row in rows if row["arm"] == "vp3"), [(0.25, 0.75)] * len(dataset.classes)
    again = {**last, "seed": 1, "invariance_error": {"on": other, "off": other}}
    panel = errors([*rows, again], dataset.classes).panels[0]
    assert isinstance(panel, BarPanel)
    for name, (low, high) in zip(panel.classes, panel.series[-1].ends, strict=True):
        own = last["invariance_error"]["on"][dataset.classes.index(name)] or (0.25, 0.75)
        assert (low, high) == pytest.approx(((own[0] + 0.25) / 2, (own[1] + 0.75) / 2))
