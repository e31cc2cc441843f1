"""table-relaxed: every way is what it says, at as many parameters, and can be trained and measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from test_reproduce import tiny_data
from vpgcnn.kernels import Projected, Relaxed, Siren, SirenKernel
from vpgcnn.lab.experiments import registry, relaxed, runner
from vpgcnn.lab.experiments.base import Experiment
from vpgcnn.lab.networks import SE2Config, build, count_parameters
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import Full, Mixture, Shared, Variational

CHANNELS = {"mnist67-180": (1, 3), "mnist-multiple": (1, 10), "gtsrb-mirror": (3, 43), "gtsrb-colors": (3, 9)}


@pytest.mark.parametrize("task", relaxed.TASKS)
def test_all_ways_have_as_many_parameters(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SirenKernel, "_gain", lambda _: 1.0)  # takes long, and does not change the count
    experiment = relaxed.EXPERIMENTS[task]
    counts = {}
    for arm in experiment.arms_of("cpu"):
        config = experiment.config(arm, 0, "cpu")
        counts[arm] = count_parameters(build(config.model, *CHANNELS[task]))
        assert config.epochs == experiment.config("variational", 0, "cpu").epochs
    middle = (min(counts.values()) + max(counts.values())) / 2
    for arm, count in counts.items():
        assert count == pytest.approx(middle, rel=0.1), (arm, counts)


def test_the_ways_are_what_they_say() -> None:
    digits, mirror = relaxed.EXPERIMENTS["mnist67-180"], relaxed.EXPERIMENTS["gtsrb-mirror"]
    assert "mixture" in digits.arms
    assert "mixture" not in mirror.arms
    assert "augerino" in digits.arms
    assert "augerino" not in mirror.arms
    for way, kind in (("metaaugment", "reweighted"), ("autoaugment", "autoaugment")):
        config = digits.config(way, 0, "cpu")
        assert config.augmenter.kind == kind
        assert config.model == digits.config("t2", 0, "cpu").model
        assert way not in mirror.arms
    assert digits.config("metaaugment", 0, "cpu").augmenter.initial == 1.0  # any rotation
    assert not {"rpp-wide", "ace-wide", "per-wide"} & set(digits.arms_of("cpu"))
    level = digits.config("mixture", 0, "cpu").model.level
    assert isinstance(level, Variational)
    assert isinstance(level.family, Mixture)
    assert isinstance(digits.config("shared", 0, "cpu").model.level, Shared)
    for task, group in (("mnist67-180", "Rotations(n=4)"), ("gtsrb-colors", "Product")):
        model = relaxed.EXPERIMENTS[task].config("per", 0, "cpu").model
        assert isinstance(model.kernel, Projected)
        assert str(model.group).startswith(group)
        assert isinstance(model.level, Full)
    kernel = digits.config("relaxed-per-image", 0, "cpu").model.kernel
    assert kernel == Relaxed(2, of=Siren(omega=4.0), per_image=True)


def tiny(experiment: Experiment, arms: list[str]) -> Experiment:
    def small(arm: str) -> object:
        def change(config: TrainConfig) -> TrainConfig:
            config = experiment.arm(arm)(config)
            assert isinstance(config.model, SE2Config)
            model = replace(config.model, widths=(2,) * len(config.model.widths))
            return replace(config, model=model, epochs=1, batch_size=4, device="cpu")

        return change

    return replace(experiment, arms={arm: replace(experiment.arm(arm), change=small(arm)) for arm in arms}, seeds=(0,))


def test_ways_are_trained_and_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpgcnn.lab.training.loop.load", tiny_data)
    monkeypatch.setattr(runner, "load", tiny_data)
    places = runner.Places(tmp_path / "runs", tmp_path / "results", {}, Quiet())
    chosen = {
        "relaxed-gtsrb-mirror": ["variational", "per"],
        "relaxed-mnist-multiple": ["relaxed-per-image", "mixture", "metaaugment", "autoaugment"],
    }
    experiments = {name: tiny(registry.EXPERIMENTS[name], arms) for name, arms in chosen.items()}
    view = replace(relaxed.VIEW, sources={name: tuple(arms) for name, arms in chosen.items()})
    found = runner.run(view, places, preset="cpu", experiments={**registry.EXPERIMENTS, **experiments})
    text = found.with_suffix(".md").read_text()
    for name in ("**variational**", "per", "relaxed-per-image", "mixture", "metaaugment", "autoaugment"):
        assert f"| {name} |" in text
